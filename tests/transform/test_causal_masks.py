"""Causal masks found by their values, and groups of attention that compute them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiled_graphs import Array, check, f32, function, module
from tilewright.graph.node import GraphBuilder, Value, walk_nodes
from tilewright.graph.ops import Binary, Constant, Contract, Fused, Iota, Select, Softmax, constant
from tilewright.ir import dtypes
from tilewright.transform.causal_masks import LOW, Triangle, causal_masks, triangle
from tilewright.transform.fuse import fuse

F32 = dtypes.float32
SEEN = np.arange(12) <= np.arange(9)[:, None] + 3


def added(low: float, seen: float = 0.0) -> Array:
    return np.where(SEEN, np.float32(seen), np.float32(low))


def attention(mask: Array, inverted: bool = False, low: float = -np.inf, other: bool = False):  # type: ignore[no-untyped-def]
    types = [f32(2, 9, 8), f32(2, 12, 8), f32(2, 12, 8), *([f32(12)] if other else [])]

    def body(g: GraphBuilder, q: Value, k: Value, v: Value, *padding: Value) -> list[Value]:
        scores = g.one(Binary("mul"), g.one(Contract("bsd,btd->bst", F32), q, k), g.one(constant(np.float32(0.5))))
        for bias in padding:
            scores = g.one(Binary("add"), scores, bias)
        c = g.one(constant(mask))
        number = g.one(constant(np.float32(low)))
        if mask.dtype == bool:
            scores = g.one(Select(), c, *((number, scores) if inverted else (scores, number)))
        else:
            scores = g.one(Binary("add"), scores, c)
        return [g.one(Contract("bst,bte->bse", F32), g.one(Softmax(-1), scores), v)]

    return types, body


def softmax_input(types, body) -> Value:  # type: ignore[no-untyped-def]
    changed = causal_masks(function("p", types, body))
    (softmax,) = {node for node in walk_nodes(changed.results) if isinstance(node.op, Softmax)}
    value: Value = softmax.inputs[0]
    return value


def test_triangles_are_found_by_value() -> None:
    assert triangle(added(-1e9)) == Triangle(3, 0.0, np.float32(-1e9))
    assert triangle(SEEN[None, None]) == Triangle(3, 1.0, 0.0)
    assert triangle(~SEEN) == Triangle(3, 0.0, 1.0)
    nearly = SEEN.copy()
    nearly[4, 0] = False
    for other in (nearly, SEEN.astype(np.int64), np.ones((4, 4), bool), np.tril(np.ones((4, 4), bool), -1), np.stack([SEEN, SEEN])):
        assert triangle(other) is None


@pytest.mark.parametrize("low", [-np.inf, -1e9, float(np.finfo(np.float32).min), LOW])
def test_low_numbers_after_the_diagonal_become_a_condition(low: float) -> None:
    chosen = [attention(SEEN, low=low), attention(~SEEN, True, low)] if low > -np.inf else []
    for case in (attention(added(low)), attention(added(low, 0.25)), *chosen):
        value = softmax_input(*case)
        assert isinstance(value.op, Select)
        condition, _, other = value.node.inputs
        assert isinstance(condition.op, Constant)
        assert isinstance(other.op, Constant)
        assert (condition.op.data.array.reshape(SEEN.shape) == SEEN).all()
        assert float(other.op.data.array) == -np.inf


def test_what_might_count_stays() -> None:
    assert isinstance(softmax_input(*attention(added(-1e4))).op, Binary)  # scores may be that far apart
    assert isinstance(softmax_input(*attention(added(-1e9), other=True)).op, Binary)  # a padded row may be as low
    assert isinstance(softmax_input(*attention(added(-np.inf), other=True)).op, Select)


@pytest.mark.parametrize("mask", [added(-1e9), added(-np.inf), SEEN, ~SEEN], ids=["low", "infinite", "bool", "inverted"])
def test_groups_compute_masks_and_results_stay(mask: Array) -> None:
    types, body = attention(mask, inverted=bool(mask.dtype == bool and not mask[0, 0]))
    rng = np.random.default_rng(0)
    check(module(types, body), [rng.standard_normal([int(d.value) for d in t.shape]).astype(np.float32) for t in types])
    fused = fuse(causal_masks(function("p", types, body)))
    (group,) = {node for node in walk_nodes(fused.results) if isinstance(node.op, Fused)}
    inside = list(walk_nodes(group.op.body.results))  # type: ignore[attr-defined]
    assert any(isinstance(node.op, Iota) for node in inside)
    assert len(group.inputs) == 3
