"""Finding what makes a result wrong: a graph pass, a kernel, a step of its schedule.

Passes: the graph after each is run operator by operator in NumPy; the first whose results differ from those of the imported graph is at
fault. Kernels: one that differs is compiled alone and run on what it should have been given, so that it does not answer for others.
Schedules: the kernel is compiled with ever fewer instructions of its trace. Each search halves what is left, and so takes for granted that
what is wrong stays wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.accuracy.errors import error_of, tolerance_of
from tilewright.accuracy.kernels import Traced
from tilewright.compiler import Compiled, compile_optimised, optimise
from tilewright.graph.interpreter import interpret
from tilewright.graph.node import Function, GraphBuilder, Module, Node, Parameter, Value
from tilewright.graph.ops import Constant, Fused
from tilewright.graph.text import format_module
from tilewright.kernel.schedule.given import GivenSchedule, GivenSchedules, kernel_hash
from tilewright.kernel.schedule.trace import Trace
from tilewright.kernel.script import format_kernel
from tilewright.machine.description import Machine
from tilewright.runtime.executable import Executable
from tilewright.runtime.specs import Array
from tilewright.support.errors import TilewrightError
from tilewright.support.settings import Settings
from tilewright.target.cpu.groups import make_code


@dataclass(frozen=True, slots=True)
class Culprit:
    """What is at fault. kind: pass, schedule, kernel, or plan; name: of the pass, of the primitive or of the kernel; about: what was seen.
    texts: file name -> content, everything that shows the fault: graphs before and after, the kernel, its schedule. arrays: what the kernel
    was given."""

    kind: str
    name: str
    about: str
    texts: tuple[tuple[str, str], ...] = ()
    arrays: tuple[tuple[str, Array], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data, without texts and arrays."""
        return {"kind": self.kind, "name": self.name, "about": self.about}

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.about}"


def find_culprit(
    imported: Module,
    machine: Machine,
    settings: Settings,
    compiled: Compiled,
    traced: Sequence[Traced],
    inputs: Sequence[Array],
    tolerance: float | None,
    kernels_differ: bool,
) -> Culprit:
    """What makes the compiled model wrong on these inputs: `kernels_differ` where a kernel is seen to."""
    if not kernels_differ:
        return wrong_pass(imported, machine, settings, inputs, tolerance)
    alone: list[str] = []
    for each in traced:
        if each.group is None or agree(each.found, each.expected, tolerance):
            continue
        given = operands(compiled.module, each.group, inputs)
        if not agree(run_alone(each.group, given, machine, settings, None), each.expected, tolerance):
            return wrong_schedule(each, given, machine, settings, tolerance)
        alone.append(each.name)
    about = f"{alone[0] if alone else 'a kernel'} is right when it runs alone: what it reads was overwritten, or not yet written"
    return Culprit("plan", "memory and order", about, (("optimised.txt", format_module(compiled.module, origins=True)),))


def agree(found: Sequence[Array], expected: Sequence[Array], tolerance: float | None) -> bool:
    """Whether all results are within tolerance."""
    pairs = zip(found, expected, strict=True)
    return all(error_of(f, e).relative <= (tolerance_of(e.dtype) if tolerance is None else tolerance) for f, e in pairs)


def first_bad(count: int, good: Callable[[int], bool]) -> int:
    """The least number in 1 .. count that is not good, if 0 is good, count is not, and what follows a bad one is bad."""
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if good(middle) else (low, middle)
    return high


def wrong_pass(imported: Module, machine: Machine, settings: Settings, inputs: Sequence[Array], tolerance: float | None) -> Culprit:
    """The first graph pass after which the graph means something else."""
    stages: list[tuple[str, Module]] = [("import", imported)]
    optimise(imported, machine, settings, lambda name, module: stages.append((name, module)))
    expected = interpret(imported, inputs)

    def good(number: int) -> bool:
        try:
            return agree(interpret(stages[number][1], inputs), expected, tolerance)
        except TilewrightError:  # a graph that cannot be run any more
            return False

    last = len(stages) - 1
    if good(last):
        about = "graph and kernels agree with the model's operators in NumPy: the other account differs from both"
        return Culprit("importer", "import", about, (("imported.txt", format_module(imported, origins=True)),))
    number = first_bad(last, good)
    name, module = stages[number]
    before = stages[number - 1]
    texts = ((f"before_{name}.txt", format_module(before[1], origins=True)), (f"after_{name}.txt", format_module(module, origins=True)))
    return Culprit("pass", name, f"the graph means something else after it ({number} of {last}; the one before is {before[0]})", texts)


def operands(module: Module, group: Node, inputs: Sequence[Array]) -> list[Array]:
    """What a group is given, as the graph says, without constants."""
    wanted = tuple(value for value in group.inputs if not isinstance(value.op, Constant))
    return interpret(Function("operands", module.main.params, wanted), inputs)


def alone(group: Node) -> Module:
    """A module of one group; its operands are the inputs, but for constants."""
    g = GraphBuilder()
    params: list[Value] = []
    values = []
    for value in group.inputs:
        if isinstance(value.op, Constant):
            values.append(value)
            continue
        params.append(g.one(Parameter(f"operand{len(params)}", value.type)))
        values.append(params[-1])
    results = g.emit(group.op, *values, origin=group.origin)
    names = tuple(f"operand{i}" for i in range(len(params)))
    return Module({"main": Function("main", tuple(params), results)}, "main", names, tuple(f"result{i}" for i in range(len(results))))


def run_alone(group: Node, given: Sequence[Array], machine: Machine, settings: Settings, schedules: GivenSchedules | None) -> list[Array]:
    """The results of a group compiled alone."""
    module = alone(group)
    executable = Executable(compile_optimised(module, machine, settings, schedules=schedules).artifact, settings.threads)
    return list(executable.run(dict(zip(module.input_names, given, strict=True))).values())


def wrong_schedule(each: Traced, given: Sequence[Array], machine: Machine, settings: Settings, tolerance: float | None) -> Culprit:
    """The instruction of a kernel's schedule that makes it wrong, or the kernel where none does."""
    group = each.group
    if group is None or not isinstance(group.op, Fused):
        raise TypeError(f"{each.name} is the kernel of no group")
    constants = frozenset(i for i, value in enumerate(group.inputs) if isinstance(value.op, Constant))
    code = make_code(group.op.body, constants, machine, settings, group.op.turn)
    steps = code.schedule.trace.instructions
    key = kernel_hash(code.defined, constants)

    def good(count: int) -> bool:
        schedules = GivenSchedules({key: GivenSchedule(each.name, None, Trace(steps[:count]))})
        try:
            return agree(run_alone(group, given, machine, settings, schedules), each.expected, tolerance)
        except TilewrightError:  # no code can be made of this much of the schedule: nothing is said by that
            return True

    nodes = ", ".join(each.nodes[:3]) or each.name
    arrays = tuple((f"operand{i}", array) for i, array in enumerate(given)) + tuple(
        (f"expected{i}", a) for i, a in enumerate(each.expected)
    )
    texts = [("kernel.txt", format_kernel(code.defined)), ("schedule.py", code.schedule.trace.to_python()), ("kernel.ll", code.ir)]
    if settings.opt_level < 3 or not steps or not good(0):
        about = f"wrong also without a schedule, for {nodes}: its definition, lowering or code generation"
        return Culprit("kernel", each.name, about, tuple(texts), arrays)
    number = first_bad(len(steps), good)
    step = steps[number - 1]
    about = f"instruction {number} of {len(steps)} of the schedule of {each.name}, for {nodes}: {step.name}({', '.join(step.args)})"
    texts += [("right.py", Trace(steps[: number - 1]).to_python()), ("wrong.py", Trace(steps[:number]).to_python())]
    return Culprit("schedule", step.name, about, tuple(texts), arrays)
