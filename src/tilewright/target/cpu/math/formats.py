"""What the expansions know of float32 and float64, and the building blocks they share.

`Format.round_magic` is 1.5 * 2^mantissa: adding it to a number below 2^(mantissa - 1) rounds to the nearest integer, which then stands in
the low bits of the sum. That costs one addition, needs no conversion to integers, and has no undefined case.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, add, binary, bitcast, call, const, less, neg, select
from tilewright.ir.scalar_ops import Op
from tilewright.target.cpu.math.coefficients import FLOAT32, FLOAT64


@dataclass(frozen=True, slots=True)
class Format:
    """A float format: `word` is the unsigned integer of its width, `mantissa` its stored mantissa bits, `table` its coefficients.

    exp_low, exp_high: arguments at and past which exp is 0 and infinity. unit_high: from there on x + 1 is x.
    """

    dtype: DType
    word: DType
    mantissa: int
    bias: int
    table: dict[str, tuple[float, ...]]
    exp_low: float
    exp_high: float
    unit_high: float

    @property
    def round_magic(self) -> float:
        return 1.5 * 2.0**self.mantissa

    @property
    def smallest_normal(self) -> float:
        return 2.0 ** (1 - self.bias)

    def number(self, value: float) -> Expr:
        return const(value, self.dtype)

    def bits(self, value: int) -> Expr:
        return const(value, self.word)

    def part(self, name: str, index: int = 0) -> float:
        """One of the three floats of a constant."""
        return self.table[name][index]


SINGLE = Format(dtypes.float32, dtypes.uint32, 23, 127, FLOAT32, exp_low=-104.0, exp_high=89.0, unit_high=2.0**26)
DOUBLE = Format(dtypes.float64, dtypes.uint64, 52, 1023, FLOAT64, exp_low=-746.0, exp_high=710.0, unit_high=2.0**55)
FORMATS: dict[DType, Format] = {dtypes.float32: SINGLE, dtypes.float64: DOUBLE}


def fma(a: Expr, b: Expr | float, c: Expr | float) -> Expr:
    """a * b + c, rounded once."""
    return call("fma", a, b if isinstance(b, Expr) else const(b, a.dtype), c if isinstance(c, Expr) else const(c, a.dtype))


def magnitude(x: Expr) -> Expr:
    return call("abs", x)


def with_sign_of(x: Expr, sign: Expr) -> Expr:
    return call("copysign", x, sign)


def at_most(x: Expr, bound: float) -> Expr:
    """min(x, bound) with NaN for NaN, in the form that is one instruction on x86 (`minimum` takes four)."""
    return select(less(const(bound, x.dtype), x), const(bound, x.dtype), x)


def at_least(x: Expr, bound: float) -> Expr:
    return select(less(x, const(bound, x.dtype)), const(bound, x.dtype), x)


def horner(x: Expr, coefficients: tuple[float, ...], last: Expr | None = None) -> Expr:
    """sum c_k x^k, lowest order first. Loops over vectors have parallelism of their own, so the form with the fewest operations is best.
    `last`: added as the coefficient of order -1, that is, times x and then added to."""
    result = const(coefficients[-1], x.dtype)
    for coefficient in reversed(coefficients[:-1]):
        result = fma(result, x, coefficient)
    return result if last is None else fma(result, x, last)


def scaled(coefficients: tuple[float, ...], first: float, ratio: float) -> tuple[float, ...]:
    """Coefficients of first * p(ratio * x), for powers of two (and -1): exact."""
    return tuple(c * first * ratio**k for k, c in enumerate(coefficients))


def word_of(fmt: Format, x: Expr) -> Expr:
    return bitcast(fmt.word, x)


def float_of(fmt: Format, x: Expr) -> Expr:
    return bitcast(fmt.dtype, x)


def shift_left(x: Expr, count: int) -> Expr:
    return binary(Op.SHL, x, count)


def shift_right(x: Expr, count: int) -> Expr:
    """Zeros come in from the left: words are unsigned."""
    return binary(Op.SHR, x, count)


def two_sum(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """a + b as the rounded sum and its error (Dekker 1971), where the exponent of a is not below that of b, or a = 0."""
    total = add(a, b)
    return total, b - (total - a)


def two_product(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """a * b as the rounded product and its error. The product is written as a fused operation, so that a code generator which contracts
    a * b + c leaves it rounded."""
    product = fma(a, b, -0.0)
    return product, fma(a, b, neg(product))
