"""Sequences that importing resolves, and signal processing against NumPy and onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.frontend.onnx.models import assert_same, imported, operators, parse, run, run_onnxruntime, single
from tilewright.support.errors import ModelError, UnsupportedOperatorError


def floats(*shape: int) -> np.ndarray[Any, np.dtype[Any]]:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


SEQUENCES = {
    "pick": "{ s = SplitToSequence<axis = 1>(x)  e = SequenceAt(s, last)  y = Identity(e) }",
    "pick_flat": "{ s = SplitToSequence<axis = 1, keepdims = 0>(x)  y = SequenceAt(s, one) }",
    "parts": "{ s = SplitToSequence<axis = 1>(x, two)  y = SequenceAt(s, last) }",
    "sizes": "{ s = SplitToSequence<axis = 1>(x, sizes)  y = SequenceAt(s, one) }",
    "stack": "{ h = Neg(x)  s = SequenceConstruct(x, h)  y = ConcatFromSequence<axis = 1, new_axis = 1>(s) }",
    "join": "{ h = Neg(x)  s = SequenceConstruct(x, h)  y = ConcatFromSequence<axis = -1>(s) }",
    "edit": """{ e = SequenceEmpty()  h = Neg(x)  a = SequenceInsert(e, x)  b = SequenceInsert(a, h, first)  c = SequenceInsert(b, x, last)
                 d = SequenceErase(c, first)  f = SequenceErase(d)  n = SequenceLength(f)  g = SequenceAt(f, first)
                 k = Cast<to = 1>(n)  y = Mul(g, k) }""",
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences_leave_nothing_in_the_graph(name: str) -> None:
    model = parse(f"""
        m (float[2, 5] x) => (float[a, b] y)
        <int64 first = {{0}}, int64 one = {{1}}, int64 last = {{-1}}, int64 two = {{2}}, int64[2] sizes = {{1, 4}}>
        {SEQUENCES[name]}
    """)
    if name in ("pick_flat", "stack"):
        model.graph.output[0].type.tensor_type.ClearField("shape")
    feeds = {"x": floats(2, 5)}
    assert_same(run(model, feeds), run_onnxruntime(model, feeds))
    assert set(operators(imported(model))) <= {"slice", "reshape", "concat", "unary", "binary", "cast"}


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        ("{ s = SequenceConstruct(x, x)  y = Neg(s) }", UnsupportedOperatorError, "Neg of a sequence"),
        ("{ s = SequenceConstruct(x, x)  y = SequenceAt(s, two) }", ModelError, "position 2 in a sequence of 2"),
        ("{ y = SequenceAt(x, two) }", ModelError, "is no sequence"),
        ("{ y = SequenceConstruct(x, x) }", ModelError, "output 'y' is a sequence"),
        ("{ s = SequenceConstruct(x, x)  y = SequenceAt(s, i) }", UnsupportedOperatorError, "computed at run time"),
    ],
)
def test_sequences_that_cannot_be_resolved(body: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        imported(parse(f"m (float[2, 5] x, int64 i) => (float[a, b] y) <int64 two = {{2}}> {body}"))


def complex_pairs(z: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.stack([z.real, z.imag], axis=-1).astype(np.float32)


@pytest.mark.parametrize("length", [5, 8, 9, 12])
@pytest.mark.parametrize("axis", [0, 1])
def test_fourier_transform(length: int, axis: int) -> None:
    x = floats(9, 8)
    wanted = {
        (0, 0): complex_pairs(np.fft.fft(x, length, axis)),
        (0, 1): complex_pairs(np.fft.rfft(x, length, axis)),
    }
    for (inverse, onesided), expected in wanted.items():
        constants = {1: np.array(length), 2: np.array(axis)}
        model = single("DFT", [x[..., None]], 20, constants=constants, inverse=inverse, onesided=onesided)
        assert_same(run(model, {"x0": x[..., None]}), [expected], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("length", [6, 7, 9])
def test_inverse_fourier_transform(length: int) -> None:
    z = floats(3, 7) + 1j * floats(3, 7)[::-1]
    for onesided, expected in ((0, complex_pairs(np.fft.ifft(z, length))), (1, np.fft.irfft(z, length)[..., None].astype(np.float32))):
        model = single("DFT", [complex_pairs(z)], 20, constants={1: np.array(length)}, inverse=1, onesided=onesided)
        assert_same(run(model, {"x0": complex_pairs(z)}), [expected], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("onesided", [0, 1])
def test_short_time_fourier_transform(onesided: int) -> None:
    signal, window, step = floats(2, 30, 1), np.hanning(8).astype(np.float32), 3
    model = single("STFT", [signal, None, window], 17, constants={1: np.array(step)}, onesided=onesided)
    frames = np.stack([signal[:, start : start + 8, 0] * window for start in range(0, 23, step)], axis=1)
    expected = complex_pairs(np.fft.rfft(frames) if onesided else np.fft.fft(frames))
    assert_same(run(model, {"x0": signal, "x2": window}), [expected], rtol=1e-4, atol=1e-5)


def test_mel_weights() -> None:
    numbers = {0: np.array(8), 1: np.array(64), 2: np.array(8192), 3: np.array(0, np.float32), 4: np.array(4096, np.float32)}
    model = single("MelWeightMatrix", [], 17, constants=numbers)
    assert_same(run(model, {}), run_onnxruntime(model, {}), atol=1e-6)
