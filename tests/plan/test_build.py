"""Plans as data: what is copied, where results are written, how memory is shared."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiled_graphs import boolean, compile_graph, f32, function, i64, module
from tilewright.graph.node import Module, Origin
from tilewright.graph.ops import Binary, BindSize, BroadcastTo, Contract, If, Loop, Reduce, RefineShape, Slice, Unary, constant
from tilewright.ir import dtypes
from tilewright.ir.expr import const, size
from tilewright.ir.traverse import evaluate_int
from tilewright.ir.types import as_shape
from tilewright.plan.build import build_plan
from tilewright.plan.steps import Allocate, Bind, Branch, Check, Copy, Grow, Launch, Plan, Region, walk_steps
from tilewright.plan.steps import Loop as LoopStep
from tilewright.support.errors import TypeRuleError


def plan_of(m: Module) -> Plan:
    return compile_graph(m).plan


def kinds(plan: Plan) -> list[str]:
    return [type(step).__name__ for step in walk_steps(plan.steps)]


def test_the_last_kernel_writes_the_output() -> None:
    plan = plan_of(module([f32(4, 8)], lambda g, x: [g.one(Reduce("sum", (0,), False), x)]))
    (launch,) = plan.steps
    assert isinstance(launch, Launch)
    assert [place.region for place in launch.args[:2]] == [Region("input", 0), Region("output", 0)]
    assert plan.arena_bytes is const(0)


def test_outputs_that_are_no_kernel_results_are_copied() -> None:
    def main(g, x):
        y = g.one(Unary("neg"), x)
        return [x, y, y, g.one(constant(np.arange(3, dtype=np.float32)))]

    plan = plan_of(module([f32(3)], main))
    copies = [(s.source.region, s.target.region) for s in plan.steps if isinstance(s, Copy)]
    assert copies == [
        (Region("input", 0), Region("output", 0)),
        (Region("output", 1), Region("output", 2)),
        (Region("constant", 0), Region("output", 3)),
    ]


def test_a_chain_of_kernels_needs_two_buffers() -> None:
    def main(g, x):
        for _ in range(12):
            total = g.one(Reduce("sum", (1,), True), x)
            x = g.one(Binary("mul"), x, g.one(BroadcastTo(as_shape((16, 64))), total))
        return [x]

    plan = plan_of(module([f32(16, 64)], main))
    assert evaluate_int(plan.arena_bytes, {}) <= 2 * 16 * 64 * 4 + 64


def test_equal_constants_are_stored_once() -> None:
    def main(g, x):
        a, b = (g.one(constant(np.arange(600, dtype=np.float32))) for _ in range(2))
        return [g.one(Binary("mul"), x, a), g.one(Binary("add"), x, b)]

    assert len(plan_of(module([f32(600)], main)).constants) == 1


def test_packed_weights_are_constants_of_their_own() -> None:
    weights = np.random.default_rng(0).normal(size=(64, 96)).astype(np.float32)

    def main(g, x):
        w = g.one(constant(weights))
        return [g.one(Contract("ik,kj->ij", dtypes.float32), x, w)]

    compiled = compile_graph(module([f32(32, 64)], main))
    (constant_,) = compiled.constants
    assert constant_.array().size >= weights.size
    assert sorted(set(constant_.array().reshape(-1).tolist()) - {0.0}) == sorted(set(weights.reshape(-1).tolist()))


def test_branches_write_where_their_result_is_wanted() -> None:
    """Both sides compute into the output: nothing is copied."""
    a = function("a", [f32(8, 8)], lambda g, x: [g.one(Reduce("sum", (0,), False), x)])
    b = function("b", [f32(8, 8)], lambda g, x: [g.one(Reduce("max", (0,), False), x)])
    plan = plan_of(module([boolean(), f32(8, 8)], lambda g, c, x: g.emit(If(a, b), c, x)))
    (step,) = plan.steps
    assert isinstance(step, Branch)
    for side in (step.then, step.otherwise):
        (launch,) = side
        assert isinstance(launch, Launch)
        assert launch.args[-1].region == Region("output", 0)


def test_stacked_outputs_are_written_in_place() -> None:
    i = size("i", 0)
    body = function("body", [f32(8)], lambda g, x: [g.one(Unary("neg"), x), g.one(Unary("exp"), x)])
    plan = plan_of(module([f32(8)], lambda g, x: [g.emit(Loop(body, 1, i, const(3)), x)[1]]))
    loop = next(step for step in plan.steps if isinstance(step, LoopStep))
    targets = [step.args[-1] for step in loop.body if isinstance(step, Launch)]
    slot = next(place for place in targets if place.region == Region("output", 0))
    assert evaluate_int(slot.offset, {i: 2}) == 64


def test_sizes_of_conditional_loops_grow() -> None:
    i = size("i", 0)

    def body(g, x):
        after = g.one(Binary("add"), x, x)
        total = g.one(Reduce("sum", (0,), False), after)
        return [g.one(Binary("less"), total, g.one(constant(9.0, dtypes.float32))), after, after]

    loop = Loop(function("body", [f32(2)], body), 1, i, None, True)
    plan = plan_of(module([f32(2)], lambda g, x: [g.emit(loop, g.one(constant(True, dtypes.bool_)), x)[1]]))
    assert "Grow" in kinds(plan)
    assert plan.late_outputs == (0,)
    last = [step for step in plan.steps if isinstance(step, Allocate)]
    assert [step.arena for step in last] == [Region("output", 0)]


def test_memory_of_bound_sizes_is_allocated_after_the_bind() -> None:
    n, k = size("n", 0), size("k", 0)

    def main(g, x, count):
        g.one(BindSize(k), count)
        part = g.one(Slice((const(0),), as_shape((k,)), (1,)), x)
        return [g.one(Reduce("sum", (0,), False), part), part]

    plan = plan_of(module([f32(n), i64()], main))
    steps = list(plan.steps)
    bind = next(i for i, step in enumerate(steps) if isinstance(step, Bind))
    assert not any(isinstance(step, (Allocate, Grow)) for step in steps[:bind])
    assert isinstance(steps[bind + 1], Allocate)
    assert plan.sizes == (n, k)
    assert plan.input_sizes == 1


def test_checks_quote_the_node() -> None:
    n, k = size("n", 0), size("k", 0)

    def main(g, x, y):
        g.origin = Origin("join_{1}", "Add")
        return [g.one(Binary("add"), g.one(RefineShape((k,)), x), y)]

    plan = plan_of(module([f32(n), f32(k)], main))
    check = next(step for step in plan.steps if isinstance(step, Check))
    assert check.message.format(3, 4) == "dim 0 is 3 (n) where the model needs 4 (k) at Add node 'join_{1}'"


def test_what_has_no_kernel_is_named() -> None:
    m = module([f32(3)], lambda g, x: [g.one(Unary("neg"), x, origin=Origin("n1", "Neg"))])
    with pytest.raises(TypeRuleError, match="operator unary has no kernel") as caught:
        build_plan(m, lambda node: None)
    assert "Neg node 'n1'" in str(caught.value)
