"""Every pass keeps what a function computes, its types, and the rules that the verifier checks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.fuzzing.plain_steps import random_function, random_inputs, random_sizes
from tilewright.graph.interpreter import interpret
from tilewright.graph.node import Function, walk_nodes
from tilewright.transform.decompose import open_composites
from tilewright.transform.fold_batch_norm import fold_batch_norm
from tilewright.transform.fold_constants import fold_constants
from tilewright.transform.functions import Pass, on_function
from tilewright.transform.push_movement import push_movement
from tilewright.transform.recognise import recognise_composites
from tilewright.transform.simplify import simplify_graph
from tilewright.transform.sink_constants import sink_constants
from tilewright.transform.verify import verify_function

PASSES: dict[str, Pass] = {
    "sink_constants": sink_constants,
    "simplify": simplify_graph,
    "fold_constants": fold_constants,
    "recognise": recognise_composites,
    "push_movement": push_movement,
    "fold_batch_norm": fold_batch_norm,
    "open_composites": open_composites,
    "simplify_opened": simplify_graph,
    "fold_opened": fold_constants,
}


def assert_same_results(before: Function, after: Function, seed: int, what: str) -> None:
    inputs, sizes = random_inputs(before, seed), random_sizes(seed)
    expected, actual = (interpret(function, inputs, sizes) for function in (before, after))
    for a, e in zip(actual, expected, strict=True):
        assert (a.dtype, a.shape) == (e.dtype, e.shape), what
        scale = max(1.0, float(np.max(np.abs(np.nan_to_num(e.astype(np.float64))), initial=0.0)))
        limit = 1e-4 if e.dtype != np.float16 else 4e-3
        np.testing.assert_allclose(a.astype(np.float64), e.astype(np.float64), rtol=limit, atol=limit * scale, err_msg=what)


def run(function: Function, name: str) -> Function:
    after = on_function(function, PASSES[name], {})
    verify_function(after, name)
    assert tuple(v.type for v in after.results) == tuple(v.type for v in function.results)
    assert after.params == function.params
    return after


@pytest.mark.parametrize("name", ["simplify", "fold_constants", "recognise", "push_movement", "fold_batch_norm", "open_composites"])
@given(seed=st.integers(0, 2**32 - 1))
def test_one_pass_keeps_the_meaning(name: str, seed: int) -> None:
    function = random_function(seed)
    verify_function(function)
    assert_same_results(function, run(function, name), seed, name)


@given(seed=st.integers(0, 2**32 - 1))
def test_all_passes_keep_the_meaning(seed: int) -> None:
    function = after = random_function(seed, steps=40)
    for name in PASSES:
        after = run(after, name)
    assert_same_results(function, after, seed, "all passes")


@given(seed=st.integers(0, 2**32 - 1))
def test_simplifying_ends(seed: int) -> None:
    """What only one user is left of may merge into it the second time; the third time nothing changes."""
    once = on_function(random_function(seed), simplify_graph, {})
    twice = on_function(once, simplify_graph, {})
    assert len(list(walk_nodes(twice.results))) <= len(list(walk_nodes(once.results)))
    assert on_function(twice, simplify_graph, {}) is twice
