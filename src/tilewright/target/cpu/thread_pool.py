"""The default thread pool, emitted as LLVM IR: fork and join of half-open ranges, a few atomics and no library but the system's threads.

    ptr  tw_pool_create(i32 threads)     null if the threads cannot be had; `threads` counts the caller, so 1 starts none
    void tw_pool_destroy(ptr pool)       stops and frees; nobody may use the pool any more
    void tw_pool_stop(ptr pool)          ends the workers and leaves a pool of one thread, which late callers may still use
    i64  tw_pool_threads(ptr pool)
    void tw_pool_begin(ptr pool)         brackets one inference: wakes the workers ...
    void tw_pool_end(ptr pool)           ... and lets them sleep
    void tw_parallel_for(ptr pool, ptr fn, ptr args, i64 extent, i64 grain)

`tw_parallel_for` calls `fn(ptr args, i64 begin, i64 end)` on [0, extent) cut into p = min(threads, ceil(extent / grain)) contiguous
parts whose sizes differ by one at most, part 0 on the calling thread, and returns when all are done. The partition depends on nothing
but extent, grain and threads. It makes a single call on the calling thread if the pool is null or has one thread, in a loop inside a
loop, and while another thread has the pool: the first `tw_pool_begin` gets it, and who does not get it still gets right results.
Outside of begin and end it brackets itself, which costs a wake-up for each loop.

How it works. One word, `state`, holds a counter of loops and the number of participants; the caller writes the job, then `state`.
Workers spin on it. A part belongs to whoever of its worker and the caller first moves the `taken` word of the worker's slot to this
state: the caller, done with part 0, runs the parts that no worker has begun, so that a core that is busy with something else delays a
loop by a part, not by a time slice of the system. A worker that does not take part, or comes too late, never reads the job, so the
caller waits for parts under way only: each worker writes the state it finished into its own cache line. `wake` is odd during an
inference and -1 at the end of the pool. A worker spins some 1 to 2 ms within an inference and some 0.3 ms after it, which is longer than
callers take between two of them, yielding at times so that a machine with fewer cores than threads advances, then sleeps on its own
condition variable. It says so in `asleep` before it looks at `state` and `wake` for the last time, and the caller looks at `asleep`
after writing them, both in sequentially consistent order, so that no wake-up is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from string import Template

from tilewright.support.errors import TargetError
from tilewright.target.cpu.llvm import LlvmOptions, LlvmTarget, compile_to_object
from tilewright.target.cpu.thread_api import POSIX, ThreadApi
from tilewright.target.cpu.thread_pool_ir import POOL_IR

POOL_FUNCTIONS = (
    "tw_pool_create",
    "tw_pool_destroy",
    "tw_pool_stop",
    "tw_pool_threads",
    "tw_pool_begin",
    "tw_pool_end",
    "tw_parallel_for",
)

# The participants' number takes 16 bits of `state`.
MAX_THREADS = 65535

# Two cache lines: neighbours are fetched in pairs.
LINE = 128


@dataclass(frozen=True, slots=True)
class SpinLimits:
    """Rounds of waiting, 15 to 40 ns each, before a worker sleeps: within an inference, and after its end; every how many it yields."""

    awake: int = 50_000
    grace: int = 12_000
    yield_every: int = 256


# What a waiting thread does to leave resources to its sibling: (declaration, call). Elsewhere it spins on the load alone.
PAUSES = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.isb(i32)", "call void @llvm.aarch64.isb(i32 15)"),
}


def thread_api(triple: str) -> ThreadApi:
    """The thread functions of the triple's operating system. Raises TargetError if there are none for it yet."""
    if any(system in triple for system in ("linux", "darwin", "macos", "freebsd", "netbsd", "openbsd", "android")):
        return POSIX
    raise TargetError(f"there is no thread pool for the triple {triple!r}", hint="compile for one thread")


def emit_thread_pool(triple: str, api: ThreadApi, limits: SpinLimits | None = None) -> str:
    """The pool as LLVM IR text for the processor of `triple`, on the threads of `api`."""
    limits = limits or SpinLimits()
    machine = triple.split("-")[0].replace("arm64", "aarch64").replace("amd64", "x86_64")
    pause_declaration, pause = PAUSES.get(machine, ("", ""))
    lock = LINE + 64 * _ceil_div(16 + api.handle_bytes, 64)
    condition = lock + 64 * _ceil_div(api.lock_bytes, 64)
    slot_bytes = LINE * _ceil_div(condition + api.condition_bytes, LINE)
    text = Template(POOL_IR).substitute(
        AWAKE=limits.awake,
        GRACE=limits.grace,
        YIELD_MASK=_power_of_two(limits.yield_every) - 1,
        MAX_THREADS=MAX_THREADS,
        PAUSE_DECLARATION=pause_declaration,
        PAUSE=pause,
        # Offsets in the pool: each group of words that is written by somebody else has lines of its own.
        THREADS=0,
        STATE=LINE,
        WAKE=LINE + 8,
        FN=2 * LINE,
        ARGS=2 * LINE + 8,
        EXTENT=2 * LINE + 16,
        OWNER=3 * LINE,
        DEPTH=3 * LINE + 8,
        BUSY=3 * LINE + 16,
        SLOTS=4 * LINE,
        # Offsets in a worker's slot; its first line is what caller and worker exchange.
        SLOT_BYTES=slot_bytes,
        DONE=0,
        ASLEEP=8,
        TAKEN=16,
        POOL=LINE,
        INDEX=LINE + 8,
        HANDLE=LINE + 16,
        LOCK=lock,
        CONDITION=condition,
    )
    return text + api.definitions


@lru_cache(maxsize=8)
def thread_pool_object(target: LlvmTarget) -> bytes:
    """The compiled pool for a target, to be carried by artifacts. Raises TargetError if its system has no threads here."""
    text = emit_thread_pool(target.triple, thread_api(target.triple))
    return compile_to_object(text, target, LlvmOptions(level=2))


def _ceil_div(value: int, divisor: int) -> int:
    return -(-value // divisor)


def _power_of_two(value: int) -> int:
    return 1 << max(value - 1, 0).bit_length()
