"""Transposes and reshapes move towards results until they cancel, end in a contraction, or nothing lets them pass.

Models converted from channels-last frameworks transpose before and after each convolution; between two of them stand elementwise
operators only. Flattening around matrix products is likewise in the way of fusing what follows. After recognition of composites, whose
statistics run over last axes.
"""

from __future__ import annotations

from tilewright.graph.node import Function
from tilewright.transform import simplify
from tilewright.transform.rewriting import apply_rules, merged
from tilewright.transform.rules import reshapes, transposes

RULES = merged(simplify.RULES, transposes.RULES, reshapes.RULES)


def push_movement(function: Function) -> Function:
    """The function in canonical form with transposes and reshapes as late as they go."""
    return apply_rules(function, RULES)
