"""The native entry of hand-made plans: sizes, checks, growing memory, failure codes; and that it verifies as LLVM IR."""

from __future__ import annotations

import ctypes

import llvmlite.binding as llvm
import numpy as np
import pytest

from tests.compiled_graphs import f32, host, i64
from tilewright.ir.expr import Expr, const, equal, floordiv, maximum, size
from tilewright.plan.steps import Allocate, Bind, Branch, Check, Copy, Grow, Loop, Place, Plan, Region, SetSize, Step
from tilewright.runtime.constants import OUT_OF_MEMORY, SHOWN
from tilewright.runtime.linker import LinkedCode, link
from tilewright.runtime.pool import process_pools
from tilewright.target.cpu.entry import RuntimeCheck, emit_entry
from tilewright.target.cpu.llvm import LlvmOptions, compile_to_object, llvm_target
from tilewright.target.cpu.thread_pool import thread_pool_object

STEP, K, N = size("i", 0), size("k", 2, 9), size("n", 0)
IN, OUT = Region("input", 0), Region("output", 0)


def at(region: Region, offset: Expr | int = 0, count: Expr | int = 1) -> Place:
    return Place(region, const(offset) if isinstance(offset, int) else offset, i64(count))


class Native:
    """A compiled plan with int64 tensors: call it with arrays for inputs, outputs (None where late) and the input sizes."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.text, self.checks = emit_entry(plan, host(), "entry", [0] * len(plan.constants))
        llvm.parse_assembly(self.text).verify()
        code = compile_to_object(self.text, llvm_target(host()), LlvmOptions())
        pool = thread_pool_object(llvm_target(host()))
        self.linked: LinkedCode = link([code], process_pools.code(pool).imports)
        self.entry = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 7)(self.linked.address("entry"))
        self.release = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.linked.address("entry_release"))

    def __call__(
        self, inputs: list[np.ndarray], outputs: list[np.ndarray | None], sizes: dict[Expr, int], arena: int = 4096, room: int = 1 << 48
    ) -> int:
        self.sizes = np.array([sizes.get(s, -77) for s in self.plan.sizes] or [0], np.int64)
        self.failure = np.zeros(SHOWN, np.int64)
        memory = np.zeros(arena + 64, np.uint8)
        given = (ctypes.c_void_p * max(1, len(inputs)))(*[x.ctypes.data for x in inputs])
        self.results = (ctypes.c_void_p * max(1, len(outputs)))(*[None if y is None else y.ctypes.data for y in outputs])
        weights = np.zeros(64, np.uint8)
        base = memory.ctypes.data + -memory.ctypes.data % 64
        if self.plan.arenas > 1 or self.plan.late_outputs:
            self.failure[0] = room
        return int(self.entry(None, given, self.results, self.sizes.ctypes.data, weights.ctypes.data, base, self.failure.ctypes.data))

    def late(self, index: int, count: int) -> list[int]:
        """The content of a late output, which is then released."""
        address = self.results[index]
        array = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_int64)), (count,)).tolist() if count else []
        self.release(address)
        return array


def plan(
    steps: list[Step], sizes: tuple[Expr, ...] = (), given: int = 0, late: tuple[int, ...] = (), arenas: int = 1, inputs: int = 1
) -> Plan:
    return Plan((i64(N),) * inputs, (i64(N),), late, (), tuple(steps), const(4096), arenas, sizes, given)


def test_an_empty_plan_succeeds() -> None:
    assert Native(plan([]))([np.zeros(1, np.int64)], [np.zeros(1, np.int64)], {}) == 0


def test_copies_take_sizes_from_the_caller() -> None:
    native = Native(plan([Copy(at(OUT, 0, N), at(IN, 0, N))], (N,), 1))
    x, y = np.arange(10), np.zeros(10, np.int64)
    assert native([x], [y], {N: 7}) == 0
    assert y.tolist() == [*range(7), 0, 0, 0]
    assert native([x], [y], {N: 0}) == 0


def test_sizes_are_set_from_each_other_and_seen_by_the_caller() -> None:
    steps: list[Step] = [SetSize(K, N * 3 - 1), SetSize(STEP, maximum(K, floordiv(N, 2)) + K), SetSize(K, STEP + 1)]
    native = Native(plan(steps, (N, K, STEP), 1))
    assert native([np.zeros(1, np.int64)], [None], {N: 5}) == 0
    assert native.sizes.tolist() == [5, 29, 28]


@pytest.mark.parametrize(("value", "code"), [(1, 1), (2, 0), (9, 0), (10, 1), (-(2**62), 1)])
def test_bound_sizes_are_checked_against_their_range(value: int, code: int) -> None:
    native = Native(plan([Bind(K, at(IN))], (N, K), 1))
    assert native([np.array([value])], [None], {N: 1}) == code
    assert native.checks == (RuntimeCheck("the size k is {0}; it must be at least 2 and at most 9", 1),)
    assert native.failure[0] == (value if code else 0)
    assert native.sizes[1] == value


def test_checks_answer_their_number_and_values() -> None:
    steps: list[Step] = [
        Check(equal(N % 2, const(0)), "odd {0}", (N,)),
        Check(equal(N, const(4)), "{0} {1} {2} {3} {4}", (N, N + 1, N + 2, N + 3, N + 4)),
        Copy(at(OUT, 0, 1), at(IN, 0, 1)),
    ]
    native, y = Native(plan(steps, (N,), 1)), np.zeros(1, np.int64)
    assert native([np.array([5])], [y], {N: 3}) == 1
    assert native.failure.tolist() == [3, 0, 0, 0]
    assert native([np.array([5])], [y], {N: 6}) == 2
    assert native.failure.tolist() == [6, 7, 8, 9], "as many values as there is room for"
    assert y[0] == 0
    assert native([np.array([5])], [y], {N: 4}) == 0
    assert y[0] == 5


def test_branches_read_one_byte() -> None:
    condition = Place(IN, const(8), f32())
    steps: list[Step] = [Branch(condition, (Copy(at(OUT), at(IN)), SetSize(K, const(3))), (SetSize(K, const(4)),)), SetSize(STEP, K * 2)]
    native, y = Native(plan(steps, (N, K, STEP), 1)), np.zeros(1, np.int64)
    assert native([np.array([41, 1])], [y], {}) == 0
    assert (y[0], *native.sizes[1:]) == (41, 3, 6)
    assert native([np.array([99, 256])], [y], {}) == 0
    assert (y[0], *native.sizes[1:]) == (41, 4, 8)


@pytest.mark.parametrize("trip", [-3, 0, 1, 1000])
def test_loops_count_and_grow(trip: int) -> None:
    """Appends the counter to a growing region `n` times."""
    region = Region("arena", 1)
    body: tuple[Step, ...] = (Grow(region, (STEP + 1) * 8), SetSize(K, STEP * 10), Copy(at(region, STEP * 8), at(IN)))
    steps: list[Step] = [
        Grow(region, const(0)),
        Loop(STEP, N, None, body),
        Allocate(OUT, STEP * 8),
        Copy(at(OUT, 0, STEP), at(region, 0, STEP)),
    ]
    native = Native(plan(steps, (N, STEP, K), 1, (0,), 2))
    assert native([np.array([123])], [None], {N: trip}) == 0
    count = max(trip, 0)
    assert native.sizes[1] == count, "the counter is the number of iterations afterwards"
    assert native.late(0, count) == [123] * count


def test_loops_that_end_by_a_condition_in_memory() -> None:
    """The input is an int64 whose low byte is the condition: the loop clears it in the third iteration."""
    memory = Region("arena", 0)
    body: tuple[Step, ...] = (Copy(at(memory), at(IN, STEP * 8 + 8)),)
    steps: list[Step] = [Copy(at(memory), at(IN)), Loop(STEP, None, Place(memory, const(0), f32()), body)]
    native = Native(plan(steps, (N, STEP), 1))
    assert native([np.array([1, 1, 1, 0, 1])], [None], {}) == 0
    assert native.sizes[1] == 3
    assert native([np.array([0])], [None], {}) == 0
    assert native.sizes[1] == 0


def test_memory_is_kept_by_grow_and_reused_by_allocate() -> None:
    region = Region("arena", 1)
    steps: list[Step] = [
        Allocate(region, N * 8),
        Copy(at(region, 0, N), at(IN, 0, N)),
        Grow(region, N * 800),
        Allocate(region, N * 8),
        Copy(at(OUT, 0, N), at(region, 0, N)),
    ]
    x, y = np.arange(50), np.zeros(50, np.int64)
    assert Native(plan(steps, (N,), 1, (), 2))([x], [y], {N: 50}) == 0
    assert y.tolist() == x.tolist()


def test_memory_past_the_room_is_refused() -> None:
    """Two arenas of which each fits and both do not; what an arena has is not counted twice when it grows."""
    steps: list[Step] = [Allocate(Region("arena", 1), N * 8), Allocate(Region("arena", 2), N * 8), Grow(Region("arena", 2), N * 16)]
    native = Native(plan(steps, (N,), 1, (), 3))
    x = [np.zeros(1, np.int64)]
    assert native(x, [None], {N: 1000}, room=25_000) == 0
    assert native(x, [None], {N: 1000}, room=23_000) == OUT_OF_MEMORY
    assert native(x, [None], {N: 1000}, room=10_000) == OUT_OF_MEMORY
    assert native(x, [None], {N: 1000}, room=0) == OUT_OF_MEMORY


def test_memory_that_is_refused() -> None:
    steps: list[Step] = [
        Allocate(Region("arena", 1), N * 8),
        Allocate(Region("arena", 2), N * 2**50),
    ]
    native = Native(plan(steps, (N,), 1, (), 3))
    assert native([np.zeros(1, np.int64)], [None], {N: 2**10}) == OUT_OF_MEMORY
    assert native([np.zeros(1, np.int64)], [None], {N: 0}) == 0


@pytest.mark.parametrize("bytes_", [N * 16, N * N, N * N * 8 - N * N * 4, maximum(N * N * N, 64), floordiv(N * N + 63, 64) * 64], ids=repr)
def test_sizes_whose_bytes_overflow_are_refused(bytes_: Expr) -> None:
    region = Region("arena", 1)
    native = Native(plan([Allocate(region, bytes_), Copy(at(OUT, 0, N), at(region, 0, N))], (N,), 1, (), 2))
    assert native([np.zeros(1, np.int64)], [None], {N: 2**60}) == OUT_OF_MEMORY
    assert native([np.zeros(1, np.int64)], [np.zeros(1, np.int64)], {N: 1}) == 0


def test_nested_loops_restart_their_counters() -> None:
    j, total = size("j", 0), size("total", 0)
    inner = Loop(j, STEP, None, (SetSize(total, total + 1),))
    native = Native(plan([SetSize(total, const(0)), Loop(STEP, N, None, (inner,))], (N, STEP, j, total), 1))
    assert native([np.zeros(1, np.int64)], [None], {N: 5}) == 0
    assert native.sizes.tolist() == [5, 5, 4, 10]
