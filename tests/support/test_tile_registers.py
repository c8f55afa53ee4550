"""Tile registers are used where the system gives them to this process."""

from __future__ import annotations

import pytest

from tilewright.machine import detect
from tilewright.machine.cpus import CPUS
from tilewright.support import tile_registers
from tilewright.support.tile_registers import tile_registers_allowed, usable


@pytest.mark.parametrize("allowed", [True, False])
def test_features_of_tiles_are_there_where_the_system_allows_them(allowed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tile_registers, "tile_registers_allowed", lambda: allowed)
    assert usable("amx-int8", True) is allowed
    assert usable("amx-tile", False) is False
    assert usable("avx512vnni", True)
    assert not usable("avx512vnni", False)


def test_the_host_has_no_tiles_without_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tile_registers, "tile_registers_allowed", lambda: False)
    assert not any(present for name, present in detect.llvm_host().features if name.startswith("amx-"))


def test_asking_again_gives_the_same_answer() -> None:
    first = tile_registers_allowed()
    tile_registers_allowed.cache_clear()
    assert tile_registers_allowed() is first


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_other_systems_are_not_asked(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tile_registers.sys, "platform", system)
    tile_registers_allowed.cache_clear()
    try:
        assert not tile_registers_allowed()
    finally:
        monkeypatch.undo()
        tile_registers_allowed.cache_clear()


def test_processors_in_the_table_have_tiles_by_the_names_that_are_asked_for() -> None:
    assert {name for name in CPUS["sapphirerapids"].isa if name.startswith("amx-")} == {"amx-tile", "amx-int8", "amx-bf16"}
