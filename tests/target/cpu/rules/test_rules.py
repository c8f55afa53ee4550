"""Schedule rules: results stay what the kernel defines, on every vector width, and the structure that makes kernels fast is there."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.compiled_graphs import check, f32, function, module
from tilewright.graph.node import GraphBuilder, Value
from tilewright.graph.ops import (
    ArgReduce,
    Binary,
    Contract,
    Convolution,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    LogSoftmax,
    Reduce,
    Softmax,
    Transpose,
    Unary,
    WindowReduce,
    constant,
)
from tilewright.ir import dtypes
from tilewright.ir.expr import const, size
from tilewright.ir.traverse import free_vars
from tilewright.ir.types import TensorType, as_shape, bind_shape
from tilewright.kernel.interpreter import interpret, shaped
from tilewright.kernel.nodes import For, If, Kernel, Prefetch, Stmt, blocks, walk_stmts
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.kernel.schedule.space import Space
from tilewright.kernel.script_parser import parse_kernel
from tilewright.machine.targets import named_machine
from tilewright.target.cpu.rules.choose import schedule_kernel
from tilewright.target.cpu.rules.inline import inline_producers
from tilewright.target.cpu.rules.register_tile import choose_tile
from tilewright.target.cpu.rules.registers import ProductShape, register_block
from tilewright.target.cpu.rules.structure import as_product, block_of
from tilewright.transform.fuse import fuse
from tilewright.transform.lower_groups import lower_group

N = size("N")
M = size("M")
SIZES = {N: 5, M: 2}
LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")
F32 = dtypes.float32
Body = Callable[..., Sequence[Value]]


def conv(groups: int = 1, stride: int = 1) -> Body:
    def body(g: GraphBuilder, x: Value, w: Value) -> Sequence[Value]:
        one = (const(1), const(1))
        y = g.one(Convolution((stride, stride), (1, 1), one, one, groups, F32), x, w)
        return (g.one(Binary("max"), y, g.one(constant(np.float32(0)))),)

    return body


def product(spec: str) -> Body:
    return lambda g, a, b: (g.one(Unary("tanh"), g.one(Contract(spec, F32), a, b)),)


CASES: dict[str, tuple[list[TensorType], set[int], Body]] = {
    "product": ([f32(N, 19), f32(19, 37)], {1}, product("mk,kn->mn")),
    "product of inputs": ([f32(N, 19), f32(19, 37)], set(), product("mk,kn->mn")),
    "transposed panel": ([f32(2, 9, 7), f32(2, 21, 7)], set(), product("bmk,bnk->bmn")),
    "row times panel": ([f32(1, 19), f32(370, 19)], {1}, product("mk,nk->mn")),
    "batched product": ([f32(M, N, 19), f32(19, 37)], {1}, product("bmk,kn->bmn")),
    "inner product": ([f32(40), f32(40)], set(), product("k,k->")),
    "convolution": ([f32(1, 5, 6, 9), f32(20, 5, 3, 3)], {1}, conv()),
    "strided convolution": ([f32(1, 5, 7, 9), f32(20, 5, 3, 3)], {1}, conv(stride=2)),
    "depthwise convolution": ([f32(1, 6, 6, 19), f32(6, 1, 3, 3)], {1}, conv(groups=6)),
    "grouped convolution": ([f32(1, 6, 5, 9), f32(8, 3, 3, 3)], {1}, conv(groups=2)),
    "softmax": ([f32(N, 3, 41)], set(), lambda g, x: (g.one(Softmax(2), x),)),
    "softmax over channels": ([f32(2, 5, 19)], set(), lambda g, x: (g.one(Softmax(1), x),)),
    "layer norm": ([f32(2, N, 40), f32(40), f32(40)], set(), lambda g, x, w, b: (g.one(LayerNorm(2, 1e-5), x, w, b),)),
    "rows summed": ([f32(N, 67)], set(), lambda g, x: (g.one(Reduce("sum", (1,), True), x),)),
    "short rows summed": ([f32(N, 11)], set(), lambda g, x: (g.one(Reduce("sum", (1,), True), x),)),
    "planes averaged": ([f32(2, N, 7, 7)], set(), lambda g, x: (g.one(Unary("tanh"), g.one(Reduce("sum", (2, 3), True), x)),)),
    "long rows": ([f32(3, 1000)], set(), lambda g, x: (g.one(LogSoftmax(1), x),)),
    "rows of a symbolic length": ([f32(4, 131, N)], set(), lambda g, x: (g.one(Softmax(2), x),)),
    "halves of rows": ([TensorType(dtypes.float16, as_shape((N, 130)))], set(), lambda g, x: (g.one(Reduce("max", (1,), False), x),)),
    "positions": ([f32(N, 77)], set(), lambda g, x: (g.one(ArgReduce("max", 1, False, False), x),)),
    "instance norm": ([f32(2, 3, 5, 7), f32(3), f32(3)], set(), lambda g, x, w, b: (g.one(InstanceNorm(1e-5), x, w, b),)),
    "group norm": ([f32(2, 12, 3, 5), f32(12), f32(12)], set(), lambda g, x, w, b: (g.one(GroupNorm(4, 1e-5), x, w, b),)),
    "positions over planes": ([f32(2, 5, N, 19)], set(), lambda g, x: (g.one(ArgReduce("min", 1, True, True), x),)),
    "columns summed": ([f32(67, 21)], set(), lambda g, x: (g.one(Reduce("sum", (0,), False), x),)),
    "all summed": ([f32(3, 7, 21)], set(), lambda g, x: (g.one(Reduce("max", (0, 1, 2), False), x),)),
    "pooling": (
        [f32(1, 3, 9, 23)],
        set(),
        lambda g, x: (g.one(WindowReduce("max", (3, 3), (2, 2), (1, 1), as_shape((1, 1)), as_shape((1, 1))), x),),
    ),
    "elementwise": ([f32(2, N, 19), f32(19)], set(), lambda g, x, y: (g.one(Binary("add"), g.one(Unary("exp"), x), y),)),
    "flat": ([f32(3, 5, 7), f32(3, 5, 7)], set(), lambda g, x, y: (g.one(Binary("mul"), x, y),)),
    "transposed": ([f32(5, 7, 3)], set(), lambda g, x: (g.one(Transpose((2, 0, 1)), x),)),
}


def fused_kernel(types: list[TensorType], body: Body) -> Kernel:
    (group,) = {value.node for value in fuse(function("p", types, body)).results}
    return lower_group(group.op.body)


def kernel_of(case: str) -> tuple[Kernel, frozenset[int]]:
    types, constants, body = CASES[case]
    fused = fuse(function("p", types, body))
    (group,) = {value.node for value in fused.results}
    return lower_group(group.op.body), frozenset(constants)


def run(kernel: Kernel, schedule: Schedule) -> tuple[list[np.ndarray], list[np.ndarray]]:
    rng = np.random.default_rng(1)
    inputs = [rng.uniform(-1, 1, bind_shape(b.shape, SIZES)).astype(b.dtype.numpy) for b in kernel.inputs]
    layouts = {layout.buffer: layout for layout in schedule.layouts}
    packed = [layouts[b.name].pack(x) if b.name in layouts else x for b, x in zip(kernel.inputs, inputs, strict=True)]
    want = interpret(kernel, inputs, SIZES)
    got = interpret(schedule.kernel, shaped(schedule.kernel, packed, SIZES), SIZES)
    return want, [b.reshape(a.shape) for a, b in zip(want, got, strict=True)]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("case", CASES)
def test_schedules_keep_results(case: str, level: str) -> None:
    kernel, constants = kernel_of(case)
    want, got = run(kernel, schedule_kernel(kernel, constants, named_machine(level)))
    for a, b in zip(want, got, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_without_reassociation_results_keep_their_bits(case: str) -> None:
    kernel, constants = kernel_of(case)
    want, got = run(kernel, schedule_kernel(kernel, constants, named_machine("x86-64-v3"), reassociate=False))
    for a, b in zip(want, got, strict=True):
        np.testing.assert_array_equal(b, a)


@pytest.mark.parametrize("case", [case for case in CASES if case not in ("inner product", "all summed")])
def test_every_nest_runs_in_parallel(case: str) -> None:
    kernel, constants = kernel_of(case)
    scheduled = schedule_kernel(kernel, constants, named_machine("x86-64-v3")).kernel
    roots = scheduled.body.stmts if hasattr(scheduled.body, "stmts") else (scheduled.body,)
    assert all(isinstance(root, For) and root.kind == "parallel" for root in roots)


@pytest.mark.parametrize("case", ["product", "convolution", "row times panel"])
def test_constant_panels_are_packed_and_accumulators_local(case: str) -> None:
    kernel, constants = kernel_of(case)
    schedule = schedule_kernel(kernel, constants, named_machine("x86-64-v3"))
    assert [layout.buffer for layout in schedule.layouts] == ["x1"]
    assert any(buffer.scope == "local" for buffer in schedule.kernel.scratch)


def test_loops_are_vectorised_by_the_width_of_the_machine() -> None:
    kernel, constants = kernel_of("product")
    for level, lanes in (("x86-64-v2", 4), ("x86-64-v3", 8), ("x86-64-v4", 16)):
        body = schedule_kernel(kernel, constants, named_machine(level)).kernel.body
        widths = {loop.extent.value for loop in walk_stmts(body) if isinstance(loop, For) and loop.kind == "vectorized"}
        assert lanes in widths


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("rows", "vectors"), [(1, 64), (7, 8), (56, 4), (128, 48), (3, 1), (4096, 1)])
def test_register_blocks_fit_the_registers(level: str, rows: int, vectors: int) -> None:
    machine = named_machine(level)
    mr, nv = register_block(machine, ProductShape(rows, vectors))
    assert 1 <= mr <= rows
    assert 1 <= nv <= vectors
    assert mr * nv + nv + 1 <= machine.vector_registers


def test_a_large_product_hides_the_latency_of_multiply_adds() -> None:
    machine = named_machine("x86-64-v4")
    mr, nv = register_block(machine, ProductShape(1024, 64))
    assert mr * nv >= machine.fma_latency * machine.fma_units


def test_rows_of_a_tile_are_not_the_batch() -> None:
    """A batch of unknown size is often 1, and a tile of several rows of it would compute the same row again and again."""
    kernel, constants = kernel_of("batched product")
    schedule = inline_producers(Schedule.of(kernel))
    (found,) = [product for name in schedule.blocks() if (product := as_product(block_of(schedule, name))) is not None]
    tile = choose_tile(found, frozenset({kernel.inputs[i].name for i in constants}), named_machine("x86-64-v4"))
    assert tile is not None
    assert tile.row is not None
    assert tile.row.extent is N


@pytest.mark.parametrize(
    ("spec", "left", "rows"),
    [("bwk,kn->bwn", (N, 7, 64), 7), ("bwk,kn->bwn", (N, M, 64), M), ("bkt,kn->tbn", (N, 64, M), M), ("bwk,kn->bwn", (2, M, 64), M)],
)
def test_rows_are_along_an_axis_that_is_not_often_1(spec: str, left: tuple[object, ...], rows: object) -> None:
    """Whatever its order in the result: the outermost axis of the operand is the batch."""
    kernel = fused_kernel([f32(*left), f32(64, 256)], product(spec))
    (found,) = [p for name in Schedule.of(kernel).blocks() if (p := as_product(block_of(Schedule.of(kernel), name))) is not None]
    tile = choose_tile(found, frozenset({kernel.inputs[1].name}), named_machine("x86-64-v4"))
    assert tile is not None
    assert tile.row is not None
    assert tile.row.extent is (const(rows) if isinstance(rows, int) else rows)


@pytest.mark.parametrize("space", [(9, 1), (1, 9)])
def test_rows_are_along_no_axis_of_one_point(space: tuple[int, int]) -> None:
    """A convolution over one axis that is written over two."""
    taps = tuple(3 if n > 1 else 1 for n in space)

    def body(g: GraphBuilder, x: Value, w: Value) -> Sequence[Value]:
        none = as_shape((0, 0))
        return (g.one(Convolution((1, 1), (1, 1), none, none, 1, F32), x, w),)

    kernel = fused_kernel([f32(1, 8, *space), f32(32, 8, *taps)], body)
    (found,) = [p for name in Schedule.of(kernel).blocks() if (p := as_product(block_of(Schedule.of(kernel), name))) is not None]
    tile = choose_tile(found, frozenset({kernel.inputs[1].name}), named_machine("x86-64-v4"))
    assert tile is not None
    assert tile.row is not None
    assert tile.row.extent is const(7)


def prefetches(kernel: Kernel) -> list[Prefetch]:
    return [stmt for stmt in walk_stmts(kernel.body) if isinstance(stmt, Prefetch)]


def prefetches_in(body: Stmt) -> set[str]:
    return {stmt.buffer.name for stmt in walk_stmts(body) if isinstance(stmt, Prefetch)}


def test_the_next_panel_is_asked_for_while_one_is_used() -> None:
    kernel = fused_kernel([f32(40, 64), f32(64, 256)], product("mk,kn->mn"))
    space = Space()
    schedule = schedule_kernel(kernel, frozenset({1}), named_machine("x86-64-v4"), space=space)
    asked = prefetches(schedule.kernel)
    assert asked
    assert {stmt.buffer.name for stmt in asked} == {kernel.inputs[1].name}
    assert parse_kernel(repr(schedule.kernel)) is schedule.kernel
    (name,) = [decision.name for decision in space.decisions if decision.name.endswith(".prefetch")]
    without = schedule_kernel(kernel, frozenset({1}), named_machine("x86-64-v4"), space=Space({name: False}))
    assert not prefetches(without.kernel)


def test_a_panel_that_is_used_once_is_a_stream() -> None:
    kernel = fused_kernel([f32(1, 64), f32(64, 256)], product("mk,kn->mn"))
    assert not prefetches(schedule_kernel(kernel, frozenset({1}), named_machine("x86-64-v4")).kernel)


@pytest.mark.parametrize(("rows", "width"), [(1024, 192), (1024, 48), (4096, 96)])
def test_rows_that_are_shared_by_threads_are_asked_for_ahead_as_well(rows: int, width: int) -> None:
    """More activations than weights, and more than the second cache holds: neither decision takes the register tiles away."""
    kernel = fused_kernel([f32(rows, 768), f32(768, width)], product("mk,kn->mn"))
    schedule = schedule_kernel(kernel, frozenset({1}), named_machine("x86-64-v4"))
    assert kernel.inputs[0].name in {stmt.buffer.name for stmt in prefetches(schedule.kernel)}
    assert any(buffer.scope == "local" for buffer in schedule.kernel.scratch)
    assert [layout.buffer for layout in schedule.layouts] == ["x1"]


def test_rows_of_unknown_number_are_asked_for_where_they_do_not_stay_in_the_second_cache() -> None:
    """Few rows stay near, and requests for them cost what they cost."""
    machine = named_machine("x86-64-v4")
    kernel = fused_kernel([f32(size("n", 1), 768), f32(768, 192)], product("mk,kn->mn"))
    rows = kernel.inputs[0]
    schedule = schedule_kernel(kernel, frozenset({1}), machine)
    tests = {stmt.condition for stmt in walk_stmts(schedule.kernel.body) if isinstance(stmt, If) and prefetches_in(stmt) == {rows.name}}
    assert tests == {const(machine.l2.size // 2 // 4) < rows.shape[0] * rows.shape[1]}
    assert rows.name in prefetches_in(schedule.kernel.body)


def decided(rows: int, depth: int, width: int) -> dict[str, object]:
    """What the rule decides for a product by constant weights, by the last part of the decision's name."""
    kernel = fused_kernel([f32(rows, depth), f32(depth, width)], product("mk,kn->mn"))
    space = Space()
    schedule_kernel(kernel, frozenset({1}), named_machine("emeraldrapids"), space=space)
    return {decision.name.rpartition(".")[2]: decision.options[decision.taken] for decision in space.decisions}


def test_rows_that_do_not_stay_in_the_second_cache_are_taken_in_blocks() -> None:
    assert decided(2048, 1024, 1024)["row_blocks"] != 1
    assert decided(64, 1024, 1024)["row_blocks"] == 1


@pytest.mark.parametrize(("depth", "steps"), [(512, 8), (12, 4), (7, 1), (8, 4)])
def test_several_steps_of_a_reduction_are_one_iteration_where_they_divide_it(depth: int, steps: int) -> None:
    assert decided(64, depth, 96)["steps"] == steps


def test_groups_have_statistics_of_their_own_once() -> None:
    """Group normalisation runs group by group: no channel computes the statistics of its group again."""
    kernel, constants = kernel_of("group norm")
    s = schedule_kernel(kernel, constants, named_machine("x86-64-v3"))
    placed = s.nest.blocks["total"]
    moving = free_vars(*(b for it, b in zip(placed.stmt.iters, placed.stmt.bindings, strict=True) if it.kind == "spatial"))
    assert math.prod(int(loop.extent.value) for loop in placed.around if loop.var in moving) == 2 * 4


@pytest.mark.parametrize("shape", [(512, 300), (1021, 257)])
@pytest.mark.parametrize("fn", ["sum", "max"])
def test_long_reductions_to_one_element_run_on_several_threads(fn: str, shape: tuple[int, int]) -> None:
    def body(g: GraphBuilder, x: Value) -> Sequence[Value]:
        return (g.one(Reduce(fn, (0, 1), True), x),)

    x = np.random.default_rng(0).uniform(0.0, 1.0, shape).astype(np.float32)
    check(module([f32(*shape)], body), [x])
    fused = fuse(function("p", [f32(*shape)], body))
    (group,) = {value.node for value in fused.results}
    scheduled = schedule_kernel(lower_group(group.op.body), frozenset(), named_machine("x86-64-v3"))
    assert any(isinstance(stmt, For) and stmt.kind == "parallel" for stmt in walk_stmts(scheduled.kernel.body))


def test_panels_that_are_copied_run_in_parallel() -> None:
    kernel = fused_kernel([f32(256, 1024), f32(1024, 1024)], product("mk,kn->mn"))
    space = Space()
    schedule = schedule_kernel(kernel, frozenset(), named_machine("x86-64-v4"), space=space)
    assert {d.name.rpartition(".")[2]: d.options[d.taken] for d in space.decisions}["pack"] == "panel"
    (loop,) = [stmt for stmt in walk_stmts(schedule.kernel.body) if isinstance(stmt, For) and stmt.kind == "parallel"]
    assert loop.extent.value > 1
    assert len(list(blocks(loop))) == len(schedule.blocks())


@pytest.mark.parametrize(("shape", "tasks"), [((128, 768), 2), ((128, 512), 2), ((64, 512), 1), ((160, 1024), 4), ((1024, 1024), 16)])
def test_reductions_to_one_element_have_as_many_tasks_for_each_core(shape: tuple[int, int], tasks: int) -> None:
    fused = fuse(function("p", [f32(*shape)], lambda g, x: (g.one(Reduce("max", (0, 1), True), x),)))
    (group,) = {value.node for value in fused.results}
    schedule = schedule_kernel(lower_group(group.op.body), frozenset(), replace(named_machine("x86-64-v3"), cores=2))
    loops = [stmt for stmt in walk_stmts(schedule.kernel.body) if isinstance(stmt, For) and stmt.kind == "parallel"]
    assert [loop.extent.value for loop in loops] == ([tasks] if tasks > 1 else [])
