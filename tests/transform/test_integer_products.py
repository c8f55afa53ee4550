"""Quantized graphs in integers: products have integer operands, and results are those of the float graph up to one step of quantization."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tests.compiled_graphs import Array, compile_graph, function, module
from tilewright.graph.interpreter import interpret
from tilewright.graph.node import Function, GraphBuilder, Operator, Value, walk_nodes
from tilewright.graph.ops import (
    Binary,
    Concat,
    Constant,
    ConstantData,
    Contract,
    Convolution,
    Dequantize,
    Pad,
    Quantize,
    Reduce,
    Reshape,
    Slice,
    Transpose,
    WindowReduce,
    constant,
)
from tilewright.graph.ops.padding import PAD_MODES
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import const, size
from tilewright.ir.types import as_shape, tensor
from tilewright.runtime.executable import Executable
from tilewright.transform.integer_products import integer_products

F32, U8, S8, I32 = dtypes.float32, dtypes.uint8, dtypes.int8, dtypes.int32
Body = Callable[[GraphBuilder, Value], Value]


def held(g: GraphBuilder, array: Array) -> Value:
    return g.one(Constant(ConstantData(array)))


def quantize(g: GraphBuilder, x: Value, scale: float, zero: int, dtype: DType) -> Value:
    return g.one(Quantize(0, 0, dtype), x, g.one(constant(np.float32(scale))), g.one(constant(zero, dtype)))


def dequantize(g: GraphBuilder, q: Value, scale: float, zero: int) -> Value:
    return g.one(Dequantize(0, 0, F32), q, g.one(constant(np.float32(scale))), g.one(constant(zero, q.type.dtype)))


def real(g: GraphBuilder, x: Value, scale: float = 0.03, zero: int = 117, dtype: DType = U8) -> Value:
    """x quantized and dequantized."""
    return dequantize(g, quantize(g, x, scale, zero, dtype), scale, zero)


def weights(g: GraphBuilder, shape: Sequence[int], axis: int, dtype: DType = S8, zero: int = 0) -> Value:
    low, high = (-127, 128) if dtype is S8 else (0, 256)
    values = np.random.default_rng(7).integers(low, high, shape).astype(dtype.numpy)
    scale = np.linspace(0.001, 0.002, shape[axis]).astype(np.float32)
    zeros = [held(g, np.full(shape[axis], zero, dtype.numpy))] if zero else []
    return g.one(Dequantize(axis, 0, F32), held(g, values), held(g, scale), *zeros)


def bias(g: GraphBuilder, n: int, scale: float) -> Value:
    numbers = (np.arange(n) - n // 2).astype(np.int32) * 40
    steps = (np.linspace(0.001, 0.002, n).astype(np.float32) * np.float32(scale)).astype(np.float32)
    return g.one(Dequantize(0, 0, F32), held(g, numbers), held(g, steps))


def conv(dtype: DType = U8, zero: int = 117, pad: int = 1, groups: int = 1, out: int = 20, relu: bool = False) -> Body:
    def body(g: GraphBuilder, x: Value) -> Value:
        amounts = as_shape((pad, pad))
        op = Convolution((1, 1), (1, 1), amounts, amounts, groups, F32)
        y = g.one(op, real(g, x, 0.03, zero, dtype), weights(g, (out, 6 // groups, 3, 3), 0))
        y = g.one(Binary("add"), y, g.one(Reshape(as_shape((out, 1, 1))), bias(g, out, 0.03)))
        y = g.one(Binary("max"), y, g.one(constant(np.float32(0)))) if relu else y
        return real(g, y, 0.05, 3 if dtype is S8 else 130, dtype)

    return body


def product(spec: str, shape: Sequence[int], axis: int, dtype: DType = U8, weight: DType = S8, zero: int = 0) -> Body:
    def body(g: GraphBuilder, x: Value) -> Value:
        flat = g.one(Reshape((x.shape[0], const(6 * 5 * 7))), real(g, x, dtype=dtype, zero=11))
        y = g.one(Contract(spec, F32), flat, weights(g, shape, axis, weight, zero))
        return real(g, g.one(Binary("add"), y, bias(g, shape[axis], 0.03)), 0.05, 7, dtype)

    return body


def residual(g: GraphBuilder, x: Value) -> Value:
    """Two branches that are quantized before they are added, pooled, and averaged."""
    a, b = conv(out=6)(g, x), real(g, x, 0.0213, 100)
    y = real(g, g.one(Binary("max"), g.one(Binary("add"), a, b), g.one(constant(np.float32(0)))), 0.0411, 0)
    one = as_shape((1, 1))
    y = real(g, g.one(WindowReduce("max", (3, 3), (2, 2), (1, 1), one, one), y), 0.0411, 0)
    y = g.one(Concat(1), y, y)
    return real(g, g.one(Reduce("sum", (2, 3), True), y), 0.3, 0)


CASES: dict[str, Body] = {
    "convolution": conv(),
    "convolution, then relu": conv(relu=True),
    "convolution without padding": conv(pad=0),
    "convolution of zero point 0": conv(zero=0),
    "convolution of signed bytes": conv(S8, -5),
    "depthwise convolution": conv(groups=6, out=6),
    "depthwise convolution of signed bytes": conv(S8, 9, groups=6, out=6),
    "grouped convolution": conv(groups=2),
    "product": product("mk,kn->mn", (210, 33), 1),
    "product with transposed weights": product("mk,nk->mn", (33, 210), 0),
    "product of signed bytes": product("mk,kn->mn", (210, 33), 1, S8),
    "product with unsigned weights": product("mk,kn->mn", (210, 33), 1, U8, U8, 128),
    "product with weights past a signed byte": product("mk,kn->mn", (210, 33), 1, U8, U8, 100),
    "residual": residual,
}
N = size("N", 1)


def graph_of(case: str, batch: object = 2) -> Function:
    return function("x", [tensor(F32, (batch, 6, 5, 7))], lambda g, x: (CASES[case](g, x),))  # type: ignore[arg-type]


def products(f: Function) -> list[tuple[DType, ...]]:
    """Dtypes of the operands of each product."""
    nodes = [node for node in walk_nodes(f.results) if isinstance(node.op, (Convolution, Contract))]
    return [tuple(value.type.dtype for value in node.inputs) for node in nodes]


def steps_apart(got: Array, want: Array) -> Array:
    """How far results are from each other, in steps of the results' own grid."""
    grid = np.unique(np.abs(np.diff(np.unique(want))))
    return np.abs(got - want) / (grid[grid > 1e-6].min() if (grid > 1e-6).any() else 1)


@pytest.mark.parametrize("case", CASES)
def test_results_stay_within_a_step(case: str) -> None:
    before = graph_of(case)
    after = integer_products(before, U8)
    x = np.random.default_rng(5).normal(0, 1, (2, 6, 5, 7)).astype(np.float32)
    (want,), (got,) = interpret(before, [x]), interpret(after, [x])
    apart = steps_apart(got, want)
    assert apart.max() <= 1.01
    assert (apart > 0.5).mean() < 0.05


@pytest.mark.parametrize("case", CASES)
def test_products_have_unsigned_activations_and_signed_weights(case: str) -> None:
    assert all(operands == (F32, F32) for operands in products(graph_of(case)))
    wide = dtypes.int16 if "past" in case else S8
    assert all(operands == (U8, wide) for operands in products(integer_products(graph_of(case), U8)))


def test_targets_that_multiply_signed_bytes_keep_them() -> None:
    assert products(integer_products(graph_of("convolution of signed bytes"), S8)) == [(S8, S8)]


@pytest.mark.parametrize("factor", [False, True])
@pytest.mark.parametrize(
    ("dtype", "zero"), [(d, zero) for d in (U8, S8, dtypes.int16) for zero in (d.lowest, d.lowest + 1, 5, d.highest)], ids=str
)
def test_quantization_saturates_at_both_ends(dtype: DType, zero: int, factor: bool) -> None:
    """Whatever the zero point is, and also where the scale goes into a factor before it."""

    def body(g: GraphBuilder, x: Value) -> Sequence[Value]:
        y = g.one(Binary("mul"), x, g.one(constant(np.float32(2)))) if factor else x
        return (quantize(g, y, 0.25, int(zero), dtype),)

    before = function("main", [tensor(F32, (size("N"),))], body)
    after = integer_products(before, U8)
    assert not any(isinstance(node.op, Quantize) for node in walk_nodes(after.results))
    reach = dtype.highest - dtype.lowest
    x = np.concatenate([np.linspace(-reach, reach, 1001), [-1e9, 1e9, -np.inf, np.inf]]).astype(np.float32)
    (want,), (got,) = interpret(before, [x]), interpret(after, [x])
    np.testing.assert_array_equal(got, want)
    assert {int(want.min()), int(want.max())} == {dtype.lowest, dtype.highest}


def test_the_padding_is_the_zero_point() -> None:
    pads = [node for node in walk_nodes(integer_products(graph_of("convolution"), U8).results) if isinstance(node.op, Pad)]
    assert [int(node.inputs[1].op.data.array) for node in pads] == [117]
    none = integer_products(graph_of("convolution of zero point 0"), U8)
    assert not any(isinstance(node.op, Pad) for node in walk_nodes(none.results))


def padded(mode: str, fill: float | None, low: int = 1) -> Body:
    """Along the last axis; fill None: a number known only while running."""

    def body(g: GraphBuilder, x: Value) -> Value:
        value = g.one(constant(np.float32(fill))) if fill is not None else g.one(Reduce("max", (0, 1), False), x)
        return g.one(Pad(as_shape((0, low)), as_shape((0, 2)), mode), real(g, x), value)

    return body


def larger(number: float) -> Body:
    return lambda g, x: g.one(Binary("max"), real(g, x), g.one(constant(np.float32(number))))


def moved_by(op: Operator) -> Body:
    return lambda g, x: g.one(op, real(g, x))


_FILLS = (0.0, -0.0, 1.0, -0.03, 117.0, np.inf, np.nan, None)
MOVEMENT: dict[str, Body] = {
    **{f"padded by {fill}": padded("constant", fill) for fill in _FILLS},
    **{f"cropped and padded by {fill}": padded("constant", fill, -2) for fill in (0.0, 1.0)},
    **{f"padded, {mode}": padded(mode, 1.0) for mode in PAD_MODES if mode != "constant"},
    **{f"at least {number}": larger(number) for number in (0.0, 1.0, -0.03, -np.inf, np.inf)},
    **{f"{fn} along rows": moved_by(Reduce(fn, (1,), True)) for fn in ("max", "min", "sum", "prod")},
    **{f"{fn} of windows": moved_by(WindowReduce(fn, (2,), (1,), (1,), as_shape((1,)), as_shape((1,)))) for fn in ("max", "min", "sum")},
    "every second, backwards": moved_by(Slice(as_shape((0, 6)), as_shape((4, 3)), (1, -2))),
    "transposed": moved_by(Transpose((1, 0))),
    "reshaped": moved_by(Reshape(as_shape((2, 14)))),
}


@pytest.mark.parametrize("case", MOVEMENT)
def test_movement_of_dequantized_values_keeps_results(case: str) -> None:
    """Whether it becomes one of the integers or, as for numbers that these do not have, does not."""
    before = function("x", [tensor(F32, (4, 7))], lambda g, x: (MOVEMENT[case](g, x),))
    x = np.random.default_rng(5).normal(0, 1, (4, 7)).astype(np.float32)
    (want,), (got,) = interpret(before, [x]), interpret(integer_products(before, U8), [x])
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", ["padded by 0.0", "padded by -0.0", "at least 0.0", "max along rows", "min of windows", "transposed"])
def test_movement_of_dequantized_values_is_one_of_the_integers(case: str) -> None:
    f = integer_products(function("x", [tensor(F32, (4, 7))], lambda g, x: (MOVEMENT[case](g, x),)), U8)
    assert isinstance(f.results[0].op, Dequantize)


def test_a_bias_and_the_zero_point_are_one_sum() -> None:
    nodes = [node for node in walk_nodes(integer_products(graph_of("convolution"), U8).results) if isinstance(node.op, Binary)]
    assert len([node for node in nodes if node.op.fn == "add" and node.types[0].dtype is F32]) == 1


def test_maxima_are_taken_of_integers() -> None:
    after = integer_products(graph_of("residual"), U8)
    assert [node.types[0].dtype for node in walk_nodes(after.results) if isinstance(node.op, WindowReduce)] == [U8]


def test_what_is_no_known_scale_is_left_alone() -> None:
    def body(g: GraphBuilder, x: Value, scale: Value) -> Sequence[Value]:
        q = g.one(Quantize(0, 0, U8), x, scale)
        return (g.one(Contract("mk,kn->mn", F32), g.one(Dequantize(0, 0, F32), q, scale), weights(g, (8, 4), 1)),)

    f = function("x", [tensor(F32, (3, 8)), tensor(F32, ())], body)
    assert products(integer_products(f, U8)) == [(F32, F32)]


def test_graphs_without_quantization_are_returned_as_they_are() -> None:
    f = function("x", [tensor(F32, (3, 8))], lambda g, x: (g.one(Transpose((1, 0)), x),))
    assert integer_products(f, U8) is f


@pytest.mark.parametrize("case", CASES)
def test_compiled_code_agrees(case: str) -> None:
    m = module([tensor(F32, (N, 6, 5, 7))], lambda g, x: (CASES[case](g, x),))
    executable = Executable(compile_graph(m).artifact, 1)
    for batch in (1, 3):
        x = np.random.default_rng(5).normal(0, 1, (batch, 6, 5, 7)).astype(np.float32)
        (want,) = interpret(m, [x])
        apart = steps_apart(executable.run({"x0": x})["y0"], want)
        assert apart.max() <= 1.01
        assert (apart > 0.5).mean() < 0.05
