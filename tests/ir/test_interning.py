"""One object per node: what is the same, what is not, and that the tables hold nothing alive."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest

from tilewright.ir.dtypes import float32
from tilewright.ir.expr import Expr, const, var
from tilewright.ir.interning import Interned, InternTable
from tilewright.kernel.nodes import Buffer, For, Store


@dataclass(frozen=True, slots=True, eq=False)
class Setting(Interned):
    _numbers = True
    value: object
    items: tuple[object, ...] = ()
    note: str = ""
    _uninterned = ("note",)


def test_numbers_of_several_kinds_are_told_apart() -> None:
    values = [0, False, 0.0, -0.0, 1, True, 1.0, float("nan")]
    assert len({Setting(v) for v in values}) == len({Setting(None, (v,)) for v in values}) == len(values)
    assert Setting(float("nan")) is Setting(float("nan"))


def test_ways_to_give_fields_make_one_node() -> None:
    whole = Setting("a", (1,), "first")
    assert whole is Setting(value="a", items=(1,)) is Setting("a", items=(1,), note="second") is replace(whole, note="third")
    assert whole.note == "first"
    assert replace(whole, items=()) is Setting("a")


def test_wrong_fields_are_refused() -> None:
    for args, kwargs in (((), {}), (("a", (), "", 1), {}), (("a",), {"other": 1}), (("a",), {"value": 1})):
        with pytest.raises(TypeError):
            Setting(*args, **kwargs)


def test_nodes_nobody_uses_are_freed() -> None:
    buffer = Buffer("only_here", float32, (const(3),))
    loop = For(var("only_here"), const(3), Store(buffer, (var("only_here"),), const(0.0, float32)))
    gone = [weakref.ref(loop), weakref.ref(loop.body), weakref.ref(buffer)]
    del loop, buffer
    gc.collect()
    assert [ref() for ref in gone] == [None] * 3


def test_threads_get_one_node() -> None:
    def build(number: int) -> list[Expr]:
        return [var(f"v{n}") + n for n in range(500)]

    with ThreadPoolExecutor(8) as pool:
        first, *others = pool.map(build, range(8))
    assert all(a is b for other in others for a, b in zip(first, other, strict=True))


def test_table_replaces_what_died() -> None:
    class Thing:
        pass

    table, first, second = InternTable(), Thing(), Thing()
    assert table.add("key", first) is first
    assert table.add("key", second) is table.get("key") is first
    del first
    gc.collect()
    assert table.get("key") is None
    assert len(table) == 0
    assert table.add("key", second) is table.get("key") is second


def test_python_ends_quietly_with_nodes_alive() -> None:
    code = "from tilewright.ir.expr import var\nkept = [var(f'v{n}') * n + n for n in range(500)]\n"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
