"""A kernel as the source of one Python function over flat lists, for the interpreter.

Values are the Python scalars of `kernel/scalars.py`; an element nobody wrote is None. Each distinct expression is computed once
per scope: expressions without loads live as long as the loop around them, expressions with loads as long as their statement.
With `check`, every access is tested (bounds, unwritten elements, races of parallel and vectorized loops) and every block
binding must lie in its domain; a test that provably holds is left out.

Races. Each parallel loop gives each of its iterations, each time it runs, a tag of its own. For each buffer that outlives an
iteration and is written in the loop, two tables hold the tag of the last writer and of the readers of each element; an access meets
another iteration's when it finds a tag of this run of the loop that is not its own. Kernel scratch used in one parallel loop only is
private to an iteration of that loop, since lowering places it there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from tilewright.ir.dtypes import DType
from tilewright.ir.expr import TRUE, Expr
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import walk
from tilewright.kernel.nodes import Block, Buffer, For, If, Kernel, Let, Prefetch, Seq, Stmt, Store, While, children, loads
from tilewright.kernel.private_scratch import private_scratch
from tilewright.kernel.python_formulas import Formulas
from tilewright.support.errors import VerifyError

Access = Literal["load", "store"]

# CPython allows 20 nested loops in one function; deeper nests continue in an inner function.
_MAX_NESTING = 12
_LARGE = 1 << 16  # private buffers above this many elements are kept sparse


@dataclass(frozen=True, slots=True)
class Site:
    """What a failing test in the generated code stands for: for its error message."""

    block: str
    access: Access
    buffer: Buffer | None
    variables: tuple[str, ...]


class Sparse(dict[int, Any]):
    """A flat buffer whose unwritten elements take no memory."""

    def __missing__(self, index: int) -> None:
        return None


@dataclass(frozen=True, slots=True)
class PythonKernel:
    """`source` defines `run(buffers, sizes)`: flat lists of params in order, size values in order. Its globals are `constants`, for
    each name in `tables` an empty dict, `tick`, a list of one 1, and the functions that make errors."""

    source: str
    constants: dict[str, Any]
    sites: tuple[Site, ...]
    tables: tuple[str, ...]


def to_python(kernel: Kernel, check: bool) -> PythonKernel:
    """Raises VerifyError for a kernel that uses a variable or buffer that nothing defines."""
    return _Emitter(kernel, check).emit()


@dataclass(slots=True)
class _Level:
    """A parallel or vectorized loop being emitted: Python names of its first tag and current tag."""

    number: int
    base: str
    tag: str
    vectorized: bool
    written: frozenset[Buffer]


@dataclass(slots=True)
class _Place:
    """A buffer in scope: Python names of its list and dims, how many levels enclose it, whether its elements may be unwritten."""

    name: str
    dims: tuple[str, ...]
    depth: int
    initialised: bool


@dataclass(slots=True)
class _Emitter:
    kernel: Kernel
    check: bool
    lines: list[str] = field(default_factory=list)
    indent: int = 1
    nesting: int = 0
    count: int = 0
    formulas: Formulas = field(default_factory=Formulas)
    sites: list[Site] = field(default_factory=list)
    tables: dict[str, None] = field(default_factory=dict)
    variables: dict[Expr, str] = field(default_factory=dict)
    extents: dict[Expr, Expr] = field(default_factory=dict)
    pure: list[dict[Expr, str]] = field(default_factory=lambda: [{}])
    volatile: list[dict[Expr, str]] = field(default_factory=lambda: [{}])
    has_load: dict[Expr, bool] = field(default_factory=dict)
    places: dict[Buffer, _Place] = field(default_factory=dict)
    levels: list[_Level] = field(default_factory=list)
    parallel_count: int = 0
    private: dict[int, list[Buffer]] = field(default_factory=dict)
    loop_variables: list[Expr] = field(default_factory=list)
    block: str = ""
    update_of: tuple[Buffer, tuple[Expr, ...]] | None = None

    def emit(self) -> PythonKernel:
        kernel = self.kernel
        for position, size in enumerate(kernel.sizes):
            name = self._fresh(size.name)
            self.variables[size] = name
            self._line(f"{name} = sizes[{position}]")
        for position, buffer in enumerate(kernel.params):
            place = self._declare(buffer, initialised=position < len(kernel.inputs))
            self._line(f"{place.name} = buffers[{position}]")
        self.private = private_scratch(kernel)
        placed_inside = {buffer for buffers in self.private.values() for buffer in buffers}
        for buffer in kernel.scratch:
            if buffer not in placed_inside:
                self._allocate(buffer)
        self._stmt(kernel.body)
        head = ["def run(buffers, sizes):"]
        return PythonKernel(
            "\n".join(head + self.lines) + "\n", {**self.formulas.constants, "empty": _empty}, tuple(self.sites), tuple(self.tables)
        )

    # Statements

    def _stmt(self, stmt: Stmt) -> None:
        match stmt:
            case Seq(stmts):
                for inner in stmts:
                    self._stmt(inner)
            case Store():
                self._store(stmt)
            case For():
                self._for(stmt)
            case If(condition, then, otherwise):
                self._line(f"if {self._statement_value(condition)}:")
                self._scope(lambda: self._stmt(then))
                if otherwise is not None:
                    self._line("else:")
                    self._scope(lambda: self._stmt(otherwise))
            case While(condition, body):
                self._deepen(lambda: self._while(condition, body))
            case Let(var, value, body):
                name = self._fresh(var.name)
                self._line(f"{name} = {self._statement_value(value)}")
                self._bound(var, name, lambda: self._stmt(body))
            case Prefetch():
                self._line("pass")
            case Block():
                self._block(stmt)

    def _while(self, condition: Expr, body: Stmt) -> None:
        self._line("while True:")

        def inside() -> None:
            self._line(f"if not {self._statement_value(condition)}: break")
            self._stmt(body)

        self._scope(inside)

    def _store(self, stmt: Store) -> None:
        self.volatile.append({})
        place = self._place(stmt.buffer)
        if any(load.attr is stmt.buffer and load.args == stmt.indices for load in loads(stmt.value)):
            self.update_of = (stmt.buffer, stmt.indices)
        value = self._value(stmt.value)
        flat = self._element(stmt.buffer, place, stmt.indices, "store")
        self._line(f"{place.name}[{flat}] = {value}")
        self.update_of = None
        self.volatile.pop()

    def _for(self, stmt: For) -> None:
        extent = self._statement_value(stmt.extent)
        name = self._fresh(stmt.var.name)
        is_parallel = stmt.kind in ("parallel", "vectorized")
        number = self.parallel_count
        if is_parallel:
            self.parallel_count += 1

        def inside() -> None:
            if is_parallel:
                for buffer in self.private.get(number, []):
                    self._allocate(buffer)
            self.extents[stmt.var] = stmt.extent
            self.loop_variables.append(stmt.var)
            self._bound(stmt.var, name, lambda: self._stmt(stmt.body))
            self.loop_variables.pop()
            del self.extents[stmt.var]

        def loop() -> None:
            if not (is_parallel and self.check):
                self._line(f"for {name} in range({extent}):")
                self._scope(inside)
                return
            level = _Level(number, f"base{number}", f"tag{number}", stmt.kind == "vectorized", _written(stmt.body))
            self._line(f"{level.base} = tick[0]; tick[0] += {extent}")
            self._line(f"for {name} in range({extent}):")
            self.levels.append(level)

            def tagged() -> None:
                self._line(f"{level.tag} = {level.base} + {name}")
                inside()

            self._scope(tagged)
            self.levels.pop()

        self._deepen(loop)

    def _block(self, block: Block) -> None:
        outer_block, self.block = self.block, block.name
        shadowed = [(it.var, self.variables.get(it.var)) for it in block.iters]
        bound = len(block.iters)
        if len(block.bindings) != bound:
            raise VerifyError(f"{bound} block iters have {len(block.bindings)} bindings", where=self._where())
        for it, binding in zip(block.iters, block.bindings, strict=True):
            name = self._fresh(it.var.name)
            self._line(f"{name} = {self._statement_value(binding)}")
            self.variables[it.var] = name
            self.extents[it.var] = it.extent
        self.pure.append({})
        self.loop_variables.extend(it.var for it in block.iters)
        guarded = block.predicate is not TRUE
        self._line(f"if {self._statement_value(block.predicate)}:" if guarded else "if True:")
        self._scope(lambda: self._block_body(block))
        self.pure.pop()
        del self.loop_variables[len(self.loop_variables) - bound :]
        for var, previous in shadowed:
            del self.extents[var]
            if previous is None:
                del self.variables[var]
            else:
                self.variables[var] = previous
        self.block = outer_block

    def _block_body(self, block: Block) -> None:
        if self.check:
            for it, binding in zip(block.iters, block.bindings, strict=True):
                if self.extents.get(binding) is it.extent:
                    continue
                name = self.variables[it.var]
                extent = self._statement_value(it.extent)
                site = self._site("load", None)
                complaint = f"raise bad_binding({site}, {it.var.name!r}, {name}, {extent}, {self._loop_values()})"
                self._line(f"if not 0 <= {name} < {extent}: {complaint}")
        for buffer in block.scratch:
            self._allocate(buffer)
        reduction = [self.variables[it.var] for it in block.iters if it.kind == "reduction"]
        init = block.init
        if init is not None:
            self._line("if " + (" and ".join(f"{name} == 0" for name in reduction) or "True") + ":")
            self._scope(lambda: self._stmt(init))
        self._stmt(block.body)

    # Buffers

    def _declare(self, buffer: Buffer, initialised: bool = False) -> _Place:
        dims = tuple(self._statement_value(dim) for dim in buffer.shape)
        place = _Place(self._fresh(buffer.name), dims, len(self.levels), initialised)
        self.places[buffer] = place
        return place

    def _allocate(self, buffer: Buffer) -> None:
        place = self._declare(buffer, initialised=not self.check)
        count = " * ".join(place.dims) or "1"
        empty = "None" if self.check else repr(zero_of(buffer.dtype))
        self._line(f"{place.name} = empty({count})" if self.check and place.depth else f"{place.name} = [{empty}] * ({count})")

    def _place(self, buffer: Buffer) -> _Place:
        place = self.places.get(buffer)
        if place is None:
            raise VerifyError(
                f"buffer {buffer.name} is used but not declared",
                where=self._where(),
                why="it is not among the kernel's params and scratch nor in the scratch of a block around",
            )
        return place

    def _element(self, buffer: Buffer, place: _Place, indices: tuple[Expr, ...], access: Access) -> str:
        """Name of the flat index of an element, tested."""
        if len(indices) != len(buffer.shape):
            raise VerifyError(f"{access} of {buffer!r} with {len(indices)} indices", where=self._where())
        names = [self._value(index) for index in indices]
        site = ""
        if self.check:
            site = self._site(access, buffer)
            tests = [
                f"0 <= {name} < {dim}"
                for name, dim, index, extent in zip(names, place.dims, indices, buffer.shape, strict=True)
                if self.extents.get(index) is not extent
            ]
            if tests:
                complaint = f"raise out_of_bounds({site}, {_tuple(names)}, {_tuple(place.dims)}, {self._loop_values()})"
                self._line(f"if not ({' and '.join(tests)}): {complaint}")
        if not names:
            flat = "0"
        elif len(names) == 1:
            flat = names[0]
        else:
            flat = self._fresh("f")
            text = names[0]
            for name, dim in zip(names[1:], place.dims[1:], strict=True):
                text = f"({text}) * {dim} + {name}" if text != names[0] else f"{text} * {dim} + {name}"
            self._line(f"{flat} = {text}")
        if self.check:
            self._race_tests(buffer, place, access, flat, names, indices, site)
        return flat

    def _race_tests(
        self, buffer: Buffer, place: _Place, access: Access, flat: str, names: list[str], indices: tuple[Expr, ...], site: str
    ) -> None:
        for level in self.levels[place.depth :]:
            if buffer not in level.written:
                continue
            if level.vectorized and self.update_of is not None and self.update_of == (buffer, indices):
                continue  # lanes of a reduction are combined afterwards
            writers, readers = f"w{level.number}_{place.name}", f"r{level.number}_{place.name}"
            self.tables.update({writers: None, readers: None})
            complaint = f"raise race({site}, {_tuple(names)}, {level.base}, seen, {self._loop_values()})"
            if access == "store":
                for table in (writers, readers):
                    self._line(f"seen = {table}.get({flat}, 0)")
                    self._line(f"if seen >= {level.base} and seen != {level.tag}: {complaint}")
                self._line(f"{writers}[{flat}] = {level.tag}")
            else:
                self._line(f"seen = {writers}.get({flat}, 0)")
                self._line(f"if seen >= {level.base} and seen != {level.tag}: {complaint}")
                self._line(f"seen = {readers}.get({flat}, 0)")
                self._line(f"{readers}[{flat}] = {level.tag} if seen < {level.base} or seen == {level.tag} else {1 << 62}")

    # Expressions

    def _statement_value(self, e: Expr) -> str:
        """An expression of a statement on its own: what it loads is not remembered."""
        self.volatile.append({})
        name = self._value(e)
        self.volatile.pop()
        return name

    def _value(self, e: Expr) -> str:
        """A Python atom that holds the value of `e`, after emitting what computes it."""
        if e.op is Op.CONST:
            return self.formulas.literal(e)
        if e.op is Op.VAR:
            name = self.variables.get(e)
            if name is None:
                raise VerifyError(f"variable {e.name} is used but not defined", where=self._where())
            return name
        stack = self.volatile if self._loads(e) else self.pure
        for frame in reversed(stack):
            if e in frame:
                return frame[e]
        name = self._compute(e)
        stack[-1][e] = name
        return name

    def _loads(self, e: Expr) -> bool:
        found = self.has_load.get(e)
        if found is None:
            found = self.has_load[e] = e.op is Op.LOAD or any(self._loads(a) for a in e.args)
        return found

    def _compute(self, e: Expr) -> str:
        if e.op is Op.LOAD:
            return self._load(e)
        if e.op is Op.SELECT:
            return self._select(e)
        args = [self._value(a) for a in e.args]
        name = self._fresh("t")
        if e.op in (Op.FLOORDIV, Op.FLOORMOD, Op.TRUNCDIV, Op.TRUNCMOD) and e.dtype.is_integer and not e.args[1].is_const:
            self._line(f"if {args[1]} == 0: raise no_value({self._site('load', None)}, 'division by zero', {self._loop_values()})")
        if e.op in (Op.SHL, Op.SHR) and not e.args[1].is_const:
            bits = e.dtype.bits
            site = self._site("load", None)
            self._line(f"if not 0 <= {args[1]} < {bits}: raise no_value({site}, 'shift by ' + str({args[1]}), {self._loop_values()})")
        self._line(f"{name} = {self.formulas.formula(e, args, self._is_small)}")
        return name

    def _load(self, e: Expr) -> str:
        buffer: Buffer = e.attr
        place = self._place(buffer)
        flat = self._element(buffer, place, e.args, "load")
        name = self._fresh("x")
        self._line(f"{name} = {place.name}[{flat}]")
        if self.check and not place.initialised:
            site = self._site("load", buffer)
            indices = _tuple([self._value(index) for index in e.args])
            self._line(f"if {name} is None: raise unwritten({site}, {indices}, {self._loop_values()})")
        return name

    def _select(self, e: Expr) -> str:
        condition = self._value(e.args[0])
        both = unguarded(e.args[1]) & unguarded(e.args[2])
        for node in walk(*e.args[1:]):  # what both sides need is computed once: chains of selects would double the code at each
            if node in both and node.args:
                self._value(node)
        name = self._fresh("t")
        self._line(f"if {condition}:")
        self._scope(lambda: self._line(f"{name} = {self._value(e.args[1])}"), keep_loads=True)
        self._line("else:")
        self._scope(lambda: self._line(f"{name} = {self._value(e.args[2])}"), keep_loads=True)
        return name

    def _is_small(self, variable: Expr) -> bool:
        """Sizes and loop variables: far below the limits of int64."""
        return variable.dtype.bits == 64 and (variable in self.extents or variable in self.kernel.sizes)

    # Text

    def _line(self, text: str) -> None:
        self.lines.append(" " * self.indent + text)

    def _fresh(self, name: str) -> str:
        self.count += 1
        return f"{re.sub(r'^(?=[0-9])|[^0-9A-Za-z_]', '_', name)}_{self.count}"

    def _site(self, access: Access, buffer: Buffer | None) -> str:
        self.sites.append(Site(self.block, access, buffer, tuple(var.name for var in self.loop_variables)))
        return str(len(self.sites) - 1)

    def _loop_values(self) -> str:
        return _tuple([self.variables[var] for var in self.loop_variables])

    def _where(self) -> str:
        return f"block '{self.block}' of kernel '{self.kernel.name}'" if self.block else f"kernel '{self.kernel.name}'"

    def _scope(self, emit: Callable[[], None], keep_loads: bool = False) -> None:
        """An indented suite with its own memory of computed expressions. Loads of the statement around stay known in a select."""
        self.indent += 1
        self.pure.append({})
        outer = self.volatile
        self.volatile = [*outer, {}] if keep_loads else [{}]
        before = len(self.lines)
        emit()
        if len(self.lines) == before:
            self._line("pass")
        self.volatile = outer
        self.pure.pop()
        self.indent -= 1

    def _deepen(self, emit: Callable[[], None]) -> None:
        """One more loop: in an inner function when Python would refuse it."""
        outer = self.nesting
        self.nesting += 1
        if self.nesting > _MAX_NESTING:
            name = self._fresh("nest")
            self._line(f"def {name}():")
            self.nesting = 1
            self._scope(emit)
            self._line(f"{name}()")
        else:
            emit()
        self.nesting = outer

    def _bound(self, var: Expr, name: str, emit: Callable[[], None]) -> None:
        previous = self.variables.get(var)
        self.variables[var] = name
        self.pure.append({})  # expressions of `var` mean something else once it is bound again
        emit()
        self.pure.pop()
        if previous is None:
            del self.variables[var]
        else:
            self.variables[var] = previous


def unguarded(e: Expr) -> set[Expr]:
    """The nodes that are evaluated whenever `e` is: not those in one branch of a select."""
    found: set[Expr] = set()
    stack = [e]
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(node.args[:1] if node.op is Op.SELECT else node.args)
    return found


def zero_of(dtype: DType) -> Any:
    """What an element that nobody wrote holds when accesses are not checked."""
    return {"bool": False, "float": 0.0, "complex": 0j, "string": ""}.get(dtype.kind, 0)


def _empty(count: int) -> Any:
    return [None] * count if count <= _LARGE else Sparse()


def _tuple(items: list[str] | tuple[str, ...]) -> str:
    return "(" + "".join(item + ", " for item in items) + ")"


def _written(stmt: Stmt) -> frozenset[Buffer]:
    if isinstance(stmt, Store):
        return frozenset({stmt.buffer})
    return frozenset().union(*(_written(child) for child in children(stmt)))
