"""Which outputs of a kernel may be stored over which of its inputs: where an element is read only to compute the one that replaces it."""

from __future__ import annotations

from tilewright.ir.expr import Expr
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import variables_in, walk
from tilewright.kernel.nodes import Buffer, For, Kernel, Stmt, Store, While, children, loads, own_exprs

_Loops = tuple[For | While, ...]


def overwriting(kernel: Kernel) -> tuple[tuple[int, int], ...]:
    """Numbers of an input and an output of a lowered kernel that may be the same memory, of equal dtype and shape.

    Each element of the output is stored once: the indices of stores name every loop around them, have the rest of what they divide, are
    not loaded, and are not the larger or smaller of two numbers, as in tiles that are moved back from an edge. Each store reads the
    input's element that it replaces, and nothing else in the kernel reads the input.
    """
    stores: dict[Buffer, list[tuple[Store, _Loops]]] = {output: [] for output in kernel.outputs}
    readers: dict[Buffer, dict[Stmt, None]] = {}

    def visit(stmt: Stmt, around: _Loops) -> None:
        for load in loads(*own_exprs(stmt)):
            readers.setdefault(load.attr, {})[stmt] = None
        if isinstance(stmt, Store) and stmt.buffer in stores:
            stores[stmt.buffer].append((stmt, around))
        inner = (*around, stmt) if isinstance(stmt, (For, While)) else around
        for child in children(stmt):
            visit(child, inner)

    visit(kernel.body, ())
    found, sizes = [], frozenset(kernel.sizes)
    for o, output in enumerate(kernel.outputs):
        if not stores[output] or not all(_once(store, around, sizes) for store, around in stores[output]) or output in readers:
            continue
        own = dict.fromkeys(store for store, _ in stores[output])
        for i, source in enumerate(kernel.inputs):
            alike = source.dtype is output.dtype and source.shape == output.shape
            if alike and readers.get(source) == own and all(_reads_its_own(store, source) for store in own):
                found.append((i, o))
    return tuple(found)


def _once(store: Store, around: _Loops, sizes: frozenset[Expr]) -> bool:
    parts = set(walk(*store.indices))
    if any(
        e.op in (Op.MIN, Op.MAX, Op.LOAD, Op.SELECT) or (e.op is Op.FLOORDIV and not _keeps_rest(e.args[0], e.args[1], parts))
        for e in parts
        if e.op is Op.LOAD or not variables_in(e) <= sizes  # others are the same everywhere: the sides of an image, halved
    ):
        return False
    return all(isinstance(loop, For) and (_single(loop.extent) or loop.var in parts) for loop in around)


def _keeps_rest(number: Expr, divisor: Expr, parts: set[Expr]) -> bool:
    """Whether the rest of a division is in the indices too: at once, or digit by digit, as where a fused loop is taken apart."""
    if any(e.op is Op.FLOORMOD and e.args == (number, divisor) for e in parts):
        return True
    digits = [e for e in parts if e.op is Op.FLOORMOD and e.args[0].op is Op.FLOORDIV and e.args[0].args[0] is number]
    return any(e.args[0].args[1] * e.args[1] is divisor and _keeps_rest(number, e.args[0].args[1], parts) for e in digits)


def _single(extent: Expr) -> bool:
    return extent.is_const and bool(extent.value <= 1)


def _reads_its_own(store: Store, source: Buffer) -> bool:
    reads = [load for load in loads(*own_exprs(store)) if load.attr is source]
    return bool(reads) and all(load.args == store.indices for load in reads)
