"""The operators of the graph level, one file for each family. `OPERATORS` lists them by name."""

from tilewright.graph.node import Operator
from tilewright.graph.ops.contraction import Contract
from tilewright.graph.ops.control import Call, If, Loop
from tilewright.graph.ops.elementwise import Binary, Bitcast, Cast, Select, Unary
from tilewright.graph.ops.fused import Fused
from tilewright.graph.ops.indexing import Gather, GatherElements, GatherNd, ScatterElements, ScatterNd
from tilewright.graph.ops.movement import BroadcastTo, Concat, Pad, RefineShape, Reshape, Slice, Transpose
from tilewright.graph.ops.source import BindSize, Constant, ConstantData, Iota, RandomNormal, RandomUniform, SizeValue, constant

OPERATORS: dict[str, type[Operator]] = {
    operator.name: operator
    for operator in (
        Unary, Binary, Select, Cast, Bitcast,
        Reshape, RefineShape, Transpose, BroadcastTo, Slice, Pad, Concat,
        Constant, Iota, SizeValue, BindSize, RandomUniform, RandomNormal,
        Contract,
        If, Loop, Call, Fused,
        Gather, GatherElements, GatherNd, ScatterElements, ScatterNd,
    )
}  # fmt: skip

__all__ = [
    "OPERATORS",
    "Binary",
    "BindSize",
    "Bitcast",
    "BroadcastTo",
    "Call",
    "Cast",
    "Concat",
    "Constant",
    "ConstantData",
    "Contract",
    "Fused",
    "Gather",
    "GatherElements",
    "GatherNd",
    "If",
    "Iota",
    "Loop",
    "Pad",
    "RandomNormal",
    "RandomUniform",
    "RefineShape",
    "Reshape",
    "ScatterElements",
    "ScatterNd",
    "Select",
    "SizeValue",
    "Slice",
    "Transpose",
    "Unary",
    "constant",
]
