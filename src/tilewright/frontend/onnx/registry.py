"""Which ONNX operators are imported, by (domain, operator); "" stands for ai.onnx."""

from __future__ import annotations

from tilewright.frontend.onnx.context import Table
from tilewright.frontend.onnx.operators import (
    activation,
    attention,
    classical,
    contrib,
    contrib_attention,
    contrib_quantized,
    control,
    convolution,
    elementwise,
    indexing,
    matmul,
    movement,
    normalization,
    ordering,
    pooling,
    quantization,
    recurrent,
    reduction,
    sequence,
    shape,
    signal,
    source,
    training,
    trees,
    vision,
)

FAMILIES = (
    activation,
    attention,
    classical,
    contrib,
    contrib_attention,
    contrib_quantized,
    control,
    convolution,
    elementwise,
    indexing,
    matmul,
    movement,
    normalization,
    ordering,
    pooling,
    quantization,
    recurrent,
    reduction,
    sequence,
    shape,
    signal,
    source,
    training,
    trees,
    vision,
)

IMPORTERS: Table = {key: importer for family in FAMILIES for key, importer in family.IMPORTERS.items()}
