"""What a model declares where its operators leave the rank open."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.onnx.models import imported, parse
from tilewright.graph.interpreter import interpret
from tilewright.ir.expr import size


def squeezed(output: str) -> tuple:
    body = "a = Squeeze(x) b = Sigmoid(a) two = Constant<value_float = 2.0>() y = Mul(b, two)"
    graph = f"m (float[n, 1, m] x) => (float[{output}] y) {{ {body} }}"
    graph = graph.replace("float[]", "float")
    return imported(parse(graph)).module


@pytest.mark.parametrize(("declared", "shape"), [("a, b", (size("n", 0), size("m", 0))), ("m", (size("m", 0),)), ("", ())])
def test_squeeze_without_axes_takes_the_declared_rank(declared: str, shape: tuple) -> None:
    assert squeezed(declared).main.results[0].shape == shape


def test_dims_taken_for_one_are_checked() -> None:
    main = squeezed("m").main
    (y,) = interpret(main, [np.zeros((1, 1, 3), np.float32)])
    assert y.tolist() == [1, 1, 1]
    with pytest.raises(Exception, match="refine_shape"):
        interpret(main, [np.zeros((2, 1, 3), np.float32)])
