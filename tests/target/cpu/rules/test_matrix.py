"""Products by tile instructions: bit for bit those of NumPy for bytes, for every sign, number of rows and layout; run on the instructions
where this machine has them, and as plain loops where it has not."""

from __future__ import annotations

import ctypes
import mmap
import re
from functools import cache

import numpy as np
import pytest

from tests.compiled_graphs import Array, function
from tests.target.cpu.kernel_runner import build, host, run
from tests.target.cpu.rules.test_dot import SIGNS, extremes
from tilewright.graph.ops import BlockedConvolution, Contract
from tilewright.ir import dtypes
from tilewright.ir.expr import const, size
from tilewright.ir.traverse import evaluate_int
from tilewright.ir.types import tensor
from tilewright.kernel.interpreter import interpret
from tilewright.kernel.lower.pipeline import lower
from tilewright.kernel.nodes import For, Kernel, walk_stmts
from tilewright.kernel.schedule.schedule import Schedule, replay
from tilewright.kernel.schedule.space import Space
from tilewright.kernel.script_parser import parse_kernel
from tilewright.machine.targets import named_machine
from tilewright.runtime.linker import LinkedCode
from tilewright.target.cpu.codegen import generate, workspace_bytes
from tilewright.target.cpu.llvm import compile_to_assembly, llvm_target
from tilewright.target.cpu.rules.choose import schedule_kernel
from tilewright.transform.lower_groups import lower_group

U8, S8, I32, BF16, F32 = dtypes.uint8, dtypes.int8, dtypes.int32, dtypes.bfloat16, dtypes.float32
MACHINE = named_machine("sapphirerapids")
M = size("M")
HAS_TILES = host().vector_bits == 512 and host().has("amx-int8", "amx-bf16")
INSTRUCTIONS = {"u8s8": "tdpbusd", "s8u8": "tdpbsud", "s8s8": "tdpbssd", "u8u8": "tdpbuud"}
ROWS = (0, 1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 64, 100)


@cache
def product(rows: int | None, depth: int, columns: int, signs: str = "u8s8") -> tuple[Kernel, Schedule, Kernel]:
    """x[rows, depth] times constant w[depth, columns], rows None for any number: the kernel, its schedule, and what that is lowered to."""
    left, right = (BF16, BF16) if signs == "bf16" else SIGNS[signs]
    types = [tensor(left, (M if rows is None else rows, depth)), tensor(right, (depth, columns))]
    sums = F32 if signs == "bf16" else I32
    kernel = lower_group(function("p", types, lambda g, a, b: (g.one(Contract("mk,kn->mn", sums), a, b),)))
    schedule = schedule_kernel(kernel, frozenset({1}), MACHINE)
    return kernel, schedule, lower(schedule.kernel)


@cache
def code(kernel: Kernel) -> LinkedCode:
    return build(kernel, MACHINE if HAS_TILES and host().isa >= MACHINE.isa else host())


def packed(kernel: Kernel, schedule: Schedule, inputs: list[Array]) -> list[Array]:
    layouts = {layout.buffer: layout for layout in schedule.layouts}
    return [layouts[b.name].pack(x) if b.name in layouts else x for b, x in zip(kernel.inputs, inputs, strict=True)]


def assembly(kernel: Kernel) -> str:
    return compile_to_assembly(generate(kernel, MACHINE), llvm_target(MACHINE))


@pytest.mark.parametrize("signs", INSTRUCTIONS)
@pytest.mark.parametrize(("depth", "columns"), [(64, 16), (192, 50), (96, 33), (320, 128), (48, 5)])
def test_products_of_bytes_are_exact_for_every_number_of_rows(depth: int, columns: int, signs: str) -> None:
    kernel, schedule, lowered = product(None, depth, columns, signs)
    assert INSTRUCTIONS[signs] in assembly(lowered)
    left, right = SIGNS[signs]
    w = extremes(right, (depth, columns), 1)
    for rows in ROWS:
        x = extremes(left, (rows, depth), rows)
        (got,) = run(lowered, packed(kernel, schedule, [x, w]), {M: rows}, code=code(lowered))
        np.testing.assert_array_equal(got, x.astype(np.int64) @ w.astype(np.int64), err_msg=f"{rows} rows")


@pytest.mark.parametrize("rows", [3, 7, 16, 24, 37, 197])
def test_known_numbers_of_rows(rows: int) -> None:
    kernel, schedule, lowered = product(rows, 256, 48)
    assert "tdpbusd" in assembly(lowered)
    x, w = extremes(U8, (rows, 256), 1), extremes(S8, (256, 48), 2)
    (got,) = run(lowered, packed(kernel, schedule, [x, w]), code=code(lowered))
    np.testing.assert_array_equal(got, x.astype(np.int64) @ w.astype(np.int64))


@pytest.mark.parametrize(("depth", "columns"), [(64, 32), (96, 20), (768, 48)])
def test_products_of_bfloat16_are_summed_in_float32(depth: int, columns: int) -> None:
    kernel, schedule, lowered = product(None, depth, columns, "bf16")
    assert "tdpbf16ps" in assembly(lowered)
    rng = np.random.default_rng(depth)
    w = rng.standard_normal((depth, columns)).astype(BF16.numpy)
    for rows in ROWS:
        x = rng.standard_normal((rows, depth)).astype(BF16.numpy)
        (got,) = run(lowered, packed(kernel, schedule, [x, w]), {M: rows}, code=code(lowered))
        wide = [a.astype(np.float64) for a in (x, w)]
        bound = 2.0**-24 * (depth + 8) * (np.abs(wide[0]) @ np.abs(wide[1]))
        assert (np.abs(got - wide[0] @ wide[1]) <= bound).all(), rows


def test_the_interpreter_agrees() -> None:
    kernel, schedule, lowered = product(19, 64, 20)
    x, w = extremes(U8, (19, 64), 1), extremes(S8, (64, 20), 2)
    (want,), (got,) = interpret(kernel, [x, w]), interpret(lowered, packed(kernel, schedule, [x, w]))
    np.testing.assert_array_equal(got, want)


def test_schedules_with_tiles_replay_and_print() -> None:
    kernel, schedule, lowered = product(19, 64, 20)
    assert replay(schedule.trace, kernel).kernel is schedule.kernel
    assert any(isinstance(s, For) and s.kind == "matrix" for s in walk_stmts(lowered.body))
    assert parse_kernel(repr(lowered)) is lowered


def test_sums_stay_in_registers_over_the_whole_reduction() -> None:
    """A tile of sums is cleared and stored once; in the loop of the reduction there are loads of factors and products alone."""
    _, _, lowered = product(64, 512, 64)
    text = assembly(lowered)
    blocks = re.split(r"\n\.LBB\d+_\d+:|\n\tj\w+\t.*", text)
    inner = max(blocks, key=lambda block: block.count("tdpbusd"))
    assert inner.count("tdpbusd") >= 2
    assert "tilestored" not in inner
    assert "tilezero" not in inner
    assert text.count("tilerelease") == sum("ldtilecfg" in part for part in re.split(r"\.size\t", text))


@pytest.mark.parametrize("rows", [1, 5, 16, 17, 31, 33])
def test_rows_past_the_end_are_not_read(rows: int) -> None:
    """The operand ends where the process may read no more."""
    depth = 64
    kernel, schedule, lowered = product(None, depth, 16)
    page = mmap.PAGESIZE
    room = mmap.mmap(-1, 2 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(room))
    libc = ctypes.CDLL(None, use_errno=True)
    assert evaluate_int(workspace_bytes(lowered, MACHINE), {M: rows}) == 0
    assert libc.mprotect(ctypes.c_void_p(start + page), ctypes.c_size_t(page), 0) == 0
    try:
        x = np.frombuffer(room, np.uint8, rows * depth, page - rows * depth).reshape(rows, depth)
        x[:] = extremes(U8, (rows, depth), rows)
        w = extremes(S8, (depth, 16), 2)
        weights = np.ascontiguousarray(packed(kernel, schedule, [x, w])[1])
        out = np.zeros((rows, 16), np.int32)
        slots = [x.ctypes.data, weights.ctypes.data, out.ctypes.data, rows]
        entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(code(lowered).address(lowered.name))
        args = (ctypes.c_int64 * len(slots))(*slots)
        entry(None, ctypes.addressof(args))
        np.testing.assert_array_equal(out, x.astype(np.int64) @ w.astype(np.int64))
    finally:
        libc.mprotect(ctypes.c_void_p(start + page), ctypes.c_size_t(page), mmap.PROT_READ | mmap.PROT_WRITE)


def test_shapes_are_set_again_after_a_parallel_loop_has_set_others() -> None:
    """On the same thread: a serial product, a parallel one of fewer rows, which releases the registers, and a serial one as before."""
    part = """    for {i} in matrix({rows}):
        for {j} in vectorized(16):
            {c}[{i}, {j}] = int32(0)
    for {i} in matrix({rows}):
        for {k} in range(16):
            for {j} in vectorized(16):
                {c}[{i}, {j}] = dot4({c}[{i}, {j}], {x}, {w})
    for {i} in range({rows}):
        for {j} in vectorized(16):
            y[{at}, {i}, {j}] = {c}[{i}, {j}]
"""

    def product_into(c: str, at: str, rows: int, indent: str) -> str:
        i, j, k = (f"{c}_{name}" for name in "ijk")
        x = ", ".join(f"x[{i}, {k} * 4 + {n}]" if n else f"x[{i}, {k} * 4]" for n in range(4))
        w = ", ".join(f"w[{k}, {j}, {n}]" for n in range(4))
        text = part.format(i=i, j=j, k=k, c=c, at=at, rows=rows, x=x, w=w)
        return "".join(indent + line + "\n" for line in text.splitlines())

    kernel = parse_kernel(
        "@kernel\ndef p(x: uint8[16, 64], w: int8[16, 16, 4], y: Out[int32[4, 16, 16]]):\n"
        + "".join(f"    {name} = local(int32[16, 16])\n" for name in ("a", "b", "c"))
        + product_into("a", "0", 16, "")
        + "    for t in parallel(2):\n"
        + product_into("b", "t + 1", 7, "    ")
        + product_into("c", "3", 16, "")
    )
    x, w = extremes(U8, (16, 64), 1), extremes(S8, (16, 16, 4), 2)
    want = x.astype(np.int64) @ w.transpose(0, 2, 1).reshape(64, 16).astype(np.int64)
    (got,) = run(kernel, [x, w], code=code(kernel))
    assert assembly(kernel).count("tilerelease") == 2
    for at, rows in ((0, 16), (1, 7), (2, 7), (3, 16)):
        np.testing.assert_array_equal(got[at, :rows], want[:rows], err_msg=str(at))


@pytest.mark.parametrize("lanes", [16, 32, 64])
@pytest.mark.parametrize(
    ("window", "stride", "dilation", "side"), [(1, 1, 1, 14), (1, 2, 1, 9), (3, 1, 1, 7), (3, 2, 1, 15), (3, 1, 2, 20)]
)
def test_blocked_convolutions(lanes: int, window: int, stride: int, dilation: int, side: int) -> None:
    pads = (const(window // 2 * dilation),) * 2
    op = BlockedConvolution((stride,) * 2, (dilation,) * 2, pads, pads, False, lanes, I32)
    types = [tensor(U8, (2, 128 // lanes, side, side, lanes)), tensor(S8, (64, 128, window, window))]
    kernel = lower_group(function("c", types, lambda g, x, w: (g.one(op, x, w),)))
    schedule = schedule_kernel(kernel, frozenset({1}), MACHINE)
    lowered = lower(schedule.kernel)
    assert side < 14 or "tdpbusd" in assembly(lowered)
    x, w = extremes(U8, tuple(d.value for d in types[0].shape), 1), extremes(S8, (64, 128, window, window), 2)
    (got,) = run(lowered, packed(kernel, schedule, [x, w]), code=code(lowered))
    (want,) = op.reference((x, w))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("lanes", [16, 64])
@pytest.mark.parametrize(("width", "stride", "side"), [(28, 8, 230), (20, 4, 101), (16, 16, 256), (44, 3, 75)])
def test_windows_of_plain_rows(lanes: int, width: int, stride: int, side: int) -> None:
    """Rows of a tile overlap in memory."""
    zero = (const(0),) * 2
    op = BlockedConvolution((2, stride), (1, 1), zero, zero, False, lanes, I32)
    types = [tensor(U8, (2, 1, 9, side)), tensor(S8, (64, 1, 3, width))]
    kernel = lower_group(function("c", types, lambda g, x, w: (g.one(op, x, w),)))
    schedule = schedule_kernel(kernel, frozenset({1}), MACHINE)
    lowered = lower(schedule.kernel)
    assert "tdpbusd" in assembly(lowered)
    x, w = extremes(U8, (2, 1, 9, side), 1), extremes(S8, (64, 1, 3, width), 2)
    (want,) = op.reference((x, w))
    (got,) = run(lowered, packed(kernel, schedule, [x, w]), code=code(lowered))
    np.testing.assert_array_equal(got, want)


def test_the_interpreter_agrees_on_windows_of_plain_rows() -> None:
    op = BlockedConvolution((1, 4), (1, 1), (const(0),) * 2, (const(0),) * 2, False, 16, I32)
    types = [tensor(U8, (1, 1, 2, 80)), tensor(S8, (16, 1, 2, 16))]
    kernel = lower_group(function("c", types, lambda g, x, w: (g.one(op, x, w),)))
    schedule = schedule_kernel(kernel, frozenset({1}), MACHINE)
    x, w = extremes(U8, (1, 1, 2, 80), 1), extremes(S8, (16, 1, 2, 16), 2)
    (got,) = interpret(schedule.kernel, packed(kernel, schedule, [x, w]))
    np.testing.assert_array_equal(got, op.reference((x, w))[0])


def test_without_tiles_the_same_kernel_is_one_of_dot_products() -> None:
    kernel, _, _ = product(64, 256, 64)
    plain = named_machine("icelake-server")
    lowered = lower(schedule_kernel(kernel, frozenset({1}), plain).kernel)
    assert "vpdpbusd" in compile_to_assembly(generate(lowered, plain), llvm_target(plain))


def test_few_rows_are_left_to_dot_products_where_these_are_faster() -> None:
    kernel, _, _ = product(1, 256, 64)
    space = Space()
    schedule_kernel(kernel, frozenset({1}), MACHINE, True, space)
    assert space.point()["matrix_tile"] == (0, 0, 0)


def test_sums_of_floats_keep_their_order_where_they_must() -> None:
    kernel, _, _ = product(64, 256, 64, "bf16")
    lowered = lower(schedule_kernel(kernel, frozenset({1}), MACHINE, reassociate=False).kernel)
    assert "tdpbf16ps" not in assembly(lowered)
