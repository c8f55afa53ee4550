"""Spans of indices against evaluation at every point."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from tilewright.ir.affine import to_expr
from tilewright.ir.expr import Expr, ceildiv, const, maximum, minimum, size, var
from tilewright.ir.traverse import evaluate_int
from tilewright.kernel.spans import span

ROW, J, K = var("i"), var("j"), var("k")
N = size("n", 1)
EXTENTS = {ROW: const(3), J: const(4), K: const(5)}
POINTS = [dict(zip(EXTENTS, values, strict=True)) for values in product(range(3), range(4), range(5))]


def expressions() -> st.SearchStrategy[Expr]:
    leaves = st.one_of(st.sampled_from([ROW, J, K, N]), st.integers(-7, 7).map(const))

    def more(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        pair = st.tuples(inner, inner)
        factor = st.integers(1, 6)
        return st.one_of(
            pair.map(lambda p: p[0] + p[1]),
            pair.map(lambda p: p[0] - p[1]),
            st.tuples(inner, st.integers(-4, 8)).map(lambda p: p[0] * p[1]),
            st.tuples(inner, factor).map(lambda p: p[0] // p[1]),
            st.tuples(inner, factor).map(lambda p: p[0] % p[1]),
            pair.map(lambda p: minimum(*p)),
            pair.map(lambda p: maximum(*p)),
        )

    return st.recursive(leaves, more, max_leaves=8)


@given(e=expressions(), n=st.integers(1, 9))
def test_spans_hold_all_values_and_exact_ones_no_more(e: Expr, n: int) -> None:
    inner, outer = {J: EXTENTS[J], K: EXTENTS[K]}, {ROW: EXTENTS[ROW]}
    found = span(e, inner, outer)
    if found is None:
        return
    for i in range(3):
        env = {ROW: i, N: n}
        low, high = evaluate_int(to_expr(found.low), env), evaluate_int(to_expr(found.high), env)
        values = {evaluate_int(e, {**env, J: j, K: k}) for j in range(4) for k in range(5)}
        assert low <= min(values)
        assert max(values) <= high
        if found.exact:
            assert values == set(range(low, high + 1))


def test_tiles_of_clamped_indices_keep_constant_sizes() -> None:
    outer, inner = var("o"), var("t")
    found = span(minimum(outer * 8 + inner, N - 1), {inner: const(8)}, {outer: ceildiv(N, const(8))})
    assert found is not None
    assert repr(to_expr(found.low)) == "o * 8"
    assert to_expr(found.extent) is const(8)
