"""Recycled outputs: memory is used again when, and only when, the caller has dropped every array over it."""

import gc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tilewright.runtime.recycled import KEPT, SMALL, RecycledOutput, no_buffers_kept

F32 = np.dtype(np.float32)
SHAPE = (SMALL // 4, 2)

pytestmark = pytest.mark.skipif(no_buffers_kept(2 * SMALL), reason="this interpreter does not count references reliably")


def address(array: np.ndarray) -> int:
    return array.ctypes.data


def test_a_dropped_result_is_used_again() -> None:
    output = RecycledOutput()
    first = output.take(SHAPE, F32)
    assert first.flags.c_contiguous
    assert first.flags.writeable
    assert address(first) % 64 == 0
    where = address(first)
    del first
    assert address(output.take(SHAPE, F32)) == where


def test_what_is_held_is_never_given_out() -> None:
    output = RecycledOutput()
    held = [output.take(SHAPE, F32) for _ in range(5 * KEPT)]
    for i, array in enumerate(held):
        array[...] = i
    assert all((array == i).all() for i, array in enumerate(held))
    assert len(output._kept) == KEPT


@pytest.mark.parametrize("derive", [lambda a: a[1:, :1], lambda a: a.reshape(-1), lambda a: a.T, memoryview, lambda a: a.view(np.int32)])
def test_a_view_holds_the_memory(derive: object) -> None:
    output = RecycledOutput()
    array = output.take(SHAPE, F32)
    array[...] = 7
    view = derive(array)  # type: ignore[operator]
    del array
    for _ in range(3):
        output.take(SHAPE, F32)[...] = 0
    assert np.asarray(view).any()


def test_another_size_gets_memory_of_its_own() -> None:
    output = RecycledOutput()
    first = output.take(SHAPE, F32)
    del first
    assert output.take((8 * SHAPE[0], 2), F32).nbytes == 8 * 2 * SMALL
    smaller = output.take((SHAPE[0] // 4, 2), F32)
    assert smaller.shape == (SHAPE[0] // 4, 2)


def test_results_that_grow_a_little_fit_where_they_are_put() -> None:
    """By less than what was taken for alignment, or by more."""
    for grown in range(0, 200, 8):
        output = RecycledOutput()
        output.take((2 * SMALL,), np.dtype(np.uint8))
        array = output.take((2 * SMALL + grown,), np.dtype(np.uint8))
        array[...] = 1
        assert address(array) % 64 == 0
        assert array.nbytes == 2 * SMALL + grown


def test_threads_never_share_a_result() -> None:
    output = RecycledOutput()

    def work(i: int) -> bool:
        array = output.take(SHAPE, F32)
        array[...] = i
        return bool((array == i).all())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(2000)))
    gc.collect()
    assert len(output._kept) <= KEPT + 8
