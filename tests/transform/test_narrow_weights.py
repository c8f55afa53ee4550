"""Weights that stay small integers: products give what those of dequantized weights give, and artifacts hold the integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tests.compiled_graphs import Array, compile_graph, f32, function, i64, module
from tilewright.graph.interpreter import interpret
from tilewright.graph.node import GraphBuilder, Module, Value, walk_nodes
from tilewright.graph.ops import Binary, Constant, ConstantData, Contract, Dequantize, Gather, Loop, Reshape, Slice, WidenWeights
from tilewright.graph.ops.narrow_weights import packed, unpacked
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, const, size
from tilewright.runtime.executable import Executable
from tilewright.transform.narrow_weights import narrow_weights

CACHE = 1000  # bytes: these weights are small
STORED = {dtypes.int8: 1.0, dtypes.uint8: 1.0, dtypes.int4: 0.5, dtypes.uint4: 0.5, dtypes.uint2: 0.25}


def held(g: GraphBuilder, array: Array) -> Value:
    return g.one(Constant(ConstantData(array)))


def draw(dtype: DType, shape: Sequence[int], seed: int) -> Array:
    values = np.random.default_rng(seed).integers(int(dtype.lowest), int(dtype.highest) + 1, shape)
    return values.astype(dtype.numpy)


def product(rows: Expr | int, depth: int, columns: int, dtype: DType, block: int, zero: str, transposed: bool = True) -> Module:
    """x @ dequantized weights + bias. block: 0 for one scale for each column. zero: none, one or many."""

    def body(g: GraphBuilder, x: Value) -> list[Value]:
        shape = (columns, depth) if transposed else (depth, columns)
        axis = 1 if transposed else 0
        scales: tuple[int, ...] = (columns,)
        if block:
            blocks = -(-depth // block)
            scales = (columns, blocks) if transposed else (blocks, columns)
        scale = np.random.default_rng(3).uniform(0.01, 0.02, scales).astype(np.float32)
        operands = [held(g, draw(dtype, shape, 1)), held(g, scale)]
        if zero == "many":
            operands.append(held(g, draw(dtype, scales, 2)))
        if zero == "one":
            operands.append(held(g, np.full(scales, 1).astype(dtype.numpy)))
        w = g.one(Dequantize(axis if block else 1 - axis, block, dtypes.float32), *operands)
        y = g.one(Contract("mk,nk->mn" if transposed else "mk,kn->mn", dtypes.float32), x, w)
        return [g.one(Binary("add"), y, held(g, np.linspace(-1, 1, columns).astype(np.float32)))]

    return module([f32(rows, depth)], body)


def run(m: Module, rows: int, depth: int) -> tuple[Array, Array, Executable, list[str]]:
    """(expected, computed, the executable, names of its kernels)."""
    x = np.random.default_rng(0).normal(size=(rows, depth)).astype(np.float32)
    compiled = compile_graph(m, precision="default")
    exe = Executable(compiled.artifact, 1)
    return interpret(m, [x])[0], np.asarray(exe(x)), exe, [kernel["symbol"] for kernel in compiled.artifact.manifest["kernels"]]


@pytest.mark.parametrize("rows", [1, 3, 17])
@pytest.mark.parametrize("zero", ["none", "one", "many"])
@pytest.mark.parametrize("block", [0, 16, 32, 64, 128])
@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.uint8, dtypes.int4, dtypes.uint4, dtypes.uint2], ids=repr)
def test_products(dtype: DType, block: int, zero: str, rows: int) -> None:
    m = product(rows, 256, 80, dtype, block, zero)
    expected, computed, exe, kernels = run(m, rows, 256)
    np.testing.assert_allclose(computed, expected, rtol=2e-5, atol=2e-4)
    assert len(kernels) == 1
    assert "widen_weights_contract" in kernels[0]
    padded, blocks = 256 * 128, 256 // (block or 256)
    assert exe.manifest["memory"]["weights"] <= padded * STORED[dtype] + 128 * blocks * 5 + 1024


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.uint4], ids=repr)
def test_any_number_of_rows(dtype: DType, rows: int) -> None:
    m = product(size("rows", 1), 256, 80, dtype, 32, "many", transposed=False)
    expected, computed, _, kernels = run(m, rows, 256)
    np.testing.assert_allclose(computed, expected, rtol=2e-5, atol=2e-4)
    assert len(kernels) == 1


@pytest.mark.parametrize("rows", [1, 17])
@pytest.mark.parametrize("depth", [100, 203])
@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.uint4], ids=repr)
def test_ragged_depths(dtype: DType, depth: int, rows: int) -> None:
    m = product(rows, depth, 33, dtype, 32, "many")
    expected, computed, _, kernels = run(m, rows, depth)
    np.testing.assert_allclose(computed, expected, rtol=2e-5, atol=2e-4)
    assert len(kernels) == 1


@pytest.mark.parametrize("zero", [0, 1, 126, 127, 128, 129, 254, 255])
@pytest.mark.parametrize("dtype", [dtypes.uint8, dtypes.int8], ids=repr)
def test_zero_points_with_which_codes_may_leave_a_byte(dtype: DType, zero: int) -> None:
    """Codes of the whole range, less zero points from the least to the greatest."""
    lowest = int(dtype.lowest)
    codes = (np.arange(64 * 32).reshape(64, 32) % 256 + lowest).astype(dtype.numpy)
    operands = codes, np.array(0.01, np.float32), np.array(zero + lowest, dtype.numpy)

    def body(g: GraphBuilder, x: Value) -> list[Value]:
        w = g.one(Dequantize(0, 0, dtypes.float32), *(held(g, array) for array in operands))
        return [g.one(Contract("mk,kn->mn", dtypes.float32), x, w)]

    before = module([f32(3, 64)], body).main
    after = narrow_weights(before, CACHE)
    assert any(isinstance(node.op, WidenWeights) for node in walk_nodes(after.results))
    x = np.random.default_rng(0).normal(size=(3, 64)).astype(np.float32)
    np.testing.assert_allclose(interpret(after, [x])[0], interpret(before, [x])[0], rtol=2e-5, atol=1e-4)


def test_what_stays_dequantized() -> None:
    m = product(3, 256, 80, dtypes.int8, 0, "none")
    assert not any(isinstance(node.op, WidenWeights) for node in walk_nodes(narrow_weights(m.main, 4 * 256 * 80).results))
    assert any(isinstance(node.op, WidenWeights) for node in walk_nodes(narrow_weights(m.main, 4 * 256 * 80 - 1).results))


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("axis", [0, 1])
def test_words(bits: int, axis: int) -> None:
    codes = np.random.default_rng(0).integers(0, 1 << bits, (21, 13)).astype(np.uint8)
    np.testing.assert_array_equal(unpacked(packed(codes, bits, axis), bits, axis, codes.shape[axis]), codes)


# ---- slices that are picked while running

COUNT = 5


def of_slices(dtype: DType, block: int, zero: str, depth: int, columns: int, how: str) -> Module:
    """x @ dequantize(q[i], scale[i], zero[i]), q [5, columns, depth], i an input, or the counter of a loop over slices."""

    def dequantized(g: GraphBuilder, pick: Callable[[Value], Value]) -> Value:
        scales = (COUNT, columns, depth // block) if block else (COUNT, columns)
        scale = np.random.default_rng(3).uniform(0.01, 0.02, scales).astype(np.float32)
        operands = [pick(held(g, draw(dtype, (COUNT, columns, depth), 1))), pick(held(g, scale))]
        if zero == "many":
            operands.append(pick(held(g, draw(dtype, scales, 2))))
        if zero == "shared":  # a constant for all slices
            operands.append(held(g, np.full(scales[1:], 1).astype(dtype.numpy)))
        return g.one(Dequantize(1 if block else 0, block, dtypes.float32), *operands)

    def picked(g: GraphBuilder, x: Value, i: Value) -> list[Value]:
        w = dequantized(g, lambda whole: g.one(Gather(0), whole, i))
        return [g.one(Contract("mk,nk->mn", dtypes.float32), x, w)]

    if how == "index":
        return module([f32(size("M", 1), depth), i64()], picked)
    counter = size("layer")

    def body(g: GraphBuilder, x: Value) -> list[Value]:
        def pick(whole: Value) -> Value:
            inner = whole.shape[1:]
            at = (const(COUNT - 1) - counter, *(const(0) for _ in inner))
            return g.one(Reshape(inner), g.one(Slice(at, (const(1), *inner), (1,) * (1 + len(inner))), whole))

        return [g.one(Contract("mk,nk->mn", dtypes.float32), x, dequantized(g, pick))]

    rows = size("M", 1)
    inner = function("layer", [f32(rows, depth)], body)
    return module([f32(rows, depth)], lambda g, x: g.emit(Loop(inner, 0, counter, const(COUNT)), x))


@pytest.mark.parametrize("how", ["index", "loop"])
@pytest.mark.parametrize("zero", ["none", "shared", "many"])
@pytest.mark.parametrize("block", [0, 32])
@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.uint4, dtypes.uint2], ids=repr)
def test_slices_stay_narrow(dtype: DType, block: int, zero: str, how: str) -> None:
    m = of_slices(dtype, block, zero, 160, 96, how)
    compiled = compile_graph(m)
    exe = Executable(compiled.artifact, 2)
    rng = np.random.default_rng(0)
    for rows in (1, 9):
        x = rng.normal(size=(rows, 160)).astype(np.float32)
        for index in (0, 3, -1, -5, 7) if how == "index" else (0,):
            inputs = [x, np.array(index)] if how == "index" else [x]
            (computed,) = exe.run(dict(zip(m.input_names, inputs, strict=True))).values()
            np.testing.assert_allclose(computed, interpret(m, inputs)[0], rtol=2e-5, atol=5e-4)
    widening = [kernel["symbol"] for kernel in compiled.artifact.manifest["kernels"] if "widen" in kernel["symbol"]]
    assert len(widening) == 1
    assert compiled.artifact.manifest["memory"]["weights"] < COUNT * 160 * 96 * 2.5


def test_slices_of_other_numbers_are_left_alone() -> None:
    def body(g: GraphBuilder, x: Value, i: Value, j: Value) -> list[Value]:
        codes = g.one(Gather(0), held(g, draw(dtypes.int8, (COUNT, 96, 160), 1)), i)
        scale = g.one(Gather(0), held(g, np.linspace(0.01, 0.02, COUNT * 96, dtype=np.float32).reshape(COUNT, 96)), j)
        return [g.one(Contract("mk,nk->mn", dtypes.float32), x, g.one(Dequantize(0, 0, dtypes.float32), codes, scale))]

    m = module([f32(3, 160), i64(), i64()], body)
    assert not any(isinstance(node.op, WidenWeights) for node in walk_nodes(narrow_weights(m.main, CACHE).results))
    inputs = [np.random.default_rng(0).normal(size=(3, 160)).astype(np.float32), np.array(2), np.array(-1)]
    (computed,) = Executable(compile_graph(m).artifact, 1).run(dict(zip(m.input_names, inputs, strict=True))).values()
    np.testing.assert_allclose(computed, interpret(m, inputs)[0], rtol=2e-5, atol=5e-4)
