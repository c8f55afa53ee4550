"""The graph simplifier: canonical form, algebraic rules, sizes in place of tensors that compute sizes.

Rules stand in tables, one file for each family, in `rules/`; `rewriting.apply_rules` walks the graph once, bottom-up, and brings each
node into normal form. Canonical form: constants last, numbers as scalars, no operator that does nothing, sizes as `size_value`.
"""

from __future__ import annotations

from tilewright.graph.node import Function
from tilewright.transform.rewriting import apply_rules, merged
from tilewright.transform.rules import contraction, elementwise, known_values, movement, picked

# Known values first: what is a constant needs no other rule.
RULES = merged(known_values.RULES, elementwise.RULES, movement.RULES, picked.RULES, contraction.RULES)


def simplify_graph(function: Function) -> Function:
    """The function in canonical form. Results and types stay; elements change at most in the sign of a zero, and by one unit in the last
    place where a power becomes products."""
    return apply_rules(function, RULES)
