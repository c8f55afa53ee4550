"""Operator set 6: elementwise operators that broadcast only when an attribute says so, along axes that another attribute names."""

from __future__ import annotations

from tilewright.frontend.onnx.context import NodeContext
from tilewright.graph.node import Value
from tilewright.support.errors import ModelError, UnsupportedOperatorError

VERSION = 6
BROADCASTING = frozenset({"Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor"})
WITH_TEST_MODE = frozenset({"BatchNormalization", "Dropout"})
SAME_EFFECT = frozenset({"AveragePool", "Gemm"})  # an attribute came or went, but none that these models can set to something else
READ = BROADCASTING | WITH_TEST_MODE | SAME_EFFECT | {"PRelu"}


def modern_inputs(ctx: NodeContext) -> tuple[Value | None, ...]:
    """The inputs of a node of operator set 6, shaped so that the operator of set 7 does the same with them."""
    if ctx.op_type in WITH_TEST_MODE and not ctx.attribute("is_test", 0):
        raise UnsupportedOperatorError(f"{ctx.op_type} in training mode is not supported before operator set 7", where=ctx.where)
    if ctx.op_type in BROADCASTING and ctx.attribute("broadcast", 0) and ctx.attribute("axis") is not None:
        x, y = ctx.input(0), ctx.input(1)
        after = x.type.rank - ctx.axis(ctx.attribute("axis"), x.type.rank) - y.type.rank
        if after < 0:
            raise ModelError(f"{ctx.op_type}: {y.type!r} reaches past the axes of {x.type!r}", where=ctx.where)
        return (x, ctx.reshape(y, (*y.shape, *[1] * after)))
    if ctx.op_type == "PRelu" and ctx.input(1).type.rank == 1:
        slope = ctx.input(1)
        return (ctx.input(0), ctx.reshape(slope, (*slope.shape, *[1] * max(ctx.input(0).type.rank - 2, 0))))
    return ctx.inputs
