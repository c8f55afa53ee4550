"""Python source of scalar expressions and of accesses to buffers, with the tests of a checked run."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import walk
from tilewright.kernel.nodes import Buffer, Kernel
from tilewright.kernel.python_formulas import Formulas
from tilewright.support.errors import VerifyError

Access = Literal["load", "store"]


@dataclass(frozen=True, slots=True)
class Site:
    """What a failing test in the generated code stands for: for its error message."""

    block: str
    access: Access
    buffer: Buffer | None
    variables: tuple[str, ...]


@dataclass(slots=True)
class Level:
    """A parallel or vectorized loop being emitted: Python names of its first tag and current tag."""

    number: int
    base: str
    tag: str
    vectorized: bool
    written: frozenset[Buffer]


@dataclass(slots=True)
class Place:
    """A buffer in scope: Python names of its list and dims, how many levels enclose it, whether its elements may be unwritten."""

    name: str
    dims: tuple[str, ...]
    depth: int
    initialised: bool


@dataclass(slots=True)
class SourceWriter:
    """Lines of Python, and what is known while they are written: names of variables and buffers, loops around, values computed."""

    kernel: Kernel
    check: bool
    lines: list[str] = field(default_factory=list)
    indent: int = 1
    count: int = 0
    formulas: Formulas = field(default_factory=Formulas)
    sites: list[Site] = field(default_factory=list)
    tables: dict[str, None] = field(default_factory=dict)
    variables: dict[Expr, str] = field(default_factory=dict)
    extents: dict[Expr, Expr] = field(default_factory=dict)
    pure: list[dict[Expr, str]] = field(default_factory=lambda: [{}])
    volatile: list[dict[Expr, str]] = field(default_factory=lambda: [{}])
    has_load: dict[Expr, bool] = field(default_factory=dict)
    places: dict[Buffer, Place] = field(default_factory=dict)
    levels: list[Level] = field(default_factory=list)
    loop_variables: list[Expr] = field(default_factory=list)
    block: str = ""
    update_of: tuple[Buffer, tuple[Expr, ...]] | None = None

    # Buffers

    def declare(self, buffer: Buffer, initialised: bool = False) -> Place:
        dims = tuple(self.statement_value(dim) for dim in buffer.shape)
        place = Place(self.fresh(buffer.name), dims, len(self.levels), initialised)
        self.places[buffer] = place
        return place

    def allocate(self, buffer: Buffer) -> None:
        place = self.declare(buffer, initialised=not self.check)
        count = " * ".join(place.dims) or "1"
        empty = "None" if self.check else repr(zero_of(buffer.dtype))
        self.line(f"{place.name} = empty({count})" if self.check and place.depth else f"{place.name} = [{empty}] * ({count})")

    def place(self, buffer: Buffer) -> Place:
        place = self.places.get(buffer)
        if place is None:
            raise VerifyError(
                f"buffer {buffer.name} is used but not declared",
                where=self.where(),
                why="it is not among the kernel's params and scratch nor in the scratch of a block around",
            )
        return place

    def element(self, buffer: Buffer, place: Place, indices: tuple[Expr, ...], access: Access) -> str:
        """Name of the flat index of an element, tested."""
        if len(indices) != len(buffer.shape):
            raise VerifyError(f"{access} of {buffer!r} with {len(indices)} indices", where=self.where())
        names = [self.value(index) for index in indices]
        site = ""
        if self.check:
            site = self.site(access, buffer)
            tests = [
                f"0 <= {name} < {dim}"
                for name, dim, index, extent in zip(names, place.dims, indices, buffer.shape, strict=True)
                if self.extents.get(index) is not extent
            ]
            if tests:
                complaint = f"raise out_of_bounds({site}, {tuple_text(names)}, {tuple_text(place.dims)}, {self.loop_values()})"
                self.line(f"if not ({' and '.join(tests)}): {complaint}")
        if not names:
            flat = "0"
        elif len(names) == 1:
            flat = names[0]
        else:
            flat = self.fresh("f")
            text = names[0]
            for name, dim in zip(names[1:], place.dims[1:], strict=True):
                text = f"({text}) * {dim} + {name}" if text != names[0] else f"{text} * {dim} + {name}"
            self.line(f"{flat} = {text}")
        if self.check:
            self._race_tests(buffer, place, access, flat, names, indices, site)
        return flat

    def _race_tests(
        self, buffer: Buffer, place: Place, access: Access, flat: str, names: list[str], indices: tuple[Expr, ...], site: str
    ) -> None:
        for level in self.levels[place.depth :]:
            if buffer not in level.written:
                continue
            if level.vectorized and self.update_of is not None and self.update_of == (buffer, indices):
                continue  # lanes of a reduction are combined afterwards
            writers, readers = f"w{level.number}_{place.name}", f"r{level.number}_{place.name}"
            self.tables.update({writers: None, readers: None})
            complaint = f"raise race({site}, {tuple_text(names)}, {level.base}, seen, {self.loop_values()})"
            if access == "store":
                for table in (writers, readers):
                    self.line(f"seen = {table}.get({flat}, 0)")
                    self.line(f"if seen >= {level.base} and seen != {level.tag}: {complaint}")
                self.line(f"{writers}[{flat}] = {level.tag}")
            else:
                self.line(f"seen = {writers}.get({flat}, 0)")
                self.line(f"if seen >= {level.base} and seen != {level.tag}: {complaint}")
                self.line(f"seen = {readers}.get({flat}, 0)")
                self.line(f"{readers}[{flat}] = {level.tag} if seen < {level.base} or seen == {level.tag} else {1 << 62}")

    # Expressions

    def statement_value(self, e: Expr) -> str:
        """An expression of a statement on its own: what it loads is not remembered."""
        self.volatile.append({})
        name = self.value(e)
        self.volatile.pop()
        return name

    def value(self, e: Expr) -> str:
        """A Python atom that holds the value of `e`, after emitting what computes it."""
        if e.op is Op.CONST:
            return self.formulas.literal(e)
        if e.op is Op.VAR:
            name = self.variables.get(e)
            if name is None:
                raise VerifyError(f"variable {e.name} is used but not defined", where=self.where())
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
        args = [self.value(a) for a in e.args]
        name = self.fresh("t")
        if e.op in (Op.FLOORDIV, Op.FLOORMOD, Op.TRUNCDIV, Op.TRUNCMOD) and e.dtype.is_integer and not e.args[1].is_const:
            self.line(f"if {args[1]} == 0: raise no_value({self.site('load', None)}, 'division by zero', {self.loop_values()})")
        if e.op in (Op.SHL, Op.SHR) and not e.args[1].is_const:
            bits = e.dtype.bits
            site = self.site("load", None)
            self.line(f"if not 0 <= {args[1]} < {bits}: raise no_value({site}, 'shift by ' + str({args[1]}), {self.loop_values()})")
        self.line(f"{name} = {self.formulas.formula(e, args, self._is_small)}")
        return name

    def _load(self, e: Expr) -> str:
        buffer: Buffer = e.attr
        place = self.place(buffer)
        flat = self.element(buffer, place, e.args, "load")
        name = self.fresh("x")
        self.line(f"{name} = {place.name}[{flat}]")
        if self.check and not place.initialised:
            site = self.site("load", buffer)
            indices = tuple_text([self.value(index) for index in e.args])
            self.line(f"if {name} is None: raise unwritten({site}, {indices}, {self.loop_values()})")
        return name

    def _select(self, e: Expr) -> str:
        condition = self.value(e.args[0])
        both = unguarded(e.args[1]) & unguarded(e.args[2])
        for node in walk(*e.args[1:]):  # what both sides need is computed once: chains of selects would double the code at each
            if node in both and node.args:
                self.value(node)
        name = self.fresh("t")
        self.line(f"if {condition}:")
        self.scope(lambda: self.line(f"{name} = {self.value(e.args[1])}"), keep_loads=True)
        self.line("else:")
        self.scope(lambda: self.line(f"{name} = {self.value(e.args[2])}"), keep_loads=True)
        return name

    def _is_small(self, variable: Expr) -> bool:
        """Sizes and loop variables: far below the limits of int64."""
        return variable.dtype.bits == 64 and (variable in self.extents or variable in self.kernel.sizes)

    # Text

    def line(self, text: str) -> None:
        self.lines.append(" " * self.indent + text)

    def fresh(self, name: str) -> str:
        self.count += 1
        return f"{re.sub(r'^(?=[0-9])|[^0-9A-Za-z_]', '_', name)}_{self.count}"

    def site(self, access: Access, buffer: Buffer | None) -> str:
        self.sites.append(Site(self.block, access, buffer, tuple(var.name for var in self.loop_variables)))
        return str(len(self.sites) - 1)

    def loop_values(self) -> str:
        return tuple_text([self.variables[var] for var in self.loop_variables])

    def where(self) -> str:
        return f"block '{self.block}' of kernel '{self.kernel.name}'" if self.block else f"kernel '{self.kernel.name}'"

    def scope(self, emit: Callable[[], None], keep_loads: bool = False) -> None:
        """An indented suite with its own memory of computed expressions. Loads of the statement around stay known in a select."""
        self.indent += 1
        self.pure.append({})
        outer = self.volatile
        self.volatile = [*outer, {}] if keep_loads else [{}]
        before = len(self.lines)
        emit()
        if len(self.lines) == before:
            self.line("pass")
        self.volatile = outer
        self.pure.pop()
        self.indent -= 1

    def bound(self, var: Expr, name: str, emit: Callable[[], None]) -> None:
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


def tuple_text(items: list[str] | tuple[str, ...]) -> str:
    return "(" + "".join(item + ", " for item in items) + ")"
