"""Importers of tree ensembles (ai.onnx.ml), in the form of version 5 and the older classifiers and regressors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.frontend.onnx.context import NodeContext, Table
from tilewright.frontend.onnx.operators.classical import class_labels, post_transformed, two_class_scores
from tilewright.graph.node import Array, Value
from tilewright.graph.ops import ArgReduce, Gather, TreeEnsemble
from tilewright.graph.ops.tree import AGGREGATES, MODES
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.support.errors import ModelError

_BRANCHES = {f"BRANCH_{name.upper()}": i for i, name in enumerate(MODES)}
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_AGGREGATE_CODES = ("average", "sum", "min", "max")


@dataclass(frozen=True, slots=True)
class Forest:
    """The tables of `TreeEnsemble`, see there."""

    roots: Array
    feature: Array
    split: Array
    if_true: Array
    if_false: Array
    mode: Array
    missing_true: Array
    leaf_begin: Array
    leaf_target: Array
    leaf_weight: Array
    member_begin: Array | None = None
    members: Array | None = None


def _array(ctx: NodeContext, name: str, dtype: Any, count: int | None = None) -> Array:
    """An attribute, or the tensor attribute of the same meaning, as an array; zeros of `count` when left out."""
    for given in (name, f"{name}_as_tensor"):
        value = ctx.attribute(given)
        if value is not None and len(value):
            return np.asarray(value).reshape(-1).astype(dtype)
    return np.zeros(count or 0, dtype)


def forest_of(ctx: NodeContext) -> Forest:
    """The tables of TreeEnsemble, version 5."""
    feature = _array(ctx, "nodes_featureids", np.int32)
    n = len(feature)
    targets = _array(ctx, "leaf_targetids", np.int32)
    weights, splits = np.asarray(ctx.require("leaf_weights")), np.asarray(ctx.require("nodes_splits"))
    mode = np.asarray(ctx.require("nodes_modes")).reshape(-1).astype(np.int8)
    begin, members = _members(ctx, mode)
    return Forest(
        _array(ctx, "tree_roots", np.int32),
        feature,
        splits.reshape(-1),
        _children(ctx, "true"),
        _children(ctx, "false"),
        mode,
        _array(ctx, "nodes_missing_value_tracks_true", np.bool_, n),
        np.arange(len(targets) + 1, dtype=np.int32),
        targets,
        weights.reshape(-1),
        begin,
        members,
    )


def _children(ctx: NodeContext, side: str) -> Array:
    ids, leaf = _array(ctx, f"nodes_{side}nodeids", np.int64), _array(ctx, f"nodes_{side}leafs", np.bool_)
    return np.where(leaf, -1 - ids, ids).astype(np.int32)


def _members(ctx: NodeContext, mode: Array) -> tuple[Array | None, Array | None]:
    """Set members of the nodes that test membership: in the attribute, a NaN ends the set of a node."""
    values = ctx.attribute("membership_values")
    if values is None or not len(values):
        return None, None
    values = np.asarray(values).reshape(-1)
    ends = np.flatnonzero(np.isnan(values))
    sets = np.split(values, ends + 1)[: len(ends)]
    counts = np.zeros(len(mode), np.int64)
    testing = np.flatnonzero(mode == MODES.index("member"))
    if len(testing) != len(sets):
        raise ModelError(f"TreeEnsemble has {len(testing)} nodes that test membership and {len(sets)} sets", where=ctx.where)
    counts[testing] = [len(s) - 1 for s in sets]
    begin = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return begin, np.concatenate([s[:-1] for s in sets]) if sets else values[:0]


def old_forest_of(ctx: NodeContext, prefix: str) -> Forest:
    """The tables of TreeEnsembleClassifier (prefix "class") or TreeEnsembleRegressor ("target")."""
    modes = ctx.require("nodes_modes")
    trees, ids = _array(ctx, "nodes_treeids", np.int64), _array(ctx, "nodes_nodeids", np.int64)
    keys = list(zip(trees.tolist(), ids.tolist()))
    inner = {key: i for i, key in enumerate(k for k, m in zip(keys, modes) if m != "LEAF")}
    leaves = {key: i for i, key in enumerate(k for k, m in zip(keys, modes) if m == "LEAF")}
    number = {**inner, **{key: -1 - i for key, i in leaves.items()}}
    rows = [i for i, m in enumerate(modes) if m != "LEAF"]
    if any(modes[i] not in _BRANCHES for i in rows):
        raise ModelError(f"{ctx.op_type} has an unknown node mode among {sorted(set(modes))}", where=ctx.where)
    try:
        sides = [
            np.array([number[keys[i][0], int(column[i])] for i in rows], np.int32)
            for column in (_array(ctx, f"nodes_{side}nodeids", np.int64) for side in ("true", "false"))
        ]
    except KeyError as error:
        raise ModelError(f"{ctx.op_type}: no node has the tree and number {error.args[0]}", where=ctx.where) from None
    children = set(sides[0].tolist()) | set(sides[1].tolist())
    roots: dict[int, int] = {}
    for key in keys:
        if number[key] not in children:
            roots.setdefault(key[0], number[key])
    splits = _array(ctx, "nodes_values", np.float32 if ctx.attribute("nodes_values_as_tensor") is None else np.float64)
    begin, targets, weights = _leaf_entries(ctx, prefix, leaves, inner)
    n = len(keys)
    return Forest(
        np.array(list(roots.values()), np.int32),
        _array(ctx, "nodes_featureids", np.int32, n)[rows],
        splits[rows],
        sides[0],
        sides[1],
        np.array([_BRANCHES[modes[i]] for i in rows], np.int8),
        _array(ctx, "nodes_missing_value_tracks_true", np.bool_, n)[rows],
        begin,
        targets,
        weights,
    )


def _leaf_entries(ctx: NodeContext, prefix: str, leaves: dict[Any, int], inner: dict[Any, int]) -> tuple[Array, Array, Array]:
    """(begin, target, weight) of the leaves; weights at other nodes count for nothing."""
    entries: list[list[tuple[int, float]]] = [[] for _ in leaves]
    columns = [_array(ctx, f"{prefix}_{name}", np.int64) for name in ("treeids", "nodeids", "ids")]
    weights = _array(ctx, f"{prefix}_weights", np.float64)
    for tree, node, target, weight in zip(*(c.tolist() for c in columns), weights.tolist(), strict=True):
        leaf = leaves.get((tree, node))
        if leaf is None and (tree, node) not in inner:
            raise ModelError(f"{ctx.op_type}: a weight belongs to node {node} of tree {tree}, which does not exist", where=ctx.where)
        if leaf is not None:
            entries[leaf].append((target, weight))
    begin = np.concatenate([[0], np.cumsum([len(e) for e in entries])]).astype(np.int32)
    flat = [entry for e in entries for entry in e]
    return begin, np.array([t for t, _ in flat], np.int32), np.array([w for _, w in flat], np.float64)


def run_forest(ctx: NodeContext, x: Value, forest: Forest, targets: int, aggregate: str) -> Value:
    """[N, targets] before base values and post transform, in x's float dtype."""
    dtype: DType = dtypes.float64 if x.type.dtype is dtypes.float64 or forest.split.dtype == np.float64 else dtypes.float32
    x = ctx.cast(x, dtype)
    _check_forest(ctx, x, forest, targets)
    modes = sorted(set(forest.mode.tolist())) or [0]
    member = MODES.index("member")
    mode = MODES[modes[0]] if len(modes) == 1 and modes[0] != member else "mixed"
    missing = bool(np.any(forest.missing_true))
    begin = forest.member_begin if forest.member_begin is not None else np.zeros(len(forest.mode) + 1, np.int32)
    members = forest.members if forest.members is not None else np.zeros(0)
    tables = [forest.roots, forest.feature, forest.split.astype(dtype.numpy), forest.if_true, forest.if_false]
    tables += [forest.leaf_begin, forest.leaf_target, forest.leaf_weight.astype(dtype.numpy)]
    tables += [forest.mode, begin, members.astype(dtype.numpy)] if mode == "mixed" else []
    tables += [forest.missing_true] if missing else []
    return ctx.one(TreeEnsemble(targets, aggregate, mode, missing), x, *(ctx.constant(t) for t in tables))


def _check_forest(ctx: NodeContext, x: Value, forest: Forest, targets: int) -> None:
    """Raises ModelError for tables that point outside, or nodes that form a cycle."""
    nodes, leaves = len(forest.feature), len(forest.leaf_begin) - 1
    lengths = {len(t) for t in (forest.split, forest.if_true, forest.if_false, forest.mode, forest.missing_true)}
    children = np.concatenate([forest.if_true, forest.if_false, forest.roots])
    width = x.shape[-1].value if x.type.rank == 2 and x.shape[-1].is_const else None
    wrong = lengths != {nodes} or (len(children) and (children.max() >= nodes or children.min() < -leaves))
    wrong = wrong or (len(forest.leaf_target) and not 0 <= forest.leaf_target.min() <= forest.leaf_target.max() < targets)
    if nodes and (forest.feature.min() < 0 or (width is not None and forest.feature.max() >= width)):
        raise ModelError(f"{ctx.op_type} tests feature {forest.feature.max()} of {width}", where=ctx.where)
    if wrong or len(forest.leaf_weight) != len(forest.leaf_target):
        raise ModelError(f"{ctx.op_type}: the tables of nodes, leaves and weights do not fit each other", where=ctx.where)
    frontier, visited = forest.roots[forest.roots >= 0], 0
    while len(frontier):
        visited += len(frontier)
        if visited > nodes:
            raise ModelError(f"{ctx.op_type}: the nodes form no trees", where=ctx.where, why="a node is reached twice")
        below = np.concatenate([forest.if_true[frontier], forest.if_false[frontier]])
        frontier = below[below >= 0]


def tree_ensemble(ctx: NodeContext) -> Value:
    code, transform = ctx.attribute("aggregate_function", 1), ctx.attribute("post_transform", 0)
    forest = forest_of(ctx)
    scores = run_forest(ctx, ctx.input(0), forest, int(ctx.require("n_targets")), _AGGREGATE_CODES[code])
    return post_transformed(ctx, scores, _TRANSFORMS[transform])


def tree_regressor(ctx: NodeContext) -> Value:
    aggregate = ctx.attribute("aggregate_function", "SUM").lower()
    if aggregate not in AGGREGATES:
        raise ModelError(f"TreeEnsembleRegressor has the aggregate function '{aggregate}'", where=ctx.where)
    targets = int(ctx.attribute("n_targets", 1))
    scores = run_forest(ctx, ctx.input(0), old_forest_of(ctx, "target"), targets, aggregate)
    base = _array(ctx, "base_values", np.float64)
    if len(base):
        scores = ctx.binary("add", scores, ctx.constant(base, scores.type.dtype))
    return ctx.cast(post_transformed(ctx, scores, ctx.attribute("post_transform", "NONE")), dtypes.float32)


def tree_classifier(ctx: NodeContext) -> Sequence[Value]:
    """(label, scores). Two classes with the weights of one have one score, that of the second class."""
    labels = class_labels(ctx)
    forest = old_forest_of(ctx, "class")
    transform = ctx.attribute("post_transform", "NONE")
    base = _array(ctx, "base_values", np.float64)
    single = len(labels) == 2 and len(set(forest.leaf_target.tolist())) == 1
    if not single:
        scores = run_forest(ctx, ctx.input(0), forest, len(labels), "sum")
        if len(base):
            scores = ctx.binary("add", scores, ctx.constant(base, scores.type.dtype))
        best = ctx.one(ArgReduce("max", 1, False, False), scores)
        picked = ctx.one(Gather(0), ctx.constant(labels), best)
        return picked, ctx.cast(post_transformed(ctx, scores, transform), dtypes.float32)
    one = Forest(**{**_fields(forest), "leaf_target": np.zeros_like(forest.leaf_target)})
    score = run_forest(ctx, ctx.input(0), one, 1, "sum")
    if len(base):
        score = ctx.binary("add", score, float(base[-1]))
    probability = bool(np.all(forest.leaf_weight >= 0)) if len(forest.leaf_weight) else True
    positive = ctx.binary("greater", score, 0.5 if probability else 0.0)
    chosen = ctx.select(positive, ctx.constant(labels[1]), ctx.constant(labels[0]))
    scores = two_class_scores(ctx, score, transform, probability)
    return ctx.reshape(chosen, (score.shape[0],)), ctx.cast(scores, dtypes.float32)


def _fields(forest: Forest) -> dict[str, Any]:
    return {name: getattr(forest, name) for name in Forest.__dataclass_fields__}


IMPORTERS: Table = {
    ("ai.onnx.ml", "TreeEnsemble"): tree_ensemble,
    ("ai.onnx.ml", "TreeEnsembleClassifier"): tree_classifier,
    ("ai.onnx.ml", "TreeEnsembleRegressor"): tree_regressor,
}
