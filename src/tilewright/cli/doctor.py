"""tilewright doctor: the machine as the compiler sees it, and whether the installation works."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.answer import Answer, command
from tilewright.cli.options import Debug, Json
from tilewright.cli.tables import facts, size_text, table, time_text

if TYPE_CHECKING:
    from rich.console import Console

    from tilewright.machine.description import Machine

FAILED = 1


@command
def doctor(
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure peaks and bandwidths of this machine, and keep them for compiling and profiling.")
    ] = False,
    json: Json = False,
    debug: Debug = False,
) -> Answer:
    """Show machine, versions, settings and cache.

    Also compiles and runs a small kernel. Exit code 1 when that fails.
    """
    from tilewright.cli.reproduction import versions
    from tilewright.machine.cpus import CPUS
    from tilewright.support.settings import current_settings

    settings = current_settings()
    works = trial()
    kept = keep_measurement(settings.progress) if measure else None
    data: dict[str, Any] = {
        "works": works,
        "machine": machine_data(),
        "peaks": peaks_data(),
        "measured_now": kept,
        "limits": limits_data(),
        "versions": {**versions(), "llvm": llvm_version()},
        "peers": {name: versions().get(name) for name in ("onnxruntime", "openvino")},
        "settings": settings_data(),
        "cache": cache_data(settings.cache, settings.cache_dir),
        "targets": sorted(CPUS),
    }
    return Answer(data, lambda console: show(console, data), 0 if works["ok"] else FAILED)


def machine_data() -> dict[str, Any]:
    """The machine at hand."""
    from tilewright.machine.detect import detect_host
    from tilewright.support.measurements import cpu_model

    machine: Machine = detect_host()
    caches = {"l1d": machine.l1d, "l2": machine.l2, "l3": machine.l3}
    return {
        "model": cpu_model(),
        "name": machine.name,
        "arch": machine.arch,
        "triple": machine.triple,
        "vector_bits": machine.vector_bits,
        "vector_registers": machine.vector_registers,
        "cores": machine.cores,
        "caches": {name: None if level is None else {"bytes": level.size, "shared_by": level.shared_by} for name, level in caches.items()},
        "features": sorted(machine.isa),
    }


def keep_measurement(progress: str) -> str:
    """Measure this machine and keep what was found; the file."""
    from tilewright.machine.detect import detect_host
    from tilewright.support.measurements import cpu_model, keep_measured
    from tilewright.support.progress import make_progress
    from tilewright.target.cpu.measure import measure

    machine = detect_host()
    path = keep_measured(cpu_model(), machine.cores, measure(machine, make_progress(progress)).to_json())
    detect_host.cache_clear()
    return str(path)


def peaks_data() -> dict[str, Any]:
    """What one core and all cores of the machine at hand can do: as measured, or as estimated."""
    from dataclasses import asdict

    from tilewright.machine.description import estimated_peaks, fork_us, peaks_together
    from tilewright.machine.detect import detect_host
    from tilewright.support.measurements import cpu_model, measured, measurements_path

    machine = detect_host()
    found = measured(cpu_model(), machine.cores) is not None
    return {
        "measured": found and machine.peaks is not None,
        "file": str(measurements_path()),
        "one_core": asdict(estimated_peaks(machine)),
        "all_cores": asdict(peaks_together(machine)),
        "fork_us": fork_us(machine),
    }


def limits_data() -> dict[str, Any]:
    """What this process may use."""
    from tilewright.support.host_limits import allowed_processors, cpu_quota, usable_cores, usable_memory

    return {
        "threads": usable_cores(),
        "processors": sorted(allowed_processors()),
        "cpu_quota": cpu_quota(),
        "memory_bytes": usable_memory(),
    }


def llvm_version() -> str:
    import llvmlite.binding as llvm

    return ".".join(map(str, llvm.llvm_version_info))


def settings_data() -> list[dict[str, Any]]:
    """Every setting, its value and where it comes from."""
    from tilewright.support.settings import current_settings, settings_table

    settings = current_settings()
    return [
        {"name": row.name, "value": getattr(settings, row.name), "from": row.environment if row.environment in os.environ else "default"}
        for row in settings_table()
    ]


def cache_data(enabled: bool, folder: Any) -> dict[str, Any]:
    """The cache: where it is, what is in it, whether it can be written."""
    from tilewright.support.cache import Cache, default_cache_dir

    root = folder or default_cache_dir()
    existing = next(path for path in (root, *root.absolute().parents) if path.exists())
    stats = Cache(root, 0).stats()
    return {
        "enabled": enabled,
        "folder": str(root),
        "entries": stats.entries,
        "bytes": stats.size,
        "writable": os.access(existing, os.W_OK),
    }


def trial() -> dict[str, Any]:
    """Compile and run y = 2x + 1 on a few numbers."""
    start = time.perf_counter()
    try:
        compiled_right = run_kernel()
    except Exception as error:  # whatever it is, the person who asks the doctor wants to read it, not to lose the rest of the answer
        return {"ok": False, "seconds": time.perf_counter() - start, "error": f"{type(error).__name__}: {error}"}
    error_text = None if compiled_right else "the kernel ran and gave wrong results"
    return {"ok": compiled_right, "seconds": time.perf_counter() - start, "error": error_text}


def run_kernel() -> bool:
    import numpy as np

    from tilewright.compiler import compile_module
    from tilewright.graph.node import Function, GraphBuilder, Module, Parameter
    from tilewright.graph.ops import Binary, constant
    from tilewright.ir import dtypes
    from tilewright.ir.expr import size
    from tilewright.ir.types import tensor
    from tilewright.machine.detect import detect_host
    from tilewright.runtime.executable import Executable
    from tilewright.support.settings import current_settings

    g = GraphBuilder()
    x = g.one(Parameter("x", tensor(dtypes.float32, (size("n"),))))
    two, one = (g.one(constant(np.float32(number))) for number in (2, 1))
    y = g.one(Binary("add"), g.one(Binary("mul"), x, two), one)
    module = Module({"main": Function("main", (x,), (y,))}, "main", ("x",), ("y",))
    executable = Executable(compile_module(module, detect_host(), current_settings()).artifact)
    numbers = np.arange(37, dtype=np.float32)
    return bool(np.array_equal(executable(numbers), numbers * 2 + 1))


def show(console: Console, data: dict[str, Any]) -> None:
    machine, limits, cache, works = data["machine"], data["limits"], data["cache"], data["works"]
    caches = ", ".join(f"{name} {size_text(level['bytes'])}" for name, level in machine["caches"].items() if level)
    quota = f", of which the control group grants {limits['cpu_quota']:g}" if limits["cpu_quota"] is not None else ""
    console.print("machine", style="bold")
    rows = [
        ("cpu", f"{machine['model']} ({machine['name']})"),
        ("vectors", f"{machine['vector_bits']} bits, {machine['vector_registers']} registers"),
        ("caches", caches),
        ("threads", f"{limits['threads']}, from {len(limits['processors'])} processors in the affinity mask{quota}"),
        ("memory", "unknown" if limits["memory_bytes"] is None else size_text(limits["memory_bytes"])),
        ("features", " ".join(machine["features"])),
    ]
    console.print(facts(rows))
    show_peaks(console, data["peaks"], machine["cores"])
    console.print("\nversions", style="bold")
    console.print(facts(data["versions"].items()))
    missing = [name for name, version in data["peers"].items() if version is None]
    if missing:
        console.print(f"for comparisons, not installed: {', '.join(missing)} (pip install tilewright[bench])", style="dim")
    console.print("\nsettings", style="bold")
    console.print(facts((s["name"], setting_text(s["value"], s["from"])) for s in data["settings"]))
    console.print("\ncache", style="bold")
    state = ("on" if cache["enabled"] else "off") + ("" if cache["writable"] else ", cannot be written")
    console.print(
        facts([("folder", cache["folder"]), ("state", state), ("holds", f"{cache['entries']} entries, {size_text(cache['bytes'])}")])
    )
    console.print()
    if works["ok"]:
        console.print(f"a small kernel was compiled and gave the right results ({time_text(works['seconds'])})", style="bold green")
    else:
        console.print(f"no kernel can be compiled and run: {works['error']}", style="bold red")


def show_peaks(console: Console, peaks: dict[str, Any], cores: int) -> None:
    console.print("\npeaks", style="bold")
    units = {"f32": "GFLOP/s", "bf16": "GFLOP/s", "int8": "GOP/s"}
    rows = [(name, f"{one:g}", f"{peaks['all_cores'][name]:g}", units.get(name, "GB/s")) for name, one in peaks["one_core"].items()]
    rows.append(("parallel loop", "", f"{peaks['fork_us']:g}", "µs"))
    console.print(table(("", "one core", f"{cores} cores", ""), rows, right=(1, 2)))
    if peaks["measured"]:
        console.print(f"measured, from {peaks['file']}", style="dim")
    else:
        console.print("estimated; tilewright doctor --measure measures them once and keeps them", style="dim")


def setting_text(value: object, source: str) -> str:
    return ("auto" if value is None else str(value)) + ("" if source == "default" else f"  from {source}")
