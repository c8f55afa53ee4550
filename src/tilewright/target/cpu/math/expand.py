"""Expands calls of elementary functions into primitive operations, which every code generator vectorises like other arithmetic."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, call, cast, const, div
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import transform
from tilewright.kernel.nodes import Stmt, map_stmt
from tilewright.kernel.scalars import INTRINSIC_VALUES
from tilewright.target.cpu.math import exponential, inverse_trigonometric, logarithm, power, trigonometric
from tilewright.target.cpu.math.formats import FORMATS, Format

Expansion = Callable[..., Expr]


def _rsqrt(fmt: Format, x: Expr) -> Expr:
    return div(const(1.0, fmt.dtype), call("sqrt", x))


EXPANSIONS: dict[str, Expansion] = {
    "exp": exponential.exp,
    "exp_nonpositive": exponential.exp_nonpositive,
    "exp2": exponential.exp2,
    "expm1": exponential.expm1,
    "sigmoid": exponential.sigmoid,
    "tanh": exponential.tanh,
    "sinh": exponential.sinh,
    "cosh": exponential.cosh,
    "erf": exponential.erf,
    "log": logarithm.log,
    "log2": logarithm.log2,
    "log1p": logarithm.log1p,
    "asinh": logarithm.asinh,
    "acosh": logarithm.acosh,
    "atanh": logarithm.atanh,
    "sin": trigonometric.sin,
    "cos": trigonometric.cos,
    "tan": trigonometric.tan,
    "asin": inverse_trigonometric.asin,
    "acos": inverse_trigonometric.acos,
    "atan": inverse_trigonometric.atan,
    "atan2": inverse_trigonometric.atan2,
    "pow": power.power,
    "rsqrt": _rsqrt,
}


def expand_call(e: Expr) -> Expr | None:
    """The expansion of one call, or None if `e` is not a call that is expanded. Constants are folded; narrow floats go through float32."""
    if e.op is not Op.CALL or e.attr not in EXPANSIONS:
        return None
    if all(a.is_const for a in e.args):
        return const(INTRINSIC_VALUES[e.attr](*(a.value for a in e.args)), e.dtype)
    fmt = FORMATS.get(e.dtype)
    if fmt is None:
        return cast(e.dtype, EXPANSIONS[e.attr](FORMATS[dtypes.float32], *(cast(dtypes.float32, a) for a in e.args)))
    return EXPANSIONS[e.attr](fmt, *e.args)


def expand_math(e: Expr, memo: dict[Expr, Expr] | None = None) -> Expr:
    """`e` with every call of EXPANSIONS expanded. Pass one `memo` for all expressions of a kernel to share the work."""
    return transform(e, expand_call, memo)


def expand_math_in(stmt: Stmt) -> Stmt:
    """A statement with the calls in all its expressions expanded; equal calls share one expansion."""
    memo: dict[Expr, Expr] = {}

    def on_expr(e: Expr) -> Expr:
        return expand_math(e, memo)

    def on_stmt(inner: Stmt) -> Stmt:
        return map_stmt(inner, on_stmt, on_expr)

    return on_stmt(stmt)
