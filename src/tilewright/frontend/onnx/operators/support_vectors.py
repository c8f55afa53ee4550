"""Importers of support vector machines (ai.onnx.ml): regression, one class, classification with votes and probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilewright.frontend.onnx.context import NodeContext, Table
from tilewright.frontend.onnx.operators.classical import class_labels, post_transformed, rows
from tilewright.frontend.onnx.operators.matmul import contract
from tilewright.graph.node import Array, Function, GraphBuilder, Parameter, Value
from tilewright.graph.ops import ArgReduce, Concat, Gather, Loop
from tilewright.ir import dtypes
from tilewright.ir.expr import const
from tilewright.support.errors import ModelError

KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")
LEAST = 1e-7  # a probability of one class against another is kept this far from 0 and 1, as in libsvm


def _floats(ctx: NodeContext, name: str) -> Array:
    return np.asarray(ctx.attribute(name) or [], np.float64)


def _kernel(ctx: NodeContext, x: Value, vectors: Array) -> Value:
    """The kernel function of each row of x [n, f] with each vector [v, f]: [n, v]."""
    kind = ctx.attribute("kernel_type", "LINEAR")
    if kind not in KERNELS:
        raise ModelError(f"{ctx.op_type} has the kernel '{kind}'", where=ctx.where, why=f"it is one of {', '.join(KERNELS)}")
    x = ctx.refine_axis(x, 1, vectors.shape[1])
    gamma, offset, degree = (*_floats(ctx, "kernel_params")[:3], 0.0, 0.0, 0.0)[:3]
    if kind == "RBF":
        away = ctx.binary("sub", ctx.reshape(x, (x.shape[0], 1, x.shape[1])), ctx.constant(vectors, x.type.dtype))
        squares = ctx.reduce("sum", ctx.binary("mul", away, away), (2,), keepdims=False)
        return ctx.unary("exp", ctx.binary("mul", squares, -gamma))
    product = contract(ctx, x, "nf", ctx.constant(vectors, x.type.dtype), "vf", "nv")
    if kind == "LINEAR":
        return product
    line = ctx.binary("add", ctx.binary("mul", product, gamma), offset)
    if kind == "SIGMOID":
        return ctx.unary("tanh", line)
    if not 0 <= degree <= 64 or not float(degree).is_integer():
        return ctx.binary("pow", line, degree)
    power = ctx.scalar_like(1, line)
    for _ in range(int(degree)):
        power = ctx.binary("mul", power, line)
    return power


def svm_regressor(ctx: NodeContext) -> Value:
    """[n, 1]: a weighted sum of kernels, or a linear function without support vectors; its sign, 1 or -1, for one class."""
    x = rows(ctx, ctx.input(0))
    count, weights, rho = int(ctx.attribute("n_supports", 0)), _floats(ctx, "coefficients"), _floats(ctx, "rho")
    if len(rho) == 0 or len(weights) == 0:
        raise ModelError("SVMRegressor lacks 'rho' or 'coefficients'", where=ctx.where)
    if count:
        vectors = _floats(ctx, "support_vectors").reshape(count, -1)
        score = contract(ctx, _kernel(ctx, x, vectors), "nv", ctx.constant(weights.reshape(1, count), x.type.dtype), "tv", "nt")
    else:
        score = contract(ctx, x, "nf", ctx.constant(weights.reshape(1, -1), x.type.dtype), "tf", "nt")
    score = ctx.binary("add", score, float(rho[0]))
    if ctx.attribute("one_class", 0):
        score = ctx.select(ctx.binary("greater", score, 0.0), ctx.scalar_like(1, score), ctx.scalar_like(-1, score))
    return ctx.cast(post_transformed(ctx, score, ctx.attribute("post_transform", "NONE")), dtypes.float32)


def svm_classifier(ctx: NodeContext) -> Sequence[Value]:
    """(label, scores). With support vectors every two classes vote, and scores are those of the pairs, or probabilities when `prob_a` is
    given; without, each class has a linear function."""
    labels, x = class_labels(ctx), rows(ctx, ctx.input(0))
    classes = max(len(labels), 1)
    counts = [int(n) for n in ctx.attribute("vectors_per_class") or []]
    weights = _floats(ctx, "coefficients")
    total, transform, floats = sum(counts), ctx.attribute("post_transform", "NONE"), _floats(ctx, "prob_a")
    if not total:
        matrix = ctx.constant(weights.reshape(classes, -1), x.type.dtype)
        scores = ctx.binary("add", contract(ctx, x, "nf", matrix, "cf", "nc"), float(_floats(ctx, "rho")[0]))
        best = ctx.one(ArgReduce("max", 1, False, False), scores)
        return _picked(ctx, labels, best), ctx.cast(post_transformed(ctx, scores, transform), dtypes.float32)
    if len(counts) != classes:
        raise ModelError(f"SVMClassifier has {len(counts)} counts of vectors for {classes} classes", where=ctx.where)
    pairs = [(i, j) for i in range(classes) for j in range(i + 1, classes)]
    rho = _floats(ctx, "rho")
    if len(rho) != len(pairs) or len(floats) not in (0, len(pairs)):
        raise ModelError(f"SVMClassifier has {len(rho)} offsets for {len(pairs)} pairs of classes", where=ctx.where)
    kernels = _kernel(ctx, x, _floats(ctx, "support_vectors").reshape(total, -1))
    matrix = ctx.constant(_pair_weights(weights.reshape(-1, total), counts, pairs), x.type.dtype)
    scores = ctx.binary("add", contract(ctx, kernels, "nv", matrix, "pv", "np"), ctx.constant(rho, x.type.dtype))
    best = ctx.one(ArgReduce("max", 1, False, False), _votes(ctx, scores, pairs, classes))
    if len(floats):
        scores = _probabilities(ctx, scores, pairs, classes)
        return _picked(ctx, labels, best), ctx.cast(post_transformed(ctx, scores, transform), dtypes.float32)
    if len(pairs) == 1:  # two classes, one score: it is that of the first
        if transform == "PROBIT":
            return _picked(ctx, labels, best), ctx.cast(post_transformed(ctx, scores, transform), dtypes.float32)
        scores = ctx.one(Concat(1), ctx.unary("neg", scores), scores)
    return _picked(ctx, labels, best), ctx.cast(post_transformed(ctx, scores, transform), dtypes.float32)


def _picked(ctx: NodeContext, labels: Array, best: Value) -> Value:
    return ctx.one(Gather(0), ctx.constant(labels), best) if len(labels) else ctx.cast(best, dtypes.int64)


def _pair_weights(weights: Array, counts: Sequence[int], pairs: Sequence[tuple[int, int]]) -> Array:
    """[pairs, vectors]: row j - 1 of the weights holds what vectors of class i < j count against class j, row i the other way around."""
    starts = np.concatenate([[0], np.cumsum(counts)])
    found = np.zeros((len(pairs), weights.shape[1]))
    for row, (i, j) in enumerate(pairs):
        for of, at in ((i, j - 1), (j, i)):
            found[row, starts[of] : starts[of + 1]] = weights[at, starts[of] : starts[of + 1]]
    return found


def _votes(ctx: NodeContext, scores: Value, pairs: Sequence[tuple[int, int]], classes: int) -> Value:
    """[n, classes]: how many pairs each class wins."""
    first, second = (np.zeros((len(pairs), classes)) for _ in range(2))
    for row, (i, j) in enumerate(pairs):
        first[row, i], second[row, j] = 1, 1
    won = ctx.cast(ctx.binary("greater", scores, 0.0), scores.type.dtype)
    lost = ctx.binary("sub", ctx.scalar_like(1, scores), won)
    votes = [contract(ctx, side, "np", ctx.constant(m, scores.type.dtype), "pc", "nc") for side, m in ((won, first), (lost, second))]
    return ctx.binary("add", *votes)


def _probabilities(ctx: NodeContext, scores: Value, pairs: Sequence[tuple[int, int]], classes: int) -> Value:
    """[n, classes] from the scores of pairs: their probabilities by Platt's sigmoid, coupled (Wu, Lin and Weng, "Probability estimates for
    multi-class classification by pairwise coupling", 2004, second method) by the iteration of libsvm with its number of steps."""
    dtype, n = scores.type.dtype, scores.shape[0]
    slope, shift = (ctx.constant(_floats(ctx, name), dtype) for name in ("prob_a", "prob_b"))
    value = ctx.binary("add", ctx.binary("mul", scores, slope), shift)
    likely = ctx.binary("sub", ctx.scalar_like(1, value), ctx.unary("sigmoid", value))
    likely = ctx.binary("min", ctx.binary("max", likely, LEAST), 1 - LEAST)
    against = ctx.binary("sub", ctx.scalar_like(1, likely), likely)
    # r[i, j] = P(i against j), flattened: column i * classes + j, taken from the pairs, from their complements, or from a column of zeros
    place = {pair: row for row, pair in enumerate(pairs)}
    zero = ctx.broadcast(ctx.scalar_like(0, likely), (n, 1))
    columns = [
        place[i, j] if i < j else len(pairs) + place[j, i] if i > j else 2 * len(pairs) for i in range(classes) for j in range(classes)
    ]
    table = ctx.one(Gather(1), ctx.one(Concat(1), likely, against, zero), ctx.constant(np.asarray(columns, np.int64)))
    r = ctx.reshape(table, (n, classes, classes))
    turned = ctx.transpose(r, (0, 2, 1))  # r[j, i]
    own = ctx.reduce("sum", ctx.binary("mul", turned, turned), (2,))
    q = ctx.select(ctx.constant(np.eye(classes, dtype=np.bool_)), own, ctx.unary("neg", ctx.binary("mul", r, turned)))
    start = ctx.broadcast(ctx.constant(1.0 / classes, dtype), (n, classes))
    going = ctx.broadcast(ctx.constant(True), (n, 1))
    step = ctx.state.fresh_size(f"{ctx.node.output[0]}_step")
    body = _coupling_step(ctx, (start, going, q), classes)
    return ctx.emit(Loop(body, 2, step, const(max(100, classes))), start, going, q)[0]


def _coupling_step(ctx: NodeContext, initial: Sequence[Value], classes: int) -> Function:
    """(p [n, k], going [n, 1], q [n, k, k]) -> (p, going): one step of the coupling; rows that are near enough stay."""
    g = GraphBuilder(origin=ctx.g.origin)
    inner = replace(ctx, state=replace(ctx.state, g=g))
    p, going, q = (g.one(Parameter(name, v.type)) for name, v in zip(("p", "going", "q"), initial, strict=True))
    n, dtype = p.shape[0], p.type.dtype
    products = contract(inner, q, "nij", p, "nj", "ni")
    total = inner.reduce("sum", inner.binary("mul", p, products), (1,))
    worst = inner.reduce("max", inner.unary("abs", inner.binary("sub", products, total)), (1,))
    still = inner.binary("and", going, inner.binary("greater_equal", worst, 0.005 / classes))
    after = p
    for t in range(classes):
        row = inner.reshape(inner.slice_axis(q, 1, t, 1), (n, classes))
        own = inner.slice_axis(row, 1, t, 1)
        at = inner.slice_axis(products, 1, t, 1)
        change = inner.binary("div", inner.binary("sub", total, at), own)
        scale = inner.binary("add", change, 1.0)
        grown = inner.binary("mul", change, inner.binary("add", inner.binary("mul", change, own), inner.binary("mul", at, 2.0)))
        total = inner.binary("div", inner.binary("div", inner.binary("add", total, grown), scale), scale)
        one = inner.constant(np.arange(classes) == t, dtype)
        after = inner.binary("div", inner.binary("add", after, inner.binary("mul", change, one)), scale)
        products = inner.binary("div", inner.binary("add", products, inner.binary("mul", change, row)), scale)
    return Function("coupling", (p, going, q), (inner.select(still, after, p), still))


IMPORTERS: Table = {
    ("ai.onnx.ml", "SVMClassifier"): svm_classifier,
    ("ai.onnx.ml", "SVMRegressor"): svm_regressor,
}
