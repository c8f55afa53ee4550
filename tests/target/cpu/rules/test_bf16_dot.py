"""Products of bfloat16 by instructions that add pairs of them, compiled for machines that have them; run here with the instruction replaced
by what it does, in ordinary operations."""

from __future__ import annotations

import ctypes
import re
from functools import cache

import numpy as np
import pytest

from tests.compiled_graphs import Array, function
from tests.target.cpu.kernel_runner import host, libm, parallel_for, run
from tests.target.cpu.rules.test_dot import CASES, SIZES
from tilewright.graph.ops import BlockedConvolution, Contract
from tilewright.graph.ops.contraction import contract_arrays, parse_spec
from tilewright.ir import dtypes
from tilewright.ir.expr import call, cast, const, load, var
from tilewright.ir.types import bind_shape, tensor
from tilewright.kernel.interpreter import interpret
from tilewright.kernel.lower.pipeline import lower
from tilewright.kernel.nodes import Buffer, For, Kernel, Store
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.machine.targets import named_machine
from tilewright.runtime.linker import LinkedCode, link
from tilewright.target.cpu.codegen import generate
from tilewright.target.cpu.dots import rounds_bf16
from tilewright.target.cpu.llvm import LlvmOptions, compile_to_assembly, compile_to_object, llvm_target
from tilewright.target.cpu.rules.choose import schedule_kernel
from tilewright.transform.lower_groups import lower_group

BF16, F32 = dtypes.bfloat16, dtypes.float32
MACHINES = {"sapphirerapids": "tdpbf16ps", "znver4": "vdpbf16ps", "znver5": "vdpbf16ps", "apple-m2": "bfdot", "neoverse-v1": "bfdot"}


@cache
def scheduled(case: str, machine: str, result: dtypes.DType = F32) -> tuple[Kernel, Schedule, Kernel]:
    spec, left, right, constants = CASES[case]
    types = [tensor(BF16, shape) for shape in (left, right)]
    kernel = lower_group(function("p", types, lambda g, a, b: (g.one(Contract(spec, result), a, b),)))
    schedule = schedule_kernel(kernel, constants, named_machine(machine))
    return kernel, schedule, lower(schedule.kernel)


def numbers(shape: tuple[int, ...], seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(BF16.numpy)


def emulated(text: str) -> str:
    """The LLVM text with the instruction as exact multiplications, and additions: of the upper halves of words first. Roundings of vectors
    to bfloat16 are integer operations."""
    for lanes in sorted({int(n) for n in re.findall(r"fptrunc <(\d+) x float> \S+ to <\1 x bfloat>", text)}):
        floats, words, codes, halves = (f"<{lanes} x {kind}>" for kind in ("float", "i32", "i16", "bfloat"))
        one, most, sixteen, nan = (f"<{', '.join([f'i32 {n}'] * lanes)}>" for n in (1, 0x7FFF, 16, 0x7FC0))
        steps = [
            f"w = bitcast {floats} %x to {words}", f"u = lshr {words} %w, {sixteen}", f"o = and {words} %u, {one}",
            f"m = add {words} %w, {most}", f"n = add {words} %m, %o", f"s = lshr {words} %n, {sixteen}",
            f"t = fcmp uno {floats} %x, %x", f"c = select <{lanes} x i1> %t, {words} {nan}, {words} %s",
            f"h = trunc {words} %c to {codes}", f"r = bitcast {codes} %h to {halves}",
        ]  # fmt: skip
        lines = [f"define internal {halves} @rounded{lanes}({floats} %x) alwaysinline {{", *(f"  %{step}" for step in steps)]
        text = re.sub(rf"fptrunc {floats} (\S+) to {halves}", rf"call {halves} @rounded{lanes}({floats} \1)", text)
        text += "\n".join([*lines, f"  ret {halves} %r", "}", ""])
    for bits in re.findall(r"declare .*@llvm\.x86\.avx512bf16\.dpbf16ps\.(\d+)", text):
        lanes = int(bits) // 32
        floats, words, halves = f"<{lanes} x float>", f"<{lanes} x i32>", f"<{2 * lanes} x bfloat>"
        upper, sixteen = (f"<{', '.join([f'i32 {n}'] * lanes)}>" for n in (-65536, 16))
        lines = [f"define internal {floats} @pairs{bits}({floats} %sum, {halves} %a, {halves} %b) alwaysinline {{"]
        for side in "ab":
            lines.append(f"  %{side}w = bitcast {halves} %{side} to {words}")
            lines.append(f"  %{side}h = and {words} %{side}w, {upper}")
            lines.append(f"  %{side}l = shl {words} %{side}w, {sixteen}")
            lines += [f"  %{side}{part}f = bitcast {words} %{side}{part} to {floats}" for part in "hl"]
        for part, before, after in (("h", "%sum", "%first"), ("l", "%first", "%both")):
            lines.append(f"  %{part} = fmul {floats} %a{part}f, %b{part}f")
            lines.append(f"  {after} = fadd {floats} {before}, %{part}")
        lines += [f"  ret {floats} %both", "}"]
        text = re.sub(rf"declare .*dpbf16ps\.{bits}\(.*\n", "\n".join(lines).replace("\\", "\\\\") + "\n", text)
        text = text.replace(f"@llvm.x86.avx512bf16.dpbf16ps.{bits}", f"@pairs{bits}")
    return text


def code_for(kernel: Kernel, machine: str) -> LinkedCode:
    """The code of a machine that has the instruction, for this one."""
    target = named_machine(machine)
    able = target.isa - {"avx512bf16"} <= host().isa | {"amx-bf16", "amx-int8", "amx-tile", "avx512fp16", "avxvnni", "avx512vp2intersect"}
    text = emulated(generate(kernel, target)) if able and "avx512f" in host().isa else generate(kernel, host())
    compiled = compile_to_object(text, llvm_target(host()), LlvmOptions())
    return link([compiled], {"tw_parallel_for": ctypes.cast(parallel_for, ctypes.c_void_p).value or 0, **libm()})


@pytest.mark.parametrize("machine", ["sapphirerapids", "znver4"])
@pytest.mark.parametrize("case", CASES)
def test_sums_are_those_of_float32(case: str, machine: str) -> None:
    kernel, schedule, lowered = scheduled(case, machine)
    layouts = {layout.buffer: layout for layout in schedule.layouts}
    inputs = [numbers(bind_shape(b.shape, SIZES), i) for i, b in enumerate(kernel.inputs)]
    packed = [layouts[b.name].pack(x) if b.name in layouts else x for b, x in zip(kernel.inputs, inputs, strict=True)]
    (got,) = run(lowered, packed, {s: SIZES[s] for s in lowered.sizes}, code=code_for(lowered, machine))
    wide = [x.astype(np.float64) for x in inputs]
    want, scale = (contract_arrays(parse_spec(CASES[case][0]), *(f(x) for x in wide), dtypes.float64) for f in (np.asarray, np.abs))
    assert got.dtype == np.float32
    assert (np.abs(got - want) <= 2.0**-24 * 80 * scale).all()


@pytest.mark.parametrize("case", ["short", "both computed", "ragged everywhere"])
def test_the_interpreter_agrees(case: str) -> None:
    kernel, schedule, lowered = scheduled(case, "sapphirerapids")
    layouts = {layout.buffer: layout for layout in schedule.layouts}
    inputs = [numbers(bind_shape(b.shape, SIZES), i) for i, b in enumerate(kernel.inputs)]
    packed = [layouts[b.name].pack(x) if b.name in layouts else x for b, x in zip(kernel.inputs, inputs, strict=True)]
    (want,), (got,) = interpret(kernel, inputs), interpret(lowered, packed)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("machine", "instruction"), MACHINES.items())
@pytest.mark.parametrize("result", [F32, BF16], ids=str)
def test_machines_use_their_instruction(machine: str, instruction: str, result: dtypes.DType) -> None:
    """Also for the products of models that are bfloat16 themselves."""
    _, _, lowered = scheduled("whole tiles", machine, result)
    target = named_machine(machine)
    assert instruction in compile_to_assembly(generate(lowered, target), llvm_target(target))


def test_sums_keep_their_order_where_they_must() -> None:
    kernel, _, _ = scheduled("whole tiles", "sapphirerapids")
    strict = schedule_kernel(kernel, frozenset({1}), named_machine("sapphirerapids"), reassociate=False)
    assert "vdpbf16ps" not in compile_to_assembly(
        generate(lower(strict.kernel), named_machine("sapphirerapids")), llvm_target(named_machine("sapphirerapids"))
    )


@pytest.mark.parametrize(("window", "channels"), [(1, 32), (3, 32), (3, 26)])
def test_blocked_convolutions_take_pairs_of_channels(window: int, channels: int) -> None:
    pads = (const(window // 2),) * 2
    op = BlockedConvolution((1, 1), (1, 1), pads, pads, False, 16)
    types = [tensor(BF16, (1, 2, 9, 9, 16)), tensor(BF16, (48, channels, window, window))]
    kernel = lower_group(function("c", types, lambda g, x, w: (g.one(op, x, w),)))
    schedule = schedule_kernel(kernel, frozenset({1}), named_machine("znver4"))
    lowered = lower(schedule.kernel)
    target = named_machine("znver4")
    assert "vdpbf16ps" in compile_to_assembly(generate(lowered, target), llvm_target(target))
    x, w = (numbers(bind_shape(b.shape, {}), i) for i, b in enumerate(kernel.inputs))
    layouts = {layout.buffer: layout for layout in schedule.layouts}
    packed = [layouts[b.name].pack(a) if b.name in layouts else a for b, a in zip(kernel.inputs, (x, w), strict=True)]
    (got,) = run(lowered, packed, code=code_for(lowered, "znver4"))
    (want,) = op.reference((x.astype(np.float32), w.astype(np.float32)))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("count", [4, 16, 37])
def test_one_instruction_rounds_vectors_where_subnormal_numbers_may_be_lost(count: int) -> None:
    """Everything but subnormal numbers as by integer operations, which are what a cast of the model itself takes."""
    target = named_machine("sapphirerapids")
    i = var("i")
    x, y = Buffer("x", F32, (const(count),)), Buffer("y", BF16, (const(count),))
    exact, kernel = (
        Kernel("rounding", (x,), (y,), For(i, const(count), Store(y, (i,), cast(BF16, value)), "vectorized"))
        for value in (load(x, (i,)), call("may_flush", load(x, (i,))))
    )
    text = generate(kernel, target)
    assert "vcvtneps2bf16" in compile_to_assembly(text, llvm_target(target))
    assert "vcvtneps2bf16" not in compile_to_assembly(generate(exact, target), llvm_target(target))
    native = rounds_bf16(host())
    object_ = compile_to_object(text if native else emulated(text), llvm_target(host()), LlvmOptions())
    code = link([object_], {})
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, 1.00390625, 1.01171875, -1.00390625, 1.2e-38, 65504.0]
    values = np.array([*special, *np.random.default_rng(0).standard_normal(count)], np.float32)
    for start in range(0, values.size - count + 1, count):
        part = values[start : start + count].copy()
        (got,) = run(kernel, [part], code=code)
        with np.errstate(over="ignore"):
            want = part.astype(BF16.numpy)
        known = ~np.isnan(part)
        np.testing.assert_array_equal(got.view(np.uint16)[known], want.view(np.uint16)[known])
        assert np.isnan(got.astype(np.float32)[~known]).all()
