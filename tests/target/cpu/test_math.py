"""A first look at every expansion: close to NumPy's float64 on ordinary numbers."""

from __future__ import annotations

import numpy as np
import pytest

from tests.target.cpu.expression_values import evaluate
from tilewright.ir import dtypes
from tilewright.ir.expr import Op, call, var, walk
from tilewright.target.cpu.math import EXPANSIONS, expand_math

ONE_ARGUMENT = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "log": np.log, "log2": np.log2,
    "sin": np.sin, "cos": np.cos, "tan": np.tan,
}  # fmt: skip


@pytest.mark.parametrize("name", ONE_ARGUMENT)
def test_follows_numpy(name: str) -> None:
    x = np.linspace(0.01, 20.0, 5000).astype(np.float32)
    argument = var("x", dtypes.float32)
    values = evaluate(expand_math(call(name, argument)), {argument: x})
    np.testing.assert_allclose(values, ONE_ARGUMENT[name](x.astype(np.float64)), rtol=4e-7)


def test_nothing_is_left_to_expand() -> None:
    argument = var("x", dtypes.float16)
    expanded = expand_math(call("exp", call("tanh", argument)))
    assert not [node for node in walk(expanded) if node.op is Op.CALL and node.attr in EXPANSIONS]
