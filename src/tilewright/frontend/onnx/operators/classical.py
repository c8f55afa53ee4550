"""Importers of classical machine learning (ai.onnx.ml): scaling, encoding, linear models."""

from __future__ import annotations

from collections.abc import Sequence
from math import pi, sqrt
from typing import Any

import numpy as np

from tilewright.frontend.onnx.context import NodeContext, Table
from tilewright.frontend.onnx.operators.matmul import contract
from tilewright.graph.node import Array, Value
from tilewright.graph.ops import ArgReduce, Concat, Gather, Iota, Softmax
from tilewright.ir import dtypes
from tilewright.support.errors import ModelError, UnsupportedOperatorError

# ---- scores of classifiers


def class_labels(ctx: NodeContext) -> Array:
    """The integer labels of the classes."""
    numbers = ctx.attribute("classlabels_int64s") or ctx.attribute("classlabels_ints")
    if numbers:
        return np.asarray(numbers, np.int64)
    if ctx.attribute("classlabels_strings") and ctx.wants(0):
        raise UnsupportedOperatorError(
            f"{ctx.op_type} with labels that are strings is not supported",
            where=ctx.where,
            hint="export the model with integer labels, or remove the label output",
        )
    return np.arange(len(ctx.attribute("classlabels_strings") or []), dtype=np.int64)


def post_transformed(ctx: NodeContext, scores: Value, transform: str) -> Value:
    """Scores [N, C] after NONE, SOFTMAX, SOFTMAX_ZERO (zeros stay), LOGISTIC or PROBIT."""
    match transform:
        case "NONE":
            return scores
        case "LOGISTIC":
            return ctx.unary("sigmoid", scores)
        case "SOFTMAX":
            return ctx.one(Softmax(1), scores)
        case "SOFTMAX_ZERO":
            present = ctx.binary("not_equal", scores, 0.0)
            shifted = ctx.binary("sub", scores, ctx.reduce("max", scores, (1,)))
            powers = ctx.select(present, ctx.unary("exp", shifted), ctx.scalar_like(0, scores))
            total = ctx.reduce("sum", powers, (1,))
            return ctx.select(present, ctx.binary("div", powers, total), scores)
        case "PROBIT":
            return probit(ctx, scores)
    raise ModelError(f"{ctx.op_type} has the post transform '{transform}'", where=ctx.where)


def probit(ctx: NodeContext, x: Value) -> Value:
    """The quantile of the normal distribution, sqrt(2) * erfinv(2x - 1), with Winitzki's approximation of erfinv (2008), which ONNX
    runtimes use."""
    t = ctx.binary("sub", ctx.binary("mul", x, 2.0), 1.0)
    log = ctx.unary("log", ctx.binary("mul", ctx.binary("sub", ctx.scalar_like(1, t), t), ctx.binary("add", t, 1.0)))
    v = ctx.binary("add", ctx.binary("mul", log, 0.5), 2.0 / (pi * 0.147))
    root = ctx.unary("sqrt", ctx.binary("sub", ctx.binary("mul", v, v), ctx.binary("div", log, 0.147)))
    magnitude = ctx.unary("sqrt", ctx.binary("sub", root, v))
    return ctx.binary("mul", ctx.binary("mul", ctx.unary("sign", t), magnitude), sqrt(2.0))


def two_class_scores(ctx: NodeContext, score: Value, transform: str, probability: bool) -> Value:
    """[N, 2] from the score [N, 1] of the second class."""
    if transform == "PROBIT":
        return probit(ctx, score)
    if transform == "LOGISTIC":
        first, score = ctx.unary("sigmoid", ctx.unary("neg", score)), ctx.unary("sigmoid", score)
    elif probability:
        first = ctx.binary("sub", ctx.scalar_like(1, score), score)
    else:
        first = ctx.unary("neg", score)
    return ctx.one(Concat(1), first, score)


# ---- linear models


def rows(ctx: NodeContext, x: Value) -> Value:
    """Rows [n, f] in a float dtype; a vector is one row."""
    x = x if x.type.dtype is dtypes.float64 else ctx.cast(x, dtypes.float32)
    return ctx.reshape(x, (1, *x.shape)) if x.type.rank == 1 else x


def _linear(ctx: NodeContext, targets: int) -> Value:
    x = rows(ctx, ctx.input(0))
    weights = np.asarray(ctx.require("coefficients"), np.float64).reshape(targets, -1)
    product = contract(ctx, x, "nf", ctx.constant(weights, x.type.dtype), "tf", "nt")
    bias = ctx.attribute("intercepts")
    return ctx.binary("add", product, ctx.constant(bias, x.type.dtype)) if bias else product


def linear_regressor(ctx: NodeContext) -> Value:
    scores = _linear(ctx, ctx.attribute("targets", 1))
    return ctx.cast(post_transformed(ctx, scores, ctx.attribute("post_transform", "NONE")), dtypes.float32)


def linear_classifier(ctx: NodeContext) -> Sequence[Value]:
    """(label, scores). One row of coefficients for two classes gives the score of the second."""
    labels = class_labels(ctx)
    transform = ctx.attribute("post_transform", "NONE")
    targets = len(ctx.attribute("intercepts") or labels)
    scores = _linear(ctx, targets)
    if targets == 1 and len(labels) == 2:
        positive = ctx.binary("greater", scores, 0.0)
        label = ctx.reshape(ctx.select(positive, ctx.constant(labels[1]), ctx.constant(labels[0])), (scores.shape[0],))
        return label, ctx.cast(two_class_scores(ctx, scores, transform, True), dtypes.float32)
    best = ctx.one(ArgReduce("max", 1, False, False), scores)
    return ctx.one(Gather(0), ctx.constant(labels), best), ctx.cast(post_transformed(ctx, scores, transform), dtypes.float32)


# ---- features


def scaler(ctx: NodeContext) -> Value:
    """(x - offset) * scale for each column."""
    x = ctx.cast(ctx.input(0), dtypes.float32)
    for fn, name in (("sub", "offset"), ("mul", "scale")):
        numbers = ctx.attribute(name)
        if numbers:
            x = ctx.binary(fn, x, ctx.constant(np.asarray(numbers, np.float32) if len(numbers) > 1 else np.float32(numbers[0])))
    return x


def normalizer(ctx: NodeContext) -> Value:
    """Rows divided by their largest element, sum of magnitudes, or length; rows of zeros stay."""
    x = ctx.cast(ctx.input(0), dtypes.float32)
    norm = ctx.attribute("norm", "MAX")
    axes = (x.type.rank - 1,)
    if norm == "MAX":
        size = ctx.reduce("max", ctx.unary("abs", x), axes)
    elif norm == "L1":
        size = ctx.reduce("sum", ctx.unary("abs", x), axes)
    elif norm == "L2":
        size = ctx.unary("sqrt", ctx.reduce("sum", ctx.binary("mul", x, x), axes))
    else:
        raise ModelError(f"Normalizer has the norm '{norm}'", where=ctx.where, why="it is MAX, L1 or L2")
    return ctx.binary("div", x, ctx.select(ctx.binary("equal", size, 0.0), ctx.scalar_like(1, x), size))


def binarizer(ctx: NodeContext) -> Value:
    x = ctx.input(0)
    return ctx.cast(ctx.binary("greater", x, ctx.attribute("threshold", 0.0)), x.type.dtype)


def imputer(ctx: NodeContext) -> Value:
    """Elements that are the replaced value (NaN: not a number) become the imputed one, one for all columns or one for each."""
    x = ctx.input(0)
    floats = x.type.dtype.is_float
    imputed = ctx.require("imputed_value_floats" if floats else "imputed_value_int64s")
    replaced = ctx.attribute("replaced_value_float" if floats else "replaced_value_int64", 0)
    missing = ctx.unary("isnan", x) if floats and np.isnan(replaced) else ctx.binary("equal", x, replaced)
    return ctx.select(missing, ctx.constant(imputed if len(imputed) > 1 else imputed[0], x.type.dtype), x)


def feature_vectorizer(ctx: NodeContext) -> Value:
    parts = [rows(ctx, ctx.cast(ctx.input(i), dtypes.float32)) for i in range(len(ctx.inputs))]
    widths = ctx.attribute("inputdimensions") or []
    parts = [ctx.slice_axis(p, 1, 0, w) if w else p for p, w in zip(parts, [*widths, *[0] * (len(parts) - len(widths))])]
    return parts[0] if len(parts) == 1 else ctx.one(Concat(1), *parts)


def _mapped(ctx: NodeContext, names: Sequence[str]) -> Array | None:
    for name in names:
        value: Any = ctx.attribute(name)
        if value is not None and len(value):
            return np.asarray(value).reshape(-1)
    return None


def label_encoder(ctx: NodeContext) -> Value:
    """A table from numbers to numbers; what is not in it becomes the default."""
    x = ctx.input(0)
    keys = _mapped(ctx, ("keys_int64s", "keys_floats", "keys_tensor"))
    values = _mapped(ctx, ("values_int64s", "values_floats", "values_tensor"))
    if keys is None or values is None or keys.dtype.kind in "OUS" or values.dtype.kind in "OUS":
        raise UnsupportedOperatorError("LabelEncoder of strings is not supported", where=ctx.where)
    wide = ctx.attribute("values_tensor")
    dtype = dtypes.from_numpy(wide.dtype) if wide is not None else dtypes.float32 if ctx.attribute("values_floats") else dtypes.int64
    given = ctx.attribute("default_tensor")
    default = ctx.attribute("default_float", -0.0) if dtype.is_float else ctx.attribute("default_int64", -1)
    fallback = ctx.constant(np.asarray(given).reshape(-1)[0] if given is not None else default, dtype)
    spread = ctx.reshape(x, (*x.shape, 1))
    same = ctx.binary("equal", spread, ctx.constant(keys, x.type.dtype))
    if x.type.dtype.is_float and np.any(np.isnan(keys)):
        same = ctx.binary("or", same, ctx.binary("and", ctx.unary("isnan", spread), ctx.constant(np.isnan(keys))))
    last = (x.type.rank,)
    place = ctx.select(same, ctx.one(Iota(same.shape[-1], dtypes.int64)), ctx.constant(np.int64(0)))
    found = ctx.one(Gather(0), ctx.constant(values, dtype), ctx.reduce("max", place, last, keepdims=False))
    return ctx.select(ctx.reduce("any", same, last, keepdims=False), found, fallback)


def one_hot_encoder(ctx: NodeContext) -> Value:
    """Integers to rows that are 1 at their category."""
    x, categories = ctx.input(0), ctx.attribute("cats_int64s")
    if not categories:
        raise UnsupportedOperatorError("OneHotEncoder of strings is not supported", where=ctx.where)
    numbers = ctx.reshape(ctx.cast(x, dtypes.int64), (*x.shape, 1))
    return ctx.cast(ctx.binary("equal", numbers, ctx.constant(np.asarray(categories, np.int64))), dtypes.float32)


IMPORTERS: Table = {
    ("ai.onnx.ml", "Binarizer"): binarizer,
    ("ai.onnx.ml", "FeatureVectorizer"): feature_vectorizer,
    ("ai.onnx.ml", "Imputer"): imputer,
    ("ai.onnx.ml", "LabelEncoder"): label_encoder,
    ("ai.onnx.ml", "LinearClassifier"): linear_classifier,
    ("ai.onnx.ml", "LinearRegressor"): linear_regressor,
    ("ai.onnx.ml", "Normalizer"): normalizer,
    ("ai.onnx.ml", "OneHotEncoder"): one_hot_encoder,
    ("ai.onnx.ml", "Scaler"): scaler,
}
