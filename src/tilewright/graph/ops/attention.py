"""Scaled dot-product attention (Vaswani et al., "Attention is all you need", 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.graph.node import GraphBuilder, Operator, Value
from tilewright.graph.ops.compose import binary, cast, reshape, scalar, select, unary
from tilewright.graph.ops.contraction import Contract
from tilewright.graph.ops.elementwise import expect_inputs, expect_kind, expect_one_dtype
from tilewright.graph.ops.movement import Repeat
from tilewright.graph.ops.scalars import BOOL, FLOAT, arithmetic_dtype
from tilewright.graph.ops.softmax import Softmax
from tilewright.graph.ops.source import Iota, SizeValue
from tilewright.graph.shapes import broadcast_shapes, dims_equal, format_shape, shapes_equal
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, const
from tilewright.ir.types import Shape, TensorType
from tilewright.support.errors import TypeRuleError

NONE = const(0)


def shared_heads(queries: Shape, keys: Shape) -> int:
    """How many heads of q share one of k: 1 where the heads are as many, 0 where they do not fit."""
    if len(queries) < 3 or not shapes_equal(queries[:-3], keys[:-3]) or not (queries[-3].is_const and keys[-3].is_const):
        return 1 if shapes_equal(queries[:-2], keys[:-2]) else 0
    own, shared = int(queries[-3].value), int(keys[-3].value)
    return own // shared if shared and own % shared == 0 else 0


@dataclass(frozen=True, slots=True, eq=False)
class Attention(Operator):
    """softmax(cap(q k^T * scale) + mask) v for q [..., S, D], k [..., T, D], v [..., T, E]. The mask, if there is one, broadcasts to
    [..., S, T]: floats are added, bool keeps the scores where true. `causal` keeps key positions up to the query's own, which is
    counted from `past`. A query that may see nothing gives NaN. `cap`: softcap * tanh(x / softcap), where that is not 0. k and v may
    have fewer heads, counted by the axis before the last two: then several heads of q share one."""

    name: ClassVar[str] = "attention"
    scale: float
    causal: bool
    softcap: float = 0.0
    past: Expr = NONE

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("attention", inputs, 3, 4)
        q, k, v = inputs[:3]
        dtype = expect_one_dtype("attention", inputs[:3])
        expect_kind("attention", dtype, FLOAT)
        fits = (
            q.rank == k.rank == v.rank >= 2
            and (shapes_equal(q.shape[:-2], k.shape[:-2]) or shared_heads(q.shape, k.shape) > 1)
            and shapes_equal(k.shape[:-1], v.shape[:-1])
            and dims_equal(q.shape[-1], k.shape[-1])
        )
        if not fits:
            listed = ", ".join(format_shape(t.shape) for t in (q, k, v))
            raise TypeRuleError(
                f"attention: query, key and value have the shapes {listed}", why="[..,S,D], [..,T,D] and [..,T,E] would fit"
            )
        if len(inputs) == 4:
            expect_kind("attention: the mask", inputs[3].dtype, FLOAT | BOOL)
            scores = (*q.shape[:-1], k.shape[-2])
            if not shapes_equal(broadcast_shapes(scores, inputs[3].shape, operator="attention mask"), scores):
                raise TypeRuleError(
                    f"attention: the mask {format_shape(inputs[3].shape)} does not broadcast to the scores {format_shape(scores)}"
                )
        return (TensorType(dtype, (*q.shape[:-1], v.shape[-1])),)

    def decompose(self, g: GraphBuilder, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        q, k, v = inputs[:3]
        dtype = q.type.dtype
        wide = arithmetic_dtype(dtype)
        batch = "abcdefgh"[: q.type.rank - 2]
        if (shared := shared_heads(q.shape, k.shape)) > 1:
            k, v = (g.one(Repeat(-3, shared), x) for x in (k, v))
        scores = g.one(Contract(f"{batch}sz,{batch}tz->{batch}st", wide), q, k)
        if self.softcap:
            capped = unary(g, "tanh", binary(g, "mul", scores, self.scale / self.softcap))
            scores = binary(g, "mul", capped, self.softcap)
        else:
            scores = binary(g, "mul", scores, self.scale)
        if len(inputs) == 4:
            mask = inputs[3]
            if mask.type.dtype is dtypes.bool_:
                scores = select(g, mask, scores, scalar(g, -float("inf"), wide))
            else:
                scores = binary(g, "add", scores, cast(g, mask, wide))
        if self.causal:
            query = reshape(g, g.one(Iota(q.shape[-2], dtypes.int64)), (q.shape[-2], const(1)))
            if self.past is not NONE:
                query = binary(g, "add", query, g.one(SizeValue(self.past)))
            key = g.one(Iota(k.shape[-2], dtypes.int64))
            scores = select(g, binary(g, "less_equal", key, query), scores, scalar(g, -float("inf"), wide))
        weights = cast(g, g.one(Softmax(-1), scores), dtype)
        return (g.one(Contract(f"{batch}st,{batch}ty->{batch}sy", dtype), weights, v),)
