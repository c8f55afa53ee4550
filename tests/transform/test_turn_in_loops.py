"""Loops whose weights exceed the cache read them back and forth; results stay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.compiled_graphs import check, f32, host, module
from tilewright.compiler import optimise
from tilewright.graph.node import GraphBuilder, Module, Value, walk_nodes
from tilewright.graph.ops import Binary, Contract, Fused, Loop, constant, scan
from tilewright.graph.text import constants_of, format_module
from tilewright.graph.text_parser import parse_module
from tilewright.ir import dtypes
from tilewright.ir.expr import const
from tilewright.machine.description import CacheLevel
from tilewright.support.settings import Settings

STEPS, ROWS, WIDTH = 5, 2, 200


def recurrence(rows: int = ROWS) -> Module:
    rng = np.random.default_rng(0)
    weights = (rng.uniform(-1, 1, (WIDTH, WIDTH)) / WIDTH).astype(np.float32)

    def body(g: GraphBuilder, x: Value, h: Value) -> list[Value]:
        def step(g: GraphBuilder, carried, items, captured):
            new = g.one(Binary("add"), items[0], g.one(Contract("bh,gh->bg", dtypes.float32), carried[0], captured[0]))
            return [new], [new]

        last, stacked = scan(g, "t", const(STEPS), [h], [x], [g.one(constant(weights))], step)
        return [*last, *stacked]

    return module([f32(STEPS, rows, WIDTH), f32(rows, WIDTH)], body)


def turns(m: Module, cache: int) -> list[bool]:
    machine = replace(host(), l2=CacheLevel(cache))
    (loop,) = (node.op for node in walk_nodes(optimise(m, machine, Settings()).main.results) if isinstance(node.op, Loop))
    groups = [node.op for node in walk_nodes(loop.body.results) if isinstance(node.op, Fused)]
    assert all(op.turn in (None, loop.counter) for op in groups)
    return [op.turn is not None for op in groups]


def test_only_weights_that_exceed_the_cache_are_read_in_turn() -> None:
    size = WIDTH * WIDTH * 4
    assert any(turns(recurrence(), size))
    assert not any(turns(recurrence(), 4 * size))


@pytest.mark.parametrize("rows", [1, 2])
def test_results_stay(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    small = replace(host(), l2=CacheLevel(WIDTH * WIDTH * 4))
    monkeypatch.setattr("tests.compiled_graphs.host", lambda: small)
    rng = np.random.default_rng(1)
    inputs = [rng.uniform(-1, 1, shape).astype(np.float32) for shape in ((STEPS, rows, WIDTH), (rows, WIDTH))]
    check(recurrence(rows), inputs)


def test_the_turn_stands_in_the_text() -> None:
    m = optimise(recurrence(), replace(host(), l2=CacheLevel(WIDTH * WIDTH * 4)), Settings())
    text = format_module(m)
    assert "turn" in text
    assert format_module(parse_module(text, constants_of(m.functions.values()))) == text
