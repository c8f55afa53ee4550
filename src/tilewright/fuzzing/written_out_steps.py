"""Steps that grow a graph by composites as models write them out: norms, softmaxes and activations in the forms that exporters choose, over
any axes, with the numbers that make them what they are, or others."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.fuzzing.elementwise_steps import floating
from tilewright.fuzzing.generator import Known
from tilewright.fuzzing.growth import ONE, Growth, elements, never_empty
from tilewright.graph.node import Value
from tilewright.graph.ops import Binary, Cast, Reduce, Reshape, SizeValue, Unary
from tilewright.graph.shapes import element_count


def axes_of(f: Growth, rank: int) -> tuple[int, ...]:
    """One axis or more: those from one of them on, or any."""
    if f.chance(0.4):
        return tuple(range(f.whole(0, rank - 1), rank))
    return tuple(axis for axis in range(rank) if f.chance(0.5)) or (f.whole(0, rank - 1),)


def binary(f: Growth, fn: str, a: Value, b: Value | float) -> Value:
    """A number comes last, or now and then first where that is the same."""
    other = b if isinstance(b, Value) else f.number(b, a.type.dtype)
    operands = (other, a) if fn in ("add", "mul") and f.chance(0.3) else (a, other)
    return f.s.g.one(Binary(fn), *operands)


def unary(f: Growth, fn: str, x: Value) -> Value:
    return f.s.g.one(Unary(fn), x)


def reduced(f: Growth, fn: str, x: Value, axes: Sequence[int]) -> Value:
    """A reduction that keeps its axes, by itself or by a reshape."""
    if f.chance(0.8):
        return f.s.g.one(Reduce(fn, tuple(axes), True), x)
    shape = tuple(ONE if axis in axes else dim for axis, dim in enumerate(x.shape))
    return f.s.g.one(Reshape(shape), f.s.g.one(Reduce(fn, tuple(axes), False), x))


def mean(f: Growth, x: Value, axes: Sequence[int]) -> Value:
    """A sum over the number of terms, or times its inverse."""
    total, count = reduced(f, "sum", x, axes), element_count([x.shape[axis] for axis in axes])
    if not count.is_const:
        return binary(f, "div", total, f.s.g.one(Cast(x.type.dtype), f.s.g.one(SizeValue(count))))
    return binary(f, "mul", total, 1.0 / int(count.value)) if f.chance(0.4) else binary(f, "div", total, float(count.value))


def written_norm(f: Growth) -> None:
    """x, or x less its mean, over the root of the mean of its squares; the two means over the same axes, or over others."""
    x = f.pick(lambda v, known: floating(v, known) and v.type.rank >= 1 and never_empty(v) and known.bound <= 100 and elements(v) < 8000)
    if x is None:
        return
    axes, epsilon = axes_of(f, x.type.rank), f.among(0.5, 0.5, 1e-2)
    first = axes if f.chance(0.8) else axes_of(f, x.type.rank)
    d = binary(f, "sub", x, mean(f, x, first)) if f.chance(0.6) else x
    square = f.s.g.one(Binary("mul"), d, d) if f.chance(0.6) else binary(f, "pow", d, 2.0)
    spread = binary(f, "add", mean(f, square, axes), epsilon)
    form = f.among("div", "rsqrt", "reciprocal", "power")
    if form == "div":
        y = binary(f, "div", d, unary(f, "sqrt", spread))
    else:
        inverse = binary(f, "pow", spread, -0.5) if form == "power" else unary(f, "rsqrt", spread)
        inverse = unary(f, "reciprocal", unary(f, "sqrt", spread)) if form == "reciprocal" else inverse
        if f.chance(0.3):
            inverse = binary(f, "mul", inverse, parameter(f, x))
        y = f.s.g.one(Binary("mul"), *((d, inverse) if f.chance(0.7) else (inverse, d)))
    if f.chance(0.6):
        y = binary(f, "mul", y, parameter(f, x))
    if f.chance(0.6):
        y = binary(f, "add", y, parameter(f, x))
    f.s.pool[y] = Known(600.0, False)


def parameter(f: Growth, x: Value) -> Value:
    """A scale or bias along some of the axes."""
    shape = [dim if f.chance(0.5) else ONE for dim in x.shape]
    return f.operand(x.type.dtype, shape[f.whole(0, x.type.rank) :])


def written_softmax(f: Growth) -> None:
    """Shares along some axes, of powers less the greatest or not, or their logarithms."""
    x = f.pick(lambda v, known: floating(v, known) and v.type.rank >= 1 and never_empty(v) and known.bound <= 6 and elements(v) < 8000)
    if x is None:
        return
    axes = (f.whole(0, x.type.rank - 1),) if f.chance(0.7) else axes_of(f, x.type.rank)
    other = axes if f.chance(0.8) else axes_of(f, x.type.rank)
    shifted = binary(f, "sub", x, reduced(f, "max", x, other)) if f.chance(0.6) else x
    powers = unary(f, "exp", shifted)
    total = reduced(f, "sum", powers, axes)
    form = f.among("div", "reciprocal", "log", "log")
    if form == "log":
        y = unary(f, "log", binary(f, "div", powers, total)) if f.chance(0.4) else binary(f, "sub", shifted, unary(f, "log", total))
    else:
        y = binary(f, "div", powers, total) if form == "div" else binary(f, "mul", powers, unary(f, "reciprocal", total))
    f.s.pool[y] = Known(40.0, False)


def written_activation(f: Growth) -> None:
    """GELU by both of its formulas, the hard sigmoid and what it gates, softplus: right, or with one number that is not."""
    x = f.pick(lambda v, known: floating(v, known) and known.bound <= 6 and elements(v) < 8000)
    if x is None:
        return

    def near(number: float) -> float:
        return number if f.chance(0.85) else number * f.among(0.5, 2.0)

    kind = f.among("erf", "tanh", "hard", "softplus")
    if kind == "softplus":
        powers = unary(f, "exp", x)
        y = unary(f, "log1p", powers) if f.chance(0.5) else unary(f, "log", binary(f, "add", powers, near(1.0)))
    elif kind == "hard":
        inner = binary(f, "add", x, near(3.0)) if f.chance(0.5) else binary(f, "add", binary(f, "div", x, near(6.0)), near(0.5))
        whole = 6.0 if f.chance(0.5) else 1.0
        gate = binary(f, "min", binary(f, "max", inner, 0.0), near(whole))
        y = binary(f, "div", binary(f, "mul", x, gate), whole)
    else:
        cubic = binary(f, "mul", binary(f, "mul", binary(f, "mul", x, x), x), near(0.044715))
        root = math.sqrt(2.0 / math.pi)
        inner = binary(f, "mul", binary(f, "add", x, cubic), near(root)) if kind == "tanh" else binary(f, "mul", x, near(math.sqrt(0.5)))
        gate = binary(f, "add", unary(f, kind, inner), near(1.0))
        y = binary(f, "mul", binary(f, "mul", x, 0.5), gate) if f.chance(0.5) else binary(f, "mul", binary(f, "mul", x, gate), 0.5)
    f.s.pool[y] = Known(30.0, False)
