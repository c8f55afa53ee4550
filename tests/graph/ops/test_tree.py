"""Tree ensembles: kernel against reference on random trees, reference against onnxruntime and by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.ops.kernels import check_operator, types_of
from tilewright.graph.ops.tree import AGGREGATES, MODES, TreeEnsemble
from tilewright.support.errors import TypeRuleError


def random_trees(rng: np.random.Generator, trees: int, depth: int, features: int, targets: int, dtype: str) -> dict[str, np.ndarray]:
    """Full trees of some depth, with whole numbers as thresholds so that equality happens."""
    inner = 2**depth - 1
    nodes, leaves = trees * inner, trees * 2**depth
    if_true, if_false = np.zeros(nodes, np.int32), np.zeros(nodes, np.int32)
    for tree in range(trees):
        for j in range(inner):
            for side, table in ((1, if_true), (2, if_false)):
                child = 2 * j + side
                table[tree * inner + j] = tree * inner + child if child < inner else -1 - (tree * 2**depth + child - inner)
    begin = np.concatenate([[0], np.cumsum(rng.integers(1, 3, leaves))]).astype(np.int32)
    return {
        "roots": (np.arange(trees) * inner).astype(np.int32),
        "feature": rng.integers(0, features, nodes).astype(np.int32),
        "split": rng.integers(-2, 3, nodes).astype(dtype),
        "if_true": if_true,
        "if_false": if_false,
        "leaf_begin": begin,
        "leaf_target": rng.integers(0, targets, begin[-1]).astype(np.int32),
        "leaf_weight": rng.integers(-5, 6, begin[-1]).astype(dtype),
        "mode": rng.integers(0, len(MODES), nodes).astype(np.int8),
        "member_begin": np.arange(0, 2 * nodes + 1, 2).astype(np.int32),
        "members": rng.integers(-2, 3, 2 * nodes).astype(dtype),
        "missing_true": rng.integers(0, 2, nodes).astype(np.bool_),
    }


@pytest.mark.parametrize("aggregate", AGGREGATES)
@pytest.mark.parametrize("mode", [*MODES[:-1], "mixed"])
@pytest.mark.parametrize("missing", [False, True])
def test_kernel(aggregate: str, mode: str, missing: bool) -> None:
    rng = np.random.default_rng(7)
    dtype = "float64" if missing else "float32"
    op = TreeEnsemble(3, aggregate, mode, missing)
    tables = random_trees(rng, 4, 3, 5, 3, dtype)
    x = rng.integers(-2, 3, (6, 5)).astype(dtype)
    x[rng.random(x.shape) < 0.2] = np.nan
    check_operator(op, [x, *(tables[label] for label in op.tables)])


def test_single_leaf_tree() -> None:
    """A root may be a leaf."""
    op = TreeEnsemble(1, "sum", "leq")
    empty = np.zeros(0, np.int32)
    tables = [np.array([-1], np.int32), empty, np.zeros(0, np.float32), empty, empty]
    leaves = [np.array([0, 1], np.int32), np.array([0], np.int32), np.array([2.5], np.float32)]
    (y,) = check_operator(op, [np.zeros((2, 1), np.float32), *tables, *leaves])
    assert y.tolist() == [[2.5], [2.5]]


def test_targets_that_nothing_contributes_to_are_zero() -> None:
    op = TreeEnsemble(2, "max", "leq")
    tables = [np.array([0], np.int32), np.zeros(1, np.int32), np.zeros(1, np.float32), np.array([-1], np.int32), np.array([-2], np.int32)]
    leaves = [np.array([0, 1, 2], np.int32), np.array([1, 1], np.int32), np.array([-3, -4], np.float32)]
    (y,) = check_operator(op, [np.array([[0.0], [1.0]], np.float32), *tables, *leaves])
    assert y.tolist() == [[0, -3], [0, -4]]


def test_tables_must_fit() -> None:
    op = TreeEnsemble(3, "sum", "leq")
    tables = random_trees(np.random.default_rng(0), 1, 2, 2, 3, "float64")
    with pytest.raises(TypeRuleError, match="the table split"):
        op.infer(types_of([np.zeros((2, 2), np.float32), *(tables[label] for label in op.tables)]))
