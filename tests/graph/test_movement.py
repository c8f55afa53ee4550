"""Movement operators and the index arithmetic of reshapes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph.operator_checks import check, draw, function_of, kernel_of
from tilewright.graph.ops import BroadcastTo, Concat, Pad, Repeat, Reshape, Slice, Transpose
from tilewright.graph.shapes import counts_equal, dims_equal, matching_groups, reshape_index
from tilewright.ir import dtypes
from tilewright.ir.expr import const, size, var
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import walk
from tilewright.ir.types import as_shape, tensor
from tilewright.support.errors import TypeRuleError


def factorizations(n: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes with n elements, with ones strewn in."""

    @st.composite
    def shape(draw_):
        rest, dims = n, []
        while rest > 1:
            divisor = draw_(st.sampled_from([d for d in range(2, rest + 1) if rest % d == 0]))
            dims.append(divisor)
            rest //= divisor
        for _ in range(draw_(st.integers(0, 2))):
            dims.insert(draw_(st.integers(0, len(dims))), 1)
        return tuple(dims)

    return shape()


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([1, 6, 24, 36]).flatmap(lambda n: st.tuples(factorizations(n), factorizations(n))))
def test_reshape_forms_agree(shapes):
    source, target = shapes
    x = np.arange(int(np.prod(source)), dtype=np.int32).reshape(source)
    check(Reshape(as_shape(target)), x)
    groups = matching_groups(as_shape(source), as_shape(target))
    assert [i for mine, _ in groups for i in mine] == list(range(len(source)))
    assert [j for _, theirs in groups for j in theirs] == list(range(len(target)))


def test_reshape_keeps_unaffected_axes_free_of_division():
    n, i, j, k = size("n", 1), var("i"), var("j"), var("k")
    at = reshape_index(as_shape((n, 6, 4, n)), as_shape((n, 24, n)), (i, j, k))
    assert at[0] is i
    assert at[3] is k
    merged = reshape_index(as_shape((n, 24)), as_shape((n, 6, 4)), (i, j, k))
    assert not any(e.op in (Op.FLOORDIV, Op.FLOORMOD) for e in walk(*merged))


def test_reshape_with_symbolic_dims():
    n = size("n", 1)
    x = np.arange(24, dtype=np.float32).reshape(2, 12)
    types = [tensor(dtypes.float32, (n, 12))]
    (y,) = check(Reshape(as_shape((n * 3, 2, 2))), x, types=types)
    assert y.shape == (6, 2, 2)
    with pytest.raises(TypeRuleError, match="cannot become"):
        function_of(Reshape(as_shape((n, 13))), types)


def test_reshape_of_nothing():
    (y,) = check(Reshape(as_shape((5, 0))), np.zeros((0, 3), np.float32))
    assert y.shape == (5, 0)


def test_dims_are_compared_after_simplification():
    n, m = size("n"), size("m")
    assert dims_equal(n + 1 + 2, n + 3)
    assert not dims_equal(n, m)
    assert counts_equal(as_shape((n, 4)), as_shape((2, n, 2))) is True
    assert counts_equal(as_shape((n,)), as_shape((m,))) is None


def test_transpose_and_broadcast():
    rng = np.random.default_rng(0)
    x = draw(rng, (2, 3, 4))
    (y,) = check(Transpose((2, 0, 1)), x)
    np.testing.assert_array_equal(y, np.moveaxis(x, 2, 0))
    (z,) = check(BroadcastTo(as_shape((5, 3, 2))), draw(rng, (3, 1), "int8"))
    assert z.shape == (5, 3, 2)
    check(Transpose(()), np.array(3.0, np.float32))
    (r,) = check(Repeat(-2, 3), draw(rng, (4, 2, 5)))
    assert r.shape == (4, 6, 5)
    with pytest.raises(TypeRuleError, match="no number of times"):
        function_of(Repeat(0, 0), [tensor(dtypes.float32, (2,))])
    with pytest.raises(TypeRuleError, match="not a permutation"):
        function_of(Transpose((0, 0, 1)), [tensor(dtypes.float32, (2, 3, 4))])
    with pytest.raises(TypeRuleError, match="does not broadcast"):
        function_of(BroadcastTo(as_shape((3,))), [tensor(dtypes.float32, (2,))])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 7), st.integers(0, 6), st.integers(0, 7), st.sampled_from([-3, -1, 1, 2])), max_size=3))
def test_slice_is_pythons(axes):
    shape = tuple(dim for dim, _, _, _ in axes)
    x = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
    starts, sizes, steps = [], [], []
    for dim, start, count, step in axes:
        start %= dim
        room = (dim - 1 - start) // step + 1 if step > 0 else start // -step + 1
        starts.append(start)
        sizes.append(min(count, room))
        steps.append(step)
    (y,) = check(Slice(as_shape(starts), as_shape(sizes), tuple(steps)), x)
    index = np.ix_(*[np.arange(n) * step + start for start, n, step in zip(starts, sizes, steps)])
    np.testing.assert_array_equal(y, x[index] if axes else x)


def test_slice_outside_is_an_error():
    with pytest.raises(TypeRuleError, match="has no element 5"):
        function_of(Slice(as_shape((2,)), as_shape((4,)), (1,)), [tensor(dtypes.float32, (5,))])
    with pytest.raises(TypeRuleError, match="step of axis 0 is 0"):
        function_of(Slice(as_shape((2,)), as_shape((1,)), (0,)), [tensor(dtypes.float32, (5,))])


def test_an_empty_axis_is_cut_into_parts_that_may_be_empty():
    empty = tensor(dtypes.float32, (0,))
    assert function_of(Slice(as_shape((0,)), (size("part"),), (1,)), [empty]).results[0].shape == (size("part"),)
    with pytest.raises(TypeRuleError, match="has no element 0"):
        function_of(Slice(as_shape((0,)), (size("part", 1),), (1,)), [empty])


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize(("low", "high"), [((1, 2), (2, 0)), ((0, 0), (0, 0)), ((-1, 1), (2, -2)), ((7, 0), (9, 5))])
def test_pad_modes(mode, low, high):
    x = np.arange(12, dtype=np.int32).reshape(3, 4)
    (y,) = check(Pad(as_shape(low), as_shape(high), mode), x, np.array(-5, np.int32))
    if min(low + high) >= 0:
        options = {"constant_values": -5} if mode == "constant" else {}
        np.testing.assert_array_equal(y, np.pad(x, list(zip(low, high)), mode=mode, **options))


def test_pad_of_one_element_reflects_itself():
    (y,) = check(Pad(as_shape((2,)), as_shape((3,)), "reflect"), np.array([7.0], np.float32), np.array(0, np.float32))
    assert y.tolist() == [7.0] * 6


def test_pad_with_symbolic_amounts():
    n = size("n", 1)
    types = [tensor(dtypes.float32, (n,)), tensor(dtypes.float32, ())]
    (y,) = check(Pad((n,), (const(1),), "constant"), np.ones(3, np.float32), np.array(2, np.float32), types=types)
    assert y.tolist() == [2, 2, 2, 1, 1, 1, 2]


def test_pad_rules():
    value = tensor(dtypes.float32, ())
    with pytest.raises(TypeRuleError, match="no mode 'mirror'"):
        function_of(Pad(as_shape((1,)), as_shape((1,)), "mirror"), [tensor(dtypes.float32, (2,)), value])
    with pytest.raises(TypeRuleError, match="cropped to the size -1"):
        function_of(Pad(as_shape((-2,)), as_shape((-1,)), "constant"), [tensor(dtypes.float32, (2,)), value])
    with pytest.raises(TypeRuleError, match="no element to repeat"):
        function_of(Pad(as_shape((1,)), as_shape((1,)), "edge"), [tensor(dtypes.float32, (0,)), value])


@pytest.mark.parametrize("sizes", [(3,), (1, 2), (2, 0, 3, 1, 2)])
def test_concat(sizes):
    rng = np.random.default_rng(1)
    arrays = [draw(rng, (2, n, 3), "float16") for n in sizes]
    (y,) = check(Concat(1), *arrays)
    (same,) = check(Concat(-2), *arrays)
    np.testing.assert_array_equal(y, np.concatenate(arrays, 1))
    np.testing.assert_array_equal(y, same)


def test_concat_of_symbolic_sizes():
    n = size("n", 0)
    x, y = np.ones((3, 2), np.float32), np.zeros((5, 2), np.float32)
    types = [tensor(dtypes.float32, (n, 2)), tensor(dtypes.float32, (n + 2, 2))]
    (z,) = check(Concat(0), x, y, types=types)
    assert z.shape == (8, 2)
    assert kernel_of(Concat(0), types).outputs[0].shape[0] is function_of(Concat(0), types).results[0].shape[0]
    with pytest.raises(TypeRuleError, match="do not join along axis 1"):
        function_of(Concat(1), types)
