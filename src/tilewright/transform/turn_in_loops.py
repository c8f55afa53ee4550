"""Loops whose weights do not fit into the cache read them forwards and backwards in turn.

Each iteration of a recurrent layer reads the same weights in the same order. Of weights larger than the cache nothing is left in it when
their turn comes again: the end has pushed out the beginning. Read from the end to the beginning in every other iteration, what was read
last is read first, and a cache full of it need not be fetched again.

    for t: A B C D | A B C D | ...    ->    for t: A B C D | D C B A | ...

Figures: docs/decisions/015-recurrent.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.graph.node import Function, GraphBuilder, Node, Value, rewrite_function, walk_nodes
from tilewright.graph.ops import Constant, Fused, Loop
from tilewright.ir.expr import Expr

FITS = 0.5  # of the cache: weights up to this stay there whatever their order, beside what else the loop needs
PART = 0.125  # of the cache: groups that read less than this have nothing to gain


def turn_in_loops(function: Function, cache_bytes: int) -> Function:
    """The function with groups in loops that read more than a cache of `cache_bytes` holds going back and forth with the loop's counter."""

    def visit(g: GraphBuilder, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
        if not isinstance(node.op, Loop) or sum(map(weights_of, walk_nodes(node.op.body.results))) <= FITS * cache_bytes:
            return None
        return g.emit(replace(node.op, body=_turning(node.op.body, node.op.counter, cache_bytes)), *inputs)

    return rewrite_function(function, visit)


def _turning(body: Function, counter: Expr, cache_bytes: int) -> Function:
    def visit(g: GraphBuilder, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
        if not isinstance(node.op, Fused) or node.op.turn is not None or weights_of(node) <= PART * cache_bytes:
            return None
        return g.emit(replace(node.op, turn=counter), *inputs)

    return rewrite_function(body, visit)


def weights_of(node: Node) -> int:
    """Bytes of constants that a fused group reads."""
    if not isinstance(node.op, Fused):
        return 0
    return sum(value.op.data.array.nbytes for value in dict.fromkeys(node.inputs) if isinstance(value.op, Constant))
