"""Pools of the process: shared by content and thread count, stopped at exit, made anew after a fork."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.test_linker import HOST
from tilewright.runtime.pool import POOL_IMPORTS, PoolReference, ThreadPools, process_pools
from tilewright.support.errors import InputError
from tilewright.target.cpu.thread_pool import thread_pool_object

if sys.platform == "win32":
    pytest.skip("the pool has no implementation of Windows threads", allow_module_level=True)

PART = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


@pytest.fixture(scope="module")
def pool_object() -> bytes:
    return thread_pool_object(HOST)


@pytest.fixture
def pools() -> Iterator[ThreadPools]:
    made = ThreadPools()
    yield made
    made.stop()


def parts_of_eight(pools: ThreadPools, pool_object: bytes, handle: int) -> int:
    parts: list[int] = []
    signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    body = PART(lambda _, begin, end: parts.append(end - begin))
    parallel_for = signature(pools.code(pool_object).imports["tw_parallel_for"])
    parallel_for(handle, ctypes.cast(body, ctypes.c_void_p), None, 8, 1)
    assert sum(parts) == 8
    return len(parts)


def test_one_pool_for_each_number_of_threads(pools: ThreadPools, pool_object: bytes) -> None:
    two, three = pools.handle(pool_object, 2), pools.handle(pool_object, 3)
    assert two != three
    assert pools.handle(bytes(bytearray(pool_object)), 2) == two
    assert parts_of_eight(pools, pool_object, two) == 2
    assert parts_of_eight(pools, pool_object, three) == 3


def test_one_thread_needs_no_pool(pools: ThreadPools, pool_object: bytes) -> None:
    assert pools.handle(pool_object, 1) == 0
    assert parts_of_eight(pools, pool_object, 0) == 1


def test_no_threads_is_an_error(pools: ThreadPools, pool_object: bytes) -> None:
    with pytest.raises(InputError, match="0 threads"):
        pools.handle(pool_object, 0)


def test_imports_are_what_models_call(pools: ThreadPools, pool_object: bytes) -> None:
    code = pools.code(pool_object)
    assert set(code.imports) == set(POOL_IMPORTS)
    assert all(code.imports.values())
    assert pools.code(pool_object) is code


def test_handles_stay_usable_after_stop(pools: ThreadPools, pool_object: bytes) -> None:
    handle = pools.handle(pool_object, 4)
    pools.stop()
    assert parts_of_eight(pools, pool_object, handle) == 1
    assert parts_of_eight(pools, pool_object, pools.handle(pool_object, 4)) == 4


def test_reference_starts_threads_when_first_read(pools: ThreadPools, pool_object: bytes) -> None:
    reference = PoolReference(pool_object, 2, pools)
    assert reference.handle == reference.handle == pools.handle(pool_object, 2)
    assert PoolReference(pool_object, 2).handle == process_pools.handle(pool_object, 2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child_gets_threads_of_its_own_and_both_exit(tmp_path: Path, pool_object: bytes) -> None:
    # In a process of its own: the pools at exit are the subject, and pytest's process has threads that a fork would lose.
    (tmp_path / "pool.o").write_bytes(pool_object)
    script = """
import ctypes, os, sys
from pathlib import Path
from tilewright.runtime.pool import PoolReference, process_pools

pool_object = Path(sys.argv[1]).read_bytes()
reference = PoolReference(pool_object, 3)
signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
part = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)

def count():
    parts = []
    body = part(lambda _, begin, end: parts.append(begin))
    signature(process_pools.code(pool_object).imports["tw_parallel_for"])(reference.handle, ctypes.cast(body, ctypes.c_void_p), None, 6, 1)
    return len(parts)

before = count(), reference.handle
child = os.fork()
after = count()
if child:
    assert os.waitpid(child, 0)[1] == 0
    assert reference.handle == before[1]
    print(before[0], after)
else:
    assert after == 3
"""
    source = Path(__file__).parents[2] / "src"
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script, str(tmp_path / "pool.o")],
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "3 3\n", "")
