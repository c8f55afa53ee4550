"""The reference of Winograd's convolution where there is nothing to compute."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.graph.interpreter import interpret
from tilewright.graph.node import Function, GraphBuilder, Parameter
from tilewright.graph.ops import constant
from tilewright.graph.ops.winograd import WinogradConvolution
from tilewright.ir import dtypes
from tilewright.ir.expr import const, size
from tilewright.ir.types import tensor
from tilewright.support.errors import ShapeError

NONE = (const(0), const(0))
OPERATOR = WinogradConvolution((2, 2), (3, 3), NONE, NONE, 8)
WEIGHTS = np.ones((4, 4, 8, 16), np.float32)


@pytest.mark.parametrize("image", [(2, 9), (9, 2), (2, 2)])
def test_an_image_of_which_there_is_no_window_gives_an_empty_result(image: tuple[int, int]) -> None:
    (found,) = OPERATOR.reference((np.ones((1, 1, *image, 8), np.float32), WEIGHTS))
    assert found.dtype == np.float32
    assert found.shape == (1, 2, *(n - 2 for n in image), 8)


def test_an_image_that_is_too_small_is_an_error_of_shapes() -> None:
    g = GraphBuilder()
    x = g.one(Parameter("x", tensor(dtypes.float32, (1, 1, size("height"), 9, 8))))
    function = Function("f", (x,), (g.one(OPERATOR, x, g.one(constant(WEIGHTS))),))
    assert interpret(function, [np.ones((1, 1, 3, 9, 8), np.float32)])[0].shape == (1, 2, 1, 7, 8)
    with pytest.raises(ShapeError, match="would have a dim of -1"):
        interpret(function, [np.ones((1, 1, 1, 9, 8), np.float32)])
