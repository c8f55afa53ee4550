"""The seam where an operating system's threads go: what the thread pool needs of them, as LLVM IR text.

Nothing else in the pool assumes a system. To add one, write a `ThreadApi` whose `definitions` define these functions (all `internal`):

    ptr  @tw.allocate(i64 %bytes)                   memory aligned to 128 bytes, or null; %bytes is a multiple of 128
    void @tw.release(ptr %memory)
    i32  @tw.thread_start(ptr %handle, ptr %slot)   starts a thread that calls `void @tw.worker(ptr %slot)`; not 0 if it cannot
    void @tw.thread_join(ptr %handle)
    i64  @tw.thread_self()                          identifies the calling thread, never 0; cheap, called once per parallel loop
    void @tw.yield()                                lets another thread have the processor
    void @tw.lock_init(ptr), @tw.lock_destroy(ptr), @tw.lock_acquire(ptr), @tw.lock_release(ptr)
    void @tw.condition_init(ptr), @tw.condition_destroy(ptr), @tw.condition_signal(ptr)
    void @tw.condition_wait(ptr %condition, ptr %lock)
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ThreadApi:
    """Threads, locks and condition variables of one operating system.

    definitions: LLVM IR text as in the module's docstring, with the declarations it needs. handle_bytes, lock_bytes, condition_bytes: room
    that one object of each kind takes at most; the pool reserves it aligned to 64 bytes. symbols: what the text takes from the process.
    """

    name: str
    definitions: str
    handle_bytes: int
    lock_bytes: int
    condition_bytes: int
    symbols: frozenset[str]


_POSIX_DEFINITIONS = """
declare ptr @aligned_alloc(i64, i64) nounwind
declare void @free(ptr) nounwind
declare i32 @sched_yield() nounwind
declare i32 @pthread_create(ptr, ptr, ptr, ptr) nounwind
declare i32 @pthread_join(i64, ptr) nounwind
declare i64 @pthread_self() nounwind
declare i32 @pthread_mutex_init(ptr, ptr) nounwind
declare i32 @pthread_mutex_destroy(ptr) nounwind
declare i32 @pthread_mutex_lock(ptr) nounwind
declare i32 @pthread_mutex_unlock(ptr) nounwind
declare i32 @pthread_cond_init(ptr, ptr) nounwind
declare i32 @pthread_cond_destroy(ptr) nounwind
declare i32 @pthread_cond_wait(ptr, ptr) nounwind
declare i32 @pthread_cond_signal(ptr) nounwind

define internal ptr @tw.allocate(i64 %bytes) nounwind {
  %memory = call ptr @aligned_alloc(i64 128, i64 %bytes)
  ret ptr %memory
}

define internal void @tw.release(ptr %memory) nounwind {
  call void @free(ptr %memory)
  ret void
}

define internal ptr @tw.thread_main(ptr %slot) nounwind {
  call void @tw.worker(ptr %slot)
  ret ptr null
}

define internal i32 @tw.thread_start(ptr %handle, ptr %slot) nounwind {
  %status = call i32 @pthread_create(ptr %handle, ptr null, ptr @tw.thread_main, ptr %slot)
  ret i32 %status
}

define internal void @tw.thread_join(ptr %handle) nounwind {
  %thread = load i64, ptr %handle
  call i32 @pthread_join(i64 %thread, ptr null)
  ret void
}

define internal i64 @tw.thread_self() nounwind {
  %thread = call i64 @pthread_self()
  ret i64 %thread
}

define internal void @tw.yield() nounwind {
  call i32 @sched_yield()
  ret void
}

define internal void @tw.lock_init(ptr %lock) nounwind {
  call i32 @pthread_mutex_init(ptr %lock, ptr null)
  ret void
}

define internal void @tw.lock_destroy(ptr %lock) nounwind {
  call i32 @pthread_mutex_destroy(ptr %lock)
  ret void
}

define internal void @tw.lock_acquire(ptr %lock) nounwind {
  call i32 @pthread_mutex_lock(ptr %lock)
  ret void
}

define internal void @tw.lock_release(ptr %lock) nounwind {
  call i32 @pthread_mutex_unlock(ptr %lock)
  ret void
}

define internal void @tw.condition_init(ptr %condition) nounwind {
  call i32 @pthread_cond_init(ptr %condition, ptr null)
  ret void
}

define internal void @tw.condition_destroy(ptr %condition) nounwind {
  call i32 @pthread_cond_destroy(ptr %condition)
  ret void
}

define internal void @tw.condition_signal(ptr %condition) nounwind {
  call i32 @pthread_cond_signal(ptr %condition)
  ret void
}

define internal void @tw.condition_wait(ptr %condition, ptr %lock) nounwind {
  call i32 @pthread_cond_wait(ptr %condition, ptr %lock)
  ret void
}
"""

# `pthread_t` is one 64-bit word on Linux (glibc, musl), macOS and the BSDs; the largest mutex and condition there are 64 and 48 bytes.
POSIX = ThreadApi(
    name="posix",
    definitions=_POSIX_DEFINITIONS,
    handle_bytes=8,
    lock_bytes=64,
    condition_bytes=64,
    symbols=frozenset(
        {"aligned_alloc", "free", "sched_yield", "pthread_create", "pthread_join", "pthread_self"}
        | {f"pthread_mutex_{name}" for name in ("init", "destroy", "lock", "unlock")}
        | {f"pthread_cond_{name}" for name in ("init", "destroy", "wait", "signal")}
    ),
)
