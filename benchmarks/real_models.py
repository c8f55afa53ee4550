"""Compile real, trained ONNX models, run them at every listed setting of their dims, and compare with onnxruntime.

    python benchmarks/real_models.py OUT [--only id,id] [--skip-timing] [--threads N,N] [--rounds N] [--json FILE] [--markdown FILE]
        [--models-tool PATH] [--timeout SECONDS]

OUT is the folder that `real_models.py OUT` filled (its `manifest.json` lists models, inputs, dims, tolerances); `--models-tool` is that
script, whose `build_inputs` makes the inputs. Each model is compiled once, with its dims symbolic, in a process of its own, so that a
crash or an endless loop in one is a line of the table and not the end of the run. --markdown writes the times between two marks in a page.
Exit code 1 when any model fails.

Times are medians over rounds, at the default dims, in which both engines take turns; each has a process of its own, which is stopped while
the other one runs (`taking_turns.py`). `ratio` is the median over the rounds of onnxruntime's time over ours.

Tolerances of the manifest: `rtol` and `atol` as in numpy.allclose; `exact`: the share of elements that must be equal; `loose`: shapes must
be equal, and mean and standard deviation within a tenth of the standard deviation.

Some quantized models are chaotic: where a rounding to int8 falls the other way, their results go elsewhere. A result outside of the
tolerance counts as right, and is marked `unstable`, if onnxruntime's own result moves out of the tolerance when the inputs are multiplied
by 1 +- 2^-20 ... 1 +- 2^-17 (rounding errors of float32 sums), and ours is off by no more than twice what that does.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]
from benchmarks.pages import write_between_marks  # noqa: E402
from benchmarks.taking_turns import in_turns, serve  # noqa: E402

Array = np.ndarray[Any, np.dtype[Any]]
Entry = Mapping[str, Any]

COMBINATIONS = 12  # settings of several dims are all combined up to this many; beyond, one dim at a time leaves its default
TURN_SECONDS = 0.15  # of calls in a turn
PERTURBATIONS = (2.0**-20, 2.0**-19, 2.0**-18, 2.0**-17)
PERTURBED_RUNS = 8


def load_tool(path: Path) -> Any:
    """The module that fetched the models."""
    spec = importlib.util.spec_from_file_location("real_models_tool", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def settings_of(dims: Mapping[str, Sequence[int]]) -> list[dict[str, int]]:
    """The dim settings to run, the default first: all combinations where there are few, else one dim at a time."""
    combined = [dict(zip(dims, values, strict=True)) for values in itertools.product(*dims.values())]
    if len(combined) <= COMBINATIONS:
        return combined
    default = {name: values[0] for name, values in dims.items()}
    return [default, *({**default, name: value} for name, values in dims.items() for value in values[1:])]


def compare(ours: Array, theirs: Array, tol: Mapping[str, Any]) -> tuple[float, str | None]:
    """The error, as a multiple of what the tolerance allows (<= 1 is right), and what is wrong, if anything."""
    if ours.shape != theirs.shape:
        return np.inf, f"shape {list(ours.shape)} instead of {list(theirs.shape)}"
    if ours.dtype != theirs.dtype:
        return np.inf, f"dtype {ours.dtype} instead of {theirs.dtype}"
    if not ours.size:
        return 0.0, None
    if "exact" in tol or theirs.dtype.kind not in "fc":
        wrong = float(np.mean(ours != theirs))
        allowed = 1.0 - float(tol.get("exact", 1.0))
        return (wrong / allowed if allowed else wrong * ours.size), f"{wrong:.2%} of the elements differ" if wrong > allowed else None
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return np.inf, "NaN where onnxruntime has none, or the other way around"
    if tol.get("loose"):
        scale = float(np.std(b)) or 1.0
        error = max(abs(float(np.mean(a) - np.mean(b))), abs(float(np.std(a) - np.std(b)))) / (0.1 * scale)
        return error, f"mean {a.mean():.4g} and deviation {a.std():.4g}, not {b.mean():.4g} and {b.std():.4g}" if error > 1 else None
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return np.inf, "infinities differ"
    excess = np.abs(a - b)[finite] / (tol["atol"] + tol["rtol"] * np.abs(b[finite]))
    worst = float(excess.max(initial=0.0))
    if not worst <= 1:
        at = int(np.argmax(np.where(finite, np.abs(a - b) / (tol["atol"] + tol["rtol"] * np.abs(b)), 0)))
        share = float(np.mean(~(excess <= 1)))
        return worst, f"{a.flat[at]:.6g} instead of {b.flat[at]:.6g}; {share:.2%} of the elements are outside of the tolerance"
    return worst, None


def sensitivity(
    run: Callable[[dict[str, Array]], Sequence[Array]], feeds: dict[str, Array], expected: Sequence[Array], tol: Mapping[str, Any]
) -> float:
    """How far, in multiples of the tolerance, results move when float inputs change by rounding errors."""
    worst = 0.0
    for relative, seed in itertools.product(PERTURBATIONS, range(PERTURBED_RUNS)):
        rng = np.random.default_rng(seed)
        moved = {
            name: (x * (1 + rng.choice([-relative, 0, relative], x.shape))).astype(x.dtype) if x.dtype.kind == "f" else x
            for name, x in feeds.items()
        }
        worst = max(worst, *(compare(a, b, tol)[0] for a, b in zip(run(moved), expected, strict=True)))
    return worst


def open_session(path: Path, threads: int) -> Any:
    """The model in onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def worker(entry: Entry, out: Path, tool: Any, artifact: Path | None) -> dict[str, Any]:
    """Compile and compare one model; what is reported of it. artifact: where to keep what was compiled."""
    from tilewright import api
    from tilewright.support.errors import TilewrightError

    path = out / entry["file"]
    report: dict[str, Any] = {"id": entry["id"], "settings": [], "error": 0.0, "reason": None}
    begin = time.perf_counter()
    try:
        executable = api.compile(path, cache=False)
    except TilewrightError as error:
        return {**report, "reason": f"compile: {type(error).__name__}: {error}"}
    report["compile_s"] = time.perf_counter() - begin
    report["memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    report["kernels"] = len(executable.manifest["kernels"])
    if artifact is not None:
        executable.save(artifact)
    session = open_session(path, executable.threads)
    for dims in settings_of(entry["dims"]):
        feeds = tool.build_inputs(entry, str(out), seed=0, dims=dims)
        expected = session.run(None, feeds)
        row: dict[str, Any] = {"dims": dims}
        report["settings"].append(row)
        try:
            got = executable.run(feeds)
        except TilewrightError as error:
            row["reason"] = f"run: {type(error).__name__}: {error}"
            row["error"] = np.inf
        else:
            checked = [compare(ours, np.asarray(theirs), entry["tol"]) for ours, theirs in zip(got.values(), expected, strict=True)]
            row["error"] = max(error for error, _ in checked)
            row["reason"] = next((f"output {name}: {why}" for name, (_, why) in zip(got, checked, strict=True) if why is not None), None)
        if row["reason"] is not None and np.isfinite(row["error"]):
            row["moved"] = sensitivity(lambda moved: session.run(None, moved), feeds, expected, entry["tol"])
            if row["moved"] > 1 and row["error"] <= 2 * row["moved"]:
                report["unstable"] = max(report.get("unstable", 0.0), row["moved"])
                row["reason"] = None
        report["error"] = max(report["error"], row["error"])
        if row["reason"] is not None:
            report["reason"] = report["reason"] or f"{dims}: {row['reason']}"
    return report


def timed_engine(entry: Entry, out: Path, tool: Any, artifact: Path | None, threads: int) -> None:
    """Serve calls of one engine at the default dims: ours, which loads the artifact, or onnxruntime where there is none."""
    feeds = tool.build_inputs(entry, str(out), seed=0, dims=settings_of(entry["dims"])[0])
    if artifact is None:
        session = open_session(out / entry["file"], threads)
        serve(lambda: session.run(None, feeds))
        return
    import tilewright as tw

    executable = tw.load(artifact, threads=threads)
    serve(lambda: executable.run(feeds))


def measure(entry: Entry, artifact: Path, threads: int, args: argparse.Namespace) -> dict[str, float]:
    """Medians of both engines in milliseconds, and how many times faster ours is."""
    command = [*_command(entry, args), "--threads", str(threads), "--timed"]
    ours, theirs = in_turns([[*command, str(artifact)], [*command, "onnxruntime"]], args.rounds, TURN_SECONDS, args.timeout)
    ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
    return {"ours_ms": 1e3 * statistics.median(ours), "onnxruntime_ms": 1e3 * statistics.median(theirs), "ratio": ratio}


def _command(entry: Entry, args: argparse.Namespace) -> list[str]:
    return [sys.executable, __file__, str(args.out), "--worker", entry["id"], "--models-tool", str(args.models_tool)]


def run_apart(entry: Entry, args: argparse.Namespace) -> dict[str, Any]:
    """`worker` in a process of its own, and the times of what is right."""
    with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
        artifact = Path(folder) / "model.tw"
        report = _checked_apart(entry, [*_command(entry, args), *([] if args.skip_timing else ["--keep", str(artifact)])], args)
        if args.skip_timing or report["reason"] is not None:
            return report
        report["times"] = {}
        for threads in args.threads.split(","):
            try:
                report["times"][threads] = measure(entry, artifact, int(threads), args)
            except RuntimeError as error:
                return {**report, "reason": f"timing with {threads} threads: {error}"}
    return report


def _checked_apart(entry: Entry, command: Sequence[str], args: argparse.Namespace) -> dict[str, Any]:
    failed: dict[str, Any] = {"id": entry["id"], "settings": [], "error": np.inf}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=args.timeout, check=False)
    except subprocess.TimeoutExpired:
        return {**failed, "reason": f"no result after {args.timeout:.0f} s"}
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or [""]
        how = f"killed by signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        return {**failed, "reason": f"crashed ({how}): {last[0]}"}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def node_count(path: Path) -> int:
    """Nodes of a model's main graph."""
    import onnx

    return len(onnx.load(str(path), load_external_data=False).graph.node)


def line(entry: Entry, out: Path, report: Mapping[str, Any]) -> str:
    """The table's line of a model."""
    found = report.get("times", {}).values()
    times = " ".join(f"{timed['ours_ms']:9.3f} {timed['onnxruntime_ms']:9.3f} {timed['ratio']:6.2f}" for timed in found)
    compiled = f"{report['compile_s']:9.1f}" if "compile_s" in report else f"{'-':>9}"
    unstable = f"ok, but unstable: rounding errors move onnxruntime's own result by {report.get('unstable', 0):.3g} tolerances"
    state = report["reason"] or (unstable if "unstable" in report else "ok")
    return (
        f"{entry['id']:18} {node_count(out / entry['file']):5} {report.get('kernels', '-'):>7} {compiled} "
        f"{len(report['settings']):8} {report['error']:9.3g} {times}  {state}"
    )


def markdown(reports: Sequence[Mapping[str, Any]], threads: Sequence[str]) -> str:
    """The times of both engines and their ratios, a line for each model, and the means."""
    heads = [head for n in threads for head in (f"{n} thread{'s' * (n != '1')}, ms", "onnxruntime", "ratio")]
    lines = [["model", *heads], ["---"] * (len(heads) + 1)]
    for report in reports:
        cells = [report["id"]]
        for n in threads:
            timed = report.get("times", {}).get(n)
            cells += [f"{timed['ours_ms']:.3g}", f"{timed['onnxruntime_ms']:.3g}", f"{timed['ratio']:.2f}"] if timed else ["", "", ""]
        lines.append(cells)
    means = [f"**{statistics.geometric_mean(ratios):.2f}**" if (ratios := ratios_of(reports, n)) else "" for n in threads]
    lines.append(["geometric mean", *(cell for mean in means for cell in ("", "", mean))])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def ratios_of(reports: Sequence[Mapping[str, Any]], threads: str) -> list[float]:
    """How many times faster than onnxruntime each timed model is."""
    return [report["times"][threads]["ratio"] for report in reports if threads in report.get("times", {})]


def main() -> int:
    """Run the command line; answers the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="", help="ids, with commas")
    parser.add_argument("--skip-timing", action="store_true")
    parser.add_argument("--threads", default="1", help="numbers of threads to time with, with commas")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each engine")
    parser.add_argument("--json", type=Path, help="also write everything to this file")
    parser.add_argument("--markdown", type=Path, help="also write the times as a table to this file")
    parser.add_argument("--models-tool", type=Path, default=Path(__file__).resolve().parents[2] / "shared/models/real_models.py")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one model")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--keep", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--timed", help=argparse.SUPPRESS)
    args = parser.parse_args()
    models = json.loads((args.out / "manifest.json").read_text())["models"]
    if args.timed:
        artifact = None if args.timed == "onnxruntime" else Path(args.timed)
        timed_engine(models[args.worker], args.out, load_tool(args.models_tool), artifact, int(args.threads))
        return 0
    if args.worker:
        print(json.dumps(worker(models[args.worker], args.out, load_tool(args.models_tool), args.keep)))
        return 0
    chosen = [name for name in args.only.split(",") if name]
    unknown = [name for name in chosen if name not in models]
    if unknown:
        parser.error(f"unknown models: {', '.join(unknown)}")
    entries = [entry for name, entry in models.items() if entry["format"] == "onnx" and (not chosen or name in chosen)]
    timed = "" if args.skip_timing else "".join(f" {f'ours x{n}':>9} {f'ort x{n}':>9} {'ratio':>6}" for n in args.threads.split(","))
    print(f"{'model':18} {'nodes':>5} {'kernels':>7} {'compile s':>9} {'settings':>8} {'error/tol':>9}{timed}")
    reports = []
    for entry in entries:
        reports.append(run_apart(entry, args))
        print(line(entry, args.out, reports[-1]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(reports, indent=1))
    if args.markdown:
        write_between_marks(args.markdown, "real_models", markdown(reports, args.threads.split(",")))
    good = sum(report["reason"] is None for report in reports)
    unstable = sum("unstable" in report and report["reason"] is None for report in reports)
    for threads in [] if args.skip_timing else args.threads.split(","):
        if ratios := ratios_of(reports, threads):
            mean = statistics.geometric_mean(ratios)
            print(f"{threads} threads: geometric mean {mean:.2f}, least {min(ratios):.2f}, of {len(ratios)} models")
    print(f"{good} of {len(reports)} models are right" + (f", {unstable} of them unstable" if unstable else ""))
    return 0 if good == len(reports) else 1


if __name__ == "__main__":
    sys.exit(main())
