"""Weights stored as small integers: the kernel definition against the reference, and the type rule."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.operator_checks import check, types_of
from tilewright.graph.ops import WidenWeights
from tilewright.graph.ops.narrow_weights import packed
from tilewright.support.errors import TypeRuleError


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("zero", [None, np.uint8, np.float32])
def test_forms(bits: int, axis: int, zero: type | None) -> None:
    rng = np.random.default_rng(bits)
    shape = (37, 5) if axis == 0 else (5, 37)
    blocks = (3, 5) if axis == 0 else (5, 3)
    codes = rng.integers(0, 1 << bits, shape).astype(np.uint8)
    parameters = [rng.uniform(0.5, 2, blocks).astype(np.float32)]
    parameters += [] if zero is None else [rng.integers(0, 1 << bits, blocks).astype(zero)]
    (found,) = check(WidenWeights(bits, axis, 37, 16), packed(codes, bits, axis), *parameters, tolerance=0)
    spread = [np.repeat(p.astype(np.float32), 16, axis)[tuple(map(slice, shape))] for p in parameters]
    np.testing.assert_array_equal(found, (codes - spread[1] if zero else codes) * spread[0])


def test_one_scale() -> None:
    codes = np.arange(12, dtype=np.int8).reshape(3, 4)
    (found,) = check(WidenWeights(8, 1, 4, 4), codes, np.full((1, 1), 0.5, np.float16))
    np.testing.assert_array_equal(found, codes * np.float32(0.5))


@pytest.mark.parametrize(
    ("op", "codes", "scale"),
    [
        (WidenWeights(4, 1, 8, 8), np.zeros((3, 8), np.uint8), (3, 1)),
        (WidenWeights(4, 1, 9, 9), np.zeros((3, 1), np.uint32), (3, 1)),
        (WidenWeights(8, 1, 8, 4), np.zeros((3, 8), np.int8), (3, 3)),
        (WidenWeights(3, 1, 8, 8), np.zeros((3, 1), np.uint32), (3, 1)),
    ],
)
def test_refused(op: WidenWeights, codes: np.ndarray, scale: tuple[int, ...]) -> None:
    with pytest.raises(TypeRuleError):
        op.infer(types_of([codes, np.zeros(scale, np.float32)]))
