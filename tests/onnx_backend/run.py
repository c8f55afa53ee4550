"""Run the ONNX backend suite: `python -m tests.onnx_backend.run [--kind node] [--only GLOB] [--variant symbolic] [--write]`.

`--write` puts results into the lists and the summary beside this file; without a selection it makes them anew.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
from collections import Counter
from collections.abc import Sequence

from tests.onnx_backend.cases import KINDS, load_cases
from tests.onnx_backend.records import keep
from tests.onnx_backend.suite import OUTCOMES, VARIANTS, Result, run_suite


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.onnx_backend.run", description="The ONNX backend suite on compiled code.")
    parser.add_argument("--kind", action="append", choices=KINDS, help="only this kind of cases; may be given several times")
    parser.add_argument("--only", action="append", help="only cases whose name matches this glob")
    parser.add_argument("--every", type=int, default=1, help="only every Nth case")
    parser.add_argument("--variant", action="append", choices=VARIANTS, help="dims as the suite has them (default), or symbolic")
    parser.add_argument("--opt-level", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="put the results into the stored lists and summary")
    parser.add_argument("--slow", action="store_true", help="list the slowest cases")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    chosen = arguments(argv)
    cases = load_cases(chosen.kind or KINDS)
    keys = list(cases)
    if chosen.only:
        keys = [key for key in keys if any(fnmatch.fnmatch(key.split("/", 1)[1], glob) for glob in chosen.only)]
    keys = keys[:: chosen.every]

    def watch(result: Result) -> None:
        if result.outcome not in ("pass", "same"):
            print(f"{result.variant:8} {result.outcome:11} {result.case}  {result.reason}", flush=True)

    variants = chosen.variant or ["static"]
    results = run_suite(keys, variants, chosen.workers, {"opt_level": chosen.opt_level}, watch)
    if chosen.slow:
        for result in sorted(results, key=lambda r: -r.seconds)[:20]:
            print(f"{result.seconds:8.2f} s  {result.case}")
    for variant in variants:
        report(variant, [result for result in results if result.variant == variant and result.outcome != "same"])
    if chosen.write:
        keep(results, load_cases())
    return 0


def report(variant: str, results: Sequence[Result]) -> None:
    for kind in dict.fromkeys(result.case.split("/")[0] for result in results):
        of_kind = [result for result in results if result.case.startswith(f"{kind}/")]
        counts = Counter(result.outcome for result in of_kind)
        shown = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome])
        seconds = sum(result.seconds for result in of_kind)
        print(f"{kind}, {variant}: {counts['pass'] / len(of_kind):.1%} of {len(of_kind)} pass ({shown}); {seconds:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
