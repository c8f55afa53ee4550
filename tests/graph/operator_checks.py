"""Checks that every operator must pass: its type rule, reference, kernel definition and decomposition agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.graph.interpreter import decomposed, has_reference, interpret
from tilewright.graph.node import Function, GraphBuilder, Operator, Parameter, define, has_decomposition, has_definition
from tilewright.ir import dtypes
from tilewright.ir.types import TensorType, tensor
from tilewright.kernel import interpreter as kernel_interpreter
from tilewright.kernel.builder import KernelBuilder
from tilewright.kernel.nodes import Kernel

TOLERANCE = {"float64": 1e-11, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}


def types_of(arrays: Sequence[np.ndarray]) -> tuple[TensorType, ...]:
    return tuple(tensor(dtypes.from_numpy(a.dtype), a.shape) for a in arrays)


def kernel_of(op: Operator, types: Sequence[TensorType]) -> Kernel:
    k = KernelBuilder(op.name)
    operands = tuple(k.input(f"x{i}", t.dtype, t.shape) for i, t in enumerate(types))
    return k.finish(define(op, k, operands))


def function_of(op: Operator, types: Sequence[TensorType]) -> Function:
    g = GraphBuilder()
    params = tuple(g.one(Parameter(f"x{i}", t)) for i, t in enumerate(types))
    return Function("f", params, g.emit(op, *params))


def assert_close(actual: Any, expected: Any, what: str, tolerance: float | None = None) -> None:
    assert actual.dtype == expected.dtype, (what, actual.dtype, expected.dtype)
    assert actual.shape == expected.shape, (what, actual.shape, expected.shape)
    dtype = dtypes.from_numpy(expected.dtype)
    if not dtype.is_float:
        np.testing.assert_array_equal(actual, expected, err_msg=what)
        return
    limit = TOLERANCE.get(dtype.name, 0.13) if tolerance is None else tolerance
    np.testing.assert_allclose(actual.astype(np.float64), expected.astype(np.float64), rtol=limit, atol=limit, err_msg=what)


def check(op: Operator, *arrays: np.ndarray, types: Sequence[TensorType] | None = None, tolerance: float | None = None) -> list[np.ndarray]:
    """The results of `op` on the arrays, after all its forms were seen to agree. `types` may be symbolic."""
    given = types_of(arrays) if types is None else tuple(types)
    function = function_of(op, given)
    results = interpret(function, list(arrays))  # checks the reference against the type rule
    if has_definition(op):
        computed = kernel_interpreter.interpret(kernel_of(op, given), list(arrays))
        for a, b in zip(computed, results, strict=True):
            assert_close(a, b, f"kernel of {op.name}", tolerance)
    if has_decomposition(op) and has_reference(op):
        opened = interpret(decomposed(op, given), list(arrays))
        for a, b in zip(opened, results, strict=True):
            assert_close(a, b, f"decomposition of {op.name}", tolerance)
    return results


def draw(rng: np.random.Generator, shape: Sequence[int], dtype: str = "float32", low: float = -4, high: float = 4) -> np.ndarray:
    """Random values of any dtype, whole numbers for integers."""
    kind = dtypes.BY_NAME[dtype]
    if kind.kind == "bool":
        return rng.random(shape) < 0.5
    if kind.is_integer:
        limits = max(low, float(kind.lowest)), min(high, float(kind.highest))
        return rng.integers(int(limits[0]), int(limits[1]) + 1, shape).astype(np.int64).astype(kind.numpy)
    return rng.uniform(low, high, shape).astype(kind.numpy)
