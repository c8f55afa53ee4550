"""Figures of the difference of two arrays."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest

from tilewright.accuracy.errors import APART, BLOCK, error_of, is_large, tolerance_of


def test_figures_of_a_small_difference() -> None:
    expected = np.asarray([1.0, -2.0, 4.0], np.float32)
    error = error_of(expected + np.asarray([0, 0, 2.0**-20], np.float32), expected)
    assert error.absolute == 2.0**-20
    assert error.relative == 2.0**-22
    assert error.ulps == 2.0
    assert 0.999999 < error.cosine <= 1.0


def test_small_elements_do_not_count_in_ulps() -> None:
    expected = np.asarray([1.0, 1e-7], np.float32)
    assert error_of(np.asarray([1.0, 2e-7], np.float32), expected).ulps == 0.0


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.bool_, np.complex64, object])
def test_equal_arrays_do_not_differ(dtype: type) -> None:
    x = np.asarray(["a", "b"], object) if dtype is object else np.asarray([0, 1, 1]).astype(dtype)
    error = error_of(x, x)
    assert (error.absolute, error.relative, error.ulps) == (0.0, 0.0, 0.0)
    assert error.cosine == pytest.approx(1.0)


def test_nans_and_infinities_are_equal_in_the_same_places() -> None:
    x = np.asarray([np.nan, np.inf, -np.inf, 1.0])
    assert error_of(x, x).relative == 0.0
    assert error_of(np.asarray([np.nan, np.inf, np.inf, 1.0]), x) == APART
    assert error_of(np.asarray([0.0, np.inf, -np.inf, 1.0]), x) == APART
    assert error_of(x, np.asarray([0.0, np.inf, -np.inf, 1.0])) == APART


def test_other_shapes_and_kinds_are_apart() -> None:
    assert error_of(np.zeros(2), np.zeros((2, 1))) == APART
    assert error_of(np.zeros(2), np.asarray(["0", "0"], object)) == APART
    assert error_of(np.asarray([1.0]), np.asarray([0.0])).relative == math.inf


def test_integers_must_be_equal() -> None:
    assert tolerance_of(np.dtype(np.int64)) == 0.0
    assert error_of(np.asarray([1, 2, 4]), np.asarray([1, 2, 3])).ulps == 1.0


def test_a_tolerance_is_a_number_of_units_in_the_last_place() -> None:
    of = {name: tolerance_of(np.dtype(name)) for name in ("float16", "float32", "float64")}
    assert of == {"float16": 4 * 2.0**-10, "float32": 64 * 2.0**-23, "float64": 64 * 2.0**-52}
    error = error_of(np.asarray([1.002]), np.asarray([1.0]))
    assert is_large(error, np.dtype(np.float32))
    assert not is_large(error, np.dtype(np.float16))


def test_large_tensors_are_compared_piece_by_piece() -> None:
    expected = np.random.default_rng(0).standard_normal(3 * BLOCK + 5).astype(np.float32)
    expected[:2] = np.inf, np.nan
    found = expected * np.float32(1.25)
    expected[7], found[7] = 8.0, 8.0
    found[-1] = expected[-1] = 4.0
    found[-2], expected[-2] = 9.0, 5.0
    error = error_of(found, expected)
    a, b = found[2:].astype(np.float64), expected[2:].astype(np.float64)
    assert (error.absolute, error.relative) == (4.0, 0.5)
    assert error.cosine == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    assert error.ulps == 2.0**23
    found[-3] = np.nan
    assert error_of(found, expected) == APART
    tracemalloc.start()
    error_of(expected, expected)
    assert tracemalloc.get_traced_memory()[1] < expected.nbytes * 5
    tracemalloc.stop()


def test_nothing_does_not_differ_from_nothing() -> None:
    assert error_of(np.zeros((0, 3)), np.zeros((0, 3))).cosine == 1.0
