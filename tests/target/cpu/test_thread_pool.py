"""The emitted thread pool, linked into this process: partitions, nesting, contention, sleep, and no threads left behind."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import platform
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.runtime import linker
from tilewright.runtime.linker import PROCESS_SYMBOLS, link
from tilewright.runtime.object_symbols import read_symbols
from tilewright.support.errors import TargetError
from tilewright.target.cpu.llvm import LlvmTarget, compile_to_object
from tilewright.target.cpu.thread_api import POSIX, ThreadApi
from tilewright.target.cpu.thread_pool import POOL_FUNCTIONS, SpinLimits, emit_thread_pool, thread_api, thread_pool_object

if sys.platform == "win32":
    pytest.skip("the pool has no implementation of Windows threads", allow_module_level=True)

MACHINE = {"arm64": "aarch64"}.get(platform.machine(), platform.machine())
HOST = LlvmTarget(f"{MACHINE}-apple-macosx11.0.0" if sys.platform == "darwin" else f"{MACHINE}-unknown-linux-gnu")

# `sum_squares` adds the squares of its range to each element's own place, so that a part run twice or never shows.
# `outer` starts a loop inside each element of a loop: args = {pool, values, inner extent}.
KERNELS = """
declare void @tw_parallel_for(ptr, ptr, ptr, i64, i64)
declare void @tw_pool_begin(ptr)
declare void @tw_pool_end(ptr)

define void @add_squares(ptr %values, i64 %begin, i64 %end) nounwind {
entry:
  %any = icmp slt i64 %begin, %end
  br i1 %any, label %loop, label %done
loop:
  %i = phi i64 [%begin, %entry], [%next, %loop]
  %place = getelementptr i64, ptr %values, i64 %i
  %old = load i64, ptr %place
  %square = mul i64 %i, %i
  %new = add i64 %old, %square
  store i64 %new, ptr %place
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}

define void @outer(ptr %args, i64 %begin, i64 %end) nounwind {
entry:
  %pool = load ptr, ptr %args
  %values.at = getelementptr i64, ptr %args, i64 1
  %values = load ptr, ptr %values.at
  %extent.at = getelementptr i64, ptr %args, i64 2
  %extent = load i64, ptr %extent.at
  br label %loop
loop:
  %i = phi i64 [%begin, %entry], [%next, %loop]
  %start = mul i64 %i, %extent
  %row = getelementptr i64, ptr %values, i64 %start
  call void @tw_parallel_for(ptr %pool, ptr @add_squares, ptr %row, i64 %extent, i64 1)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}

define void @many_loops(ptr %pool, ptr %values, i64 %extent, i64 %count) nounwind {
entry:
  call void @tw_pool_begin(ptr %pool)
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  call void @tw_parallel_for(ptr %pool, ptr @add_squares, ptr %values, i64 %extent, i64 1)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %loop, label %done
done:
  call void @tw_pool_end(ptr %pool)
  ret void
}
"""

POINTER, INT = ctypes.c_void_p, ctypes.c_int64
PART = ctypes.CFUNCTYPE(None, POINTER, INT, INT)


class Pool:
    """The functions of a linked pool and of `KERNELS`, callable from Python."""

    def __init__(self, limits: SpinLimits | None = None, api: ThreadApi | None = None) -> None:
        pool_object = compile_to_object(emit_thread_pool(HOST.triple, api or thread_api(HOST.triple), limits), HOST)
        self.code = link([pool_object, compile_to_object(KERNELS, HOST)])
        address = self.code.address
        self.create = ctypes.CFUNCTYPE(POINTER, ctypes.c_int32)(address("tw_pool_create"))
        self.destroy = ctypes.CFUNCTYPE(None, POINTER)(address("tw_pool_destroy"))
        self.stop = ctypes.CFUNCTYPE(None, POINTER)(address("tw_pool_stop"))
        self.threads = ctypes.CFUNCTYPE(INT, POINTER)(address("tw_pool_threads"))
        self.begin = ctypes.CFUNCTYPE(None, POINTER)(address("tw_pool_begin"))
        self.end = ctypes.CFUNCTYPE(None, POINTER)(address("tw_pool_end"))
        self.parallel_for = ctypes.CFUNCTYPE(None, POINTER, POINTER, POINTER, INT, INT)(address("tw_parallel_for"))
        self.many_loops = ctypes.CFUNCTYPE(None, POINTER, POINTER, INT, INT)(address("many_loops"))


@dataclass(slots=True)
class Recorder:
    """A loop body that keeps the ranges it was called with and the threads that called it."""

    parts: list[tuple[int, int]] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)

    def function(self) -> ctypes._FuncPointer:
        def record(_: int, begin: int, end: int) -> None:
            self.parts.append((begin, end))
            self.threads.add(threading.get_ident())

        return PART(record)


@pytest.fixture(scope="module", autouse=True)
def end_if_a_loop_never_returns() -> Iterator[None]:
    # A lost wake-up hangs in native code, where no exception reaches: show the stacks and end the run.
    faulthandler.dump_traceback_later(100, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="module")
def pool() -> Pool:
    return Pool()


@pytest.fixture(params=[1, 2, 4])
def handle(request: pytest.FixtureRequest, pool: Pool) -> Iterator[int]:
    created = pool.create(request.param)
    yield created
    pool.destroy(created)


def squares(extent: int, times: int = 1) -> list[int]:
    return [times * i * i for i in range(extent)]


def pointer(function: ctypes._FuncPointer) -> int | None:
    return ctypes.cast(function, POINTER).value


def thread_count() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_each_index_is_done_once(pool: Pool, handle: int) -> None:
    body = pool.code.address("add_squares")
    for extent in (0, 1, 2, 3, 7, 1000):
        for grain in (0, 1, 3, 1000):
            values = (INT * max(extent, 1))()
            pool.begin(handle)
            pool.parallel_for(handle, body, ctypes.addressof(values), extent, grain)
            pool.end(handle)
            assert list(values)[:extent] == squares(extent)


def test_thousands_of_loops_in_one_inference(pool: Pool, handle: int) -> None:
    values = (INT * 64)()
    pool.many_loops(handle, values, 64, 3000)
    assert list(values) == squares(64, 3000)


def test_loop_without_begin_brackets_itself(pool: Pool, handle: int) -> None:
    recorder = Recorder()
    pool.parallel_for(handle, pointer(body := recorder.function()), None, 8, 1)
    assert body
    assert len(recorder.parts) == pool.threads(handle)


@settings(max_examples=60, deadline=None)
@given(threads=st.integers(1, 5), extent=st.integers(0, 2000), grain=st.integers(-1, 400))
def test_partition_is_even_and_depends_on_nothing_else(threads: int, extent: int, grain: int) -> None:
    pool = shared_pool()
    recorder = Recorder()
    created = pool.create(threads)
    pool.parallel_for(created, pointer(body := recorder.function()), None, extent, grain)
    pool.destroy(created)
    assert body
    parts = sorted(recorder.parts)
    assert [index for begin, end in parts for index in range(begin, end)] == list(range(extent))
    assert len(parts) == (min(threads, -(-extent // max(grain, 1))) if extent else 0)
    sizes = {end - begin for begin, end in parts}
    assert not sizes or max(sizes) - min(sizes) <= 1
    assert len(recorder.threads) <= len(parts)


_SHARED: list[Pool] = []


def shared_pool() -> Pool:
    if not _SHARED:
        _SHARED.append(Pool())
    return _SHARED[0]


def test_null_pool_and_small_extent_stay_on_the_calling_thread(pool: Pool) -> None:
    created = pool.create(3)
    for target, extent, grain in ((None, 10, 1), (created, 10, 10), (created, 1, 1)):
        recorder = Recorder()
        pool.parallel_for(target, pointer(body := recorder.function()), None, extent, grain)
        assert body
        assert recorder.parts == [(0, extent)]
        assert recorder.threads == {threading.get_ident()}
    pool.destroy(created)


def test_loop_inside_a_loop_is_serial_and_right(pool: Pool, handle: int) -> None:
    rows, extent = 9, 50
    values = (INT * (rows * extent))()
    arguments = (INT * 3)(handle, ctypes.addressof(values), extent)
    for _ in range(20):
        pool.parallel_for(handle, pool.code.address("outer"), ctypes.addressof(arguments), rows, 1)
    assert list(values) == squares(extent, 20) * rows


def test_eight_python_threads_share_one_pool(pool: Pool, handle: int) -> None:
    def infer(_: int) -> list[int]:
        values = (INT * 200)()
        for _ in range(10):
            pool.many_loops(handle, values, 200, 20)
        return list(values)

    with ThreadPoolExecutor(8) as callers:
        assert list(callers.map(infer, range(16))) == [squares(200, 200)] * 16


def test_who_does_not_get_the_pool_runs_alone(pool: Pool) -> None:
    created = pool.create(3)
    recorder = Recorder()
    body = recorder.function()

    def late_caller() -> int:
        pool.begin(created)
        pool.parallel_for(created, pointer(body), None, 30, 1)
        pool.end(created)
        return threading.get_ident()

    pool.begin(created)
    with ThreadPoolExecutor(1) as callers:
        caller = callers.submit(late_caller).result(20)
    pool.end(created)
    assert (recorder.parts, recorder.threads) == ([(0, 30)], {caller})
    recorder.parts.clear()
    late_caller()
    assert len(recorder.parts) == 3, "the pool was not given back"
    pool.destroy(created)


def test_begin_and_end_nest(pool: Pool) -> None:
    created = pool.create(2)
    recorder = Recorder()
    body = recorder.function()
    pool.begin(created)
    pool.begin(created)
    pool.end(created)
    pool.parallel_for(created, pointer(body), None, 4, 1)
    pool.end(created)
    assert sorted(recorder.parts) == [(0, 2), (2, 4)]
    pool.destroy(created)


def test_parts_that_no_worker_begins_are_run_by_the_caller() -> None:
    start, join = (
        "call i32 @pthread_create(ptr %handle, ptr null, ptr @tw.thread_main, ptr %slot)",
        "call i32 @pthread_join(i64 %thread, ptr null)",
    )
    assert start in POSIX.definitions
    assert join in POSIX.definitions
    never = POSIX.definitions.replace(start, "add i32 0, 0").replace(join, "add i32 0, 0")
    pool = Pool(api=replace(POSIX, definitions=never))
    created = pool.create(4)
    recorder = Recorder()
    body = recorder.function()
    for count in (1, 2, 3):
        pool.parallel_for(created, pointer(body), None, 10, 1)
        assert recorder.parts == [(0, 3), (3, 6), (6, 8), (8, 10)] * count
    assert recorder.threads == {threading.get_ident()}
    values = (INT * 64)()
    pool.many_loops(created, values, 64, 100)
    assert list(values) == squares(64, 100)
    pool.destroy(created)


def test_a_worker_that_is_late_for_many_loops_runs_nothing_twice(pool: Pool) -> None:
    # Loops of far more threads than there are cores: most workers begin after the caller has taken their parts.
    created = pool.create(32)
    for extent in (32, 200):
        values = (INT * extent)()
        pool.many_loops(created, values, extent, 500)
        assert list(values) == squares(extent, 500)
    pool.destroy(created)


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_two_hundred_pools_leave_no_thread(pool: Pool) -> None:
    before = thread_count()
    values = (INT * 16)()
    for round_number in range(200):
        created = pool.create(1 + round_number % 4)
        if round_number % 3:
            pool.many_loops(created, values, 16, 2)
        pool.destroy(created)
    assert thread_count() == before


def test_stopped_pool_still_computes(pool: Pool) -> None:
    created = pool.create(4)
    values = (INT * 100)()
    pool.many_loops(created, values, 100, 3)
    pool.stop(created)
    assert pool.threads(created) == 1
    pool.many_loops(created, values, 100, 4)
    assert list(values) == squares(100, 7)
    pool.destroy(created)


def test_stop_waits_for_an_inference_of_another_thread(pool: Pool) -> None:
    created = pool.create(3)
    values = (INT * 500)()
    caller = threading.Thread(target=pool.many_loops, args=(created, values, 500, 2000))
    caller.start()
    pool.stop(created)
    caller.join(30)
    assert not caller.is_alive()
    assert list(values) == squares(500, 2000)
    pool.destroy(created)


@pytest.mark.parametrize("within_inference", [False, True])
def test_idle_pool_takes_no_processor_time(pool: Pool, within_inference: bool) -> None:
    created = pool.create(4)
    values = (INT * 64)()
    pool.many_loops(created, values, 64, 100)
    if within_inference:
        pool.begin(created)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.3)
    spent = time.process_time() - before
    if within_inference:
        pool.end(created)
    pool.destroy(created)
    assert spent < 0.03


def test_workers_that_sleep_between_loops_are_woken(pool: Pool) -> None:
    created = pool.create(4)
    values = (INT * 64)()
    pool.begin(created)
    for _ in range(10):
        time.sleep(0.01)
        pool.parallel_for(created, pool.code.address("add_squares"), ctypes.addressof(values), 64, 1)
    pool.end(created)
    assert list(values) == squares(64, 10)
    pool.destroy(created)


def test_no_wake_up_is_lost_when_workers_sleep_at_once() -> None:
    # With limits this small the race between falling asleep and being called happens at almost every loop.
    eager = Pool(SpinLimits(awake=1, grace=1, yield_every=1))
    created = eager.create(4)
    values = (INT * 64)()
    for _ in range(50):
        eager.many_loops(created, values, 64, 100)
    assert list(values) == squares(64, 5000)
    eager.destroy(created)


def test_workers_take_work_that_comes_while_they_fall_asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each lock takes as long as a nap: a worker is between its last look for work and saying that it sleeps when the next loop begins.
    lock = "call i32 @pthread_mutex_lock(ptr %lock)"
    assert lock in POSIX.definitions
    definitions = POSIX.definitions.replace(lock, f"call i32 @usleep(i32 30000)\n  {lock}") + "\ndeclare i32 @usleep(i32)\n"
    monkeypatch.setattr(linker, "PROCESS_SYMBOLS", PROCESS_SYMBOLS | {"usleep"})
    pool = Pool(SpinLimits(awake=1, grace=1, yield_every=1), replace(POSIX, definitions=definitions))
    created = pool.create(2)
    pool.begin(created)
    shared = 0
    for _ in range(8):
        recorder = Recorder()
        part = PART(lambda values, begin, end, recorder=recorder: (recorder.threads.add(threading.get_ident()), time.sleep(0.15))[0])
        pool.parallel_for(created, pointer(part), None, 2, 1)
        shared += len(recorder.threads) == 2
    pool.end(created)
    pool.destroy(created)
    assert shared >= 6  # all, unless the machine is busy with something else; half of them where what comes meanwhile is missed


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs to confine the process to one processor")
def test_more_threads_than_processors_advance(pool: Pool) -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        created = pool.create(6)
        values = (INT * 64)()
        pool.many_loops(created, values, 64, 200)
        pool.destroy(created)
    finally:
        os.sched_setaffinity(0, allowed)
    assert list(values) == squares(64, 200)


@pytest.mark.parametrize(
    "target",
    [
        LlvmTarget("x86_64-unknown-linux-gnu"),
        LlvmTarget("aarch64-unknown-linux-gnu"),
        LlvmTarget("arm64-apple-macosx11.0.0"),
        LlvmTarget("riscv64-unknown-linux-gnu", features="+m,+a"),
    ],
)
def test_object_defines_the_functions_and_takes_what_the_linker_allows(target: LlvmTarget) -> None:
    symbols = read_symbols(thread_pool_object(target))
    assert symbols.defined == set(POOL_FUNCTIONS)
    assert symbols.undefined <= POSIX.symbols | {"memset", "bzero"}
    assert symbols.undefined <= PROCESS_SYMBOLS


def test_system_without_threads_is_a_target_error() -> None:
    with pytest.raises(TargetError, match="wasm32"):
        thread_pool_object(LlvmTarget("wasm32-unknown-unknown"))


def test_nothing_outside_the_seam_names_the_system() -> None:
    other = type(POSIX)("other", "", 8, 64, 64, frozenset())
    text = emit_thread_pool(HOST.triple, other)
    for name in POSIX.symbols:
        assert f"@{name}(" not in text
