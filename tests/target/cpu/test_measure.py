"""Measuring the machine: kernels for every kind of target, working sets that fit their level, figures that are kept and found again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.machine.description import Machine, estimated_peaks, fork_us, peaks_together
from tilewright.machine.detect import detect_host, with_measurements
from tilewright.machine.targets import named_machine
from tilewright.runtime.object_symbols import read_symbols
from tilewright.support.measurements import keep_measured, measured
from tilewright.target.cpu import measure as measuring
from tilewright.target.cpu.llvm import compile_to_assembly, compile_to_object, llvm_target
from tilewright.target.cpu.measure import Measurement, peaks, working_sets
from tilewright.target.cpu.measure_ir import READ, RUN, accumulators, arithmetic_name, available, measuring_module, operations

TARGETS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", "sapphirerapids", "alderlake", "znver5", "generic", "cortex-a76", "neoverse-v2")


@pytest.mark.parametrize("name", TARGETS)
def test_the_kernels_compile_for_every_kind_of_target(name: str) -> None:
    machine = named_machine(name)
    made = read_symbols(compile_to_object(measuring_module(machine), llvm_target(machine)))
    assert made.defined == {READ, RUN, *(arithmetic_name(kind) for kind in available(machine))}
    assert made.undefined <= {"tw_parallel_for", "tw_pool_begin", "tw_pool_end"}


@pytest.mark.parametrize(
    ("name", "kind", "instruction"),
    [
        ("x86-64-v3", "f32", "vfmadd"),
        ("znver5", "f32", "vfmadd"),
        ("znver5", "bf16", "vdpbf16ps"),
        ("znver5", "int8", "vpdpbusd"),
        ("alderlake", "int8", "vpdpbusd"),
        ("neoverse-v2", "f32", "fmla"),
        ("neoverse-v2", "bf16", "bfdot"),
        ("cortex-a76", "int8", "sdot"),
    ],
)
def test_every_sum_is_an_instruction_of_its_own_that_stays_in_registers(name: str, kind: str, instruction: str) -> None:
    machine = named_machine(name)
    text = compile_to_assembly(measuring_module(machine), llvm_target(machine))
    body = text.split(f"\n{arithmetic_name(kind)}:")[1].split(f".size\t{arithmetic_name(kind)}")[0]
    count = sum(instruction in line for line in body.splitlines())
    assert count >= accumulators(machine)
    assert count % accumulators(machine) == 0, "sums that are equal would be computed once"
    assert operations(machine, kind) == 2 * accumulators(machine) * machine.lanes(32) * {"f32": 1, "bf16": 2, "int8": 4}[kind]


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("threads", [1, 4])
def test_working_sets_lie_in_their_level_and_past_the_one_before(name: str, threads: int) -> None:
    machine = named_machine(name)
    sets = working_sets(machine, threads)
    assert sets["l1"] <= machine.l1d.size
    assert machine.l1d.size <= sets["l2"] <= machine.l2.size
    if machine.l3 is not None:
        assert threads * sets["l3"] <= machine.l3.size
        assert sets["l3"] >= machine.l2.size or threads * machine.l2.size * 3 > machine.l3.size // 2
        assert threads * sets["memory"] >= machine.l3.size
    assert "l3" in sets or machine.l3 is None


def quick(monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(measuring, "ROUND_S", 1e-5)
    monkeypatch.setattr(measuring, "ROUNDS", 1)
    monkeypatch.setattr(measuring, "FORKS", 10)
    monkeypatch.setattr(measuring, "LARGEST", 1 << 22)
    return detect_host()


def test_a_measurement_is_kept_and_found_by_the_next_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = quick(monkeypatch)
    found = measuring.measure(machine)
    for figures in (found.one, found.together):
        assert min(figures.f32, figures.int8, figures.l1, figures.l2, figures.l3, figures.memory) > 0
    path = tmp_path / "kept" / "measured.json"
    assert measured("a cpu", machine.cores, path) is None
    keep_measured("a cpu", machine.cores, found.to_json(), path)
    keep_measured("another cpu", 1, {"x": 1}, path)
    described = with_measurements(machine, measured("a cpu", machine.cores, path))
    assert described.peaks == found.one
    assert peaks_together(described) == found.together
    assert fork_us(replace(described, cores=max(2, machine.cores))) == found.fork_us
    assert measured("a cpu", machine.cores + 1, path) is None, "what more cores can do is another measurement"


def test_figures_that_do_not_fit_are_left_out(tmp_path: Path) -> None:
    machine = named_machine("x86-64-v3")
    one = estimated_peaks(machine)
    good = Measurement(256, 4, one, one, 1.0).to_json()
    assert with_measurements(machine, good).peaks == one
    for bad in (None, {}, {**good, "vector_bits": 512}, {**good, "one": {}}, {**good, "fork_us": None}, {"vector_bits": 256}):
        assert with_measurements(machine, bad) == machine
    path = tmp_path / "measured.json"
    for text in ("", "[]", "{", json.dumps({"m, 4 cores": 3})):
        path.write_text(text)
        assert measured("m", 4, path) is None


def test_missing_instructions_and_levels_have_figures_too() -> None:
    found = peaks({"f32": 123.456, "l1": 3, "l2": 2, "memory": 1})
    assert (found.f32, found.bf16, found.int8, found.l3) == (123, 123, 123, 1)
