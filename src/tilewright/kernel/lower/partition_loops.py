"""Loops split where a condition in their body begins or ceases to hold, so that most iterations run without it.

    for i in 7:                                  for i in 6:
      vectorized j in 16:                          vectorized j in 16: y[i*16 + j] = ..
        if i*16 + j < 100: y[i*16 + j] = ..  ->  vectorized j in 16:
                                                   if 96 + j < 100: y[96 + j] = ..

Conditions are those of `if` and `select` that are affine in the loop variable, with a constant coefficient, and in the variables of loops
inside. A loop over ranges is cut in up to three: before, where all hold, after. A parallel loop keeps its range and takes the short
body where all hold (`if` inside), so that it is still one parallel loop. Only loops whose body is small are copied.

A serial loop whose body does nothing where a condition fails is shortened to where it holds, whatever the size of its body:

    for k in 3: if 1 <= h + k: ..   ->   for k in 3 - max(1 - h, 0): ..     (at k + max(1 - h, 0))
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from tilewright.ir import dtypes
from tilewright.ir.affine import affine_in
from tilewright.ir.expr import (
    FALSE,
    TRUE,
    Expr,
    add,
    all_of,
    ceildiv,
    const,
    floordiv,
    less,
    less_equal,
    logical_and,
    maximum,
    minimum,
    mul,
    sub,
)
from tilewright.ir.rewrite import Rewriter
from tilewright.ir.scalar_ops import Op
from tilewright.ir.simplify import simplifier
from tilewright.ir.traverse import marked, variables_in, walk
from tilewright.kernel.nodes import (
    For,
    If,
    Kernel,
    Let,
    Prefetch,
    Seq,
    Stmt,
    Store,
    While,
    children,
    map_stmt,
    own_exprs,
    seq,
    substitute_stmt,
    walk_stmts,
    with_fields,
)
from tilewright.kernel.regions import conjuncts

PEELED = 3  # iterations at a border
SHORT = 8  # steps of a reduction up to which copies of their loop, of a few each, gain less than they cost
COPY_LIMIT = 600  # stores in all copies of one statement, as code generators repeat them in unrolled loops
MOST_STORES = 1800  # in a kernel whose loops are split, as COPY_LIMIT counts them: past them compilers take minutes
MOST_SYMBOLIC = 640  # the same where sizes are known only while running: addresses and masks of each store are longer there
JOINED = 24  # stores of a body from which on a branch in each iteration costs nothing beside them

_Piece = tuple[Expr, Expr, Stmt]  # first iteration, number of iterations, body


def partition_loops(kernel: Kernel) -> Kernel:
    """The kernel (no blocks, simplified) with its loops split; see the module's docstring."""
    most = max(MOST_SYMBOLIC if kernel.sizes else MOST_STORES, 2 * size_of(kernel.body))
    body = _partition(kernel.body, {}, 1, joined=False)
    copies = 1
    while size_of(body) > most and copies < COPY_LIMIT:
        body = _partition(kernel.body, {}, copies, joined=True)
        copies *= 2  # as if there were more already, so that fewer are made
    result: Kernel = with_fields(kernel, body=body)
    return result


def _partition(stmt: Stmt, extents: dict[Expr, Expr], copies: int, joined: bool) -> Stmt:
    """The statement with its loops split, of which there are already so many copies. joined: loops with large bodies stay one loop, with
    one body for all iterations at borders, where it is known only while running how many these are."""
    if not isinstance(stmt, For):
        return map_stmt(stmt, lambda s: _partition(s, extents, copies, joined))
    if stmt.kind == "vectorized":
        return stmt
    if stmt.kind == "matrix":
        return _shortened(stmt, extents)
    if stmt.kind == "unrolled":
        repeats = int(stmt.extent.value) if stmt.extent.is_const else 1
        return For(stmt.var, stmt.extent, _partition(stmt.body, {**extents, stmt.var: stmt.extent}, copies * repeats, joined), stmt.kind)
    if stmt.kind == "serial":
        stmt = _shortened(stmt, extents)
    inside = {**extents, stmt.var: stmt.extent}
    size = size_of(stmt.body) * copies
    found = _conditions(stmt) if size * 2 <= COPY_LIMIT else []
    if stmt.kind == "parallel" and size * 4 > COPY_LIMIT:
        # copies are left to the loops inside; conditions that shorten a loop cost little as they are
        shortening = _shortening(stmt.body)
        found = [condition for condition in found if condition.test not in shortening]
    if stmt.kind == "parallel" and isinstance(stmt.body, If) and stmt.body.otherwise is not None:
        # has its two bodies
        found = [condition for condition in found if condition.test not in conjuncts(stmt.body.condition)]
    if not found:
        return For(stmt.var, stmt.extent, _partition(stmt.body, inside, copies, joined), stmt.kind)
    run = simplifier(extents=extents)
    begin: Expr = const(0)
    end = stmt.extent
    for condition in found:
        if condition.first is not None:
            begin = maximum(begin, condition.first)
        if condition.last is not None:
            end = minimum(end, condition.last)
    begin = run.rewrite(minimum(begin, stmt.extent))
    end = run.rewrite(maximum(end, begin))
    uncertain = stmt.kind == "serial" and not (variables_in(begin) | variables_in(end)).issubset(extents)
    if uncertain and stmt.extent.is_const and stmt.extent.value <= SHORT and not _moves_stores(stmt):
        return For(stmt.var, stmt.extent, _partition(stmt.body, inside, copies, joined), stmt.kind)
    main = substitute_stmt(stmt.body, {condition.test: TRUE for condition in found} | _unclamped(stmt, found, run))
    if stmt.kind == "parallel" or (joined and uncertain and size_of(stmt.body) >= JOINED):
        if begin is end:
            return For(stmt.var, stmt.extent, _partition(stmt.body, inside, copies, joined), stmt.kind)
        return _two_bodies(stmt, main, logical_and(less_equal(begin, stmt.var), less(stmt.var, end)), inside, copies, joined)
    pieces = []
    begun = {condition.test: TRUE for condition in found if condition.last is None}
    after = substitute_stmt(stmt.body, begun | dict.fromkeys(_failing(stmt, found), FALSE))
    for low, high, body in ((const(0), begin, stmt.body), (begin, end, main), (end, stmt.extent, after)):
        extent = run.rewrite(sub(high, low))
        if not (extent.is_const and extent.value <= 0):
            pieces.append((low, extent, body))
    if begin is end:
        pieces = [(const(0), stmt.extent, stmt.body)]
    pieces = _single(pieces, main, COPY_LIMIT * 3 // 2 // (size_of(stmt.body) * copies + 1))
    copies *= len(pieces)
    parts = []
    for low, extent, body in pieces:
        shifted = body if low.is_const and low.value == 0 else substitute_stmt(body, {stmt.var: add(stmt.var, low)})
        parts.append(For(stmt.var, extent, _partition(shifted, {**extents, stmt.var: extent}, copies, joined), stmt.kind))
    return seq(*parts)


def _moves_stores(loop: For) -> bool:
    """Whether what the loop stores has its place by the loop's variable: it is not one over steps of a reduction."""
    return any(loop.var in variables_in(i) for s in walk_stmts(loop.body) if isinstance(s, Store) for i in s.indices)


def _unclamped(loop: For, found: list[_Range], run: Rewriter) -> dict[Expr, Expr]:
    """Clamped indices, `min(i, n - 1)` or `max(i, 0)`, and the plain ones that they are where the conditions hold."""
    firsts = {run.rewrite(condition.first) for condition in found if condition.first is not None}
    lasts = {run.rewrite(condition.last) for condition in found if condition.last is not None}
    inner = {stmt.var: stmt.extent for stmt in walk_stmts(loop.body) if isinstance(stmt, For)}
    opaque = {stmt.var for stmt in walk_stmts(loop.body) if isinstance(stmt, Let)}
    result: dict[Expr, Expr] = {}
    for clamp, plain, test in clamps_in(loop.body):
        holds = _range(test, loop.var, inner, opaque)
        if holds is None:
            continue
        from_there = holds.first is None or run.rewrite(holds.first) in firsts
        until_there = holds.last is None or run.rewrite(holds.last) in lasts
        if from_there and until_there:
            result[clamp] = plain
    return result


def clamps_in(stmt: Stmt) -> Iterator[tuple[Expr, Expr, Expr]]:
    """(clamp, plain, test): indices in `stmt` that are `min` or `max` of two, each with both of them, and the condition under which it is
    equal to it."""
    clamps = {e: None for s in walk_stmts(stmt) for e in marked(*own_exprs(s)) if e.op in (Op.MIN, Op.MAX) and e.dtype is dtypes.int64}
    for e in clamps:
        for kept, bound in (e.args, e.args[::-1]):
            yield e, kept, less_equal(kept, bound) if e.op is Op.MIN else less_equal(bound, kept)


def conditions_in(stmt: Stmt) -> dict[Expr, None]:
    """The conditions of `if` and `select` in `stmt`, those of a conjunction one by one."""
    tests: dict[Expr, None] = {}
    for s in walk_stmts(stmt):
        if isinstance(s, If):
            tests.update(dict.fromkeys(conjuncts(s.condition)))
        for e in own_exprs(s):
            tests.update({test: None for select in marked(e) if select.op is Op.SELECT for test in conjuncts(select.args[0])})
    return tests


def _failing(loop: For, found: list[_Range]) -> list[Expr]:
    """The condition that holds nowhere after the iterations in which all of `found` hold, if that is known."""
    ending = [condition for condition in found if condition.last is not None]
    inner = {stmt.var for stmt in walk_stmts(loop.body) if isinstance(stmt, For)}
    return [condition.test for condition in ending if len(ending) == 1 and inner.isdisjoint(walk(condition.test))]


def _single(pieces: list[_Piece], main: Stmt, most: int) -> list[_Piece]:
    """The pieces with the few iterations in which conditions hold for some lanes or copies of the body apart, if `most` pieces are enough:
    as constants they decide what is left of the conditions."""
    apart: list[_Piece] = []
    for low, extent, body in pieces:
        few = body is not main and extent.is_const and extent.value <= PEELED
        apart += [(add(low, const(i)), const(1), body) for i in range(extent.value)] if few else [(low, extent, body)]
    return apart if len(apart) <= most else pieces


def _shortened(loop: For, extents: dict[Expr, Expr]) -> For:
    """The serial loop without the iterations at its ends in which nothing happens."""
    optional = _optional(loop)
    if optional is None:
        return loop
    begin: Expr = const(0)
    end = loop.extent
    kept: list[Expr] = []
    for test in conjuncts(optional.condition):
        found = _range(test, loop.var, {}, set())
        if found is None:
            kept.append(test)
        elif found.first is not None:
            begin = maximum(begin, found.first)
        elif found.last is not None:
            end = minimum(end, found.last)
    if len(kept) == len(conjuncts(optional.condition)):
        return loop
    run = simplifier(extents=extents)
    begin = run.rewrite(begin)
    ahead = children(loop.body)[:-1] if optional is not loop.body else ()
    inner: Stmt = If(all_of(*kept), optional.then) if kept else optional.then
    body = substitute_stmt(seq(*ahead, inner), {loop.var: add(loop.var, begin)})
    return For(loop.var, run.rewrite(maximum(sub(end, begin), const(0))), body, loop.kind)


def _shortening(stmt: Stmt) -> set[Expr]:
    """The conditions by which serial loops in `stmt` will be shortened."""
    return {
        test
        for loop in walk_stmts(stmt)
        if isinstance(loop, For) and loop.kind in ("serial", "matrix") and (optional := _optional(loop)) is not None
        for test in conjuncts(optional.condition)
        if _range(test, loop.var, {}, set()) is not None
    }


def _optional(loop: For) -> If | None:
    """The statement under a condition that is all that the loop does, but for prefetches, which may be left out."""
    *ahead, last = children(loop.body) if isinstance(loop.body, Seq) else (loop.body,)
    if isinstance(last, If) and last.otherwise is None and all(map(_only_asks, ahead)):
        return last
    return None


def _only_asks(stmt: Stmt) -> bool:
    """The statement asks for memory, under conditions perhaps, and does nothing else."""
    return isinstance(stmt, Prefetch) or (isinstance(stmt, (If, Seq)) and all(map(_only_asks, children(stmt))))


def _two_bodies(loop: For, main: Stmt, holds: Expr, inside: dict[Expr, Expr], copies: int, joined: bool) -> Stmt:
    """The loop with `main` for the iterations where `holds`, and its own body elsewhere."""
    holds = simplifier(extents=inside).rewrite(holds)
    if holds.is_const:
        body = main if holds is TRUE else loop.body
        return For(loop.var, loop.extent, _partition(body, inside, copies, joined), loop.kind)
    both = If(holds, _partition(main, inside, copies * 2, joined), _partition(loop.body, inside, copies * 2, joined))
    return For(loop.var, loop.extent, both, loop.kind)


def size_of(stmt: Stmt) -> int:
    """Stores in `stmt` once its unrolled loops are carried out."""
    if isinstance(stmt, Store):
        return 1
    inside = sum([size_of(child) for child in children(stmt)])
    if isinstance(stmt, For) and stmt.kind in ("unrolled", "vectorized") and stmt.extent.is_const:
        repeats: int = stmt.extent.value if stmt.kind == "unrolled" else ceil(stmt.extent.value / 16)
        return inside * repeats
    return inside


@dataclass(frozen=True, slots=True)
class _Range:
    """Iterations of a loop, from `first` on and before `last` (None: no limit), in which `test` holds whatever the loops inside do."""

    test: Expr
    first: Expr | None
    last: Expr | None


def _conditions(loop: For) -> list[_Range]:
    """The conditions by which the loop is split."""
    inner: dict[Expr, Expr] = {}
    opaque: set[Expr] = set()
    for stmt in walk_stmts(loop.body):
        if isinstance(stmt, For):
            known = inner.setdefault(stmt.var, stmt.extent)
            if known.is_const and stmt.extent.is_const:  # a tile has versions for fewer rows: what holds for all of them holds there
                inner[stmt.var] = max(known, stmt.extent, key=lambda extent: int(extent.value))
            elif known is not stmt.extent:
                opaque.add(stmt.var)
        elif isinstance(stmt, Let):
            opaque.add(stmt.var)
        elif isinstance(stmt, While):
            return []
    ranges = []
    for test in conditions_in(loop.body):
        found = _range(test, loop.var, inner, opaque)
        if found is not None:
            ranges.append(found)
    return ranges


def holds_until(test: Expr, variable: Expr, opaque: set[Expr]) -> Expr | None:
    """The value of `variable` from which on a comparison does not hold, without variables of `opaque`; None where it has no such end."""
    found = _range(test, variable, {}, opaque)
    return None if found is None else found.last


def _range(test: Expr, variable: Expr, inner: dict[Expr, Expr], opaque: set[Expr]) -> _Range | None:
    """Where a comparison holds: c * variable + (what inner loops add) + rest < 0."""
    if test.op not in (Op.LT, Op.LE) or test.args[0].dtype is not dtypes.int64:
        return None
    nodes = set(marked(test))
    if variable not in nodes or nodes & opaque or any(node.op is Op.LOAD for node in nodes):
        return None
    moving = [v for v in inner if v in nodes]
    form = affine_in(sub(*test.args), (variable, *moving))
    if form is None or not all(c.is_const for c in form[0].values()):
        return None
    coefficients, greatest = form
    for v in moving:
        c = coefficients[v].value
        if c > 0:
            if any(x in inner or x is variable for x in walk(inner[v])):
                return None
            greatest = add(greatest, mul(sub(inner[v], const(1)), const(c)))
    if test.op is Op.LE:
        greatest = sub(greatest, const(1))
    c = coefficients[variable].value
    if any(node in inner for node in walk(greatest)):
        return None
    # c * variable < -greatest, for integers: c > 0: variable < ceil(-greatest / c); c < 0: variable > greatest / -c.
    if c > 0:
        return _Range(test, None, ceildiv(sub(const(0), greatest), const(c)))
    if c < 0:
        return _Range(test, add(floordiv(greatest, const(-c)), const(1)), None)
    return None
