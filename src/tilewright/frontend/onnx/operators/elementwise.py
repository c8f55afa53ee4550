"""Importers of elementwise operators: arithmetic, comparisons, logic, bits, rounding, casts."""

from __future__ import annotations

import numpy as np

from tilewright.frontend.onnx.context import Importer, NodeContext, Table
from tilewright.frontend.onnx.loader import DTYPES
from tilewright.graph.node import Value
from tilewright.graph.ops import Bitcast, BroadcastTo, Cast
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.support.errors import ModelError


def unary(fn: str) -> Importer:
    return lambda ctx: ctx.unary(fn, ctx.input(0))


def binary(fn: str) -> Importer:
    return lambda ctx: ctx.binary(fn, ctx.input(0), ctx.input(1))


def variadic(fn: str) -> Importer:
    def importer(ctx: NodeContext) -> Value:
        return folded(ctx, fn)

    return importer


def folded(ctx: NodeContext, fn: str) -> Value:
    """All inputs combined from left to right."""
    result = ctx.input(0)
    for index in range(1, len(ctx.inputs)):
        result = ctx.binary(fn, result, ctx.input(index))
    return result


def mean(ctx: NodeContext) -> Value:
    total = folded(ctx, "add")
    return total if len(ctx.inputs) == 1 else ctx.binary("div", total, float(len(ctx.inputs)))


def power(ctx: NodeContext) -> Value:
    """Pow gives the base's dtype. Constant exponents that multiplications or roots express become those."""
    base, exponent = ctx.input(0), ctx.input(1)
    simple = _simple_power(ctx, base, exponent)
    if simple is not None:
        return simple
    dtype = base.type.dtype
    if dtype.is_integer and exponent.type.dtype.is_float:
        wide = ctx.binary("pow", ctx.cast(base, dtypes.float64), ctx.cast(exponent, dtypes.float64))
        return ctx.cast(wide, dtype)
    return ctx.binary("pow", base, ctx.cast(exponent, dtype))


def _simple_power(ctx: NodeContext, base: Value, exponent: Value) -> Value | None:
    known = ctx.constant_of(1)
    if known is None or known.size != 1 or exponent.type.rank > base.type.rank:
        return None
    number = float(known.reshape(-1)[0])
    if number in (1.0, 2.0, 3.0, 4.0):
        square = ctx.binary("mul", base, base) if number > 1 else base
        return {1.0: base, 2.0: square}.get(number) or ctx.binary("mul", square, base if number == 3.0 else square)
    if not base.type.dtype.is_float:
        return None
    fn = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}.get(number)
    return ctx.unary(fn, base) if fn else None


def modulo(ctx: NodeContext) -> Value:
    a, b = ctx.input(0), ctx.input(1)
    return ctx.binary("fmod" if ctx.attribute("fmod", 0) else "floormod", a, b)


def bit_shift(ctx: NodeContext) -> Value:
    direction = ctx.require("direction")
    if direction not in ("LEFT", "RIGHT"):
        raise ModelError(f"BitShift has the direction '{direction}'", where=ctx.where, why="it is LEFT or RIGHT")
    return ctx.binary("shl" if direction == "LEFT" else "shr", ctx.input(0), ctx.input(1))


def clip(ctx: NodeContext) -> Value:
    """Bounds are attributes before opset 11, then optional inputs."""
    result = ctx.input(0)
    if ctx.version < 11:
        lo, hi = ctx.attribute("min"), ctx.attribute("max")
        bounds = [None if b is None else ctx.scalar_like(b, result) for b in (lo, hi)]
    else:
        bounds = [None if (b := ctx.optional(i)) is None else ctx.number(b) for i in (1, 2)]
    for fn, bound in zip(("max", "min"), bounds, strict=True):
        if bound is not None:
            result = ctx.binary(fn, result, bound)
    return result


def is_inf(ctx: NodeContext) -> Value:
    x = ctx.input(0)
    negative, positive = bool(ctx.attribute("detect_negative", 1)), bool(ctx.attribute("detect_positive", 1))
    if negative and positive:
        return ctx.unary("isinf", x)
    if not x.type.dtype.has_infinity or not (negative or positive):
        return ctx.broadcast(ctx.constant(False), x.shape)
    return ctx.binary("equal", x, np.inf if positive else -np.inf)


def is_nan(ctx: NodeContext) -> Value:
    return ctx.unary("isnan", ctx.input(0))


def where(ctx: NodeContext) -> Value:
    return ctx.select(ctx.input(0), ctx.input(1), ctx.input(2))


def logical(fn: str) -> Importer:
    return lambda ctx: ctx.binary(fn, ctx.input(0), ctx.input(1))


def absolute(ctx: NodeContext) -> Value:
    x = ctx.input(0)
    return x if x.type.dtype.kind == "uint" else ctx.unary("abs", x)


def rounding(fn: str) -> Importer:
    """Floor, Ceil, Round: integers stay as they are."""
    return lambda ctx: ctx.unary(fn, ctx.input(0)) if ctx.input(0).type.dtype.is_float else ctx.input(0)


def cast(ctx: NodeContext) -> Value:
    return _cast(ctx, ctx.dtype_attribute("to"))


def cast_like(ctx: NodeContext) -> Value:
    return _cast(ctx, ctx.input(1).type.dtype)


def _cast(ctx: NodeContext, dtype: DType) -> Value:
    x, saturate = ctx.input(0), bool(ctx.attribute("saturate", 1))
    if x.type.dtype is dtype:
        return x
    if dtype is dtypes.float8e8m0 and x.type.dtype.is_float:
        return _power_of_two(ctx, x, ctx.attribute("round_mode", "up"), saturate)
    return ctx.one(Cast(dtype, saturate), x)


def _power_of_two(ctx: NodeContext, x: Value, mode: str, saturate: bool) -> Value:
    """A float as the 8-bit exponent alone, by arithmetic on the bits of its float32: rounding is a carry from the mantissa."""
    carry = {"up": (1 << 23) - 1, "down": 0, "nearest": 1 << 22}.get(mode)
    if carry is None:
        raise ModelError(f"{ctx.op_type} has the round_mode '{mode}'", where=ctx.where, why="it is up, down or nearest")
    wide = ctx.cast(x, dtypes.float32)
    bits = ctx.binary("bitwise_and", ctx.one(Bitcast(dtypes.int32), wide), 0x7FFFFFFF)
    exponent = ctx.binary("shr", ctx.binary("add", bits, carry), 23)
    exponent = ctx.binary("min", exponent, 254 if saturate else 255)
    exponent = ctx.select(ctx.unary("isnan", wide), ctx.scalar_like(255, exponent), exponent)
    return ctx.one(Bitcast(dtypes.float8e8m0), ctx.cast(exponent, dtypes.uint8))


def bit_cast(ctx: NodeContext) -> Value:
    x, dtype = ctx.input(0), DTYPES[ctx.require("to")]
    return x if x.type.dtype is dtype else ctx.one(Bitcast(dtype), x)


def equal(ctx: NodeContext) -> Value:
    """Strings are compared at compile time when both sides are constants."""
    a, b = ctx.input(0), ctx.input(1)
    if a.type.dtype is dtypes.string:
        x, y = ctx.require_constant(0, "string"), ctx.require_constant(1, "string")
        return ctx.constant(np.asarray(x == y, np.bool_))
    return ctx.binary("equal", a, b)


def ones_like(ctx: NodeContext, value: Value) -> Value:
    """A bool tensor of the value's shape, all true."""
    return ctx.one(BroadcastTo(value.shape), ctx.constant(True)) if value.shape != () else ctx.constant(True)


UNARY_FUNCTIONS = {
    "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh", "Atan": "atan", "Atanh": "atanh",
    "BitwiseNot": "bitwise_not", "Cos": "cos", "Cosh": "cosh", "Erf": "erf", "Exp": "exp", "Log": "log", "Neg": "neg", "Not": "not",
    "Reciprocal": "reciprocal", "Sigmoid": "sigmoid", "Sign": "sign", "Sin": "sin", "Sinh": "sinh", "Sqrt": "sqrt", "Tan": "tan",
    "Tanh": "tanh",
}  # fmt: skip
BINARY_FUNCTIONS = {
    "Add": "add", "And": "and", "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor", "Div": "div",
    "Greater": "greater", "GreaterOrEqual": "greater_equal", "Less": "less", "LessOrEqual": "less_equal", "Mul": "mul", "Or": "or",
    "Sub": "sub", "Xor": "xor",
}  # fmt: skip

IMPORTERS: Table = {
    **{("", name): unary(fn) for name, fn in UNARY_FUNCTIONS.items()},
    **{("", name): binary(fn) for name, fn in BINARY_FUNCTIONS.items()},
    ("", "Sum"): variadic("add"),
    ("", "Max"): variadic("max"),
    ("", "Min"): variadic("min"),
    ("", "Mean"): mean,
    ("", "Abs"): absolute,
    ("", "Ceil"): rounding("ceil"),
    ("", "Floor"): rounding("floor"),
    ("", "Round"): rounding("round"),
    ("", "Pow"): power,
    ("", "Mod"): modulo,
    ("", "BitShift"): bit_shift,
    ("", "BitCast"): bit_cast,
    ("", "Clip"): clip,
    ("", "Equal"): equal,
    ("", "IsInf"): is_inf,
    ("", "IsNaN"): is_nan,
    ("", "Where"): where,
    ("", "Cast"): cast,
    ("", "CastLike"): cast_like,
}
