"""Fits the polynomials of `tilewright.target.cpu.math` and writes `coefficients.py`: `python tools/fit_math.py [--report]`.

Each entry of FITS asks for p(x) = sum c_k x^k on [lo, hi] that minimises the greatest |weight(x) (f(x) - p(x))|: Remez' exchange
(E. Remez, 1934; Powell, "Approximation Theory and Methods", chapter 9) on a fixed dense grid, in 200-bit arithmetic, with coefficients
then rounded to the float format. The functions are chosen such that rounding costs little: what must be exact (the 1 in
exp(r) = 1 + r + ...) is not part of the fit. Needs `mpmath`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mpmath as mp
import numpy as np

mp.mp.prec = 200
Real = mp.mpf
Function = Callable[[Real], Real]
OUTPUT = Path(__file__).resolve().parent.parent / "src" / "tilewright" / "target" / "cpu" / "math" / "coefficients.py"


@dataclass(frozen=True, slots=True)
class Fit:
    """One polynomial: what it approximates, on which interval, and its degree for float32 and float64 (None: not needed there).
    split_first: the coefficient of order 0 is written as two floats, their sum having twice the bits."""

    name: str
    text: str
    function: Function
    weight: Function
    interval: tuple[Real, Real]
    degrees: tuple[int | None, int | None]
    split_first: bool = False


def series(coefficients: Callable[[int], Real], terms: int = 40) -> Function:
    """A power series, for the functions below that are 0/0 at zero."""
    values = [Real(coefficients(k)) for k in range(terms)]
    return lambda x: mp.polyval(values[::-1], x)


def removable(function: Function, near_zero: Function, radius: float = 2.0**-8) -> Function:
    return lambda x: near_zero(x) if abs(x) < radius else function(x)


LN2 = mp.log(2)
HALF_LN2 = LN2 / 2 * Real("1.0001")
ROOT = mp.sqrt(Real("0.5"))
QUARTER_PI = mp.pi / 4 * Real("1.0001")

exp_tail = removable(lambda r: (mp.expm1(r) - r) / r**2, series(lambda k: 1 / mp.factorial(k + 2)))
exp2_slope = removable(lambda r: mp.expm1(r * LN2) / r, series(lambda k: LN2 ** (k + 1) / mp.factorial(k + 1)))
log_tail = removable(lambda f: (mp.log1p(f) - f) / f**2, series(lambda k: Real((-1) ** (k + 1)) / (k + 2)))
log2_slope = removable(lambda f: mp.log1p(f) / f / LN2, series(lambda k: Real((-1) ** k) / (k + 1) / LN2))
atanh_tail = removable(
    lambda z: (mp.atanh(mp.sqrt(z)) / mp.sqrt(z) - 1 - z / 3) / z**2, series(lambda k: Real(1) / (2 * k + 5)), radius=2.0**-4
)
sin_tail = removable(lambda z: (mp.sin(mp.sqrt(z)) / mp.sqrt(z) - 1) / z, series(lambda k: Real((-1) ** (k + 1)) / mp.factorial(2 * k + 3)))
cos_tail = removable(lambda z: (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2, series(lambda k: Real((-1) ** k) / mp.factorial(2 * k + 4)))
asin_tail = removable(
    lambda z: (mp.asin(mp.sqrt(z)) / mp.sqrt(z) - 1) / z, series(lambda k: mp.binomial(2 * k + 2, k + 1) / 4 ** (k + 1) / (2 * k + 3))
)
atan_tail = removable(lambda z: (mp.atan(mp.sqrt(z)) / mp.sqrt(z) - 1) / z, series(lambda k: Real((-1) ** (k + 1)) / (2 * k + 3)))


def erf_exponent(x: Real) -> Real:
    return mp.log(mp.erfc(x)) / x if x > mp.ldexp(1, -60) else -2 / mp.sqrt(mp.pi)


def erf_weight(x: Real) -> Real:
    """Relative error of erf for one unit of error in its exponent's slope."""
    return x * mp.erfc(x) / mp.erf(x) if x > mp.ldexp(1, -60) else mp.sqrt(mp.pi) / 2


# erf in float64: x on [0, 5.95] is mapped to t = (x - 4) / (x + 4), in which the exponent's slope is far smoother.
ERF_MAP = 4
ERF_FIRST = -2 / mp.sqrt(mp.pi)


def erf_mapped(t: Real) -> Real:
    return (erf_exponent(ERF_MAP * (1 + t) / (1 - t)) - ERF_FIRST) / (1 + t) if t > -1 else Real(0)


def erf_mapped_weight(t: Real) -> Real:
    return erf_weight(ERF_MAP * (1 + t) / (1 - t)) * (1 + t)


FITS: tuple[Fit, ...] = (
    Fit("exp", "(exp(r) - 1 - r) / r^2, relative to exp(r) - 1", exp_tail,
        lambda r: abs(r) / abs(mp.expm1(r) / r) if r else Real(0), (-HALF_LN2, HALF_LN2), (4, 10)),
    Fit("exp2", "(2^r - 1) / r, absolute in 2^r", exp2_slope, lambda r: abs(r) / Real(2) ** r, (Real(-0.5001), Real(0.5001)), (5, 11)),
    Fit("log", "(log(1 + f) - f) / f^2, relative to log(1 + f)", log_tail,
        lambda f: f**2 / abs(mp.log1p(f)) if f else Real(0), (ROOT - 1, 1 / ROOT - 1), (8, 19)),
    Fit("sin", "(sin(r)/r - 1) / z with z = r^2", sin_tail, lambda z: z, (Real(0), QUARTER_PI**2), (2, 6)),
    Fit("cos", "(cos(r) - 1 + z/2) / z^2 with z = r^2", cos_tail, lambda z: z**2 * Real(1.4), (Real(0), QUARTER_PI**2), (2, 5)),
    Fit("erf", "log(1 - erf(x)) / x, relative to erf(x)", erf_exponent, erf_weight, (Real(0), Real("3.93")), (9, None),
        split_first=True),
    Fit("erf_mapped", "(log(1 - erf(x)) / x + 2/sqrt(pi)) / (1 + t) with t = (x - 4)/(x + 4), relative to erf(x)", erf_mapped,
        erf_mapped_weight, (Real(-1), (Real("5.95") - ERF_MAP) / (Real("5.95") + ERF_MAP)), (None, 18)),
    Fit("asin", "(asin(t)/t - 1) / z with z = t^2, relative to asin(t)", asin_tail, lambda z: z / (1 + z * asin_tail(z)),
        (Real(0), Real("0.25")), (4, 11)),
    Fit("atan", "(atan(t)/t - 1) / z with z = t^2, relative to atan(t)", atan_tail, lambda z: z / (1 + z * atan_tail(z)),
        (Real(0), Real(1)), (8, 19)),
    Fit("pow_atanh", "(atanh(s)/s - 1 - z/3) / z^2 with z = s^2, relative to atanh(s), for float64's pow", atanh_tail, lambda z: z**2,
        (Real(0), ((1 - ROOT) / (1 + ROOT)) ** 2 * Real("1.0001")), (None, 8)),
    Fit("pow_log2", "log2(1 + f) / f, for float32's pow", log2_slope, lambda f: 1 / log2_slope(f), (ROOT - 1, 1 / ROOT - 1), (None, 13)),
    Fit("pow_exp2", "(2^r - 1) / r, for float32's pow", exp2_slope, lambda r: abs(r) / Real(2) ** r, (Real(-0.5001), Real(0.5001)),
        (None, 7)),
)  # fmt: skip


def grid(lo: Real, hi: Real, count: int) -> list[Real]:
    """Chebyshev's extrema: dense at the ends, where the error oscillates fastest."""
    return [(lo + hi) / 2 - (hi - lo) / 2 * mp.cos(mp.pi * k / (count - 1)) for k in range(count)]


def remez(points: list[Real], values: list[Real], weights: list[Real], degree: int) -> tuple[list[Real], Real]:
    """Coefficients of the polynomial that minimises the greatest weighted error on `points` (weights are positive), and that error."""
    size = degree + 2
    chosen = [round(k * (len(points) - 1) / (size - 1)) for k in range(size)]
    best: list[Real] = []
    worst = Real(0)
    for _ in range(30):
        matrix = mp.matrix(size, size)
        right = mp.matrix(size, 1)
        for row, i in enumerate(chosen):
            for power in range(degree + 1):
                matrix[row, power] = points[i] ** power
            matrix[row, size - 1] = (-1) ** row / weights[i]
            right[row] = values[i]
        solution = mp.lu_solve(matrix, right)
        best = [solution[k] for k in range(degree + 1)]
        level = abs(solution[size - 1])
        errors = [w * (v - mp.polyval(best[::-1], x)) for x, v, w in zip(points, values, weights)]
        worst = max(abs(e) for e in errors)
        if worst <= level * Real("1.001"):
            break
        chosen = exchange(errors, size)
    return best, worst


def exchange(errors: list[Real], size: int) -> list[int]:
    """The extrema of alternating sign, thinned to `size` by dropping the least at the ends."""
    peaks: list[int] = []
    for i, error in enumerate(errors):
        if not error:
            continue
        if peaks and (errors[peaks[-1]] > 0) == (error > 0):
            if abs(error) > abs(errors[peaks[-1]]):
                peaks[-1] = i
        else:
            peaks.append(i)
    while len(peaks) > size:
        peaks.pop(0 if abs(errors[peaks[0]]) < abs(errors[peaks[-1]]) else -1)
    if len(peaks) < size:
        raise ValueError(f"the error alternates {len(peaks)} times, {size} needed: another interval or degree")
    return peaks


def fit(entry: Fit, degree: int, dtype: type[np.floating], interval: tuple[Real, Real]) -> tuple[list[float], Real]:
    """Rounded coefficients, lowest order first, and the greatest weighted error they leave."""
    points = grid(*interval, 30 * (degree + 2))
    values = [entry.function(x) for x in points]
    weights = [entry.weight(x) for x in points]
    usable = [i for i, weight in enumerate(weights) if weight]
    best, _ = remez([points[i] for i in usable], [values[i] for i in usable], [weights[i] for i in usable], degree)
    rounded = [nearest(c, dtype) for c in best]
    if entry.split_first:
        rounded[0:1] = split(best[0], dtype, 2)
    kept = [sum(map(Real, rounded[:2])), *rounded[2:]] if entry.split_first else rounded
    return rounded, max(abs(w * (v - mp.polyval(kept[::-1], x))) for w, v, x in zip(weights, values, points))


def nearest(value: Real, dtype: type[np.floating]) -> float:
    """The nearest float of `dtype`; by way of float64 for float32, where rounding twice cannot matter to a fit."""
    return float(dtype(float(value)))


def split(value: Real, dtype: type[np.floating], parts: int, from_below: bool = False) -> list[float]:
    """`value` as a sum of floats, each the nearest to what is left, or the nearest that does not exceed it."""
    result = []
    for _ in range(parts):
        part = nearest(value, dtype)
        if from_below and part > value:
            part = float(np.nextafter(dtype(part), dtype(0)))
        result.append(part)
        value -= Real(part)
    return result


SPLITS: tuple[tuple[str, Real], ...] = (
    ("ln2", LN2), ("log2e", 1 / LN2), ("half_pi", mp.pi / 2), ("pi", mp.pi), ("two_over_pi", 2 / mp.pi),
    ("two_log2e", 2 / LN2), ("third", Real(1) / 3), ("erf_slope", ERF_FIRST),
)  # fmt: skip


def literal(value: float, dtype: type[np.floating]) -> str:
    return repr(float(f"{value:.9g}")) if dtype is np.float32 else repr(value)


def table(name: str, column: int, dtype: type[np.floating], report: bool) -> str:
    lines = [f"{name}: dict[str, tuple[float, ...]] = {{"]
    for key, value in SPLITS:
        lines.append(f'    "{key}": ({", ".join(literal(v, dtype) for v in split(value, dtype, 3))}),')
    # All parts positive, so that taking 0 * part from -0 leaves -0.
    lines.append(f'    "half_pi_parts": ({", ".join(literal(v, dtype) for v in split(mp.pi / 2, dtype, 3, from_below=True))}),')
    for entry in FITS:
        degree = entry.degrees[column]
        if degree is None:
            continue
        interval = entry.interval
        coefficients, error = fit(entry, degree, dtype, interval)
        bits = float(-mp.log(error, 2))
        if report:
            print(f"{name} {entry.name} degree {degree}: 2^-{bits:.1f}")  # noqa: T201
        lines.append(f"    # {entry.text}, on [{mp.nstr(interval[0], 5)}, {mp.nstr(interval[1], 5)}]: 2^-{bits:.1f}.")
        lines.append(f'    "{entry.name}": (')
        lines.extend(f"        {literal(c, dtype)}," for c in coefficients)
        lines.append("    ),")
    return "\n".join([*lines, "}"])


HEADER = '''"""Polynomials and constants of the elementary functions, lowest order first. Written by `tools/fit_math.py`; do not edit.

A constant is a sum of three floats, each the nearest to what those before it leave (`half_pi_parts`: not exceeding it). The bits after
each polynomial's interval are its greatest weighted error before the rounding errors of evaluation.
"""

from __future__ import annotations

'''


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report", action="store_true", help="print the error of each fit")
    arguments = parser.parse_args()
    tables = [table("FLOAT32", 0, np.float32, arguments.report), table("FLOAT64", 1, np.float64, arguments.report)]
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(HEADER + "\n\n".join(tables) + "\n")


if __name__ == "__main__":
    main()
