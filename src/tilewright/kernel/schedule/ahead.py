"""Asking for memory before it is read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from tilewright.ir.expr import TRUE, Expr, ceildiv, const, equal, less, logical_and, maximum, minimum, mul
from tilewright.kernel.nodes import For, If, Prefetch, Stmt, seq
from tilewright.kernel.schedule.change import Change
from tilewright.kernel.schedule.nest import Nest, refuse, replaced


def prefetch(
    nest: Nest,
    loop: str,
    buffer: str,
    ahead: int,
    steps: Sequence[tuple[str, int, int]],
    lines: int = 1,
    line: int = 64,
    shared: int = 0,
    sharing: Sequence[str] = (),
    beyond: int = 0,
    only: tuple[str, int] | None = None,
) -> Change:
    """At the start of each iteration of `loop`, ask for `lines` cache lines of `line` bytes of a parameter of the kernel.

        for k in 64:                  for k in 64:
          A                 ->          prefetch(b, ahead + step * min(k, limit - 1))
                                        A

    The first line is the one of the element at flat position `ahead` plus, for each (other loop, step, limit) in `steps`, `step` elements
    per iteration of that loop (the same as `loop` or around it), of which at most `limit` count; 0 is no limit. The iterations of the
    loops `sharing`, outermost first, advance through `shared` elements as evenly as their numbers allow, also where these are known only
    while running. A buffer of at most `beyond` elements stays near and is not asked for: where its size is known only while running, so is
    this. `only`: a loop (the same as `loop` or around it), and every how many of its iterations, from the first on, ask. The position may
    be outside the buffer: this is a hint and has no effect on values. Layouts must be final: pack buffers before.
    """
    placed, target = nest.loop(loop), nest.buffer(buffer)
    if target not in nest.kernel.params:
        refuse(f"{buffer} is scratch", "only parameters are far away")
    if placed.stmt.kind in ("vectorized", "unrolled"):
        refuse(f"'{loop}' is {placed.stmt.kind}", "choose a loop outside of it")
    if lines < 1 or line < target.dtype.bytes:
        refuse(f"{lines} lines of {line} bytes are no request")
    position: Expr = const(ahead)
    around = (*placed.around, placed.stmt)
    for name in (*(name for name, _, _ in steps), *sharing):
        if nest.loop(name).stmt not in around:
            refuse(f"'{name}' is not around '{loop}'")
    for name, step, limit in steps:
        other = nest.loop(name).stmt
        capped = limit and not (other.extent.is_const and other.extent.value <= limit)
        position = position + (minimum(other.var, limit - 1) if capped else other.var) * step
    share: Expr = const(shared)
    for name in sharing:
        other = nest.loop(name).stmt
        share = ceildiv(share, other.extent if other.extent.is_const else maximum(other.extent, 1))  # positive: a plain division
        position = position + other.var * share
    asked = seq(*(Prefetch(target, position + number * (line // target.dtype.bytes)) for number in range(lines)))
    when = less(beyond, reduce(mul, target.shape, const(1))) if beyond else TRUE
    if only is not None:
        name, period = only
        if nest.loop(name).stmt not in around:
            refuse(f"'{name}' is not around '{loop}'")
        if period < 1:
            refuse(f"every {period} iterations of '{name}' says nothing")
        when = logical_and(when, equal(nest.loop(name).stmt.var % period, 0))
    old = placed.stmt
    new: Stmt = For(old.var, old.extent, seq(asked if when is TRUE else If(when, asked), old.body), old.kind)
    return Change(replaced(nest, {old: new}))
