"""Nodes found below expressions: what is kept at the nodes is what a walk finds, and keeps nothing alive."""

from __future__ import annotations

import gc
import weakref

from hypothesis import given
from hypothesis import strategies as st

from tests.ir.strategies import any_exprs, conditions, index_exprs
from tilewright.ir.dtypes import float32
from tilewright.ir.expr import Expr, const, load, minimum, select, var
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import free_vars, marked, walk
from tilewright.kernel.nodes import Buffer, loads

MARKED = (Op.VAR, Op.LOAD, Op.SELECT, Op.MIN, Op.MAX)


@given(st.lists(st.one_of(any_exprs(), index_exprs(), conditions()), max_size=4))
def test_marked_nodes_are_those_of_a_walk_in_its_order(roots: list[Expr]) -> None:
    for _ in range(2):
        assert marked(*roots) == tuple(e for e in walk(*roots) if e.op in MARKED)
    assert free_vars(*roots) == tuple(e for e in walk(*roots) if e.op is Op.VAR)


def test_loads_are_found_below_indices_and_conditions() -> None:
    i = var("i")
    x, scalar = Buffer("x", float32, (const(8),)), Buffer("scalar", float32, ())
    inner, whole = load(x, (i,)), load(scalar, ())
    e = select(inner < 0.0, load(x, (minimum(i, 3),)), whole) + inner
    assert tuple(loads(e)) == tuple(n for n in walk(e) if n.op is Op.LOAD)
    assert set(loads(e)) == {inner, whole, load(x, (minimum(i, 3),))}


def test_nodes_that_were_asked_are_freed() -> None:
    e = select(var("alone") < 7, minimum(var("alone"), 12345), 77)
    assert marked(e)
    gone = weakref.ref(e)
    del e
    gc.collect()
    assert gone() is None
