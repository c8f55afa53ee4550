"""The operators of the graph level, one file for each family. `OPERATORS` lists them by name."""

from tilewright.graph.node import Operator
from tilewright.graph.ops.contraction import Contract
from tilewright.graph.ops.elementwise import Binary, Bitcast, Cast, Select, Unary
from tilewright.graph.ops.movement import BroadcastTo, Concat, Pad, Reshape, Slice, Transpose
from tilewright.graph.ops.source import BindSize, Constant, ConstantData, Iota, RandomNormal, RandomUniform, SizeValue, constant

OPERATORS: dict[str, type[Operator]] = {
    operator.name: operator
    for operator in (
        Unary, Binary, Select, Cast, Bitcast,
        Reshape, Transpose, BroadcastTo, Slice, Pad, Concat,
        Constant, Iota, SizeValue, BindSize, RandomUniform, RandomNormal,
        Contract,
    )
}  # fmt: skip

__all__ = [
    "OPERATORS",
    "Binary",
    "BindSize",
    "Bitcast",
    "BroadcastTo",
    "Cast",
    "Concat",
    "Constant",
    "ConstantData",
    "Contract",
    "Iota",
    "Pad",
    "RandomNormal",
    "RandomUniform",
    "Reshape",
    "Select",
    "SizeValue",
    "Slice",
    "Transpose",
    "Unary",
    "constant",
]
