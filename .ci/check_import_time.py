"""`import tilewright` stays below its budget, and importing it brings in none of the heavy libraries.

The best of several fresh processes is compared: everything above it is the machine's noise.
"""

import subprocess
import sys

BUDGET_S = 0.3
RUNS = 7
HEAVY = ("llvmlite", "onnx", "onnxruntime", "rich", "typer", "z3")
PROGRAM = f"""
import sys, time
start = time.perf_counter()
import tilewright
print(time.perf_counter() - start, *(name for name in {HEAVY!r} if name in sys.modules))
"""


def main() -> int:
    best, loaded = float("inf"), []
    for _ in range(RUNS):
        seconds, *loaded = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout.split()
        best = min(best, float(seconds))
    print(f"import tilewright: {best * 1000:.0f} ms of {BUDGET_S * 1000:.0f} ms")
    if loaded:
        print(f"it loads {', '.join(loaded)}, which belong to the functions that use them")
    return int(best > BUDGET_S or bool(loaded))


if __name__ == "__main__":
    sys.exit(main())
