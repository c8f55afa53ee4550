"""Kernels of fused groups: what a definition must keep to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import pytest

from tests.compiled_graphs import compile_graph, f32, module
from tilewright.graph.node import Module, Operator
from tilewright.ir import dtypes
from tilewright.ir.expr import cast, size
from tilewright.ir.types import TensorType
from tilewright.kernel.builder import KernelBuilder, Tensor
from tilewright.support.errors import TypeRuleError, VerifyError

Definition = Callable[[KernelBuilder, Tensor], tuple[Tensor, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Copy(Operator):
    """The input, computed as the test says."""

    name: ClassVar[str] = "copy"
    definition: Definition

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        return inputs

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return self.definition(k, inputs[0])


def of(op: Operator) -> Module:
    return module([f32(size("n"), 5)], lambda g, x: [g.one(op, x)])


def test_a_definition_that_keeps_to_the_type_rule() -> None:
    compile_graph(of(Copy(lambda k, x: (k.compute("y", x.shape, lambda *i: x[i]),))))


@pytest.mark.parametrize(
    ("definition", "text"),
    [
        (lambda k, x: (k.compute("y", x.shape[:1], lambda i: x[i, 0]),), r"copy defines float32\[n\]"),
        (lambda k, x: (k.compute("y", (x.shape[0], 4), lambda *i: x[i]),), r"copy defines float32\[n, 4\]"),
        (lambda k, x: (k.compute("y", x.shape, lambda *i: cast(dtypes.int32, x[i])),), r"copy defines int32\[n, 5\]"),
        (lambda k, x: (), "copy defines nothing"),
    ],
    ids=["rank", "dim", "dtype", "number"],
)
def test_a_definition_of_another_type_is_refused(definition: Definition, text: str) -> None:
    with pytest.raises(VerifyError, match=text):
        compile_graph(of(Copy(definition)))


def test_an_operator_without_a_definition_is_refused() -> None:
    class Undefined(Operator):
        name: ClassVar[str] = "undefined"

        def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
            return inputs

    with pytest.raises(TypeRuleError, match="undefined has neither a kernel definition nor a decomposition"):
        compile_graph(of(Undefined()))
