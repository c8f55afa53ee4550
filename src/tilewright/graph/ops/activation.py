"""Activations that targets know by name. The simpler ones (relu, leaky relu, elu ...) are plain elementwise functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright.graph.node import Array, GraphBuilder, Operator, Value
from tilewright.graph.ops.compose import binary, cast, unary, widen
from tilewright.graph.ops.elementwise import expect_inputs, expect_kind
from tilewright.graph.ops.scalars import FLOAT, scalar_unary, widened
from tilewright.ir import expr as ex
from tilewright.ir.expr import Expr, call, const
from tilewright.ir.types import TensorType
from tilewright.kernel.builder import KernelBuilder, Tensor

_TANH_SCALE = math.sqrt(2.0 / math.pi)
_TANH_CUBIC = 0.044715


def _infer(name: str, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
    expect_inputs(name, inputs, 1)
    expect_kind(name, inputs[0].dtype, FLOAT)
    return inputs


def _compute(k: KernelBuilder, name: str, x: Tensor, value: Callable[[Expr], Expr]) -> tuple[Tensor, ...]:
    return (k.compute(name, x.shape, lambda *i: ex.cast(x.dtype, value(widened(x[i])))),)


def _array(x: Array, fn: Callable[[Array], Array]) -> tuple[Array, ...]:
    with np.errstate(all="ignore"):
        return (np.asarray(fn(x.astype(np.float64))).astype(x.dtype),)


@dataclass(frozen=True, slots=True, eq=False)
class Gelu(Operator):
    """x * Phi(x), the Gaussian distribution function by erf, or by its tanh approximation (Hendrycks and Gimpel, 2016)."""

    name: ClassVar[str] = "gelu"
    approximate: bool

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        return _infer("gelu", inputs)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        def exact(x: Array) -> Array:
            erf = np.frompyfunc(math.erf, 1, 1)
            return x * 0.5 * (1.0 + np.asarray(erf(x / math.sqrt(2.0)), np.float64))

        def by_tanh(x: Array) -> Array:
            return x * 0.5 * (1.0 + np.tanh(_TANH_SCALE * (x + _TANH_CUBIC * x**3)))

        return _array(inputs[0], by_tanh if self.approximate else exact)

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        def value(x: Expr) -> Expr:
            if self.approximate:  # (1 + tanh(t)) / 2 is sigmoid(2 t), which takes fewer operations
                return x * call("sigmoid", (x * x * _TANH_CUBIC + 1.0) * x * (2.0 * _TANH_SCALE))
            return x * 0.5 * (call("erf", x * math.sqrt(0.5)) + 1.0)

        return _compute(k, "gelu", inputs[0], value)

    def decompose(self, g: GraphBuilder, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        x = widen(g, inputs[0])
        if self.approximate:
            cubic = binary(g, "add", binary(g, "mul", binary(g, "mul", x, x), _TANH_CUBIC), 1.0)
            result = binary(g, "mul", x, unary(g, "sigmoid", binary(g, "mul", binary(g, "mul", cubic, x), 2.0 * _TANH_SCALE)))
        else:
            inner = unary(g, "erf", binary(g, "mul", x, math.sqrt(0.5)))
            result = binary(g, "mul", binary(g, "mul", x, 0.5), binary(g, "add", inner, 1.0))
        return (cast(g, result, inputs[0].type.dtype),)


@dataclass(frozen=True, slots=True, eq=False)
class HardSwish(Operator):
    """x * clamp(x / 6 + 1/2, 0, 1) (Howard et al., "Searching for MobileNetV3", 2019)."""

    name: ClassVar[str] = "hard_swish"

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        return _infer("hard_swish", inputs)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        return _array(inputs[0], lambda x: x * np.clip(x / 6.0 + 0.5, 0.0, 1.0))

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        def value(x: Expr) -> Expr:
            gate = ex.minimum(ex.maximum(x * (1.0 / 6.0) + 0.5, const(0.0, x.dtype)), const(1.0, x.dtype))
            return x * gate

        return _compute(k, "hard_swish", inputs[0], value)

    def decompose(self, g: GraphBuilder, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        x = widen(g, inputs[0])
        shifted = binary(g, "add", binary(g, "mul", x, 1.0 / 6.0), 0.5)
        gate = binary(g, "min", binary(g, "max", shifted, 0.0), 1.0)
        return (cast(g, binary(g, "mul", x, gate), inputs[0].type.dtype),)


@dataclass(frozen=True, slots=True, eq=False)
class Softplus(Operator):
    """log(1 + exp(x)), without overflow."""

    name: ClassVar[str] = "softplus"

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        return _infer("softplus", inputs)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        return _array(inputs[0], lambda x: np.logaddexp(x, 0.0))

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        def value(x: Expr) -> Expr:
            tail = call("log1p", call("exp", scalar_unary("neg", call("abs", x))))
            return ex.maximum(x, const(0.0, x.dtype)) + tail

        return _compute(k, "softplus", inputs[0], value)

    def decompose(self, g: GraphBuilder, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        x = widen(g, inputs[0])
        tail = unary(g, "log1p", unary(g, "exp", unary(g, "neg", unary(g, "abs", x))))
        return (cast(g, binary(g, "add", binary(g, "max", x, 0.0), tail), inputs[0].type.dtype),)
