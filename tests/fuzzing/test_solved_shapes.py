"""Dims that are solved for: the solver against brute force, and graphs whose type rules hold."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.fuzzing.constraints import BINS, Constraint, Solver, binned
from tilewright.fuzzing.graphs import grow
from tilewright.fuzzing.solved_shapes import grow_solved, named, sketched
from tilewright.graph.interpreter import interpret
from tilewright.graph.node import Parameter, walk_nodes
from tilewright.graph.ops import Constant
from tilewright.graph.shapes import assuming, broadcast_shapes, dims_equal
from tilewright.ir.bounds import Interval
from tilewright.ir.expr import Expr, ceildiv, const, maximum, size
from tilewright.ir.traverse import evaluate_int

HIGH = 4
FORMS = (
    lambda a, b, c: a - b,
    lambda a, b, c: a * b - c,
    lambda a, b, c: (a + b * 2 - c) // 2 + 1,
    lambda a, b, c: a * 3 - b * c,
    lambda a, b, c: ceildiv(a + 1, b + 1) - c,
    lambda a, b, c: maximum(a, b) - c * 2,
    lambda a, b, c: a * a - b,
)
SYSTEMS = st.lists(
    st.tuples(st.sampled_from(FORMS), st.permutations(range(3)), st.integers(-4, 4), st.integers(0, 3)), min_size=1, max_size=5
)


@settings(max_examples=200, deadline=None)
@given(SYSTEMS, st.integers(0, 99))
def test_the_solver_agrees_with_brute_force(system, seed: int) -> None:  # type: ignore[no-untyped-def]
    solver = Solver(np.random.default_rng(seed))
    unknowns = [solver.unknown(0, HIGH) for _ in range(3)]
    points = [dict(zip(unknowns, values, strict=True)) for values in itertools.product(range(HIGH + 1), repeat=3)]
    for form, order, low, extent in system:
        constraint = Constraint(form(*(unknowns[i] for i in order)), Interval(low, low + extent))
        left = [point for point in points if constraint.holds(point)]
        assert solver.add([constraint]) == bool(left)
        points = left or points
        assert solver.witness in points
        assert solver.solve() in points


def test_values_come_from_bins() -> None:
    rng = np.random.default_rng(0)
    orders = [binned(rng, 1, 70) for _ in range(200)]
    assert all(sorted(order) == list(range(1, 71)) for order in orders)
    firsts = [order[0] for order in orders]
    assert all(sum(first in part for first in firsts) > 15 for part in BINS)


def test_rules_say_what_they_need() -> None:
    a, b = size("a"), size("b")
    with assuming() as alike:
        assert dims_equal(a, b)
        assert not dims_equal(a + 1, a)
        assert broadcast_shapes((a, const(1)), (b, const(5))) == (a, const(5))
        assert dims_equal(a * 2, a + a)
    assert alike == [(a, b), (a, b)]
    assert not dims_equal(a, b)


def test_solved_graphs_are_well_typed() -> None:
    """Of 300 seeds, with every constraint true of the values, also where unknowns became named sizes."""
    symbolic, reshaped = 0, 0
    for seed in range(300):
        s = sketched(np.random.default_rng(seed), 5)
        values = s.solver.solve()
        assert all(constraint.holds(values) for constraint in s.solver.constraints)
        assert all(constraint.holds(s.solver.witness) for constraint in s.solver.constraints)
        names = named(s, values)
        for low in (True, False):
            sizes: dict[Expr, int] = {v: v.attr.lo if low else v.attr.hi for v in names.values()}
            other = {**values, **{v: evaluate_int(name, sizes) for v, name in names.items()}}
            assert all(constraint.holds(other) for constraint in s.solver.constraints if constraint.unknowns)
        f = grow_solved(np.random.default_rng(seed))
        for node in walk_nodes(list(f.s.pool)):
            if not isinstance(node.op, (Parameter, Constant)):
                assert tuple(node.op.infer(tuple(value.type for value in node.inputs))) == tuple(node.types)
        symbolic += bool(f.names)
        reshaped += any(value.op.name == "reshape" for value in f.s.pool)
    assert symbolic > 60
    assert reshaped > 20


def test_unknowns_are_unified_instead_of_made_to_fit() -> None:
    """Operators take the values that there are: most have several readers' constraints on one unknown, and parameters are replaced."""
    joined = replaced = 0
    for seed in range(60):
        s = sketched(np.random.default_rng(seed), 6)
        read = [value for placed in s.values for value in placed.inputs]
        joined += any(read.count(value) > 1 for value in read)
        replaced += bool(s.instead)
    assert joined > 30
    assert replaced > 10


def test_solved_cases_run() -> None:
    for seed in range(24):
        grown = grow(seed, ("solved",), most=5)
        for inputs in grown.inputs:
            assert all(np.isfinite(result.astype(np.float64)).all() for result in interpret(grown.function, inputs))
