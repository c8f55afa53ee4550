"""What the expansions promise. The documentation's table is made from here, and the tests hold every function to it."""

from __future__ import annotations

MAX_ULP: dict[str, tuple[float, float]] = {
    "exp": (1.5, 1.5),
    "exp_nonpositive": (1.5, 1.5),
    "exp2": (1.5, 1.5),
    "expm1": (2.0, 2.0),
    "sigmoid": (2.5, 2.5),
    "tanh": (2.0, 2.5),
    "erf": (2.0, 2.5),
    "log": (1.5, 1.5),
    "log2": (1.5, 1.5),
    "log1p": (2.0, 2.0),
    "pow": (1.0, 2.0),
    "rsqrt": (1.5, 1.5),
    "sin": (2.5, 2.5),
    "cos": (2.5, 2.5),
    "tan": (4.0, 4.0),
    "asin": (2.5, 2.5),
    "acos": (1.5, 1.5),
    "atan": (2.0, 2.0),
    "atan2": (2.0, 2.0),
    "sinh": (2.5, 3.0),
    "cosh": (2.0, 2.0),
    "asinh": (2.0, 2.0),
    "acosh": (3.0, 3.0),
    "atanh": (2.5, 2.5),
}
"""Function -> greatest error in units of the last place of the exact result, for float32 and float64; subnormal results count in units
of the smallest subnormal. See NOTES for limits."""

PERIODIC_LIMITS: tuple[float, float] = (1e6, 1e15)
"""sin, cos and tan keep MAX_ULP for arguments up to these magnitudes, for float32 and float64."""

NOTES: dict[str, str] = {
    "exp": "subnormal results are computed",
    "exp_nonpositive": "of arguments up to 0; results that would be nearly subnormal are 0",
    "exp2": "subnormal results are computed",
    "sigmoid": "results that would be subnormal may be 0",
    "pow": "float32: results that float32 can hold are exact; special cases as in C's annex F",
    "rsqrt": "1 / sqrt(x)",
    "sin": "for magnitudes up to 1e6 (float32) and 1e15 (float64); beyond, some number in [-1, 1]",
    "cos": "as sin",
    "tan": "as sin; beyond, some number or an infinity",
    "atan2": "special cases as in C's annex F; results that would be subnormal may be off by one unit",
}
