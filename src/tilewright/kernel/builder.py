"""Building kernels from tensor expressions: `compute`, `reduce` and imperative `opaque` blocks.

    k = KernelBuilder("scaled_sum")
    x = k.input("x", float32, (n, 64))
    y = k.reduce("y", (n,), (64,), lambda i, r: x[i, r] * 2.0, "sum")
    kernel = k.finish((y,))

Each call appends one loop nest around one block; a schedule computes them together later. Names are made unique.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tilewright.ir.dtypes import DType
from tilewright.ir.expr import TRUE, Expr, ExprLike, as_expr, const, load, logical_and, logical_or, maximum, minimum, var
from tilewright.ir.traverse import free_vars
from tilewright.ir.types import TensorType, as_shape
from tilewright.kernel.nodes import (
    Block,
    BlockIter,
    Buffer,
    For,
    If,
    IterKind,
    Kernel,
    Let,
    LoopKind,
    Scope,
    Seq,
    Stmt,
    Store,
    While,
    seq,
    walk_stmts,
)


@dataclass(frozen=True, slots=True)
class Combiner:
    """A commutative, associative reduction: identity element of a dtype and the binary operation."""

    identity: Callable[[DType], Expr]
    combine: Callable[[Expr, Expr], Expr]


COMBINERS: dict[str, Combiner] = {
    "sum": Combiner(lambda t: const(0, t), lambda a, b: a + b),
    "prod": Combiner(lambda t: const(1, t), lambda a, b: a * b),
    "max": Combiner(lambda t: const(t.lowest, t), maximum),
    "min": Combiner(lambda t: const(t.highest, t), minimum),
    "any": Combiner(lambda t: const(False, t), logical_or),
    "all": Combiner(lambda t: const(True, t), logical_and),
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A buffer as an expression: `x[i, j]` loads an element. With a `literal` every element is that constant and nothing is loaded."""

    buffer: Buffer
    literal: Expr | None = None

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype

    @property
    def shape(self) -> tuple[Expr, ...]:
        return self.buffer.shape

    @property
    def rank(self) -> int:
        return len(self.buffer.shape)

    def __getitem__(self, indices: ExprLike | tuple[ExprLike, ...]) -> Expr:
        if self.literal is not None:
            return self.literal
        return load(self.buffer, indices if isinstance(indices, tuple) else (indices,))


@dataclass(slots=True)
class StmtBuilder:
    """Statements of an opaque block, appended in order; nesting by `with`."""

    names: Names
    stmts: list[Stmt | _OpenLet] = field(default_factory=list)
    scratch: list[Buffer] = field(default_factory=list)

    def local(self, name: str, dtype: DType, shape: Sequence[ExprLike] = (), init: ExprLike | None = None) -> Tensor:
        """A mutable local array (a scalar by default) that lives for one run of the block's body."""
        buffer = Buffer(self.names.fresh(name), dtype, as_shape(shape), "local")
        self.scratch.append(buffer)
        if init is not None and not shape:
            self.store(Tensor(buffer), (), init)
        return Tensor(buffer)

    def store(self, target: Tensor, indices: Sequence[ExprLike], value: ExprLike) -> None:
        converted = value if isinstance(value, Expr) else const(value, target.dtype)
        if converted.dtype is not target.dtype:
            raise TypeError(f"store of {converted.dtype} into {target.buffer!r}")
        self.stmts.append(Store(target.buffer, tuple(as_expr(i) for i in indices), converted))

    def let(self, name: str, value: Expr) -> Expr:
        """Name the value of an expression now; the variable is visible in what follows."""
        bound = var(self.names.fresh(name), value.dtype)
        self.stmts.append(_OpenLet(bound, value))
        return bound

    @contextmanager
    def loop(self, name: str, extent: ExprLike, kind: LoopKind = "serial") -> Iterator[Expr]:
        index = var(self.names.fresh(name))
        outer, self.stmts = self.stmts, []
        yield index
        body, self.stmts = close(self.stmts), outer
        self.stmts.append(For(index, as_expr(extent), body, kind))

    @contextmanager
    def when(self, condition: Expr) -> Iterator[None]:
        outer, self.stmts = self.stmts, []
        yield
        body, self.stmts = close(self.stmts), outer
        self.stmts.append(If(condition, body))

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        """The other side of the `when` just closed."""
        previous = self.stmts.pop()
        if not isinstance(previous, If) or previous.otherwise is not None:
            raise TypeError("otherwise() must follow when()")
        outer, self.stmts = self.stmts, []
        yield
        body, self.stmts = close(self.stmts), outer
        self.stmts.append(If(previous.condition, previous.then, body))

    @contextmanager
    def repeat_while(self, condition: Expr) -> Iterator[None]:
        """Loop while `condition`, which reads local buffers that the body changes."""
        outer, self.stmts = self.stmts, []
        yield
        body, self.stmts = close(self.stmts), outer
        self.stmts.append(While(condition, body))


@dataclass(frozen=True, slots=True)
class _OpenLet:
    """A `let` whose scope is not closed yet."""

    var: Expr
    value: Expr


def close(stmts: Sequence[Stmt | _OpenLet]) -> Stmt:
    """Fold statements with open lets into one statement."""
    result: Stmt = Seq(())
    for stmt in reversed(stmts):
        result = Let(stmt.var, stmt.value, result) if isinstance(stmt, _OpenLet) else seq(stmt, result)
    return result


@dataclass(slots=True)
class Names:
    """Unique names: `x`, `x_1`, `x_2` ..."""

    used: dict[str, int] = field(default_factory=dict)

    def fresh(self, name: str) -> str:
        count = self.used.get(name)
        if count is None:
            self.used[name] = 0
            return name
        while True:
            count += 1
            candidate = f"{name}_{count}"
            if candidate not in self.used:
                self.used[name] = count
                self.used[candidate] = 0
                return candidate


@dataclass(slots=True)
class KernelBuilder:
    """Collects blocks into a kernel; see the module docstring."""

    name: str
    names: Names = field(default_factory=Names)
    inputs: list[Buffer] = field(default_factory=list)
    made: list[Buffer] = field(default_factory=list)
    nests: list[Stmt] = field(default_factory=list)

    def input(self, name: str, dtype: DType, shape: Sequence[ExprLike]) -> Tensor:
        buffer = Buffer(self.names.fresh(name), dtype, as_shape(shape))
        self.inputs.append(buffer)
        return Tensor(buffer)

    def compute(self, name: str, shape: Sequence[ExprLike], value: Callable[..., Expr]) -> Tensor:
        """out[i...] = value(i...) for every point of `shape`."""
        iters = self._iters(shape, "spatial")
        indices = tuple(it.var for it in iters)
        result = value(*indices)
        out = self._output(name, result.dtype, shape)
        self._nest(Block(out.buffer.name, iters, (), Store(out.buffer, indices, result)))
        return out

    def reduce(
        self,
        name: str,
        shape: Sequence[ExprLike],
        extents: Sequence[ExprLike],
        value: Callable[..., Expr],
        combiner: str,
        where: Callable[..., Expr] | None = None,
    ) -> Tensor:
        """out[i...] = combine over r... of value(i..., r...), starting from the combiner's identity. `combiner` is a key of COMBINERS.
        `where`(r...): the points that count, the first one among them; None: all."""
        spatial = self._iters(shape, "spatial")
        reduction = self._iters(extents, "reduction")
        indices = tuple(it.var for it in spatial)
        result = value(*indices, *(it.var for it in reduction))
        how = COMBINERS[combiner]
        out = self._output(name, result.dtype, shape)
        update = Store(out.buffer, indices, how.combine(out[indices], result))
        init = Store(out.buffer, indices, how.identity(result.dtype))
        predicate = TRUE if where is None else where(*(it.var for it in reduction))
        self._nest(Block(out.buffer.name, spatial + reduction, (), update, init, predicate))
        return out

    def opaque(
        self,
        name: str,
        outputs: Sequence[TensorType],
        domain: Sequence[ExprLike],
        body: Callable[..., None],
    ) -> tuple[Tensor, ...]:
        """An imperative block: for each point of `domain` (points are independent of each other), `body(s, outs, *point)` appends
        statements to the StmtBuilder `s` that store the part of the outputs that belongs to the point."""
        iters = self._iters(domain, "spatial")
        outs = tuple(self._output(name, type_.dtype, type_.shape) for type_ in outputs)
        s = StmtBuilder(self.names)
        body(s, outs, *(it.var for it in iters))
        self._nest(Block(outs[0].buffer.name, iters, (), close(s.stmts), scratch=tuple(s.scratch)))
        return outs

    def finish(self, outputs: Sequence[Tensor]) -> Kernel:
        """The kernel that gives `outputs`; the other buffers made on the way become its scratch."""
        results = tuple(tensor.buffer for tensor in outputs)
        body = seq(*self.nests)
        exprs = [dim for buffer in (*self.inputs, *self.made) for dim in buffer.shape]
        exprs += [stmt.extent for stmt in walk_stmts(body) if isinstance(stmt, For)]
        bound = {stmt.var for stmt in walk_stmts(body) if isinstance(stmt, (For, Let))}
        bound |= {it.var for stmt in walk_stmts(body) if isinstance(stmt, Block) for it in stmt.iters}
        exprs += [e for stmt in walk_stmts(body) if isinstance(stmt, Store) for e in (*stmt.indices, stmt.value)]
        sizes = tuple(v for v in free_vars(*exprs) if v not in bound)
        scratch = tuple(buffer for buffer in self.made if buffer not in results)
        return Kernel(self.name, tuple(self.inputs), results, body, sizes, scratch)

    def _output(self, name: str, dtype: DType, shape: Sequence[ExprLike], scope: Scope = "global") -> Tensor:
        buffer = Buffer(self.names.fresh(name), dtype, as_shape(shape), scope)
        self.made.append(buffer)
        return Tensor(buffer)

    def _iters(self, extents: Sequence[ExprLike], kind: IterKind) -> tuple[BlockIter, ...]:
        prefix = "v" if kind == "spatial" else "r"
        return tuple(BlockIter(var(self.names.fresh(prefix)), as_expr(extent), kind) for extent in extents)

    def _nest(self, block: Block) -> None:
        loops = [var(self.names.fresh("i" if it.kind == "spatial" else "k")) for it in block.iters]
        stmt: Stmt = Block(block.name, block.iters, tuple(loops), block.body, block.init, block.predicate, block.scratch)
        for index, it in zip(reversed(loops), reversed(block.iters), strict=True):
            stmt = For(index, it.extent, stmt)
        self.nests.append(stmt)
