"""Concatenations and slices that are only a matter of where things lie."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.compiled_graphs import boolean, compile_graph, f32, function, module
from tilewright.graph.in_place import cut_axis, is_joined_in_place
from tilewright.graph.interpreter import interpret
from tilewright.graph.ops import Binary, Concat, If, Loop, Reduce, Reshape, Slice, Transpose, Unary, constant
from tilewright.ir.expr import const, size
from tilewright.ir.types import as_shape
from tilewright.plan.steps import Copy, Launch, walk_steps
from tilewright.runtime.executable import Executable

RNG = np.random.default_rng(0)
N = size("N")


def run(types, body, arrays):
    m = module(types, body)
    compiled = compile_graph(m)
    assert_inside(compiled.plan)
    exe = Executable(compiled.artifact)
    got = list(exe.run({f"x{i}": a for i, a in enumerate(arrays)}).values())
    for a, b in zip(got, interpret(m.main, arrays), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    return compiled.plan


def assert_inside(plan):
    """No step of constant size reads or stores past the end of the region that it is given."""
    ends = {("input", i): t.bytes for i, t in enumerate(plan.inputs)} | {("output", i): t.bytes for i, t in enumerate(plan.outputs)}
    ends["arena", 0] = plan.arena_bytes
    for step in walk_steps(plan.steps):
        places = step.args if isinstance(step, Launch) else (step.target, step.source) if isinstance(step, Copy) else ()
        for place in places:
            end, size_ = ends.get((place.region.kind, place.region.index)), place.type.bytes
            if end is not None and end.is_const and place.offset.is_const and size_.is_const:
                assert place.offset.value + size_.value <= end.value, f"{place} ends after {end}"


def steps(plan, kind):
    return [step for step in walk_steps(plan.steps) if isinstance(step, kind)]


def part(x, axis, start, length):
    starts = [const(0)] * x.type.rank
    sizes = list(x.shape)
    starts[axis], sizes[axis] = const(start), const(length)
    return Slice(tuple(starts), tuple(sizes), (1,) * x.type.rank)


def test_operands_are_written_where_the_concatenation_has_them() -> None:
    def body(g, x, y):
        return [g.one(Concat(1), g.one(Unary("exp"), x), g.one(Unary("neg"), y))]

    plan = run([f32(1, 3, 5), f32(1, 4, 5)], body, [RNG.random((1, 3, 5), np.float32), RNG.random((1, 4, 5), np.float32)])
    assert len(steps(plan, Launch)) == 2
    assert not steps(plan, Copy)


def test_an_operand_that_is_needed_twice_is_copied_once() -> None:
    def body(g, x):
        a = g.one(Unary("exp"), x)
        b = g.one(Concat(0), a, g.one(Unary("neg"), a))
        return [g.one(Concat(0), a, b, a)]

    plan = run([f32(6, 5)], body, [RNG.random((6, 5), np.float32)])
    assert len(steps(plan, Copy)) == 2


def test_growing_features_as_in_dense_networks() -> None:
    def body(g, x):
        for _ in range(4):
            x = g.one(Concat(1), x, g.one(Binary("add"), g.one(Reduce("sum", (1,), True), x), g.one(constant(np.float32(1)))))
        return [g.one(Unary("sqrt"), x)]

    run([f32(1, 2, N)], body, [RNG.random((1, 2, 7), np.float32)])


def test_inputs_constants_and_outputs_may_be_operands() -> None:
    def body(g, x):
        c = g.one(constant(np.arange(4, dtype=np.float32)))
        y = g.one(Unary("exp"), x)
        return [y, g.one(Concat(0), x, c, y, x)]

    run([f32(3)], body, [RNG.random(3, np.float32)])


JOINED = [((1, 2, 3), 1, True), ((2, 2, 3), 1, False), ((2, 3), 0, True), ((1, 1, 3), 2, True)]


@pytest.mark.parametrize(("shape", "axis", "joined"), JOINED)
def test_only_outer_axes_of_extent_one_join_in_place(shape, axis, joined) -> None:
    f = function("p", [f32(*shape), f32(*shape)], lambda g, x, y: [g.one(Concat(axis), x, y)])
    assert is_joined_in_place(f.results[0].node) is joined
    run([f32(*shape), f32(*shape)], lambda g, x, y: [g.one(Concat(axis), x, y)], [RNG.random(shape, np.float32) for _ in range(2)])


def test_a_slice_of_the_outer_axis_is_a_part_of_its_operand() -> None:
    def body(g, x):
        y = g.one(Unary("exp"), x)
        return [g.one(Binary("add"), g.one(part(y, 1, 0, 2), y), g.one(part(y, 1, 2, 2), y))]

    plan = run([f32(1, 4, 5)], body, [RNG.random((1, 4, 5), np.float32)])
    assert len(steps(plan, Launch)) == 2


@pytest.mark.parametrize(("shape", "axis", "found"), [((4, 3), 0, 0), ((4, 3), 1, None), ((1, 4, 3), 1, 1), ((1, 1, 3), 2, 2)])
def test_which_slices_are_parts(shape, axis, found) -> None:
    f = function("p", [f32(*shape)], lambda g, x: [g.one(part(x, axis, 1, 1), x)])
    assert cut_axis(f.results[0].node) == found


def test_steps_and_reversals_are_no_parts() -> None:
    backwards = Slice(as_shape((3, 0)), as_shape((4, 3)), (-1, 1))
    f = function("p", [f32(4, 3)], lambda g, x: [g.one(backwards, x)])
    assert cut_axis(f.results[0].node) is None


@pytest.mark.parametrize("steps", list(itertools.product((-2, -1, 1, 2), repeat=3)))
@pytest.mark.parametrize("shape", [(1, 4, 3), (4, 3, 1), (2, 3, 4), (1, 1, 4)])
def test_parts_are_elements_that_follow_each_other(shape, steps) -> None:
    """Whatever their first elements are, and however many there are of each axis."""
    positions = np.arange(np.prod(shape)).reshape(shape)
    for sizes in itertools.product(*(range(1, n + 1) for n in shape)):
        if any((size_ - 1) * abs(step) >= n for size_, step, n in zip(sizes, steps, shape, strict=True)):
            continue
        starts = [0 if step > 0 else n - 1 for step, n in zip(steps, shape, strict=True)]
        taken = positions[np.ix_(*(start + step * np.arange(size_) for start, size_, step in zip(starts, sizes, steps, strict=True)))]
        f = function("p", [f32(*shape)], lambda g, x: [g.one(Slice(as_shape(starts), as_shape(sizes), tuple(steps)), x)])  # noqa: B023
        if cut_axis(f.results[0].node) is not None:
            assert (np.diff(taken.reshape(-1)) == 1).all(), (starts, sizes)


def test_a_slice_that_is_an_output_is_copied() -> None:
    run([f32(5, 2)], lambda g, x: [g.one(part(x, 0, 1, 3), x)], [RNG.random((5, 2), np.float32)])


@pytest.mark.parametrize("start", [0, 1, 3])
@pytest.mark.parametrize("wanted", ["output", "both", "joined before", "joined behind", "branch", "stacked", "carried"])
def test_a_part_of_what_is_computed_goes_where_it_is_wanted(wanted, start) -> None:
    """Without the rest: there is no room for it."""
    true = np.array(True)
    taken = Slice(as_shape((start, 0)), as_shape((2, 3)), (1, 1))

    def whole(g, x):
        return g.one(Unary("exp"), x)

    def cut(g, x):
        return g.one(taken, whole(g, x))

    def body(g, x, going):
        y = g.one(Unary("neg"), x)
        match wanted:
            case "output":
                return [cut(g, x), y]
            case "both":
                made = whole(g, x)
                return [g.one(taken, made), made]
            case "joined before":
                return [g.one(Concat(0), cut(g, y), y)]
            case "joined behind":
                return [g.one(Concat(0), y, cut(g, y), y)]
            case "branch":
                sides = [
                    function(f"{i}", [f32(5, 3)], lambda g, a, fn=fn: [g.one(taken, g.one(Unary(fn), a))])
                    for i, fn in enumerate(("exp", "abs"))
                ]
                return [g.one(If(*sides), going, y), y]
            case "stacked":
                f = function("b", [f32(5, 3)], lambda g, a: [g.one(Unary("abs"), a), cut(g, a)])
                return list(g.emit(Loop(f, 1, size("I"), const(3)), y))
            case _:
                f = function(
                    "b",
                    [f32(2, 3), f32(5, 3)],
                    lambda g, a, b: [g.one(taken, g.one(Binary("add"), b, g.one(Reduce("sum", (0,), True), a)))],
                )
                return list(g.emit(Loop(f, 1, size("I"), const(3)), cut(g, y), y))

    run([f32(5, 3), boolean()], body, [RNG.random((5, 3), np.float32), true])


def chain(g, x, again=False):
    y = g.one(Reduce("max", (0,), True), g.one(Unary("exp"), x))
    first = g.one(Binary("add"), x, y)
    z = g.one(Reduce("max", (0,), True), first)
    second = g.one(Binary("mul"), first, z)
    total = g.one(Reduce("sum", (0,), True), second)
    results = [g.one(Binary("sub"), second, total)]
    return [*results, g.one(Reduce("min", (0,), True), first)] if again else results


def test_results_are_stored_over_operands_that_are_not_needed_any_more() -> None:
    plan = run([f32(40, 64)], lambda g, x: chain(g, x), [RNG.random((40, 64), np.float32)])
    assert int(plan.arena_bytes.value) < 1.5 * 40 * 64 * 4


def test_operands_that_are_needed_again_are_kept() -> None:
    run([f32(40, 64)], lambda g, x: chain(g, x, again=True), [RNG.random((40, 64), np.float32)])


def test_an_operand_that_is_read_by_another_name_is_kept() -> None:
    """The same memory is an operand as it is and, in another shape, one that is read elsewhere."""

    def body(g, x):
        y = g.one(Reduce("sum", (2,), False), x)
        turned = g.one(Transpose((1, 0)), g.one(Reshape(as_shape((64, 40))), y))
        difference = g.one(Binary("sub"), y, turned)
        return [g.one(Reduce(fn, (axis,), True), difference) for fn, axis in (("max", 0), ("min", 1))]

    plan = run([f32(40, 64, 5)], body, [RNG.integers(0, 9, (40, 64, 5)).astype(np.float32)])
    assert [len(step.args) for step in steps(plan, Launch)] == [2, 3, 2, 2]
