"""Products of bytes, compiled for machines with and without dot-product instructions: bit for bit those of NumPy, also at the extremes."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest

from tests.compiled_graphs import Array, function
from tests.target.cpu.kernel_runner import build, host, run
from tilewright.graph.ops import Contract
from tilewright.graph.ops.contraction import contract_arrays, parse_spec
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, size
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import walk
from tilewright.ir.types import bind_shape, tensor
from tilewright.kernel.lower.pipeline import lower
from tilewright.kernel.nodes import Kernel, own_exprs, walk_stmts
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.machine.description import Machine
from tilewright.machine.targets import named_machine
from tilewright.runtime.linker import LinkedCode
from tilewright.target.cpu.codegen import generate
from tilewright.target.cpu.llvm import compile_to_assembly, llvm_target
from tilewright.target.cpu.rules.choose import schedule_kernel
from tilewright.transform.lower_groups import lower_group

U8, S8, U16, S16, I32 = dtypes.uint8, dtypes.int8, dtypes.uint16, dtypes.int16, dtypes.int32
N = size("N")
SIZES = {N: 5}
MACHINES = {"icelake-server": "vpdpbusd", "x86-64-v4": "vpmaddwd", "alderlake": "vpdpbusd", "x86-64-v3": "vpmaddwd", "x86-64-v2": "pmaddwd"}
CASES: dict[str, tuple[str, tuple[Expr | int, ...], tuple[Expr | int, ...], frozenset[int]]] = {
    "whole tiles": ("mk,kn->mn", (24, 64), (64, 96), frozenset({1})),
    "ragged everywhere": ("mk,kn->mn", (13, 37), (37, 53), frozenset({1})),
    "rows of run-time size": ("mk,kn->mn", (N, 18), (18, 40), frozenset({1})),
    "transposed weights": ("mk,nk->mn", (9, 31), (33, 31), frozenset({1})),
    "weights on the left": ("km,nk->nm", (20, 35), (7, 20), frozenset({0})),
    "both computed": ("bmk,bnk->bmn", (2, 9, 31), (2, 21, 31), frozenset()),
    "one row": ("mk,kn->mn", (1, 70), (70, 130), frozenset({1})),
    "short": ("mk,kn->mn", (3, 2), (2, 3), frozenset({1})),
}
SIGNS = {
    "u8s8": (U8, S8), "s8u8": (S8, U8), "s8s8": (S8, S8), "u8u8": (U8, U8), "u8s16": (U8, S16), "s16s16": (S16, S16), "u16s8": (U16, S8),
    "s16u16": (S16, U16), "u16u16": (U16, U16),
}  # fmt: skip


def kernel_of(case: str, signs: str = "u8s8") -> tuple[Kernel, frozenset[int]]:
    spec, left, right, constants = CASES[case]
    types = [tensor(dtype, shape) for dtype, shape in zip(SIGNS[signs], (left, right), strict=True)]
    return lower_group(function("p", types, lambda g, a, b: (g.one(Contract(spec, I32), a, b),))), constants


def extremes(dtype: DType, shape: tuple[int, ...], seed: int) -> Array:
    """Numbers of which most are the least or the greatest of the dtype."""
    rng = np.random.default_rng(seed)
    low, high = int(dtype.lowest), int(dtype.highest)
    return rng.choice(np.array([low, low, high, high, high - 1, 0, 1], dtype.numpy), shape)


@cache
def scheduled(case: str, signs: str, machine: str) -> tuple[Kernel, Schedule, Kernel]:
    kernel, constants = kernel_of(case, signs)
    schedule = schedule_kernel(kernel, constants, named_machine(machine))
    return kernel, schedule, lower(schedule.kernel)


def runs_here(machine: Machine) -> bool:
    return machine.arch == host().arch and machine.isa <= host().isa


def code_for(kernel: Kernel, machine: Machine) -> LinkedCode:
    """Compiled for the machine where this host has all of it; else for this host, with the kernel that was scheduled for the machine."""
    return build(kernel, machine if runs_here(machine) else host())


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("signs", SIGNS)
def test_sums_are_exact(case: str, signs: str, machine: str) -> None:
    kernel, schedule, lowered = scheduled(case, signs, machine)
    code = code_for(lowered, named_machine(machine))
    layouts = {layout.buffer: layout for layout in schedule.layouts}
    for seed in range(2):
        inputs = [extremes(b.dtype, bind_shape(b.shape, SIZES), seed * 2 + i) for i, b in enumerate(kernel.inputs)]
        packed = [layouts[b.name].pack(x) if b.name in layouts else x for b, x in zip(kernel.inputs, inputs, strict=True)]
        (got,) = run(lowered, packed, {s: SIZES[s] for s in lowered.sizes}, code=code)
        want = contract_arrays(parse_spec(CASES[case][0]), inputs[0], inputs[1], I32)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("machine", "instruction"), MACHINES.items())
def test_machines_use_their_instruction(machine: str, instruction: str) -> None:
    _, _, lowered = scheduled("ragged everywhere", "u8s8", machine)
    target = named_machine(machine)
    assembly = compile_to_assembly(generate(lowered, target), llvm_target(target))
    assert instruction in assembly
    assert "pmulld" not in assembly.split(".LBB")[1] or instruction == "pmaddwd"


@pytest.mark.parametrize(
    ("machine", "signs", "instruction"), [("apple-m2", "u8s8", "usdot"), ("neoverse-n1", "s8s8", "sdot"), ("neoverse-n1", "u8u8", "udot")]
)
def test_arm_has_an_instruction_for_each_pair_of_signs(machine: str, signs: str, instruction: str) -> None:
    _, _, lowered = scheduled("ragged everywhere", signs, machine)
    target = named_machine(machine)
    assert f"\t{instruction}" in compile_to_assembly(generate(lowered, target), llvm_target(target))


@pytest.mark.parametrize(("signs", "called"), [("s8s8", "dot4"), ("u8s16", "dot2")])
def test_pairs_that_vpdpbusd_does_not_take_are_widened(signs: str, called: str) -> None:
    _, schedule, lowered = scheduled("whole tiles", signs, "icelake-server")
    calls = [e.attr for stmt in walk_stmts(schedule.kernel.body) for e in walk(*own_exprs(stmt)) if e.op is Op.CALL]
    assert set(calls) == {called}
    target = named_machine("icelake-server")
    assert "vpdpwssd" in compile_to_assembly(generate(lowered, target), llvm_target(target))


@pytest.mark.parametrize("signs", ["u8s8", "s8s8", "u8u8"])
@pytest.mark.parametrize("machine", ["x86-64-v4", "x86-64-v3"])
def test_bytes_are_widened_where_they_stand(machine: str, signs: str) -> None:
    """By shifts and masks, not by a shuffle for every pair."""
    _, _, lowered = scheduled("whole tiles", signs, machine)
    target = named_machine(machine)
    assembly = compile_to_assembly(generate(lowered, target), llvm_target(target))
    assert not re.search("pmov[sz]xbw|pinsr|pshuf", assembly)
