"""What the number of rows of a tile says of the border of the image."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from tests.compiled_graphs import f32, function
from tilewright.graph.ops import BlockedConvolution, WindowReduce
from tilewright.ir.affine import linear
from tilewright.ir.dtypes import float32
from tilewright.ir.expr import Expr, all_of, const, equal, less, less_equal, load, size, var
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import depends_on, evaluate_int
from tilewright.kernel.interpreter import interpret
from tilewright.kernel.lower import lower
from tilewright.kernel.lower.decide_borders import decide_borders
from tilewright.kernel.nodes import Buffer, For, If, Kernel, Stmt, Store, children
from tilewright.kernel.regions import conjuncts
from tilewright.machine.targets import named_machine
from tilewright.target.cpu.rules.choose import schedule_kernel
from tilewright.transform.fuse import fuse
from tilewright.transform.lower_groups import lower_group

N = size("n", 1)
ROW, TAP, TILE = var("i"), var("k"), var("t")
X = Buffer("x", float32, (N,))
Y = Buffer("y", float32, (N,))
STORE = Store(Y, (ROW,), load(X, (ROW,)) + 1.0)


def inside(known: Expr, test: Expr, rows: int = 6, taps: int = 3) -> Stmt:
    """What is left of a condition in two unrolled loops, where `known` holds."""
    body = For(TAP, const(taps), For(ROW, const(rows), If(test, STORE), "unrolled"), "unrolled")
    kernel = decide_borders(Kernel("k", (X,), (Y,), If(known, body), (N,)))
    assert isinstance(kernel.body, If)
    loop = kernel.body.then
    while isinstance(loop, For):
        loop = loop.body
    return loop


def holds(stmt: Stmt | None, values: dict[Expr, int]) -> bool:
    """Whether the store is reached."""
    if isinstance(stmt, If):
        return holds(stmt.then if evaluate_int(stmt.condition, values) else stmt.otherwise, values)
    return stmt is STORE


CASES = {
    "so many rows": (equal((N + 15) // 16, const(6)), less_equal(ROW * 16 + TAP * 16, N + 15), True),
    "so many rows, the other way round": (equal(const(6), (N + 15) // 16), less(ROW * 16 + TAP * 16, N + 16), True),
    "rows of a plain size": (equal(N, const(6)), less(ROW + TAP, N), True),
    "every second pixel": (equal((N + 1) // 2, const(6)), less_equal(ROW * 2 + TAP, N), False),
    "a full tile": (less_equal(const(6), (N + 15) // 16), less_equal(ROW * 16 + TAP * 16, N + 15), False),
    "a full tile, in terms of the size": (less_equal(const(81), N), less_equal(ROW * 16 + TAP * 16, N + 15), False),
    "no more than": (less((N + 3) // 4, const(5)), less_equal(N, ROW * 4 + TAP * 4), False),
    "two conditions": (equal((N + 15) // 16, const(6)), all_of(less_equal(1, ROW + TAP), less_equal(ROW * 16 + TAP * 16, N + 15)), True),
}


@pytest.mark.parametrize(("known", "test", "decided"), CASES.values(), ids=CASES)
def test_conditions_hold_where_they_held(known: Expr, test: Expr, decided: bool) -> None:
    left = inside(known, test)
    seen = 0
    for n in range(1, 140):
        if evaluate_int(known, {N: n}):
            for k in range(3):
                for i in range(6):
                    values = {N: n, ROW: i, TAP: k}
                    assert holds(left, values) == bool(evaluate_int(test, values)), values
                    seen += 1
    assert seen
    sized = [t for t in _tests(left) if depends_on(t, {N})]
    assert bool(sized) != decided


def test_a_variable_of_a_loop_around_goes_out_where_both_have_it() -> None:
    at = TILE % ((N + 127) // 128) * 8
    left = inside(equal((N + 15) // 16, at + 6), less_equal((at + ROW + TAP) * 16, N + 15))
    assert not any(depends_on(test, {N, TILE}) for test in _tests(left))


@pytest.mark.parametrize(
    ("known", "test"),
    [
        (equal((N + 15) // 16, TILE * 8 + 6), less_equal(ROW * 16 + TAP * 16, N + 15)),
        (equal(N * 2, const(6)), less(ROW + TAP, N)),
        (equal(N // TILE, const(6)), less(ROW + TAP, N)),
        (less_equal(N, const(6)), less_equal(ROW + TAP, N)),
    ],
    ids=["a variable is left", "twice the size", "divided by a variable", "the other side"],
)
def test_others_stay_as_they_are(known: Expr, test: Expr) -> None:
    assert inside(known, test) is If(test, STORE)


AROUND = {
    "the beginning of an image": (less_equal(1, TILE * 16 + ROW * 2 + TAP), None, False),
    "only where all rows are past it": (less_equal(3, TILE * 4 + ROW + TAP), None, False),
    "steps of a loop": (less(ROW + TILE, const(9)), 4, False),
    "steps of a loop, backwards": (less(const(1), ROW + TAP - TILE), 4, False),
    "a loop of unknown length": (less(ROW + TILE, const(9)), None, True),
    "never": (less(TILE * 8 + ROW, const(0)), 4, False),
}


@pytest.mark.parametrize(("test", "extent", "same"), AROUND.values(), ids=AROUND)
def test_variables_of_loops_around_count_at_their_ends(test: Expr, extent: int | None, same: bool) -> None:
    body = For(TAP, const(3), For(ROW, const(6), If(test, STORE), "unrolled"), "unrolled")
    kernel = decide_borders(Kernel("k", (X,), (Y,), For(TILE, N if extent is None else const(extent), body), (N,)))
    left: Stmt = kernel.body
    while isinstance(left, For):
        left = left.body
    assert (left == If(test, STORE)) == same
    free = 0
    for t in range(extent or 5):
        for k in range(3):
            for i in range(6):
                values = {ROW: i, TAP: k, TILE: t}
                assert holds(left, values) == bool(evaluate_int(test, values)), values
                free += same or not any(depends_on(asked, {TILE}) for asked in _asked(left, values))
    assert free, "copies for which nothing is left to ask"


def _asked(stmt: Stmt | None, values: dict[Expr, int]) -> Iterator[Expr]:
    """The conditions that are met on the way."""
    if isinstance(stmt, If):
        yield stmt.condition
        yield from _asked(stmt.then if evaluate_int(stmt.condition, values) else stmt.otherwise, values)


def _tests(stmt: Stmt | None) -> Iterator[Expr]:
    if isinstance(stmt, If):
        yield from conjuncts(stmt.condition)
        for child in children(stmt):
            yield from _tests(child)


SIDE = (size("image", 1) + 1) // 2
LAYERS = {"depthwise": (3, 1), "depthwise, every second": (3, 2), "depthwise, five taps": (5, 2), "pooling": (3, 2)}


@cache
def layer(name: str) -> tuple[Kernel, Kernel]:
    """A kernel of windows over an image of unknown size, and how it is lowered."""
    taps, stride = LAYERS[name]
    border = (const(taps // 2),) * 2
    if name == "pooling":
        around = (const(0), const(0), *border, const(0))
        pool = WindowReduce("max", (1, 1, taps, taps, 1), (1, 1, stride, stride, 1), (1,) * 5, around, around)
        made = function("p", [f32(1, 1, 3, SIDE, 8)], lambda g, x: [g.one(pool, x)])
    else:
        op = BlockedConvolution((stride, stride), (1, 1), border, border, True, 8)
        made = function("p", [f32(1, 1, 3, SIDE, 8), f32(8, 1, taps, taps)], lambda g, x, w: [g.one(op, x, w)])
    (group,) = {value.node for value in fuse(made).results}
    kernel = lower_group(group.op.body)
    schedule = schedule_kernel(kernel, frozenset(), named_machine("x86-64-v3"))
    return kernel, lower(schedule.kernel)


@pytest.mark.parametrize("name", LAYERS)
def test_windows_are_right_at_every_width(name: str) -> None:
    kernel, lowered = layer(name)
    (image,) = kernel.sizes
    rng = np.random.default_rng(0)
    for width in range(1, 29):
        inputs = [rng.uniform(-1, 1, (1, 1, 3, width, 8)).astype(np.float32)]
        inputs += [rng.uniform(-1, 1, [int(d.value) for d in b.shape]).astype(np.float32) for b in kernel.inputs[1:]]
        sizes = {image: 2 * width}
        (want,), (got,) = interpret(kernel, inputs, sizes), interpret(lowered, inputs, sizes)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=f"{width} columns")


def test_no_step_of_a_stride_of_one_asks_for_the_size_but_at_the_end_of_a_full_tile() -> None:
    _, lowered = layer("depthwise")
    (image,) = lowered.sizes
    asking = list(_asking(lowered.body, image))
    assert asking
    assert all(asking), "the version has been decided"


def _asking(stmt: Stmt, image: Expr, unrolled: frozenset[Expr] = frozenset(), decided: bool = False) -> Iterator[bool]:
    """For each condition on the size in unrolled loops, whether it is what is left where another, on the copy alone, failed."""
    if isinstance(stmt, If):
        if any(_compares(test, image) and depends_on(test, unrolled) for test in conjuncts(stmt.condition)):
            yield decided
        own = not depends_on(stmt.condition, {image}) and depends_on(stmt.condition, unrolled)
        yield from _asking(stmt.then, image, unrolled, decided)
        if stmt.otherwise is not None:
            yield from _asking(stmt.otherwise, image, unrolled, decided or own)
        return
    inside = unrolled | {stmt.var} if isinstance(stmt, For) and stmt.kind == "unrolled" else unrolled
    for child in children(stmt):
        yield from _asking(child, image, inside, decided)


def _compares(test: Expr, image: Expr) -> bool:
    """Whether a condition compares the size with a position."""
    return test.op in (Op.LT, Op.LE) and any((image,) in linear(side).terms for side in test.args)
