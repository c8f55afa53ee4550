"""The Plan form: ordered steps over placed buffers.

Memory is divided into regions. Inputs, outputs and constants come from outside. `Arena(0)` holds what has a size known when the
inference starts; each size that depends on data opens further arenas, allocated once their sizes are bound. Inside a region a
buffer has an offset; offsets and sizes are expressions of the named sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tilewright.graph.node import Node, Origin
from tilewright.ir.expr import Expr
from tilewright.ir.types import TensorType
from tilewright.kernel.nodes import Kernel
from tilewright.runtime.constants import ALIGNMENT

RegionKind = Literal["input", "output", "constant", "arena"]


@dataclass(frozen=True, slots=True)
class Region:
    """One piece of memory: the `index`-th of its kind. For constants the index numbers the weights, each placed by the artifact."""

    kind: RegionKind
    index: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies: a region and a byte offset in it."""

    region: Region
    offset: Expr
    type: TensorType


@dataclass(frozen=True, slots=True)
class Launch:
    """Run a kernel: `args` are its inputs, outputs and, last, its workspace if it has one. `origins` are the model nodes it computes,
    `group` the node of the optimised graph."""

    kernel: Kernel
    args: tuple[Place, ...]
    sizes: tuple[Expr, ...]
    origins: tuple[Origin, ...] = ()
    group: Node | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy the bytes of `source` to `target`."""

    target: Place
    source: Place


@dataclass(frozen=True, slots=True)
class Bind:
    """Read a size from the one int64 or int32 of a tensor; fails when it is outside of the size's range."""

    size: Expr
    source: Place
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class SetSize:
    """Give a size the value of an expression (results of branches and loops)."""

    size: Expr
    value: Expr


@dataclass(frozen=True, slots=True)
class Allocate:
    """Make an arena at least `bytes` large. What it held before is lost."""

    arena: Region
    bytes: Expr


@dataclass(frozen=True, slots=True)
class Grow:
    """Make an arena at least `bytes` large, keeping what it holds (results that grow with each iteration of a loop)."""

    arena: Region
    bytes: Expr


@dataclass(frozen=True, slots=True)
class Check:
    """Stop with `message` unless the condition holds; `show` are expressions whose values the message quotes ({0}, {1} ...)."""

    condition: Expr
    message: str
    show: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class Branch:
    """Run one of two step lists by a bool scalar in memory."""

    condition: Place
    then: tuple[Step, ...]
    otherwise: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """Run `body` while `counter` < `trip` (when given) and the bool at `condition` (when given) is true. `counter` is a named size that
    the loop sets to 0, 1, ...; after the loop it holds the number of iterations."""

    counter: Expr
    trip: Expr | None
    condition: Place | None
    body: tuple[Step, ...]


Step: TypeAlias = Launch | Copy | Bind | SetSize | Allocate | Grow | Check | Branch | Loop


@dataclass(frozen=True, slots=True)
class Plan:
    """A placed program. `inputs` and `outputs` are the types of the entry's arguments; outputs listed in `late_outputs` have sizes
    known only while running and are allocated by the plan. `arena_bytes` is the size of arena 0, the peak of what is known at the start;
    `arenas` counts all. `sizes` are all named sizes, those of the inputs first."""

    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    late_outputs: tuple[int, ...]
    constants: tuple[TensorType, ...]
    steps: tuple[Step, ...]
    arena_bytes: Expr
    arenas: int
    sizes: tuple[Expr, ...]
    input_sizes: int


def walk_steps(steps: tuple[Step, ...]) -> Iterator[Step]:
    """Every step, also inside of branches and loops, in program order."""
    for step in steps:
        yield step
        if isinstance(step, Branch):
            yield from walk_steps(step.then)
            yield from walk_steps(step.otherwise)
        elif isinstance(step, Loop):
            yield from walk_steps(step.body)


def literal(text: str) -> str:
    """Text as part of a check's message, where braces have a meaning."""
    return text.replace("{", "{{").replace("}", "}}")


def aligned(size: Expr) -> Expr:
    """`size` rounded up to the alignment of buffers."""
    return (size + (ALIGNMENT - 1)) // ALIGNMENT * ALIGNMENT
