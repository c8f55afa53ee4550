"""The operators of the graph level, one file for each family. `OPERATORS` lists them by name."""

from tilewright.graph.node import Operator
from tilewright.graph.ops.activation import Gelu, HardSwish, Softplus
from tilewright.graph.ops.attention import Attention
from tilewright.graph.ops.blocked import Block, BlockedConvolution, Unblock
from tilewright.graph.ops.contraction import Contract
from tilewright.graph.ops.control import Call, If, Loop, branch, scan
from tilewright.graph.ops.convolution import Convolution, ConvolutionTranspose
from tilewright.graph.ops.deformable import DeformableColumns
from tilewright.graph.ops.detection import NonMaxSuppression, non_max_suppression
from tilewright.graph.ops.elementwise import Binary, Bitcast, Cast, Select, Unary
from tilewright.graph.ops.fused import Fused
from tilewright.graph.ops.indexing import Gather, GatherElements, GatherNd, ScatterElements, ScatterNd
from tilewright.graph.ops.interleave import Interleave
from tilewright.graph.ops.movement import BroadcastTo, Concat, Pad, RefineShape, Repeat, Reshape, Slice, Transpose
from tilewright.graph.ops.narrow_weights import WidenWeights
from tilewright.graph.ops.normalization import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, Lrn, RmsNorm
from tilewright.graph.ops.ordering import CumulativeScan, ReverseSequence, Sort, TopK
from tilewright.graph.ops.quantization import Dequantize, DynamicQuantize, Quantize
from tilewright.graph.ops.recurrent import Gru, Lstm, QuantizedLstm, Rnn, activation
from tilewright.graph.ops.reduction import ArgReduce, Reduce
from tilewright.graph.ops.resize import Resize
from tilewright.graph.ops.sampling import GridSample, RoiAlign
from tilewright.graph.ops.selection import NonZeroIndices, Unique, compress, nonzero, unique
from tilewright.graph.ops.softmax import LogSoftmax, Softmax
from tilewright.graph.ops.source import BindSize, Constant, ConstantData, Iota, RandomNormal, RandomUniform, SizeValue, constant
from tilewright.graph.ops.tree import TreeEnsemble
from tilewright.graph.ops.window import MaxPoolIndices, WindowReduce
from tilewright.graph.ops.winograd import WinogradConvolution, WinogradWeights

OPERATORS: dict[str, type[Operator]] = {
    operator.name: operator
    for operator in (
        Unary, Binary, Select, Cast, Bitcast,
        Reshape, RefineShape, Transpose, BroadcastTo, Repeat, Slice, Pad, Concat,
        Constant, Iota, SizeValue, BindSize, RandomUniform, RandomNormal,
        Contract, Convolution, ConvolutionTranspose, Interleave,
        Reduce, ArgReduce, WindowReduce, MaxPoolIndices,
        Softmax, LogSoftmax, LayerNorm, RmsNorm, InstanceNorm, GroupNorm, BatchNorm, Lrn,
        Gelu, HardSwish, Softplus, Attention,
        Block, Unblock, BlockedConvolution, WinogradWeights, WinogradConvolution,
        If, Loop, Call, Fused,
        Gather, GatherElements, GatherNd, ScatterElements, ScatterNd,
        TopK, Sort, CumulativeScan, ReverseSequence,
        NonZeroIndices, Unique,
        NonMaxSuppression,
        Lstm, Gru, Rnn,
        Quantize, Dequantize, DynamicQuantize, WidenWeights,
        Resize,
        TreeEnsemble,
        QuantizedLstm,
        GridSample, RoiAlign,
        DeformableColumns,
    )
}  # fmt: skip

__all__ = [
    "OPERATORS",
    "ArgReduce",
    "Attention",
    "BatchNorm",
    "Binary",
    "BindSize",
    "Bitcast",
    "Block",
    "BlockedConvolution",
    "BroadcastTo",
    "Call",
    "Cast",
    "Concat",
    "Constant",
    "ConstantData",
    "Contract",
    "Convolution",
    "ConvolutionTranspose",
    "CumulativeScan",
    "DeformableColumns",
    "Dequantize",
    "DynamicQuantize",
    "Fused",
    "Gather",
    "GatherElements",
    "GatherNd",
    "Gelu",
    "GridSample",
    "GroupNorm",
    "Gru",
    "HardSwish",
    "If",
    "InstanceNorm",
    "Interleave",
    "Iota",
    "LayerNorm",
    "LogSoftmax",
    "Loop",
    "Lrn",
    "Lstm",
    "MaxPoolIndices",
    "NonMaxSuppression",
    "NonZeroIndices",
    "Pad",
    "Quantize",
    "QuantizedLstm",
    "RandomNormal",
    "RandomUniform",
    "Reduce",
    "RefineShape",
    "Repeat",
    "Reshape",
    "Resize",
    "ReverseSequence",
    "RmsNorm",
    "Rnn",
    "RoiAlign",
    "ScatterElements",
    "ScatterNd",
    "Select",
    "SizeValue",
    "Slice",
    "Softmax",
    "Softplus",
    "Sort",
    "TopK",
    "Transpose",
    "TreeEnsemble",
    "Unary",
    "Unblock",
    "Unique",
    "WidenWeights",
    "WindowReduce",
    "WinogradConvolution",
    "WinogradWeights",
    "activation",
    "branch",
    "compress",
    "constant",
    "non_max_suppression",
    "nonzero",
    "scan",
    "unique",
]
