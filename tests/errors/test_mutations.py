"""Models damaged at random either compile or are refused by a TilewrightError; nothing else ever comes out."""

from __future__ import annotations

import random

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from tests.hostile.mutations import MUTATIONS, Mutation, damage
from tilewright.frontend.onnx.importer import import_model
from tilewright.frontend.onnx.loader import load_model
from tilewright.support.errors import InternalError, TilewrightError

pytestmark = pytest.mark.filterwarnings("ignore:the output .* is declared")

MODEL = """
<ir_version: 8, opset_import: ["" : 18]>
m (float[n, 3, 8, 8] x, int64[2] at) => (float[n, 4] y, float[k] z)
<float[4] b = {1, 2, 3, 4}, int64[2] shape = {0, -1}, int64[1] axes = {1}, int64[1] stop = {3}>
{
    c = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, w, b)
    n = BatchNormalization (c, b, b, b, b)
    r = Relu (n)
    f = Reshape (r, shape)
    d = Dropout (f)
    g = Gemm <alpha = 0.5> (d, v, b)
    s = Softmax <axis = 1> (g)
    t = Transpose <perm = [1, 0]> (s)
    u = Gather <axis = 0> (t, at)
    m = ReduceMean <keepdims = 0> (u, axes)
    p = Slice (s, axes, stop)
    h, i = Split <axis = 1, num_outputs = 2> (s)
    j = Concat <axis = 1> (h, i)
    e = Exp (j)
    l = Less (j, s)
    q = Where (l, j, s)
    y = Add (q, e)
    z = Identity (m)
}
"""


def model() -> onnx.ModelProto:
    made = onnx.parser.parse_model(MODEL)
    for name, shape in (("w", (4, 3, 3, 3)), ("v", (64, 4))):
        made.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    return made


def test_the_model_itself_is_sound() -> None:
    assert import_model(load_model(model())).module.output_names == ("y", "z")


def complaint(content: onnx.ModelProto | bytes) -> TilewrightError | None:
    """Why a model is refused; None if it is not. A damaged model is no fault of ours."""
    try:
        import_model(load_model(content))
    except InternalError:
        raise
    except TilewrightError as error:
        return error
    return None


@settings(max_examples=400)
@given(st.integers(0, 1 << 30), st.lists(st.sampled_from(MUTATIONS), min_size=1, max_size=3))
def test_damaged_graphs(seed: int, mutations: list[Mutation]) -> None:
    damaged, rng = model(), random.Random(seed)
    damage(damaged, mutations, rng)
    error = complaint(damaged)
    assert error is None or error.where is not None or "'" in error.what  # it names a node, the file, or an input or tensor


@settings(max_examples=200)
@given(st.data())
def test_damaged_bytes(data: st.DataObject) -> None:
    content = bytearray(model().SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    error = complaint(bytes(content[: data.draw(st.integers(0, len(content)))]))
    assert error is None or str(error)
