"""Quantized models in integers from end to end (QDQ: the operators between dequantization and quantization compute in integers).

First products of dequantized operands become integer products, and movement passes through dequantization; then each quantization becomes
the end of the computation in front of it. What stays dequantized is converted where it is read.
"""

from __future__ import annotations

from tilewright.graph.node import Function, walk_nodes
from tilewright.graph.ops import Dequantize, Quantize
from tilewright.ir.dtypes import DType
from tilewright.transform.rewriting import apply_rules
from tilewright.transform.rules import requantise
from tilewright.transform.rules.integer_products import rules


def integer_products(function: Function, activations: DType) -> Function:
    """The function with products of quantized operands in integers. `activations`: the 8-bit dtype that the target's instructions multiply
    by signed bytes. Results differ from those of the floats by roundings of requantization."""
    if not any(isinstance(node.op, (Quantize, Dequantize)) for node in walk_nodes(function.results)):
        return function
    return apply_rules(apply_rules(function, rules(activations)), requantise.RULES)
