"""A fused group: operators that become one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilewright.graph.node import Array, Function, Operator
from tilewright.graph.ops.control import Run
from tilewright.ir.expr import Expr
from tilewright.ir.types import TensorType
from tilewright.support.errors import TypeRuleError


@dataclass(frozen=True, slots=True, eq=False)
class Fused(Operator):
    """(*operands) -> results of `body(*operands)`, computed by one kernel. The body holds no control flow and no large constants. When the
    size `turn` is odd, the kernel goes through its work from the end to the beginning."""

    name: ClassVar[str] = "fused"
    body: Function
    turn: Expr | None = None

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        for param, given in zip(self.body.params, inputs, strict=True):
            if param.type is not given:
                raise TypeRuleError(f"fused group: parameter of type {param.type!r} is passed {given!r}")
        return tuple(value.type for value in self.body.results)

    def interpret(self, run: Run, inputs: Sequence[Array], sizes: dict[Expr, int]) -> list[Array]:
        return run(self.body, inputs, sizes)
