"""Determinants and inverses of matrices of any size, and filters whose numbers come at run time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.frontend.onnx.models import parse, single


def matrices(*shape: int) -> Any:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    x[..., 0, 0] = 0  # the first pivot needs an exchange of rows
    return x


@pytest.mark.parametrize("size", [1, 2, 4, 5, 9])
def test_determinant_of_any_size_in_one_artifact(size: int) -> None:
    x = matrices(3, 2, size, size)
    exe = tw.compile(single("Det", [x], 22, dims={0: ["b", 2, "n", "m"]}), cache=False, progress="none")
    np.testing.assert_allclose(exe(x), np.linalg.det(x), rtol=1e-3, atol=1e-5)


def test_determinant_of_known_size() -> None:
    for size in (3, 6):
        x = matrices(size, size)
        np.testing.assert_allclose(tw.compile(single("Det", [x], 22), cache=False, progress="none")(x), np.linalg.det(x), rtol=1e-3)


def test_determinant_of_a_singular_matrix_is_zero() -> None:
    x = np.ones((6, 6), np.float32)
    assert tw.compile(single("Det", [x], 22), cache=False, progress="none")(x) == 0


def test_matrices_must_be_square() -> None:
    exe = tw.compile(single("Det", [matrices(5, 5)], 22, dims={0: ["n", "m"]}), cache=False, progress="none")
    with pytest.raises(tw.TilewrightError, match="Det"):
        exe(np.zeros((3, 4), np.float32))


def test_mel_filters_of_numbers_known_while_running() -> None:
    numbers = [np.int32(8), np.int32(32), np.int32(8192), np.float32(0), np.float32(4096)]
    known = single("MelWeightMatrix", [], 17, constants=dict(enumerate(map(np.asarray, numbers))))
    open_ = single("MelWeightMatrix", [np.asarray(n) for n in numbers], 17)
    want = tw.compile(known, cache=False, progress="none")
    exe = tw.compile(open_, cache=False, progress="none")
    np.testing.assert_allclose(exe(*numbers), next(iter(want.run({}).values())), rtol=1e-6)
    assert exe(np.int32(3), *numbers[1:]).shape == (17, 3)


def test_scan_of_opset_8_stops_at_the_length_of_each_sequence() -> None:
    model = parse("""<ir_version: 8, opset_import: ["" : 8]>
    g (int64[b] n, float[b, 2] start, float[b, t, 2] x) => (float[b, 2] last, float[b, t, 2] y) {
        last, y = Scan <num_scan_inputs = 1, body = step (float[2] a, float[2] item) => (float[2] total, float[2] out) {
            total = Add (a, item)
            out = Identity (total)
        }> (n, start, x)
    }""")
    x = np.random.default_rng(0).standard_normal((3, 5, 2)).astype(np.float32)
    start = np.ones((3, 2), np.float32)
    lengths = np.array([5, 2, 0])
    last, y = tw.compile(model, cache=False, progress="none")(lengths, start, x)
    sums = start[:, None] + np.cumsum(x, axis=1)
    inside = np.arange(5)[None, :, None] < lengths[:, None, None]
    np.testing.assert_allclose(y, np.where(inside, sums, 0), rtol=1e-5)
    np.testing.assert_allclose(last, [sums[0, 4], sums[1, 1], start[2]], rtol=1e-5)


def test_functions_may_leave_inputs_out() -> None:
    model = parse("""<ir_version: 8, opset_import: ["" : 18, "own" : 1]>
    g (float[n] x) => (float[n] y) { y = own.Bounded (x, "") }
    <opset_import: ["" : 18], domain: "own"> Bounded (x, low, high) => (y) { y = Clip (x, low, high) }""")
    x = np.array([-2, 3], np.float32)
    np.testing.assert_array_equal(tw.compile(model, cache=False, progress="none")(x), x)
