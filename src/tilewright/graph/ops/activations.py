"""Activation functions that recurrent layers choose by name: as graph operators and in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tilewright.graph.node import GraphBuilder, Value
from tilewright.graph.ops.compose import binary, scalar, select, unary

Activation: TypeAlias = tuple[str, float, float]  # name, alpha, beta


@dataclass(frozen=True, slots=True)
class ActivationRule:
    """`build(g, x, alpha, beta)` and its NumPy form, with the parameters' defaults."""

    build: Callable[[GraphBuilder, Value, float, float], Value]
    array: Callable[[Any, float, float], Any]
    alpha: float = 1.0
    beta: float = 0.0


def _affine(g: GraphBuilder, x: Value, alpha: float, beta: float) -> Value:
    return binary(g, "add", binary(g, "mul", x, alpha), beta)


def _leaky(g: GraphBuilder, x: Value, alpha: float, beta: float) -> Value:
    return select(g, binary(g, "less", x, 0.0), binary(g, "mul", x, alpha), x)


def _thresholded(g: GraphBuilder, x: Value, alpha: float, beta: float) -> Value:
    return select(g, binary(g, "greater", x, alpha), x, scalar(g, 0.0, x.type.dtype))


def _scaled_tanh(g: GraphBuilder, x: Value, alpha: float, beta: float) -> Value:
    return binary(g, "mul", unary(g, "tanh", binary(g, "mul", x, beta)), alpha)


def _hard_sigmoid(g: GraphBuilder, x: Value, alpha: float, beta: float) -> Value:
    return binary(g, "min", binary(g, "max", _affine(g, x, alpha, beta), 0.0), 1.0)


def _elu(g: GraphBuilder, x: Value, alpha: float, beta: float) -> Value:
    return select(g, binary(g, "less", x, 0.0), binary(g, "mul", unary(g, "expm1", x), alpha), x)


def _softsign(g: GraphBuilder, x: Value, alpha: float, beta: float) -> Value:
    return binary(g, "div", x, binary(g, "add", unary(g, "abs", x), 1.0))


def _softplus(g: GraphBuilder, x: Value, alpha: float, beta: float) -> Value:
    tail = unary(g, "log1p", unary(g, "exp", unary(g, "neg", unary(g, "abs", x))))
    return binary(g, "add", binary(g, "max", x, 0.0), tail)


def _sigmoid_array(x: Any, alpha: float, beta: float) -> Any:
    return 1.0 / (1.0 + np.exp(-x))


ACTIVATIONS: dict[str, ActivationRule] = {
    "relu": ActivationRule(lambda g, x, a, b: binary(g, "max", x, 0.0), lambda x, a, b: np.maximum(x, 0)),
    "tanh": ActivationRule(lambda g, x, a, b: unary(g, "tanh", x), lambda x, a, b: np.tanh(x)),
    "sigmoid": ActivationRule(lambda g, x, a, b: unary(g, "sigmoid", x), _sigmoid_array),
    "affine": ActivationRule(_affine, lambda x, a, b: a * x + b),
    "leakyrelu": ActivationRule(_leaky, lambda x, a, b: np.where(x < 0, a * x, x), 0.01),
    "thresholdedrelu": ActivationRule(_thresholded, lambda x, a, b: np.where(x > a, x, 0), 1.0),
    "scaledtanh": ActivationRule(_scaled_tanh, lambda x, a, b: a * np.tanh(b * x), 1.0, 1.0),
    "hardsigmoid": ActivationRule(_hard_sigmoid, lambda x, a, b: np.clip(a * x + b, 0, 1), 0.2, 0.5),
    "elu": ActivationRule(_elu, lambda x, a, b: np.where(x < 0, a * np.expm1(x), x), 1.0),
    "softsign": ActivationRule(_softsign, lambda x, a, b: x / (1 + np.abs(x))),
    "softplus": ActivationRule(_softplus, lambda x, a, b: np.logaddexp(x, 0)),
}


def build_activation(g: GraphBuilder, kind: Activation, x: Value) -> Value:
    name, alpha, beta = kind
    return ACTIVATIONS[name].build(g, x, alpha, beta)


def activation_array(kind: Activation, x: Any) -> Any:
    name, alpha, beta = kind
    with np.errstate(all="ignore"):
        return ACTIVATIONS[name].array(x, alpha, beta)
