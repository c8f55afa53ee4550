"""What a kernel must do at least, read off its definition: arithmetic by kind, and bytes that come in and go out.

A profile compares these with what the machine can do (the roofline model: Williams, Waterman and Patterson, "Roofline", CACM 2009). No
operator is asked: a multiply-add is a sum one of whose terms is a product, an operand is read as far as some block's accesses reach.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from tilewright.ir.expr import Expr, const, minimum, mul
from tilewright.ir.scalar_ops import Op
from tilewright.ir.simplify import simplify
from tilewright.ir.traverse import free_vars, walk
from tilewright.ir.types import product
from tilewright.kernel.nodes import Block, Buffer, For, Kernel, Stmt, Store, children
from tilewright.kernel.operations import operations_of, repeated, sums_over
from tilewright.kernel.regions import Access, Region, accesses, regions

NARROW_BITS = 8  # integers of at most so many bits have dot-product instructions


@dataclass(frozen=True, slots=True)
class Work:
    """One run of a kernel, in terms of its sizes. operations: on data; a multiply-add counts as two, a function such as exp as one.
    multiply_adds, other: the arithmetic with functions written out as the target computes them: what belongs to multiply-adds, by the
    machine's peak that bounds them (`f32`, `f64`, `bf16`, `int8`), and the rest. read, written: bytes of operands and results, each counted
    once. constant: the part of `read` that are constants of the model. factors: dtypes of the factors of its sums of products, as
    `float32 * bfloat16`."""

    operations: Expr
    multiply_adds: Mapping[str, Expr]
    other: Expr
    read: Expr
    written: Expr
    constant: Expr
    factors: tuple[str, ...] = ()


def work_of(kernel: Kernel, constants: frozenset[int] = frozenset(), expand: Callable[[Expr], Expr] = lambda e: e) -> Work:
    """The work of a kernel as defined (with its blocks, not lowered). `constants`: numbers of the inputs that are constants of the model;
    `expand`: an expression with its functions written out."""

    def counts(e: Expr) -> dict[str, int]:
        written_out = expand(e)
        sums = multiply_adds(written_out)
        by_kind = Counter(kind_of(products[0]) for products in sums.values())
        rest = operations_of(written_out) - 2 * len(sums)
        return {"operations": operations_of(e), "other": max(0, rest), **{str(kind): 2 * count for kind, count in by_kind.items()}}

    found = {name: simplify(count) for name, count in sums_over(kernel.body, counts).items()}
    boxes = regions(kernel.body).reads
    reads = {buffer: read_bytes(kernel, buffer, boxes.get(buffer)) for buffer in kernel.inputs}
    return Work(
        operations=found.get("operations", const(0)),
        multiply_adds={kind: found[kind] for kind in KINDS if kind in found},
        other=found.get("other", const(0)),
        read=_sum(reads.values()),
        written=_sum(map(_bytes, kernel.outputs)),
        constant=_sum([reads[buffer] for i, buffer in enumerate(kernel.inputs) if i in constants]),
        factors=factors_of(kernel.body),
    )


def read_bytes(kernel: Kernel, buffer: Buffer, box: Region | None) -> Expr:
    """Bytes of an operand that the kernel must read: the box that its accesses reach, clipped to the buffer. An access at an index that
    is itself data reaches one element for each point of its domain."""
    if box is None:
        return const(0)
    whole = _bytes(buffer)
    reached = const(0)
    for block, loops in _blocks_with_loops(kernel.body, ()):
        for access in accesses(block).loads:
            if access.buffer is buffer and _by_data(access):
                around = [(it.var, it.extent) for it in block.iters] or list(loops)
                points = {"points": const(1)}
                for var, extent in reversed([*around, *access.loops]):
                    points = repeated(points, var, extent)
                reached = reached + mul(points["points"], buffer.dtype.bytes)
    if not (reached.is_const and reached.value == 0):
        return simplify(minimum(whole, reached))
    sizes = frozenset(kernel.sizes)
    extents = [
        minimum(extent, size) if sizes.issuperset(free_vars(extent)) else size
        for (_, extent), size in zip(box.dims, buffer.shape, strict=True)
    ]
    return simplify(mul(product(extents), buffer.dtype.bytes))


def _sum(parts: Iterable[Expr]) -> Expr:
    total = const(0)
    for part in parts:
        total = total + part
    return simplify(total)


def _bytes(buffer: Buffer) -> Expr:
    return mul(product(buffer.shape), buffer.dtype.bytes)


def _by_data(access: Access) -> bool:
    return any(e.op is Op.LOAD for e in walk(*access.indices))


def _blocks_with_loops(stmt: Stmt, loops: tuple[tuple[Expr, Expr], ...]) -> Iterator[tuple[Block, tuple[tuple[Expr, Expr], ...]]]:
    if isinstance(stmt, Block):
        yield stmt, loops
        return
    inner = (*loops, (stmt.var, stmt.extent)) if isinstance(stmt, For) else loops
    for child in children(stmt):
        yield from _blocks_with_loops(child, inner)


def factors_of(body: Stmt) -> tuple[str, ...]:
    """Which dtypes the sums of products under a statement multiply, each pair once."""
    found: dict[str, None] = {}
    for block, _ in _blocks_with_loops(body, ()):
        if isinstance(block.body, Store) and any(it.kind == "reduction" for it in block.iters):
            for products in multiply_adds(block.body.value).values():
                sides = [{node.dtype.name for node in walk(side) if node.op is Op.LOAD} for side in products[0].args]
                if all(len(side) == 1 for side in sides):
                    found[" * ".join(name for side in sides for name in side)] = None
    return tuple(found)


# ---- arithmetic

KINDS = ("f32", "f64", "bf16", "int8")


def multiply_adds(value: Expr) -> dict[Expr, tuple[Expr, ...]]:
    """The sums of one expression that have a product as a term, each with these products; and multiply-adds that are written as such."""
    found: dict[Expr, tuple[Expr, ...]] = {}
    for node in _on_data(value):
        if node.op in (Op.ADD, Op.SUB):
            products = tuple(product_ for arg in node.args if (product_ := _selected(arg)).op is Op.MUL)
            if products and kind_of(products[0]) is not None:
                found[node] = products
        elif node.op is Op.CALL and node.name == "fma":
            found[node] = (node,)
    return found


def _selected(term: Expr) -> Expr:
    """A term without the condition under which it counts, such as that a tap of a window lies inside."""
    while term.op is Op.SELECT and term.args[2].is_const:
        term = term.args[1]
    return term


def kind_of(product_: Expr) -> str | None:
    """The peak that bounds multiply-adds of this product: `int8` and `bf16` by the data that comes in, else by the dtype; None for wider
    integers, which have no such instructions."""
    leaves = [node.dtype for node in walk(*product_.args) if node.op is Op.LOAD]
    if product_.dtype.is_integer:
        return "int8" if leaves and all(leaf.is_integer and leaf.bits <= NARROW_BITS for leaf in leaves) else None
    if leaves and all(leaf.name == "bfloat16" for leaf in leaves):
        return "bf16"
    return "f64" if product_.dtype.bits == 64 else "f32"


def _on_data(value: Expr) -> Iterator[Expr]:
    """The nodes of an expression, those of indices of loads left out."""
    seen: set[Expr] = set()
    stack = [value]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            yield node
            if node.op is not Op.LOAD:
                stack.extend(node.args)
