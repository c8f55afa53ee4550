"""Compare real, trained ONNX models with the reference, kernel by kernel, and with onnxruntime, at every listed setting of their dims.

    python benchmarks/real_compare.py OUT [--only id,id] [--settings N] [--verify] [--json FILE] [--markdown FILE] [--models-tool PATH]
        [--timeout SECONDS]

OUT is the folder that `real_models.py OUT` filled; `--models-tool` is that script. Each model is compiled once, with its dims symbolic, and
what `tilewright.compare` says of it is a line of the table for each setting: kernels compared, the worst error of the outputs (absolute,
relative, in units in the last place, cosine) against the reference and against onnxruntime, and the first kernel that differs, if one does.
`rounding` says that a result is beyond its tolerance because rounding errors do as much to the reference itself; then the first node from
which results are is named. --settings N takes the first N settings of each model. --verify also compiles with `verify`, and says how long
that takes and how much memory. --markdown writes a short form, one line a model, between two marks in a page. Exit code 1 when anything
differs or fails.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]
from benchmarks.pages import write_between_marks  # noqa: E402
from benchmarks.real_models import load_tool, settings_of  # noqa: E402

Entry = Mapping[str, Any]
AGAINST = ("reference", "onnxruntime")


def worker(entry: Entry, out: Path, tool: Any, most: int) -> dict[str, Any]:
    """Compile one model and compare it at up to `most` settings, printing a line of JSON after each; what is reported of it."""
    from tilewright.comparison import compare_subject, open_subject

    report: dict[str, Any] = {"id": entry["id"], "settings": []}
    begin = time.perf_counter()
    subject = open_subject(out / entry["file"])
    report["compile_s"] = time.perf_counter() - begin
    for dims in settings_of(entry["dims"])[:most]:
        feeds = tool.build_inputs(entry, str(out), seed=0, dims=dims)
        row: dict[str, Any] = {"dims": dims}
        for against in AGAINST:
            begin = time.perf_counter()
            found = compare_subject(subject, feeds, against=against, kernels=against == "reference")
            row[against] = summary(found.to_json())
            row[against]["seconds"] = time.perf_counter() - begin
        report["settings"].append(row)
        report["memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(report), flush=True)
    return report


def summary(found: Mapping[str, Any]) -> dict[str, Any]:
    """What the table needs of a comparison."""
    outputs = [row["error"] for row in found["outputs"] if row["error"] is not None]
    first = next((row for row in (*found["kernels"], *found["outputs"]) if not row["ok"]), None)
    return {
        "ok": found["ok"],
        "kernels": sum(row["error"] is not None for row in found["kernels"]),
        "not_run": sum(row["error"] is None for row in found["kernels"]),
        "kernel_relative": max((row["error"]["relative"] for row in found["kernels"] if row["error"] is not None), default=0.0),
        "kernels_by_rounding": [", ".join(row["nodes"][:2]) or row["name"] for row in found["kernels"] if row["rounding"]],
        **{what: max((error[what] for error in outputs), default=0.0) for what in ("absolute", "relative", "ulps")},
        "cosine": min((error["cosine"] for error in outputs), default=1.0),
        "rounding": any(row["rounding"] for row in found["outputs"]),
        "first": None if first is None else f"{', '.join(first['nodes'][:2]) or first['name']}: {first['wrong']}",
        "drift": found["drift"],
        "notes": found["notes"],
    }


def verify(entry: Entry, out: Path) -> dict[str, Any]:
    """Compile one model with `verify`."""
    from tilewright.api import make_artifact
    from tilewright.support.settings import Settings

    settings = Settings().changed(cache=False, progress="none", verify=True)
    begin, processor = time.perf_counter(), time.process_time()
    made = make_artifact(out / entry["file"], "cpu", None, settings)
    seconds, processor = time.perf_counter() - begin, time.process_time() - processor
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"verify_s": seconds, "processor_s": processor, "memory_mb": memory, "validated": [str(part) for part in made.validated]}


def apart(command: Sequence[str], timeout: float) -> dict[str, Any]:
    """The last report that a worker printed, and why there is no later one, if so."""
    reason = None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        text, errors = done.stdout, done.stderr
        if done.returncode:
            reason = f"exit code {done.returncode}: {' '.join(errors.strip().splitlines()[-1:])}"
    except subprocess.TimeoutExpired as stopped:
        text, reason = (stopped.stdout or b"").decode(), f"no result after {timeout:.0f} s"
    lines = [line for line in text.splitlines() if line.startswith("{")]
    report: dict[str, Any] = json.loads(lines[-1]) if lines else {"settings": []}
    return report if reason is None else {**report, "reason": reason}


def figures(found: Mapping[str, Any]) -> str:
    said = "ok" if found["ok"] and not found["rounding"] else "rounding" if found["ok"] else "DIFFERS"
    return f"{found['absolute']:8.1e} {found['relative']:8.1e} {found['ulps']:8.1e} {found['cosine']:8.6f} {said:11}"


def dims_text(dims: Mapping[str, int]) -> str:
    return " ".join(f"{name}={value}" for name, value in dims.items()) or "fixed"


def lines(report: Mapping[str, Any]) -> list[str]:
    """The table's lines of a model."""
    found = []
    for row in report["settings"]:
        reference, other = row["reference"], row["onnxruntime"]
        head = f"{report['id']:18} {dims_text(row['dims']):20} {reference['kernels']:>5}+{reference['not_run']:<3}"
        parts = [head, f"{reference['kernel_relative']:8.1e}", figures(reference), figures(other), f"{reference['seconds']:6.1f}"]
        for name in AGAINST:
            if row[name]["first"]:
                parts.append(f"first against {name}: {row[name]['first']}")
            elif row[name]["drift"] is not None and row[name]["rounding"]:
                drift = row[name]["drift"]
                nodes = ", ".join(drift["nodes"][:1]) or drift["name"]
                parts.append(f"beyond from {nodes} on ({drift['error']['relative']:.1e}, {drift['share']:.1e} of the elements)")
                break
        if reference["kernels_by_rounding"]:
            parts.append(f"rounding in {'; '.join(reference['kernels_by_rounding'][:3])}")
        found.append("  ".join(parts))
    if "reason" in report:
        found.append(f"{report['id']:18} FAILED: {report['reason']}")
    if "verify" in report:
        checked = report["verify"]
        text = str(checked.get("reason", ""))
        if not text:
            text = f"{checked['verify_s']:.1f} s, {checked['processor_s']:.1f} s of processor time, {checked['memory_mb']:.0f} MB"
            text = "; ".join([text, *checked["validated"]])
        found.append(f"{report['id']:18} verify: {text}")
    return found


def markdown(reports: Sequence[Mapping[str, Any]]) -> str:
    """One line a model: the worst over its settings."""
    measured = ["kernels, relative", "outputs, relative", "ulps", "cosine", "onnxruntime, relative", "cosine"]
    head = ["model", "settings", "kernels", *measured, "", "verified"]
    rows = [head]
    for report in reports:
        settings = report["settings"]
        if not settings:
            rows.append([report.get("id", ""), "0", *[""] * 7, report.get("reason", ""), ""])
            continue
        ours, other = [row["reference"] for row in settings], [row["onnxruntime"] for row in settings]
        wrong = any(not row["ok"] for row in (*ours, *other))
        said = "differs" if wrong else "rounding" if any(row["rounding"] for row in (*ours, *other)) else ""
        figures_ = [f"{max(row[what] for row in ours):.1e}" for what in ("kernel_relative", "relative", "ulps")]
        counts = [str(len(settings)), str(ours[0]["kernels"])]
        theirs = [f"{max(row['relative'] for row in other):.1e}", f"{min(row['cosine'] for row in other):.6f}"]
        checked = report.get("verify", {"reason": ""})
        verified = checked["reason"] if "reason" in checked else f"{'; '.join(checked['validated'])}, {checked['processor_s']:.0f} s"
        rows.append([report["id"], *counts, *figures_, f"{min(row['cosine'] for row in ours):.6f}", *theirs, said, verified])
    width = len(head) if any("verify" in report for report in reports) else len(head) - 1
    rows.insert(1, ["---"] * width)
    return "\n".join("| " + " | ".join(row[:width]) + " |" for row in rows) + "\n"


def main() -> int:
    """Run the command line; answers the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="", help="ids, with commas")
    parser.add_argument("--settings", type=int, default=100, help="settings of each model, the default first")
    parser.add_argument("--verify", action="store_true", help="also compile with `verify`")
    parser.add_argument("--json", type=Path, help="also write everything to this file")
    parser.add_argument("--markdown", type=Path, help="also write the short form to this file")
    parser.add_argument("--models-tool", type=Path, default=Path(__file__).resolve().parents[2] / "shared/models/real_models.py")
    parser.add_argument("--timeout", type=float, default=1200, help="seconds for one model")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    models = json.loads((args.out / "manifest.json").read_text())["models"]
    if args.worker:
        if args.verify:
            print(json.dumps(verify(models[args.worker], args.out)))
        else:
            worker(models[args.worker], args.out, load_tool(args.models_tool), args.settings)
        return 0
    chosen = [name for name in args.only.split(",") if name]
    unknown = [name for name in chosen if name not in models]
    if unknown:
        parser.error(f"unknown models: {', '.join(unknown)}")
    columns = [f"{'absolute':>8} {'relative':>8} {'ulps':>8} {'cosine':>8} {name:11}" for name in AGAINST]
    print("  ".join([f"{'model':18} {'dims':20} {'kernels':>9}", f"{'relative':>8}", *columns, f"{'s':>6}"]))
    reports = []
    for name, entry in models.items():
        if entry["format"] != "onnx" or (chosen and name not in chosen):
            continue
        command = [sys.executable, __file__, str(args.out), "--worker", name, "--models-tool", str(args.models_tool)]
        report: dict[str, Any] = {"id": name, "settings": []}
        if args.settings:
            report.update(apart([*command, "--settings", str(args.settings)], args.timeout))
        if args.verify:
            report["verify"] = apart([*command, "--verify"], args.timeout)
        reports.append(report)
        print("\n".join(lines(report)), flush=True)
        if args.json:
            args.json.write_text(json.dumps(reports, indent=1))
    if args.markdown:
        write_between_marks(args.markdown, "real_compare", markdown(reports))
    good = [r for r in reports if "reason" not in r and all(row[name]["ok"] for row in r["settings"] for name in AGAINST)]
    good = [r for r in good if "reason" not in r.get("verify", {})]
    print(f"{len(good)} of {len(reports)} models are right, at {sum(len(r['settings']) for r in reports)} settings")
    return 0 if len(good) == len(reports) else 1


if __name__ == "__main__":
    sys.exit(main())
