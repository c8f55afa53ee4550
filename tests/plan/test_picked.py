"""One slice that an index picks while running: read where it lies, of a constant in the layout that its kernel wants."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.compiled_graphs import check, compile_graph, f32, function, host, i64, module
from tilewright.accuracy.kernels import trace_kernels
from tilewright.accuracy.validate import validate
from tilewright.compiler import compile_module
from tilewright.graph.in_place import constant_operands, picked_axis
from tilewright.graph.interpreter import interpret
from tilewright.graph.node import walk_nodes
from tilewright.graph.ops import (
    Binary,
    BindSize,
    Cast,
    Concat,
    Constant,
    Contract,
    Fused,
    Gather,
    GatherNd,
    If,
    Loop,
    Reduce,
    RefineShape,
    Reshape,
    SizeValue,
    Slice,
    Transpose,
    constant,
    nonzero,
)
from tilewright.ir import dtypes
from tilewright.ir.expr import const, size
from tilewright.ir.types import tensor
from tilewright.machine.targets import named_machine
from tilewright.plan.build import EachSlice
from tilewright.plan.steps import Bind, Copy, Launch, walk_steps
from tilewright.runtime.executable import Executable
from tilewright.support.settings import Settings

RNG = np.random.default_rng(0)
T, K, N = size("T", 1), size("K"), size("N")
INDICES = (0, 1, 4, -1, -5, 5, 99, -99, 1 << 40)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def index(value: int, dtype: type = np.int64, shape: tuple[int, ...] = ()) -> np.ndarray:
    return np.full(shape, value, dtype)


def product(g, x, w, spec="mk,kn->mn"):
    return g.one(Contract(spec, dtypes.float32), x, w)


def steps(compiled, kind):
    return [step for step in walk_steps(compiled.plan.steps) if isinstance(step, kind)]


@pytest.mark.parametrize("turned", [False, True])
def test_a_product_reads_a_slice_of_constant_weights_packed_for_it(turned: bool) -> None:
    weights = floats(5, 48, 33) if turned else floats(5, 33, 48)

    def body(g, x, i):
        own = g.one(Gather(0), g.one(constant(weights)), i)
        return [product(g, x, g.one(Transpose((1, 0)), own) if turned else own)]

    m = module([f32(T, 33), i64()], body)
    compiled = check(m, *([floats(rows, 33), index(i)] for rows in (1, 7) for i in INDICES))
    assert len(steps(compiled, Launch)) == 1
    assert not steps(compiled, Copy)
    assert [type(c.layout) for c in compiled.constants] == [EachSlice]


def test_weights_of_a_call_are_read_where_they_lie() -> None:
    def body(g, x, w, i):
        return [product(g, x, g.one(Gather(0), w, i))]

    m = module([f32(T, K), f32(5, K, N), i64()], body)
    cases = [[floats(rows, k), floats(5, k, n), index(i)] for rows, k, n in ((1, 20, 30), (9, 7, 50)) for i in INDICES]
    compiled = check(m, *cases)
    assert len(steps(compiled, Launch)) == 1


def test_narrow_and_wrapped_indices_and_axes_of_one_before() -> None:
    def body(g, x, i, j):
        w = g.one(constant(floats(1, 6, 16, 24)))
        first = g.one(Reshape((const(16), const(24))), g.one(Gather(1), w, i))
        second = g.one(Reshape((const(24), const(16))), g.one(Gather(1), w, j))
        return [product(g, product(g, x, first), second)]

    m = module([f32(T, 16), tensor(dtypes.int32, ()), i64(1)], body)
    cases = [[floats(3, 16), index(i, np.int32), index(j, shape=(1,))] for i, j in ((0, -1), (-6, 5), (-7, 6), (3, 3))]
    compiled = check(m, *cases)
    assert len(steps(compiled, Launch)) == 2
    assert len(steps(compiled, Bind)) == 2


def test_an_index_is_read_once() -> None:
    def body(g, x, i):
        first, second = (g.one(Gather(0), g.one(constant(floats(n, 16, 16))), i) for n in (4, 7))
        return [product(g, product(g, x, first), second)]

    compiled = check(module([f32(T, 16), i64()], body), *([floats(2, 16), index(i)] for i in (0, -1, -4, 5, 9)))
    assert len(steps(compiled, Bind)) == 1


def test_batches_and_halves() -> None:
    half = floats(3, 4, 16, 24).astype(np.float16)

    def body(g, x, i):
        return [product(g, x, g.one(Gather(0), g.one(constant(half)), i), "bmk,bkn->bmn")]

    compiled = check(module([f32(4, T, 16), i64()], body), *([floats(4, 5, 16), index(i)] for i in (0, 2, -1)), rtol=1e-3)
    assert len(steps(compiled, Launch)) == 1


def test_an_axis_that_may_be_empty_is_gathered() -> None:
    empty = size("E")

    def body(g, x, w, i):
        return [product(g, x, g.one(Gather(0), w, i))]

    m = module([f32(T, 8), f32(empty, 8, 8), i64()], body)
    compiled = check(m, [floats(2, 8), floats(0, 8, 8), index(0)], [floats(2, 8), floats(3, 8, 8), index(-1)])
    assert len(steps(compiled, Launch)) == 2


def test_slices_not_on_the_outermost_axis_are_gathered() -> None:
    def body(g, x, w, i):
        return [product(g, x, g.one(Gather(1), w, i))]

    m = module([f32(T, 8), f32(8, 3, 9), i64()], body)
    check(m, *([floats(2, 8), floats(8, 3, 9), index(i)] for i in (0, -1, 7)))


def test_elementwise_users_compute_positions_themselves() -> None:
    def body(g, x, w, i):
        return [g.one(Binary("add"), x, g.one(Gather(0), w, i))]

    compiled = check(module([f32(T, 8), f32(3, T, 8), i64()], body), [floats(2, 8), floats(3, 2, 8), index(-1)])
    assert len(steps(compiled, Launch)) == 1
    assert not steps(compiled, Bind)


def test_a_slice_that_is_a_result() -> None:
    def body(g, w, i):
        own = g.one(Gather(0), w, i)
        return [own, g.one(Reshape((N * 8,)), own), g.one(Reshape((const(32),)), g.one(Gather(0), g.one(constant(floats(3, 4, 8))), i))]

    check(module([f32(3, N, 8), i64()], body), *([floats(3, n, 8), index(i)] for n, i in ((4, 0), (2, -1), (0, 1))))


def layers(count: int, width: int, name: str = "step"):
    """x through all slices of constant weights, one an iteration, the weights those of the counter."""
    weights, counter = floats(count, width, width) / width**0.5, size(name)

    def body(g, x):
        own = g.one(Gather(0), g.one(constant(weights)), g.one(SizeValue(counter)))
        return [product(g, x, own)]

    inner = function(name, [f32(T, width)], body)
    return module([f32(T, width)], lambda g, x: g.emit(Loop(inner, 1, counter, const(count)), x))


def test_a_loop_over_layers() -> None:
    compiled = check(layers(6, 40), [floats(1, 40)], [floats(8, 40)], rtol=1e-4)
    assert not steps(compiled, Bind)
    assert [type(c.layout) for c in compiled.constants] == [EachSlice]


def test_a_slice_at_a_place_that_is_known_while_running() -> None:
    weights, counter = floats(4, 24, 24), size("turn")

    def body(g, x):
        at = (const(3) - counter, const(0), const(0))
        own = g.one(Slice(at, (const(1), const(24), const(24)), (1, 1, 1)), g.one(constant(weights)))
        return [product(g, x, g.one(Reshape((const(24), const(24))), own))]

    inner = function("turn", [f32(T, 24)], body)
    compiled = check(
        module([f32(T, 24)], lambda g, x: g.emit(Loop(inner, 1, counter, const(4)), x)), [floats(2, 24)], [floats(9, 24)], rtol=1e-3
    )
    assert [type(c.layout) for c in compiled.constants] == [EachSlice]


def test_a_slice_whose_size_is_checked_to_be_one_while_running() -> None:
    first, last = size("first"), size("last")

    def body(g, x, i, j):
        g.one(BindSize(first), i)
        g.one(BindSize(last), j)
        own = g.one(Slice((first, const(0), const(0)), (last - first, const(24), const(24)), (1, 1, 1)), g.one(constant(floats(4, 24, 24))))
        own = g.one(RefineShape((const(1), const(24), const(24))), own)
        return [product(g, x, g.one(Reshape((const(24), const(24))), own))]

    m = module([f32(T, 24), i64(), i64()], body)
    compiled = check(m, *([floats(3, 24), index(i), index(i + 1)] for i in range(4)))
    assert [type(c.layout) for c in compiled.constants] == [EachSlice]
    with pytest.raises(tw.TilewrightError, match="dim 0 is 2"):
        Executable(compiled.artifact, 1).run({"x0": floats(3, 24), "x1": index(1), "x2": index(3)})


def test_in_branches_that_are_one_function_and_in_loops_inside_of_loops() -> None:
    weights, outer, inner = floats(5, 16, 16) / 4, size("outer"), size("inner")

    def branch(g, x, i):
        return [product(g, x, g.one(Gather(0), g.one(constant(weights)), i))]

    side = function("side", [f32(T, 16), i64()], branch)

    def deep(g, x, i, j):
        return g.emit(If(side, side), g.one(Binary("less"), i, j), x, g.one(Binary("sub"), i, g.one(SizeValue(inner))))

    def shallow(g, x, i, j):
        own = g.one(Gather(0), g.one(constant(weights)), i)
        (y,) = g.emit(Loop(function("deep", [f32(T, 16), i64(), i64()], deep), 1, inner, const(3)), x, i, j)
        return [product(g, y, own), g.one(Binary("add"), i, j)]

    def main(g, x, i, j):
        return g.emit(Loop(function("shallow", [f32(T, 16), i64(), i64()], shallow), 2, outer, const(3)), x, i, j)[:1]

    check(
        module([f32(T, 16), i64(), i64()], main), *([floats(3, 16), index(i), index(j)] for i, j in ((0, 1), (2, -3), (-2, 2))), rtol=1e-4
    )


def test_a_carried_value_that_becomes_a_part_of_itself() -> None:
    rows, counter = size("rows"), size("round")

    def shrink(g, x):
        return [g.one(Slice((const(1), const(0)), (rows - 1, const(4)), (1, 1)), x)]

    loop = Loop(function("shrink", [f32(rows, 4)], shrink), 1, counter, const(2), fresh=(rows,))
    check(module([f32(size("M", 3), 4)], lambda g, x: g.emit(loop, x)), [floats(6, 4)], [floats(3, 4)])


def test_for_processors_of_narrower_vectors() -> None:
    m = layers(3, 50)
    x = floats(5, 50)
    compiled = compile_module(m, named_machine("x86-64-v3"), Settings().changed(cache=False))
    (got,) = Executable(compiled.artifact, 2).run({"x0": x}).values()
    np.testing.assert_allclose(got, interpret(m.main, [x])[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("settings", [{"fusion": False}, {"packing": False}, {"opt_level": 0}, {"opt_level": 1}])
def test_under_other_settings(settings) -> None:
    def body(g, x, i):
        own = g.one(Gather(0), g.one(constant(floats(4, 16, 24))), i)
        return [product(g, x, own)]

    check(layers(3, 20), [floats(4, 20)], rtol=1e-4, **settings)
    check(module([f32(T, 16), i64()], body), *([floats(4, 16), index(i)] for i in (0, -1, 9)), **settings)


def test_kernels_are_judged_with_the_slices_that_were_picked() -> None:
    def body(g, x, i):
        own = g.one(Gather(0), g.one(constant(floats(4, 16, 24))), i)
        return [product(g, product(g, x, own), g.one(Cast(dtypes.float32), g.one(Gather(0), g.one(constant(floats(4, 24, 8))), i)))]

    for m, inputs in ((layers(3, 20), [floats(4, 20)]), (module([f32(T, 16), i64()], body), [floats(4, 16), index(-2)])):
        compiled = compile_graph(m)
        assert all(each.judged and each.ok for each in trace_kernels(compiled, inputs, 1))
        done = validate(compiled, host(), Settings().changed(cache=False))
        assert done.kernels == done.total


def test_what_counts_as_a_constant_operand() -> None:
    compiled = compile_graph(layers(3, 20))
    loop = next(node for node in walk_nodes(compiled.module.main.results) if isinstance(node.op, Loop))
    groups = [node for node in walk_nodes(loop.op.body.results) if isinstance(node.op, Fused) and len(node.inputs) == 2]
    assert [constant_operands(node) for node in groups] == [frozenset({1})]
    assert not any(isinstance(value.op, Constant) for value in groups[0].inputs)
    assert picked_axis(groups[0].inputs[1].node) == 0


# ---- slices that are not as they should be


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("axis", [1, 2, -1])
def test_slices_along_inner_axes_of_constants_are_packed(axis: int, shape: tuple[int, ...]) -> None:
    weights = np.ascontiguousarray(np.moveaxis(floats(5, 24, 16), 0, axis))

    def body(g, x, i):
        own = g.one(Gather(axis), g.one(constant(weights)), i)
        return [product(g, x, g.one(Reshape((const(24), const(16))), own))]

    compiled = check(module([f32(T, 24), i64(*shape)], body), *([floats(3, 24), index(i, shape=shape)] for i in INDICES))
    assert [type(c.layout) for c in compiled.constants] == [EachSlice]
    assert len(steps(compiled, Launch)) == 1


@pytest.mark.parametrize("shape", [(1,), (1, 1)])
def test_positions_of_one_coordinate(shape: tuple[int, ...]) -> None:
    def body(g, x, i):
        own = g.one(GatherNd(), g.one(constant(floats(5, 24, 16))), i)
        return [product(g, x, g.one(Reshape((const(24), const(16))), own))]

    compiled = check(module([f32(T, 24), i64(*shape)], body), *([floats(3, 24), index(i, shape=shape)] for i in INDICES))
    assert [type(c.layout) for c in compiled.constants] == [EachSlice]


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=repr)
def test_weights_that_are_converted_after_they_are_picked(dtype) -> None:
    def body(g, x, i):
        own = g.one(Gather(0), g.one(constant(floats(5, 24, 16).astype(dtype.numpy))), i)
        return [product(g, x, g.one(Cast(dtypes.float32), own))]

    compiled = check(
        module([f32(T, 24), i64(1)], lambda g, x, i: body(g, x, g.one(Reshape(()), i))),
        *([floats(3, 24), index(i, shape=(1,))] for i in INDICES),
    )
    assert [type(c.layout) for c in compiled.constants] == [EachSlice]


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("dtype", [dtypes.float8e4m3fn, dtypes.float8e5m2, dtypes.float16], ids=repr)
def test_weights_that_are_converted_after_they_are_picked_saturate_as_the_cast_says(dtype, saturate: bool) -> None:
    weights = floats(5, 24, 16) * 1e5

    def body(g, i):
        return [g.one(Cast(dtypes.float32), g.one(Cast(dtype, saturate), g.one(Gather(0), g.one(constant(weights)), i)))]

    check(module([i64()], body), [index(0)], [index(-1)])


def test_rows_that_are_picked_of_a_table_are_converted_alone() -> None:
    def body(g, x, i):
        own = g.one(Cast(dtypes.float32), g.one(Gather(0), g.one(constant(floats(50, 24).astype(np.float16))), i))
        return [g.one(Binary("add"), x, own)]

    compiled = check(module([f32(T, 24), i64()], body), [floats(2, 24), index(-7)], [floats(3, 24), index(60)])
    assert [c.type.dtype for c in compiled.constants] == [dtypes.float16]


def test_sizes_of_the_plan_have_names_that_no_dim_has() -> None:
    dims = (size("slice", 1), size("slice_0", 1))

    def body(g, x, y, i, j):
        w = g.one(constant(floats(5, 24, 24)))
        at = nonzero(g, product(g, y, g.one(Gather(0), w, j)), lambda name: size(name, 0))
        x, y = (product(g, v, g.one(Gather(0), w, k)) for v, k in ((x, i), (y, j)))
        # dims of an output that is late: its last one is known while running
        return [g.one(Binary("add"), g.one(Reshape((v.shape[0], const(1), const(1))), g.one(Reduce("max", (1,), False), v)),
                      g.one(Cast(dtypes.float32), at)) for v in (x, y)]  # fmt: skip

    m = module([f32(dims[0], 24), f32(dims[1], 24), i64(), i64()], body)
    check(m, *([floats(3, 24), floats(2, 24), index(i), index(j)] for i, j in ((-1, -2), (1, 4), (-5, 0))))


def test_following_sizes_of_loops_have_names_that_no_dim_has() -> None:
    rows, counter, other = size("rows", 1), size("round"), size("rows_next", 1)

    def grow(g, x):
        return [g.one(Concat(0), x, x)]

    loop = Loop(function("grow", [f32(rows, 4)], grow), 1, counter, const(2), fresh=(rows,))

    def body(g, x, y):
        (longer,) = g.emit(loop, x)
        return [g.one(Binary("add"), g.one(Reshape((rows, const(1), const(4))), longer), y)]

    check(module([f32(size("M", 1), 4), f32(other, 4)], body), [floats(1, 4), floats(3, 4)], [floats(2, 4), floats(7, 4)])
