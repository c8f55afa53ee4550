"""Attention as one kernel: found through whatever masks the scores, right for all sizes, on every vector width."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tests.compiled_graphs import Array, check, compile_graph, f32, function, module
from tilewright.graph.node import GraphBuilder, Value, walk_nodes
from tilewright.graph.ops import Attention, Binary, Contract, Fused, Repeat, Select, Softmax, Transpose, Unary, constant
from tilewright.ir import dtypes
from tilewright.ir.expr import size
from tilewright.ir.traverse import evaluate_int
from tilewright.ir.types import TensorType, bind_shape, tensor
from tilewright.kernel.interpreter import interpret
from tilewright.kernel.nodes import Kernel
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.kernel.schedule.space import Space
from tilewright.machine.targets import named_machine
from tilewright.target.cpu.rules.attention_form import find_attention
from tilewright.target.cpu.rules.choose import schedule_kernel
from tilewright.target.cpu.rules.inline import inline_producers
from tilewright.transform.fuse import fuse
from tilewright.transform.lower_groups import lower_group

F32 = dtypes.float32
S, T = size("S"), size("T")
Body = Callable[..., Sequence[Value]]


def number(g: GraphBuilder, value: float) -> Value:
    return g.one(constant(np.float32(value)))


def attend(masked: Callable[..., Value], scores: str = "bhsd,bhtd->bhst", mixed: str = "bhst,bhte->bhse") -> Body:
    def body(g: GraphBuilder, q: Value, k: Value, v: Value, *masks: Value) -> Sequence[Value]:
        product = g.one(Contract(scores, F32), q, k)
        return (g.one(Contract(mixed, F32), g.one(Softmax(-1), masked(g, product, *masks)), v),)

    return body


def plain(g: GraphBuilder, x: Value) -> Value:
    return x


def scaled(g: GraphBuilder, x: Value, *biases: Value) -> Value:
    x = g.one(Binary("mul"), x, number(g, 0.25))
    for bias in biases:
        x = g.one(Binary("add"), x, bias)
    return x


def capped(g: GraphBuilder, x: Value, bias: Value) -> Value:
    return g.one(Binary("add"), g.one(Unary("tanh"), x), bias)


def chosen(g: GraphBuilder, x: Value, keep: Value) -> Value:
    return g.one(Select(), keep, scaled(g, x), number(g, -np.inf))


def heads(s: object = 7, t: object = 37, d: int = 9, e: int = 21) -> list[TensorType]:
    return [f32(2, 3, s, d), f32(2, 3, t, d), f32(2, 3, t, e)]  # type: ignore[arg-type]


def grouped(g: GraphBuilder, q: Value, k: Value, v: Value) -> Sequence[Value]:
    """Three heads of the query for each of the keys."""
    k, v = (g.one(Repeat(1, 3), x) for x in (k, v))
    return attend(scaled)(g, q, k, v)


CASES: dict[str, tuple[list[TensorType], Body]] = {
    "plain": (heads(), attend(plain)),
    "scale and bias": ([*heads(19), f32(2, 1, 1, 37)], attend(scaled)),
    "two biases": ([*heads(8, 16, 8, 16), f32(8, 16), f32(1, 3, 1, 16)], attend(scaled)),
    "soft cap": ([*heads(), f32(3, 7, 37)], attend(capped)),
    "bool mask": ([*heads(), tensor(dtypes.bool_, (2, 1, 7, 37))], attend(chosen)),
    "tokens before heads": (
        [f32(1, 18, 4, 8), f32(1, 18, 4, 8), f32(1, 18, 4, 8), f32(18, 18)],
        attend(scaled, "bshd,bthd->bhst", "bhst,bthe->bshe"),
    ),
    "keys transposed": ([f32(2, 11, 8), f32(2, 8, 33), f32(2, 33, 5)], attend(plain, "bsd,bdt->bst", "bst,bte->bse")),
    "shared keys": ([f32(2, 3, 6, 8), f32(2, 21, 8), f32(2, 21, 16)], attend(plain, "bhsd,btd->bhst", "bhst,bte->bhse")),
    "groups of heads": ([f32(2, 6, 7, 8), f32(2, 2, 21, 8), f32(2, 2, 21, 16)], grouped),
    "groups of heads, one query": ([f32(2, 6, 1, 8), f32(2, 2, T, 8), f32(2, 2, T, 16)], grouped),
    "one matrix": ([f32(9, 8), f32(20, 8), f32(20, 8)], attend(plain, "sd,td->st", "st,te->se")),
    "one query": ([f32(2, 3, 1, 64), f32(2, 3, T, 64), f32(2, 3, T, 64), f32(T)], attend(scaled)),
    "symbolic": ([*heads(S, T, 8, 8), f32(S, T)], attend(scaled)),
    "symbolic, to itself": (heads(S, S, 8, 8), attend(plain)),
    "few rows": (heads(5, 100, 16, 16), attend(plain)),
    "one key": (heads(9, 1), attend(plain)),
}
SIZES = ({S: 5, T: 40}, {S: 1, T: 1}, {S: 19, T: 131}, {S: 3, T: 0}, {S: 0, T: 3})


def kernel_of(case: str) -> Kernel:
    types, body = CASES[case]
    fused = fuse(function("p", types, body))
    (group,) = {node for node in walk_nodes(fused.results) if isinstance(node.op, Fused)}
    return lower_group(group.op.body)


def inputs_of(types: Sequence[TensorType], sizes: dict[object, int]) -> list[Array]:
    rng = np.random.default_rng(1)
    arrays = [rng.uniform(-2, 2, bind_shape(t.shape, sizes)) for t in types]  # type: ignore[arg-type]
    return [a > -1 if t.dtype is dtypes.bool_ else a.astype(t.dtype.numpy) for a, t in zip(arrays, types, strict=True)]


@pytest.mark.parametrize("case", CASES)
def test_the_blocks_are_found(case: str) -> None:
    assert find_attention(inline_producers(Schedule.of(kernel_of(case)))) is not None


@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("case", CASES)
def test_schedules_keep_results(case: str, level: str) -> None:
    kernel = kernel_of(case)
    schedule = schedule_kernel(kernel, frozenset(), named_machine(level))
    sizes = {S: 10, T: 23}
    inputs = inputs_of([TensorType(b.dtype, b.shape) for b in kernel.inputs], sizes)
    (want,), (got,) = interpret(kernel, inputs, sizes), interpret(schedule.kernel, inputs, sizes)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", ["plain", "scale and bias", "tokens before heads", "symbolic", "shared keys"])
def test_scores_are_kept_for_a_block_of_rows(case: str) -> None:
    kernel = kernel_of(case)
    space = Space()
    scheduled = schedule_kernel(kernel, frozenset(), named_machine("x86-64-v3"), space=space)
    names = {decision.name for decision in space.decisions}
    assert {"attention.rows", "attention.block"} <= names
    roots = scheduled.kernel.body.stmts if hasattr(scheduled.kernel.body, "stmts") else (scheduled.kernel.body,)
    assert all(root.kind == "parallel" for root in roots)


LONG = {
    "any length": ([f32(1, S, 12, 64)] * 3, {S: 4096}),
    "known length": ([f32(1, 4096, 12, 64)] * 3, {}),
}


@pytest.mark.parametrize("case", LONG)
def test_memory_of_long_sequences_is_that_of_a_few_rows(case: str) -> None:
    """Scores of one block of rows of each head, not of all rows: 805 MB of float32."""
    types, sizes = LONG[case]
    compiled = compile_graph(module(types, attend(scaled, "bshd,bthd->bhst", "bhst,bthe->bshe")))
    arena = evaluate_int(compiled.plan.arena_bytes, sizes)
    packed = 2 * 4096 * 12 * 64 * 4
    assert arena <= packed + 3 * 12 * 24 * 4096 * 4


def test_values_that_share_sets_of_the_cache_are_packed() -> None:
    """Keys of 12 heads of 64 lie 3 KB apart."""
    fused = fuse(function("p", [f32(1, 128, 12, 64)] * 3, attend(scaled, "bshd,bthd->bhst", "bhst,bthe->bshe")))
    (group,) = {node for node in walk_nodes(fused.results) if isinstance(node.op, Fused)}
    space = Space()
    schedule_kernel(lower_group(group.op.body), frozenset(), named_machine("x86-64-v4"), space=space)
    assert space.point()["attention.pack_values"] is True


@pytest.mark.parametrize("case", CASES)
def test_compiled(case: str) -> None:
    types, body = CASES[case]
    symbolic = any(not dim.is_const for t in types for dim in t.shape)
    check(module(types, body), *[inputs_of(types, sizes) for sizes in (SIZES if symbolic else SIZES[:1])])


@pytest.mark.parametrize(("queries", "keys", "late"), [(S, S, True), (S, S + T, True), (S, T, False), (5, T, False), (S, 9, True)])
def test_weights_are_divided_late_where_a_query_has_a_key(queries: object, keys: object, late: bool) -> None:
    """Then sums are never of nothing: no weight is stored, but in vain, to be divided."""
    fused = fuse(function("p", heads(queries, keys, 8, 8), attend(plain)))
    (group,) = {node for node in walk_nodes(fused.results) if isinstance(node.op, Fused)}
    schedule = schedule_kernel(lower_group(group.op.body), frozenset(), named_machine("x86-64-v4"))
    assert ("softmax" not in schedule.blocks()) == late


def test_rows_of_minus_infinity_give_nan_and_only_they() -> None:
    types, body = CASES["bool mask"]
    q, k, v, keep = inputs_of(types, {})
    keep[:, :, 3] = False
    keep[:, :, 5, 1:] = False
    check(module(types, body), [q, k, v, keep])


def test_low_numbers_as_masks_take_no_subnormal_ways() -> None:
    types, body = CASES["two biases"]
    q, k, v, bias, other = inputs_of(types, {})
    bias[:, 9:] = np.finfo(np.float32).min
    bias[2] = -90.0 * np.arange(16)
    check(module(types, body), [q, k, v, bias, other])


def test_strict_precision_keeps_the_order_of_sums() -> None:
    types, body = CASES["scale and bias"]
    check(module(types, body), inputs_of(types, {}), precision="strict")


@pytest.mark.parametrize("causal", [False, True])
def test_the_operator_becomes_one_kernel(causal: bool) -> None:
    types = heads(17, 17)

    def body(g: GraphBuilder, q: Value, k: Value, v: Value) -> Sequence[Value]:
        return (g.one(Transpose((0, 2, 1, 3)), g.one(Attention(0.3, causal), q, k, v)),)

    compiled = check(module(types, body), inputs_of(types, {}))
    names = [kernel["symbol"] for kernel in compiled.artifact.manifest["kernels"]]
    assert sum("softmax" in name for name in names) == 1
    assert sum("contract" in name for name in names) == 1


def test_scores_that_somebody_else_reads_stay() -> None:
    def body(g: GraphBuilder, q: Value, k: Value, v: Value) -> Sequence[Value]:
        scores = g.one(Contract("bhsd,bhtd->bhst", F32), q, k)
        weights = g.one(Softmax(-1), scores)
        return g.one(Contract("bhst,bhte->bhse", F32), weights, v), scores

    compiled = check(module(heads(), body), inputs_of(heads(), {}))
    assert len(compiled.artifact.manifest["kernels"]) == 2


def causal(diagonal: int = 0, padding: bool = False) -> Body:
    """Keys up to the query's own, `diagonal` past it; perhaps without those of a mask."""

    def masked(g: GraphBuilder, x: Value, *keep: Value) -> Value:
        rows, keys = (int(dim.value) for dim in x.shape[-2:])
        seen = g.one(constant(np.arange(keys) <= np.arange(rows)[:, None] + diagonal))
        for mask in keep:
            x = g.one(Select(), mask, x, number(g, -np.inf))
        return g.one(Select(), seen, scaled(g, x), number(g, -np.inf))

    return attend(masked)


def two(s: int, t: int, d: int = 8, e: int = 8) -> list[TensorType]:
    return [f32(1, 2, s, d), f32(1, 2, t, d), f32(1, 2, t, e)]


TILED: dict[str, tuple[list[TensorType], Body]] = {
    "plain": (two(13, 200, 5, 24), attend(scaled)),
    "whole tiles": (two(16, 128), attend(plain)),
    "causal": (two(150, 150), causal()),
    "causal, shifted": (two(30, 231, 8, 40), causal(201)),
    "causal, more queries than keys": (two(200, 150), causal()),
    "causal and a mask": ([*two(120, 170), tensor(dtypes.bool_, (1, 1, 120, 170))], causal(50, True)),
    "groups of heads": ([f32(1, 6, 9, 8), f32(1, 2, 210, 8), f32(1, 2, 210, 16)], grouped),
    "capped": ([*two(20, 140), f32(2, 20, 140)], attend(capped)),
}


def tiled(case: str, level: str) -> tuple[Kernel, Schedule, Space]:
    return in_tiles(*TILED[case], level)


def in_tiles(types: list[TensorType], body: Body, level: str) -> tuple[Kernel, Schedule, Space]:
    (group,) = {node for node in walk_nodes(fuse(function("p", types, body)).results) if isinstance(node.op, Fused)}
    kernel, space = lower_group(group.op.body), Space()
    schedule_kernel(kernel, frozenset(), named_machine(level), space=space)
    tiles = next(d for d in space.decisions if d.name == "attention.tile").options
    space = Space({"attention.tile": tiles[1]})
    return kernel, schedule_kernel(kernel, frozenset(), named_machine(level), space=space), space


@pytest.mark.parametrize(("case", "level"), [*((case, "x86-64-v4") for case in TILED), ("plain", "x86-64-v3"), ("causal", "x86-64-v3")])
def test_tiles_of_keys_keep_results(case: str, level: str) -> None:
    kernel, schedule, space = tiled(case, level)
    assert not space.given_up
    assert space.point()["attention.tile"] > 0
    inputs = inputs_of([TensorType(b.dtype, b.shape) for b in kernel.inputs], {})
    (want,), (got,) = interpret(kernel, inputs, {}), interpret(schedule.kernel, inputs, {})
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("query", range(8))
def test_the_last_key_of_a_query_may_be_the_first_of_a_tile(query: int) -> None:
    types = [f32(1, 1, 8, 2), f32(1, 1, 200, 2), f32(1, 1, 200, 3)]
    tile = in_tiles(types, causal(), "x86-64-v4")[2].point()["attention.tile"]
    assert 0 < tile < 190
    kernel, schedule, _ = in_tiles(types, causal(tile - query), "x86-64-v4")
    inputs = inputs_of(types, {})
    (want,), (got,) = interpret(kernel, inputs, {}), interpret(schedule.kernel, inputs, {})
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", TILED)
def test_tiles_of_keys_compiled(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.target.cpu.rules.attention_plan.CORRECTION", -1e9)
    types, body = TILED[case]
    check(module(types, body), inputs_of(types, {}))


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_that_see_nothing_in_their_first_tiles(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.target.cpu.rules.attention_plan.CORRECTION", -1e9)
    types, body = TILED["causal and a mask"]
    q, k, v, keep = inputs_of(types, {})
    keep[:, :, 110, :130] = False
    keep[:, :, 111] = False
    keep[:, :, 112, 100:] = False
    check(module(types, body), [q, k, v, keep], threads=threads)


def test_tiles_after_the_last_query_are_not_visited() -> None:
    """What is there makes no difference, even where it is no number."""
    kernel, schedule, _ = tiled("causal", "x86-64-v4")
    q, k, v = inputs_of([TensorType(b.dtype, b.shape) for b in kernel.inputs], {})
    (want,) = interpret(schedule.kernel, [q, k, v], {})
    k[:, :, -20:] = np.nan
    v[:, :, -20:] = np.nan
    (got,) = interpret(schedule.kernel, [q, k, v], {})
    np.testing.assert_array_equal(got[:, :, :8], want[:, :, :8])


@pytest.mark.parametrize("queries", [1, 8, 70])
def test_one_head_without_axes_before_it(queries: int) -> None:
    """Where heads are shared out whole there may be no loop to share."""
    keys = size("keys", 2, 24)
    types = [f32(queries, 4), f32(keys, 4), f32(keys, 4)]
    body = attend(plain, "sd,td->st", "st,te->se")
    check(module(types, body), *(inputs_of(types, {keys: n}) for n in (2, 24)))
