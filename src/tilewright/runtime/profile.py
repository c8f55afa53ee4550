"""Profiles: where the time of an inference goes, kernel by kernel, and how far each is from the machine's limit.

    profile = exe.profile(x)
    print(profile)                      # a table
    Path("p.html").write_text(profile.html())

Needs nothing but the artifact: its manifest says what each kernel must compute and move, as formulas of the sizes. Peaks are those that
`tilewright doctor --measure` has stored for this machine, else those that the artifact was compiled with.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from tilewright.runtime.formula import Formula
from tilewright.runtime.instrument import Recording
from tilewright.runtime.roofline import NAMES, Cost, Roofs, limit, roofs
from tilewright.support.errors import ArtifactError, InputError
from tilewright.support.host_limits import usable_cores
from tilewright.support.measurements import cpu_model, measured

if TYPE_CHECKING:
    from tilewright.runtime.executable import Executable

WARM_UP = 2  # inferences before anything is recorded


@dataclass(frozen=True, slots=True)
class KernelProfile:
    """One launch of the plan, per inference. number: in program order. origins: the model's nodes that it computes. calls: how often it
    ran. median, minimum: seconds. cost: its work at the sizes of this run. limit: seconds that the machine needs at least; binding: what
    sets that limit, `compute` or a level of memory."""

    number: int
    symbol: str
    origins: tuple[str, ...]
    calls: int
    median: float
    minimum: float
    cost: Cost
    limit: float
    binding: str

    @property
    def gflops(self) -> float:
        """Operations per nanosecond, at the median."""
        return self.cost.operations / self.median / 1e9 if self.median else 0.0

    @property
    def intensity(self) -> float:
        """Operations per byte moved."""
        return self.cost.operations / self.cost.moved if self.cost.moved else 0.0

    @property
    def share(self) -> float:
        """Part of the binding limit that is reached; above 1 where an algorithm needs less than the definition says."""
        return self.limit / self.median if self.median else 0.0

    @property
    def name(self) -> str:
        """The symbol without the hash."""
        return self.symbol.removeprefix("tw_").rpartition("_")[0] or self.symbol

    def to_json(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "symbol": self.symbol,
            "nodes": list(self.origins),
            "calls": self.calls,
            "median_seconds": self.median,
            "min_seconds": self.minimum,
            "operations": self.cost.operations,
            "multiply_adds": dict(self.cost.multiply_adds),
            "bytes": self.cost.moved,
            "constant_bytes": self.cost.constant,
            "intensity": self.intensity,
            "gflops": self.gflops,
            "limit_seconds": self.limit,
            "binding": self.binding,
            "share_of_limit": self.share,
        }


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile of `repeat` inferences. total: median seconds of the native call; plain: the same without clocks around kernels; python:
    what the call from Python adds. timeline: (number of the kernel, begin, end) in the inference of median length, in seconds."""

    model: str
    target: str
    sizes: Mapping[str, int]
    repeat: int
    roofs: Roofs
    total: float
    plain: float
    python: float
    kernels: tuple[KernelProfile, ...]
    timeline: tuple[tuple[int, float, float], ...]

    @property
    def in_kernels(self) -> float:
        """Seconds in kernels, the sum of medians."""
        return sum(kernel.median for kernel in self.kernels)

    @property
    def outside(self) -> float:
        """Part of the native call that no kernel accounts for: copies, sizes, calls."""
        return max(0.0, 1 - self.in_kernels / self.total) if self.total else 0.0

    @property
    def limit(self) -> float:
        """Seconds that the machine needs for all kernels at least."""
        return sum(kernel.limit for kernel in self.kernels)

    def slowest(self) -> list[KernelProfile]:
        """Kernels by their time, longest first."""
        return sorted(self.kernels, key=lambda kernel: (-kernel.median, kernel.number))

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "model": self.model,
            "target": self.target,
            "sizes": dict(self.sizes),
            "repeat": self.repeat,
            "machine": self.roofs.to_json(),
            "total_seconds": self.total,
            "plain_seconds": self.plain,
            "python_seconds": self.python,
            "kernel_seconds": self.in_kernels,
            "outside_share": self.outside,
            "limit_seconds": self.limit,
            "operations": sum(kernel.cost.operations for kernel in self.kernels),
            "kernels": [kernel.to_json() for kernel in self.kernels],
            "layers": [{"layer": name, **asdict(layer)} for name, layer in self.layers().items()],
        }

    def layers(self) -> dict[str, Layer]:
        """Sums over kernels by the operator and, where node names have paths, by the path of their first node; longest first."""
        sums: dict[str, Layer] = {}
        for kernel in self.kernels:
            name, work = layer_name(kernel.origins), kernel.cost.operations
            old = sums.get(name, Layer(0, 0.0, 0.0, 0))
            sums[name] = Layer(old.kernels + 1, old.seconds + kernel.median, old.limit + kernel.limit, old.operations + work)
        return dict(sorted(sums.items(), key=lambda item: -item[1].seconds))

    def chrome_trace(self) -> dict[str, Any]:
        """The timeline in the trace event format that chrome://tracing and Perfetto open, for `json.dump`."""
        by_number = {kernel.number: kernel for kernel in self.kernels}
        common = {"ph": "X", "pid": 1, "tid": 1}
        events: list[dict[str, Any]] = [
            {"ph": "M", "pid": 1, "tid": 1, "name": "process_name", "args": {"name": f"{self.model}, {self.roofs.threads} threads"}},
            {"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": "inference"}},
        ]
        if self.timeline:
            end = max(end for _, _, end in self.timeline)
            events.append({**common, "name": "inference", "cat": "inference", "ts": 0, "dur": max(end, self.total) * 1e6})
        for number, begin, end in self.timeline:
            kernel = by_number[number]
            args = {"nodes": ", ".join(kernel.origins), "bound by": NAMES[kernel.binding], "share of limit": round(kernel.share, 3)}
            args |= {"operations": kernel.cost.operations, "bytes": kernel.cost.moved}
            events.append({**common, "name": kernel.name, "cat": "kernel", "ts": begin * 1e6, "dur": (end - begin) * 1e6, "args": args})
        return {"traceEvents": events, "displayTimeUnit": "ns"}

    def html(self) -> str:
        """A page with roofline picture, tables and timeline; one file that needs nothing else."""
        from tilewright.runtime.profile_page import page

        return page(self)

    def __str__(self) -> str:
        lines = [f"{self.model}: {self.total * 1e3:.3f} ms with {self.roofs.threads} threads, {self.outside:.1%} of it outside of kernels"]
        for kernel in self.slowest():
            of, nodes = f"{kernel.share:5.0%} of {NAMES[kernel.binding]}", ", ".join(kernel.origins) or kernel.name
            lines.append(f"{kernel.median * 1e3:9.3f} ms  {kernel.gflops:8.1f} GFLOP/s  {of:<19}  {nodes}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Layer:
    """A group of kernels: how many, their median seconds, their limit in seconds, their operations."""

    kernels: int
    seconds: float
    limit: float
    operations: int


def layer_name(origins: Sequence[str]) -> str:
    """What a kernel belongs to: the path of its first node's name, as `/encoder/layer.0`, or else that node's operator."""
    if not origins:
        return "made by the compiler"
    operator, _, name = origins[0].partition(" node ")
    path = name.strip("'").rpartition("/")[0]
    return path or operator


@dataclass(slots=True)
class Stopwatch:
    """An entry function and how long its latest call took, in seconds."""

    entry: Callable[..., int]
    seconds: float = 0.0

    def __call__(self, *arguments: Any) -> int:
        begin = time.perf_counter()
        answer = self.entry(*arguments)
        self.seconds = time.perf_counter() - begin
        return answer


def measure(executable: Executable, inputs: Mapping[str, Any], repeat: int = 20) -> Profile:
    """The profile of an executable for inputs by name. Raises InputError as running does, and for `repeat` below 1; ArtifactError for an
    artifact of a version that did not say what its kernels do."""
    if repeat < 1:
        raise InputError(f"a profile of {repeat} inferences says nothing", hint="repeat is 1 or more")
    manifest = executable.manifest
    if any("work" not in entry for entry in manifest["kernels"]):
        raise ArtifactError("the artifact does not say what its kernels do", hint="compile the model again")
    recorder = executable.recorder()
    for _ in range(WARM_UP):
        executable.record(inputs, recorder)
    stopwatch = Stopwatch(executable.entry)
    records: list[Recording] = []
    plain: list[float] = []
    around: list[float] = []
    for _ in range(repeat):
        begin = time.perf_counter()
        executable.record(inputs, stopwatch)
        around.append(time.perf_counter() - begin - stopwatch.seconds)
        plain.append(stopwatch.seconds)
        executable.record(inputs, recorder)
        records.append(recorder.last)
    sizes = {size.name: value for size, value in zip(executable.sizes, records[-1].sizes, strict=True)}
    memory = executable.memory(**sizes)
    machine = roofs_of(manifest["target"], executable.threads)
    kernels = tuple(kernel_profiles(manifest["kernels"], records, sizes, machine, sum(memory.values())))
    middle = sorted(records, key=lambda record: record.total)[len(records) // 2]
    return Profile(
        model=str(manifest.get("model", {}).get("source", "")) or "model",
        target=str(manifest["target"]["name"]),
        sizes=sizes,
        repeat=repeat,
        roofs=machine,
        total=median(record.total for record in records),
        plain=median(plain),
        python=median(around),
        kernels=kernels,
        timeline=tuple(zip(middle.launches, middle.begins, middle.ends, strict=True)),
    )


def kernel_profiles(
    entries: Sequence[Mapping[str, Any]], records: Sequence[Recording], sizes: Mapping[str, int], machine: Roofs, footprint: int
) -> list[KernelProfile]:
    """A profile of each launch that ran, in program order."""
    seconds: dict[int, list[float]] = {}
    calls: dict[int, int] = {}
    for position, record in enumerate(records):
        for number, begin, end in zip(record.launches, record.begins, record.ends, strict=True):
            per_run = seconds.setdefault(number, [0.0] * len(records))
            per_run[position] += end - begin
            calls[number] = calls.get(number, 0) + 1
    found = []
    for number, per_run in sorted(seconds.items()):
        entry = entries[number]
        times = max(1, round(calls[number] / len(records)))
        once = cost_of(entry["work"], sizes)
        bound = limit(once, machine, footprint, times)
        found.append(
            KernelProfile(
                number=number,
                symbol=str(entry["symbol"]),
                origins=tuple(map(str, entry["origins"])),
                calls=times,
                median=median(per_run),
                minimum=min(per_run),
                cost=times_over(once, times),
                limit=bound.seconds,
                binding=bound.binding,
            )
        )
    return found


def times_over(cost: Cost, times: int) -> Cost:
    """The work of several launches."""
    return Cost(
        operations=cost.operations * times,
        multiply_adds={kind: count * times for kind, count in cost.multiply_adds.items()},
        other=cost.other * times,
        moved=cost.moved * times,
        constant=cost.constant * times,
    )


def cost_of(work: Mapping[str, Any], sizes: Mapping[str, int]) -> Cost:
    """The work of one launch at these sizes."""

    def at(text: Any) -> int:
        return max(0, Formula(str(text))(sizes))

    return Cost(
        operations=at(work["operations"]),
        multiply_adds={str(kind): at(text) for kind, text in work["multiply_adds"].items()},
        other=at(work["other"]),
        moved=at(work["read"]) + at(work["written"]),
        constant=at(work["constant"]),
    )


def roofs_of(target: Mapping[str, Any], threads: int) -> Roofs:
    """The roofs of this machine for so many threads: as measured here, else as the target's description estimates."""
    caches = {str(level): int(size) for level, size in target["caches"].items()}
    cores = usable_cores()
    here = measured(cpu_model(), cores)
    if here is not None:
        return roofs(caches, here["one"], here["all"], cores, threads, True)
    peaks = target["peaks"]
    return roofs(caches, peaks["one"], peaks["all"], int(target["cores"]), threads, bool(peaks["measured"]))
