"""Convolutions lose spatial axes of one point, and what follows them works without these axes.

    convolution(x [N, C, W, 1], w [O, C, K, 1])  ->  reshape(convolution(reshape(x), reshape(w)))

Also behind and before transposes, which channels-last frameworks leave around each convolution. Squeezed images, of which one point is left
in all, stay as they are: their convolutions are products of matrices and vectors in either form.
"""

from __future__ import annotations

from tilewright.graph.node import Function, Node, walk_nodes
from tilewright.graph.ops import Convolution
from tilewright.graph.shapes import is_one
from tilewright.transform import simplify
from tilewright.transform.rewriting import apply_rules, merged
from tilewright.transform.rules import transposes, unit_axes

RULES = merged(simplify.RULES, unit_axes.RULES, transposes.RULES)


def drop_unit_axes(function: Function) -> Function:
    """The function in canonical form with no convolution over an axis of one point beside longer ones."""
    return apply_rules(function, RULES) if any(map(_has_unit_axes, walk_nodes(function.results))) else function


def _has_unit_axes(node: Node) -> bool:
    if not isinstance(node.op, Convolution):
        return False
    space = list(zip(node.inputs[0].shape[2:], node.types[0].shape[2:]))
    return any(is_one(a) and is_one(b) for a, b in space) and not all(is_one(a) for a, _ in space)
