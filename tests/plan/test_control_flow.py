"""Control flow and sizes that depend on data: compiled code against the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiled_graphs import boolean, check, f32, function, i64, module
from tilewright.graph.node import GraphBuilder, Value
from tilewright.graph.ops import (
    Binary,
    BindSize,
    BroadcastTo,
    Call,
    Cast,
    Concat,
    If,
    Iota,
    Loop,
    Reduce,
    RefineShape,
    Reshape,
    SizeValue,
    Slice,
    Unary,
    branch,
    constant,
    scan,
)
from tilewright.ir import dtypes
from tilewright.ir.expr import const, maximum, size
from tilewright.ir.types import as_shape
from tilewright.support.errors import GraphError, ShapeError

rng = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def yes() -> np.ndarray:
    return np.array(True)


def no() -> np.ndarray:
    return np.array(False)


def less(g: GraphBuilder, x: Value, bound: float) -> Value:
    """Whether the sum of a float vector is less than `bound`."""
    total = g.one(Reduce("sum", (0,), False), x)
    return g.one(Binary("less"), total, g.one(constant(bound, dtypes.float32)))


def rows(g: GraphBuilder, x: Value, count: object) -> Value:
    """The first `count` elements of a vector."""
    return g.one(Slice((const(0),), as_shape((count,)), (1,)), x)


# ---- branches


def test_branches_of_one_shape():
    n = size("n", 0)
    negated = function("negated", [f32(n)], lambda g, x: [g.one(Unary("neg"), x)])
    doubled = function("doubled", [f32(n)], lambda g, x: [g.one(Binary("add"), x, x)])
    m = module([boolean(), f32(n)], lambda g, c, x: [g.one(If(negated, doubled), c, x)])
    check(m, [yes(), floats(5)], [no(), floats(7)], [yes(), floats(0)])


def test_branches_that_return_captures_and_constants():
    def then(g, x, y):
        return [x, y, g.one(constant(np.arange(3, dtype=np.float32)))]

    def otherwise(g, x, y):
        return [y, y, x]

    a, b = (function(f.__name__, [f32(3), f32(3)], f) for f in (then, otherwise))
    m = module([boolean(), f32(3), f32(3)], lambda g, c, x, y: g.emit(If(a, b), c, g.one(Unary("abs"), x), y))
    check(m, [yes(), floats(3), floats(3)], [no(), floats(3), floats(3)])


def test_branches_with_the_same_result_twice():
    a = function("a", [f32(4)], lambda g, x: [g.one(Unary("neg"), x)] * 3)
    b = function("b", [f32(4)], lambda g, x: [x, g.one(Unary("exp"), x), x])
    m = module([boolean(), f32(4)], lambda g, c, x: g.emit(If(a, b), c, x))
    check(m, [yes(), floats(4)], [no(), floats(4)])


def test_branches_whose_dims_differ():
    n, k = size("n", 0), size("k", 0)
    a = function("a", [f32(n)], lambda g, x: [g.one(Concat(0), x, x), g.one(Unary("neg"), x)])
    b = function("b", [f32(n)], lambda g, x: [g.one(Unary("exp"), x), x])

    def main(g, c, x):
        first, second = g.emit(If(a, b, (k,)), c, x)
        assert first.shape == (k,)
        return [g.one(Unary("abs"), first), second, first, g.one(SizeValue(k * 2))]

    check(module([boolean(), f32(n)], main), [yes(), floats(5)], [no(), floats(5)], [no(), floats(0)], [yes(), floats(1)])


def test_nested_branches_with_differing_dims():
    n, inner, outer = size("n", 1), size("inner", 0), size("outer", 0)
    both = function("both", [f32(n)], lambda g, x: [g.one(Concat(0), x, x)])
    plain = function("plain", [f32(n)], lambda g, x: [g.one(Unary("neg"), x)])

    def then(g, c, x):
        (value,) = g.emit(If(both, plain, (inner,)), c, x)
        return [g.one(Concat(0), value, x)]

    a = function("a", [boolean(), f32(n)], then)
    b = function("b", [boolean(), f32(n)], lambda g, c, x: [x])
    m = module([boolean(), boolean(), f32(n)], lambda g, c, d, x: [g.one(Unary("abs"), g.one(If(a, b, (outer,)), c, d, x))])
    check(m, *[[c, d, floats(k)] for c in (yes(), no()) for d in (yes(), no()) for k in (1, 6)])


def test_branch_helper_names_as_many_sizes_as_needed():
    a = function("a", [f32(4, 2)], lambda g, x: [g.one(Concat(0), x, x)])
    b = function("b", [f32(4, 2)], lambda g, x: [g.one(Concat(1), x, x)])
    names = iter([size("p", 0), size("q", 0)])
    m = module([boolean(), f32(4, 2)], lambda g, c, x: branch(g, c, [x], a, b, lambda: next(names)))
    check(m, [yes(), floats(4, 2)], [no(), floats(4, 2)])


def test_a_condition_computed_in_the_graph():
    a = function("a", [f32(8)], lambda g, x: [g.one(Unary("sqrt"), g.one(Unary("abs"), x))])
    b = function("b", [f32(8)], lambda g, x: [g.one(Unary("exp"), x)])
    m = module([f32(8)], lambda g, x: [g.one(If(a, b), less(g, x, 0.0), x)])
    check(m, [floats(8) - 5], [floats(8) + 5])


# ---- loops


def test_a_loop_with_a_fixed_trip():
    i = size("i", 0)

    def body(g, x):
        after = g.one(Binary("mul"), x, g.one(constant(0.5, dtypes.float32)))
        return [after, g.one(Reduce("sum", (0,), False), after)]

    loop = Loop(function("body", [f32(6)], body), 1, i, const(4))
    check(module([f32(6)], lambda g, x: g.emit(loop, x)), [floats(6)])


def test_a_loop_over_a_symbolic_trip_that_may_be_zero():
    n, i = size("n", 0), size("i", 0)

    def body(g, x, rows_):
        row = g.one(Reshape(as_shape((3,))), g.one(Slice((i, const(0)), as_shape((1, 3)), (1, 1)), rows_))
        after = g.one(Binary("add"), x, row)
        return [after, after]

    loop = Loop(function("body", [f32(3), f32(n, 3)], body), 1, i, n)
    check(module([f32(3), f32(n, 3)], lambda g, x, r: g.emit(loop, x, r)), *[[floats(3), floats(k, 3)] for k in (4, 1, 0, 33)])


def test_carried_values_that_change_places():
    """(a, b) becomes (b, a + b): the first is overwritten while the second still needs it."""
    i = size("i", 0)
    body = function("body", [f32(5), f32(5)], lambda g, a, b: [b, g.one(Binary("add"), a, b)])
    check(module([f32(5), f32(5)], lambda g, a, b: g.emit(Loop(body, 2, i, const(5)), a, b)), [floats(5), floats(5)])
    swap = function("swap", [f32(5), f32(5)], lambda g, a, b: [b, a, a])
    check(module([f32(5), f32(5)], lambda g, a, b: g.emit(Loop(swap, 2, i, const(3)), a, b)), [floats(5), floats(5)])


def test_carried_values_that_become_captures_and_constants():
    i = size("i", 0)

    def body(g, a, b, c):
        return [c, g.one(constant(np.full(4, 2, np.float32))), a]

    loop = Loop(function("body", [f32(4), f32(4), f32(4)], body), 2, i, const(2))
    check(module([f32(4), f32(4), f32(4)], lambda g, a, b, c: g.emit(loop, a, b, c)), [floats(4), floats(4), floats(4)])


def test_captures_survive_every_iteration():
    """The capture is used early in the body; what the body computes later must not take its memory."""
    i = size("i", 0)

    def body(g, x, c):
        early = g.one(Reduce("max", (1,), True), c)
        scaled = g.one(Binary("add"), x, g.one(BroadcastTo(as_shape((16, 16))), early))
        late = g.one(Reduce("sum", (0,), True), scaled)
        again = g.one(Reduce("max", (1,), False), g.one(Binary("mul"), scaled, g.one(BroadcastTo(as_shape((16, 16))), late)))
        return [g.one(BroadcastTo(as_shape((16, 16))), g.one(Reshape(as_shape((16, 1))), again))]

    loop = Loop(function("body", [f32(16, 16), f32(16, 16)], body), 1, i, const(3))

    def main(g, x, c):
        capture = g.one(Reduce("sum", (0,), True), c)
        return g.emit(loop, x, g.one(Unary("neg"), g.one(BroadcastTo(as_shape((16, 16))), capture)))

    check(module([f32(16, 16), f32(16, 16)], main), [floats(16, 16) / 50, floats(16, 16) / 50], rtol=1e-3)


def test_a_conditional_loop():
    """Doubles a vector while its sum is less than a bound; the outputs are stacked on as many iterations as ran."""
    i = size("i", 0)

    def body(g, x, bound):
        after = g.one(Binary("add"), x, x)
        total = g.one(Reduce("sum", (0,), False), after)
        return [g.one(Binary("less"), total, bound), after, total, after]

    loop = Loop(function("body", [f32(3), f32()], body), 1, i, None, True)

    def main(g, start, x, bound):
        final, totals, steps = g.emit(loop, start, x, bound)
        return [final, totals, g.one(Unary("neg"), steps), g.one(SizeValue(i))]

    start = np.ones(3, np.float32)
    cases = [[c, start, np.array(b, np.float32)] for c in (yes(), no()) for b in (10, 1e4, 0)]
    check(module([boolean(), f32(3), f32()], main), *cases)


def test_a_conditional_loop_with_a_trip():
    i, trip = size("i", 0), size("trip", 0)

    def body(g, x):
        after = g.one(Binary("add"), x, x)
        return [less(g, after, 100.0), after]

    loop = Loop(function("body", [f32(2)], body), 1, i, trip, True)

    def main(g, x, t):
        g.one(BindSize(trip), t)
        (final,) = g.emit(loop, g.one(constant(True, dtypes.bool_)), x)
        return [final]

    check(module([f32(2), i64()], main), *[[np.ones(2, np.float32), np.array(t)] for t in (0, 3, 20)])


def grow(n: object, k: object, i: object) -> Loop:
    """Carries a vector that each iteration makes longer by `k[i] = i + 1` elements."""

    def body(g, x):
        ones = g.one(BroadcastTo(as_shape((i + 1,))), g.one(Cast(dtypes.float32), g.one(SizeValue(i))))
        return [g.one(Concat(0), g.one(Unary("neg"), x), ones)]

    return Loop(function("body", [f32(k)], body), 1, i, n, False, (k,))


@pytest.mark.parametrize("trip", [0, 1, 2, 7, 40])
def test_a_carried_value_that_grows(trip):
    n, k, i = size("n", 0), size("k", 0), size("i", 0)

    def main(g, x):
        (final,) = g.emit(grow(const(trip), k, i), x)
        return [g.one(Reduce("sum", (0,), False), final), final, g.one(Unary("exp"), final), g.one(SizeValue(k))]

    check(module([f32(n)], main), [floats(3)], [floats(0)], [floats(100)])


def test_carried_values_that_grow_and_change_places():
    n, m, i, p, q = size("n", 0), size("m", 0), size("i", 0), size("p", 0), size("q", 0)
    body = function("body", [f32(p), f32(q)], lambda g, a, b: [b, g.one(Concat(0), a, g.one(Unary("neg"), b))])
    loop = Loop(body, 2, i, const(6), False, (p, q))
    check(
        module([f32(n), f32(m)], lambda g, a, b: g.emit(loop, a, b)),
        [floats(1), floats(1)],
        [floats(0), floats(3)],
        [floats(40), floats(2)],
    )


def test_a_carried_value_that_shrinks_and_ends_the_loop():
    """Halves a vector until one element is left."""
    n, k, i = size("n", 1), size("k", 0), size("i", 0)

    def body(g, x):
        half = g.one(Slice((const(0),), as_shape(((k + 1) // 2,)), (1,)), x)
        going = g.one(Binary("less"), g.one(constant(1, dtypes.int64)), g.one(SizeValue((k + 1) // 2)))
        return [going, g.one(Unary("neg"), half)]

    loop = Loop(function("body", [f32(k)], body), 1, i, None, True, (k,))
    m = module([f32(n)], lambda g, x: [*g.emit(loop, g.one(constant(True, dtypes.bool_)), x), g.one(SizeValue(i))])
    check(m, [floats(1)], [floats(2)], [floats(100)])


def test_values_after_a_loop_depend_on_its_number_of_iterations():
    i = size("i", 0)

    def body(g, x):
        after = g.one(Binary("add"), x, x)
        return [less(g, after, 50.0), after, after]

    loop = Loop(function("body", [f32(2)], body), 1, i, None, True)

    def main(g, x):
        _, stacked = g.emit(loop, g.one(constant(True, dtypes.bool_)), x)
        again = g.one(Concat(0), stacked, g.one(Unary("neg"), stacked))
        return [g.one(Reduce("sum", (1,), False), again), again, g.one(Iota(i * 3, dtypes.int64))]

    check(module([f32(2)], main), [np.ones(2, np.float32)], [np.full(2, 1e-3, np.float32)], [np.full(2, 90, np.float32)])


def test_loops_in_loops_and_branches():
    """For each row: a loop of a data-dependent number of doublings, or, for negative rows, none."""
    n, i, j = size("n", 0), size("i", 0), size("j", 0)

    def double(g, x):
        after = g.one(Binary("add"), x, x)
        return [less(g, after, 30.0), after]

    doubling = Loop(function("double", [f32(4)], double), 1, j, None, True)
    positive = function("positive", [f32(4)], lambda g, x: g.emit(doubling, g.one(constant(True, dtypes.bool_)), x))
    negative = function("negative", [f32(4)], lambda g, x: [g.one(Unary("neg"), x)])

    def main(g, total, r):
        def each(g, carried, items, captures):
            value = g.one(If(positive, negative), g.one(Unary("not"), less(g, items[0], 0.0)), items[0])
            return [g.one(Binary("add"), carried[0], value)], [value]

        (last,), (stacked,) = scan(g, "i", n, [total], [r], [], each)
        return [last, stacked]

    assert i.name == "i"
    check(module([f32(4), f32(n, 4)], main), *[[floats(4), floats(k, 4)] for k in (0, 1, 6)])


def test_growing_values_in_nested_loops():
    n, outer, inner, i, j = size("n", 0), size("outer", 0), size("inner", 0), size("i", 0), size("j", 0)

    def longer(g, x):
        return [g.one(Concat(0), x, g.one(BroadcastTo(as_shape((j + 1,))), g.one(constant(1.0, dtypes.float32))))]

    append = Loop(function("longer", [f32(inner)], longer), 1, j, i + 1, False, (inner,))

    def body(g, x):
        (longer_,) = g.emit(append, g.one(Unary("neg"), x))
        return [longer_, g.one(Reduce("sum", (0,), False), longer_)]

    loop = Loop(function("body", [f32(outer)], body), 1, i, const(5), False, (outer,))
    check(module([f32(n)], lambda g, x: g.emit(loop, x)), [floats(2)], [floats(0)])


def test_scans_both_ways():
    n = size("n", 0)
    for reverse in (False, True):

        def main(g, start, xs, c, reverse=reverse):
            def each(g, carried, items, captures):
                after = g.one(Binary("mul"), g.one(Binary("add"), carried[0], items[0]), captures[0])
                return [after], [after]

            (last,), (stacked,) = scan(g, "i", n, [start], [xs], [c], each, reverse)
            return [last, stacked]

        check(module([f32(3), f32(n, 3), f32(3)], main), *[[floats(3), floats(k, 3), floats(3)] for k in (0, 1, 5)])


# ---- sizes that depend on data


def test_a_size_read_from_data():
    n, k = size("n", 0), size("k", 0)

    def main(g, x, count):
        g.one(BindSize(k), count)
        part = rows(g, x, k)
        return [part, g.one(Reduce("sum", (0,), False), part), g.one(Concat(0), part, x)]

    m = module([f32(n), i64()], main)
    check(m, *[[floats(9), np.array(v)] for v in (0, 3, 9)])


def test_a_size_out_of_range_is_an_error():
    n, k = size("n", 0), size("k", 1, 5)

    def main(g, x, count):
        g.one(BindSize(k), count)
        return [rows(g, x, k)]

    m = module([f32(n), i64()], main)
    compiled = check(m, [floats(9), np.array(5)])
    from tilewright.runtime.executable import Executable

    executable = Executable(compiled.artifact, 1)
    for value in (0, 6, -1):
        with pytest.raises(ShapeError, match=f"the size k is {value}; it must be at least 1 and at most 5"):
            executable(floats(9), np.array(value))
    assert executable(floats(9), np.array(2)).shape == (2,)


def test_sizes_that_follow_from_each_other():
    n, k, l_ = size("n", 0), size("k", 0), size("l", 0)

    def main(g, x, counts):
        def count(at):
            return g.one(Reshape(()), g.one(Slice((const(at),), as_shape((1,)), (1,)), counts))

        g.one(BindSize(k), count(0))
        first = rows(g, g.one(Unary("neg"), x), k)
        g.one(BindSize(l_), count(1))
        second = rows(g, g.one(Unary("exp"), first), l_)
        return [g.one(Concat(0), first, second), second, g.one(BroadcastTo(as_shape((k, l_))), second)]

    m = module([f32(n), i64(2)], main)
    check(m, *[[floats(9), np.array(v)] for v in ([3, 2], [9, 9], [4, 0], [0, 0])])


def test_a_reshape_that_cannot_be_proved_is_checked():
    n, k = size("n", 0), size("k", 0)
    m = module([f32(n), f32(k)], lambda g, x, y: [g.one(Binary("add"), g.one(RefineShape((k,)), x), y)])
    compiled = check(m, [floats(4), floats(4)])
    from tilewright.runtime.executable import Executable

    with pytest.raises(ShapeError, match=r"dim 0 is 4 \(n\) where the model needs 5 \(k\)"):
        Executable(compiled.artifact, 1)(floats(4), floats(5))


# ---- inputs, outputs, constants


def test_outputs_that_are_inputs_constants_or_repeated():
    n = size("n", 0)

    def main(g, x, y):
        shifted = g.one(Unary("neg"), x)
        fixed = g.one(constant(np.arange(4, dtype=np.float32)))
        return [x, shifted, fixed, shifted, x, g.one(Reshape(as_shape((n, 1))), shifted), fixed, y, g.one(SizeValue(n))]

    check(module([f32(n), f32(2, 2)], main), [floats(5), floats(2, 2)], [floats(0), floats(2, 2)])


def test_a_result_that_is_also_used_further():
    def main(g, x):
        first = g.one(Reduce("sum", (1,), True), x)
        second = g.one(Binary("mul"), x, g.one(BroadcastTo(as_shape((4, 8))), first))
        return [first, second, g.one(Reduce("max", (0,), False), second)]

    check(module([f32(4, 8)], main), [floats(4, 8)])


def test_zero_sized_dims():
    n = size("n", 0)

    def main(g, x, y):
        joined = g.one(Concat(0), x, y)
        return [joined, g.one(Reduce("sum", (0,), False), joined), g.one(Reduce("sum", (1,), False), joined)]

    check(module([f32(n, 3), f32(n * 2, 3)], main), [floats(0, 3), floats(0, 3)], [floats(2, 3), floats(4, 3)])


# ---- calls


def test_calls_with_sizes_of_their_own():
    n, m, k = size("n", 0), size("m", 0), size("k", 0)
    twice = function("twice", [f32(k)], lambda g, x: [g.one(Concat(0), x, g.one(Unary("neg"), x))])

    def main(g, x, y):
        (a,) = g.emit(Call("twice", (f32(n * 2),)), x)
        (b,) = g.emit(Call("twice", (f32(n * 4),)), a)
        (c,) = g.emit(Call("twice", (f32(m * 2),)), y)
        return [b, c]

    check(module([f32(n), f32(m)], main, {"twice": twice}), [floats(3), floats(5)], [floats(0), floats(1)])


def test_recursion_is_refused():
    loop = function("loop", [f32(2)], lambda g, x: g.emit(Call("loop", (f32(2),)), x))
    with pytest.raises(GraphError, match="calls itself"):
        check(module([f32(2)], lambda g, x: g.emit(Call("loop", (f32(2),)), x), {"loop": loop}), [floats(2)])


def test_maxima_of_sizes_in_the_memory_formula():
    n, m = size("n", 1), size("m", 1)

    def main(g, x, y):
        wide = g.one(BroadcastTo(as_shape((maximum(n, m), 4))), g.one(Reduce("sum", (0, 1), True), x))
        return [g.one(Reduce("sum", (0,), True), wide), g.one(Reduce("max", (0,), True), y)]

    compiled = check(module([f32(n, 4), f32(m, 4)], main), [floats(3, 4), floats(7, 4)], [floats(9, 4), floats(2, 4)])
    assert "arena" in compiled.artifact.manifest["memory"]
