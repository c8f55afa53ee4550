"""Running an operator's kernel definition in the kernel interpreter, for comparison with its reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.graph.node import Array, Operator, define
from tilewright.ir import dtypes
from tilewright.ir.types import TensorType, tensor
from tilewright.kernel.builder import KernelBuilder
from tilewright.kernel.interpreter import interpret


def types_of(arrays: Sequence[Array]) -> tuple[TensorType, ...]:
    return tuple(tensor(dtypes.from_numpy(a.dtype), a.shape) for a in arrays)


def run_definition(op: Operator, arrays: Sequence[Array], types: Sequence[TensorType] | None = None) -> list[Array]:
    """The results of the operator's kernel; `types` gives symbolic input types."""
    types = tuple(types or types_of(arrays))
    k = KernelBuilder(op.name)
    tensors = tuple(k.input(f"x{i}", t.dtype, t.shape) for i, t in enumerate(types))
    results = define(op, k, tensors)
    inferred = op.infer(types)
    assert [(r.dtype, r.shape) for r in results] == [(t.dtype, t.shape) for t in inferred]
    return interpret(k.finish(results), list(arrays))


def check_operator(
    op: Operator, arrays: Sequence[Any], types: Sequence[TensorType] | None = None, tolerance: float = 0.0
) -> tuple[Array, ...]:
    """The reference's results, after comparing the kernel's results with them."""
    inputs = tuple(np.asarray(a) for a in arrays)
    expected = op.reference(inputs)
    for want, got, type_ in zip(expected, run_definition(op, inputs, types), op.infer(types_of(inputs)), strict=True):
        assert want.dtype == type_.dtype.numpy
        if not types:
            assert want.shape == tuple(int(d.value) for d in type_.shape)
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance)
    return expected
