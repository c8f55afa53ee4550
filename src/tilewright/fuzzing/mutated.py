"""Compiling a case in another way than the compiler would: graph passes in another order, kernels at random points of their spaces, random
schedule primitives. Each pass and each schedule is checked where it was applied, before any code is made of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tilewright.compiler import Compiled, compile_optimised, graph_passes
from tilewright.fuzzing.growth import Array
from tilewright.fuzzing.primitives import Drawn, cost, step
from tilewright.graph.interpreter import Interpreter, Sizes
from tilewright.graph.node import Function, Module, Node, walk_nodes
from tilewright.graph.ops import Constant, Fused
from tilewright.kernel.interpreter import bind_sizes, shaped
from tilewright.kernel.interpreter import interpret as run_kernel
from tilewright.kernel.nodes import Kernel
from tilewright.kernel.schedule.given import GivenSchedule, GivenSchedules, kernel_hash
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.kernel.schedule.space import Space
from tilewright.machine.description import Machine
from tilewright.support.errors import ScheduleError, TilewrightError
from tilewright.support.settings import Settings
from tilewright.target.cpu.rules.choose import schedule_kernel
from tilewright.transform.functions import on_all_functions
from tilewright.transform.inline_calls import inline_calls
from tilewright.transform.lower_groups import lower_group
from tilewright.transform.verify import verify_module

if TYPE_CHECKING:
    from tilewright.fuzzing.cases import How

T = TypeVar("T")

TAIL = ("open_composites", "sink_folded", "isolate")  # what code generation cannot do without, after all others
FINAL = ("fuse", "pair_convolutions", "turn_in_loops")  # groups are final: these come last, in this order
NEEDS = {"choose_winograd": "block_channels"}  # passes that only know what another one leaves behind
INTERPRETED = 20_000  # points of a schedule that the kernel interpreter runs
OTHER = 0.5  # chance of another option at each decision


@dataclass(slots=True)
class RandomSpace(Space):
    """A space at a random point: at each decision some option, often the default."""

    rng: np.random.Generator = field(default_factory=np.random.default_rng)

    def choose(self, name: str, options: Sequence[T], cost: Callable[[T], float], why: str) -> T:
        """One of the options."""
        if self.rng.random() < OTHER:
            number = int(self.rng.integers(len(options)))
            return Space.choose(self, name, options, lambda option: 0.0 if option is options[number] else 1.0, why)
        return Space.choose(self, name, options, cost, why)


@dataclass(slots=True)
class Made:
    """What was compiled, and what was reached on the way: passes, decisions and primitives, as names."""

    compiled: Compiled
    reached: set[str]


class Unlike(Exception):
    """A pass or a schedule changed what is computed; the text says which."""


def pass_names(machine: Machine, settings: Settings) -> tuple[str, ...]:
    """Passes that a sequence may consist of, in the compiler's order."""
    return tuple(p.name for p in graph_passes(machine) if p.name not in TAIL and p.runs(settings))


def compile_mutated(
    module: Module,
    machine: Machine,
    settings: Settings,
    how: How,
    inputs: Sequence[Array],
    check: Callable[[Sequence[Array]], str | None],
) -> Made:
    """Compile by the passes and genes of `how`. `check` says what is wrong with results, if anything is. Raises Unlike where something is,
    and as the compiler does."""
    reached: set[str] = set()
    allowed = pass_names(machine, settings)
    names = [name for name in how.passes or allowed if name in allowed]
    module = by_passes(module, machine, names, inputs, check, reached)
    schedules = other_schedules(module, machine, settings, how.genes, inputs, reached)
    return Made(compile_optimised(module, machine, settings, schedules=schedules), reached)


def by_passes(
    module: Module,
    machine: Machine,
    names: Sequence[str],
    inputs: Sequence[Array],
    check: Callable[[Sequence[Array]], str | None],
    reached: set[str],
) -> Module:
    """The module after these passes, and those that there must be."""
    table = {p.name: p.apply for p in graph_passes(machine)}
    free = [name for name in names if name not in FINAL]
    order = [*free, *TAIL[:2], *(["fuse"] if "fuse" in names else []), TAIL[2], *(name for name in FINAL[1:] if name in names)]
    module = inline_calls(module)
    before = "the beginning"
    for i, name in enumerate(order):
        if NEEDS.get(name, "") not in ("", *order[:i]):
            continue
        changed = on_all_functions(module, table[name])
        if changed.main is module.main:
            continue
        module = changed
        verify_module(module, name)
        reached.add(f"pass {before} > {name}")
        before = name
        wrong = check(Interpreter(module).run(module.main, list(inputs), {}))
        if wrong is not None:
            raise Unlike(f"after the pass {name}: {wrong}")
    return module


class Recorder(Interpreter):
    """The reference, which keeps what each group is given and what it gives, the first time."""

    __slots__ = ("groups",)

    def __init__(self, module: Module) -> None:
        super().__init__(module)
        self.groups: dict[Node, tuple[list[Array], list[Array], Sizes]] = {}

    def _node(self, node: Node, inputs: list[Array], sizes: Sizes) -> list[Array]:
        results = super()._node(node, inputs, sizes)
        if isinstance(node.op, Fused):
            self.groups.setdefault(node, (inputs, results, dict(sizes)))
        return results


def other_schedules(
    module: Module, machine: Machine, settings: Settings, genes: Sequence[int], inputs: Sequence[Array], reached: set[str]
) -> GivenSchedules | None:
    """A schedule for some kernels: each gene changes one of them. None without genes."""
    if not genes:
        return None
    recorder = Recorder(module)
    recorder.run(module.main, list(inputs), {})
    groups = [node for node in walk_nodes(module.main.results) if isinstance(node.op, Fused)]
    kernels = {node: lower_group(body_of(node)) for node in groups}
    constants = {node: frozenset(i for i, value in enumerate(node.inputs) if isinstance(value.op, Constant)) for node in groups}
    found: dict[Node, tuple[Schedule, dict[str, Any] | None]] = {}
    for gene in genes:
        if not groups:
            break
        rng = np.random.default_rng(gene)
        node = groups[int(rng.integers(len(groups)))]
        kernel, packable = kernels[node], constants[node]
        points = recorder.groups.get(node)
        begun = found.get(node)
        if rng.random() < 0.4 and (begun is None or begun[1] is not None):
            space = RandomSpace(rng=rng)
            try:
                schedule = schedule_kernel(kernel, packable, machine, settings.precision != "strict", space)
            except ScheduleError as error:
                raise Unlike(f"no rule could schedule a kernel at a point of its own space: {error.what}") from error
            found[node] = schedule, space.point()
            reached.update(f"{d.name} {d.options[d.taken]!r}" for d in space.decisions)
        else:
            schedule = Schedule.of(kernel) if begun is None else begun[0]
            names = [kernel.inputs[i].name for i in sorted(packable)]
            for _ in range(int(rng.integers(1, 4))):
                following, done = step(schedule, Drawn(rng), names)
                reached.add(done)
                if points is None or cost(following, {v: points[2].get(v, 8) for v in following.kernel.sizes}) < INTERPRETED:
                    schedule = following
            found[node] = schedule, None
        if points is not None:
            check_schedule(kernel, found[node][0], *points)
    entries = {
        kernel_hash(kernels[node], constants[node]): GivenSchedule(kernels[node].name, point, None if point is not None else schedule.trace)
        for node, (schedule, point) in found.items()
    }
    return GivenSchedules(entries)


def body_of(node: Node) -> Function:
    if not isinstance(node.op, Fused):
        raise TypeError(f"{node!r} is no group")
    return node.op.body


def check_schedule(kernel: Kernel, s: Schedule, operands: Sequence[Array], results: Sequence[Array], sizes: Sizes) -> None:
    """The scheduled kernel in the kernel interpreter, beside the definition. Raises Unlike where they differ, or the interpreter finds an
    access out of bounds, a race, or a read of what nobody wrote."""
    if cost(s, {v: sizes.get(v, 8) for v in s.kernel.sizes}) >= INTERPRETED:
        return
    layouts = {layout.buffer: layout for layout in s.layouts}
    packed = [layouts[b.name].pack(a) if b.name in layouts else a for b, a in zip(kernel.inputs, operands, strict=True)]
    said = "\n".join(str(step) for step in s.trace.instructions[-3:])
    try:
        bound = bind_sizes(kernel, operands, sizes)
        found = run_kernel(s.kernel, shaped(s.kernel, packed, bound), bound)
    except TilewrightError as error:
        raise Unlike(f"a scheduled kernel is invalid: {error.what}, {error.why}; its last steps: {said}") from error
    for number, (got, right) in enumerate(zip(found, results, strict=True)):
        a, b = got.astype(np.float64).reshape(right.shape), right.astype(np.float64)
        finite = np.isfinite(b)
        close = np.isclose(a, b, rtol=0.02, atol=0.02 * float(np.abs(b[finite]).max(initial=0.0)) + 1e-6, equal_nan=True)
        if np.count_nonzero(~close & finite) > max(1, close.size // 100):
            raise Unlike(f"a schedule changed result {number} of {kernel.name}; its last steps: {said}")
