"""What the planner places: storages (pieces of memory with a size and a live interval) and views of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tilewright.ir.expr import Expr, const, size
from tilewright.ir.simplify import simplify
from tilewright.ir.traverse import free_vars
from tilewright.ir.types import TensorType
from tilewright.plan.steps import Copy, Grow, Place, Region, RegionKind, Step

ZERO = const(0)


@dataclass(slots=True)
class BindPoint:
    """A moment at which sizes get their values; storages that need them are allocated right after it."""

    number: int


@dataclass(slots=True, eq=False)
class Storage:
    """A piece of memory being planned. `first` and `last` are the ticks between which it is in use. `grows`: it has a region of its own,
    which `Grow` steps make large enough. `forward`: it is a part of another storage instead of having memory of its own."""

    number: int
    kind: RegionKind
    index: int
    bytes: Expr
    bind: BindPoint | None
    first: int
    last: int
    grows: bool = False
    forward: View | None = None


@dataclass(frozen=True, slots=True)
class View:
    """A tensor: a storage, a byte offset in it and the tensor's type."""

    storage: Storage
    offset: Expr
    type: TensorType


@dataclass(frozen=True, slots=True)
class Marker:
    """Where the arena of a bind point is allocated."""

    bind: BindPoint


PlannedStep = Step | Marker


@dataclass(frozen=True, slots=True)
class Overwriting:
    """At `tick` a kernel may store `result` over `operand`, unless that is needed afterwards or is one of the `others` that it reads."""

    tick: int
    operand: View
    result: View
    others: tuple[View, ...]


@dataclass(slots=True)
class Ledger:
    """Storages and steps as they are planned; the clock ticks with every step. The regions of places are still storage numbers."""

    clock: int = 0
    storages: list[Storage] = field(default_factory=list)
    steps: list[PlannedStep] = field(default_factory=list)
    binds: dict[Expr, BindPoint] = field(default_factory=dict)
    bind_count: int = 0
    late_sizes: dict[Expr, None] = field(default_factory=dict)
    overwritings: list[Overwriting] = field(default_factory=list)
    names: set[str] = field(default_factory=set)  # of all sizes

    def own_size(self, name: str, lo: int | None) -> Expr:
        """A size that only the plan has, which a step binds: named `name`, or so with a number where another size is."""
        unique = next(each for each in (name, *(f"{name}_{n}" for n in range(len(self.names)))) if each not in self.names)
        self.names.add(unique)
        made = size(unique, lo)
        self.late_sizes[made] = None
        return made

    def storage(self, bytes_: Expr, kind: RegionKind = "arena", index: int = 0, grows: bool = False) -> Storage:
        """A new storage, in use from now on; its arena is that of the latest bind point among the sizes of `bytes_`."""
        made = Storage(len(self.storages), kind, index, bytes_, self._bound_by(free_vars(bytes_)), self.clock, self.clock, grows)
        self.storages.append(made)
        return made

    def _bound_by(self, sizes: Sequence[Expr]) -> BindPoint | None:
        """The latest bind point of sizes."""
        return max((self.binds[used] for used in sizes if used in self.binds), key=lambda point: point.number, default=None)

    def output(self, type_: TensorType, index: int) -> View:
        """A result of the whole plan. Its shape is known when all of its sizes are bound, also if it has no elements whatever they are."""
        storage = self.storage(simplify(type_.bytes), "output", index)
        storage.bind = self._bound_by(free_vars(*type_.shape))
        return View(storage, ZERO, type_)

    def tensor(self, type_: TensorType, grows: bool = False) -> View:
        return View(self.storage(simplify(type_.bytes), grows=grows), ZERO, type_)

    def use(self, storage: Storage) -> None:
        """Keep a storage, and what it is a part of, until now."""
        storage.last = max(storage.last, self.clock)
        if storage.forward is not None:
            self.use(storage.forward.storage)

    def place(self, view: View) -> Place:
        """The view as a Place of its storage; marks it used now."""
        self.use(view.storage)
        return Place(Region("arena", view.storage.number), view.offset, view.type)

    def step(self, step: Step) -> None:
        self.steps.append(step)
        self.clock += 1

    def bind_point(self, sizes: Sequence[Expr]) -> BindPoint:
        """A new moment at which `sizes` are bound; call `mark` where it happens."""
        point = BindPoint(self.bind_count)
        self.bind_count += 1
        for bound in sizes:
            self.binds[bound] = point
            self.late_sizes[bound] = None
        return point

    def mark(self, point: BindPoint) -> None:
        self.steps.append(Marker(point))
        self.clock += 1

    def grow(self, view: View, bytes_: Expr) -> None:
        """Make the region of a growing storage large enough."""
        self.use(view.storage)
        self.step(Grow(Region("arena", view.storage.number), bytes_))

    def may_overwrite(self, operand: View, result: View, others: Sequence[View]) -> None:
        """The step to come may store `result` over `operand`; `others`: what else it reads."""
        self.overwritings.append(Overwriting(self.clock, operand, result, tuple(others)))

    def overwrite(self) -> None:
        """When all steps are known: let results be stored over operands that are not needed any more, in order of the steps."""
        for found in self.overwritings:
            made, old = found.result.storage, found.operand.storage
            whole = found.operand.offset is ZERO
            while old.forward is not None:
                whole = whole and old.forward.offset is ZERO
                old = old.forward.storage
            free = old.last == found.tick and made.first == found.tick and made.forward is None
            movable = all(storage.kind == "arena" and not storage.grows for storage in (made, old)) and old.bind is made.bind
            if whole and free and movable and old.bytes is made.bytes and not any(_root(view.storage) is old for view in found.others):
                made.forward = View(old, ZERO, found.result.type)
                old.last = max(old.last, made.last)

    def copy(self, target: View, source: View) -> None:
        self.step(Copy(self.place(target), self.place(source)))

    def deliver(self, source: View, target: View, since: int | None = None) -> None:
        """Make `target` hold what `source` holds: by letting the source's producer write there, else by a copy.

        The producer may write to the target when that is in use, and so reserved, from before the producer on, and both are
        allocated at the same time. A target that comes later is reserved from the producer on if that ran at tick `since` or later (the
        beginning of the function, or of the iteration, that both belong to).
        """
        own = source.storage
        movable = own.kind == "arena" and own.forward is None and not own.grows and source.offset is ZERO
        reserved = target.storage.first <= own.first or target.storage.kind == "output" or (since is not None and own.first >= since)
        if movable and reserved and own.bind is target.storage.bind and own.bytes is simplify(source.type.bytes):
            own.forward = target
            target.storage.first = min(target.storage.first, own.first)
            target.storage.last = max(target.storage.last, own.last)
            self.use(target.storage)
            return
        self.copy(target, source)


def _root(storage: Storage) -> Storage:
    """The storage whose memory another is in."""
    while storage.forward is not None:
        storage = storage.forward.storage
    return storage
