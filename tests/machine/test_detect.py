import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.machine.recorded_hosts import lay_out
from tilewright.machine.description import CacheLevel, estimated_peaks
from tilewright.machine.detect import detect_host, detect_machine
from tilewright.support.errors import TargetError
from tilewright.support.host_limits import allowed_processors, cpu_quota, usable_cores, usable_memory
from tilewright.support.measurements import cpu_model

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def test_zen5_in_a_container(tmp_path: Path) -> None:
    host = lay_out("znver5_container", tmp_path)
    machine = host.machine(*range(16))
    assert (machine.name, machine.arch, machine.vector_bits, machine.vector_registers) == ("znver5", "x86_64", 512, 32)
    assert machine.cores == 2, "2.5 processors' worth of time keep two threads running"
    assert (machine.l1d, machine.l2) == (CacheLevel(48 * KIB), CacheLevel(1 * MIB))
    assert machine.l3 == CacheLevel(32 * MIB, 64, shared_by=2)
    assert machine.has("avx512bf16", "avx512vnni")
    assert not machine.has("amx-tile")
    assert "-amx-tile" in machine.llvm_features.split(",")
    assert machine.lanes(32) == 16
    assert cpu_model(tmp_path) == "AMD Ryzen 9 9950X 16-Core Processor"
    assert estimated_peaks(machine).f32 == 260.0


def test_quota_of_every_group_up_to_the_mount_counts(tmp_path: Path) -> None:
    lay_out("znver5_container", tmp_path)
    assert cpu_quota(tmp_path) == 2.5
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("150000 100000")
    assert cpu_quota(tmp_path) == 1.5
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("50000 100000")
    assert usable_cores(tmp_path, frozenset(range(16))) == 1
    for path in ("sys/fs/cgroup/cpu.max", "sys/fs/cgroup/inner/cpu.max"):
        (tmp_path / path).write_text("max 100000")
    assert cpu_quota(tmp_path) is None
    assert usable_cores(tmp_path, frozenset(range(16))) == 8, "two logical processors of one core are one core"
    assert usable_cores(tmp_path, frozenset({0, 8, 3})) == 2
    assert usable_memory(tmp_path) == 4 * GIB


def test_virtual_machine_under_version_1(tmp_path: Path) -> None:
    host = lay_out("emeraldrapids_vm", tmp_path)
    machine = host.machine(0, 1)
    assert (machine.cores, machine.vector_bits, machine.l1d.size, machine.l2.size) == (2, 512, 48 * KIB, 2 * MIB)
    assert machine.l3 == CacheLevel(260 * MIB, 64, shared_by=2)
    assert not machine.has("avx512bf16"), "the machine hides what the processor of that name has"
    assert usable_memory(tmp_path) == 8 * GIB
    (tmp_path / "sys/fs/cgroup/cpu/cpu.cfs_quota_us").write_text("120000")
    assert cpu_quota(tmp_path) == 1.2
    assert host.machine(0, 1).cores == 1


def test_a_system_without_proc_and_sys_falls_back_on_the_table(tmp_path: Path) -> None:
    host = lay_out("apple_m1", tmp_path)
    machine = host.machine(*range(8))
    assert (machine.arch, machine.cores, machine.l1d.size, machine.l1d.line) == ("aarch64", 8, 128 * KIB, 128)
    assert machine.has("dotprod", "neon")
    assert (machine.vector_bits, machine.vector_registers) == (128, 32)
    assert usable_memory(tmp_path) is None
    assert cpu_quota(tmp_path) is None


def test_an_unknown_cpu_is_described_by_what_is_seen(tmp_path: Path) -> None:
    host = lay_out("znver5_container", tmp_path)
    machine = detect_machine(replace(host.llvm, cpu="znver9"), host.root, frozenset({0}))
    assert (machine.name, machine.vector_bits, machine.l2.size, machine.peaks) == ("znver9", 512, 1 * MIB, None)


def test_half_a_sysfs_does_no_harm(tmp_path: Path) -> None:
    host = lay_out("znver5_container", tmp_path)
    index = tmp_path / "sys/devices/system/cpu/cpu0/cache/index2"
    (index / "size").unlink()
    (tmp_path / "sys/devices/system/cpu/cpu0/cache/index3/shared_cpu_list").write_text("?")
    machine = host.machine(0)
    assert machine.l2.size == 1 * MIB
    assert machine.l3 is None


def test_an_architecture_without_code_generator_is_an_error(tmp_path: Path) -> None:
    host = lay_out("apple_m1", tmp_path)
    with pytest.raises(TargetError, match="riscv64-unknown-linux-gnu"):
        detect_machine(replace(host.llvm, triple="riscv64-unknown-linux-gnu"), tmp_path, frozenset({0}))


def test_this_machine_is_described_within_reason() -> None:
    machine = detect_host()
    assert machine is detect_host()
    assert machine.vector_bits in (128, 256, 512)
    assert 1 <= machine.cores <= (os.cpu_count() or 1)
    assert 8 * KIB <= machine.l1d.size < machine.l2.size
    assert allowed_processors()
    assert estimated_peaks(machine).f32 > 0
