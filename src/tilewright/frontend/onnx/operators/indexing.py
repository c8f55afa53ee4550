"""Importers of gather and scatter operators."""

from __future__ import annotations

from tilewright.frontend.onnx.context import NodeContext, Table
from tilewright.graph.node import Value
from tilewright.graph.ops import Gather


def gather(ctx: NodeContext) -> Value:
    x, indices = ctx.input(0), ctx.input(1)
    return ctx.one(Gather(ctx.axis(ctx.attribute("axis", 0), x.type.rank)), x, indices)


IMPORTERS: Table = {
    ("", "Gather"): gather,
}
