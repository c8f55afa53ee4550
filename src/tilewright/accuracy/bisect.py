"""Finding what makes a result wrong: a graph pass, a kernel, a step of its schedule.

Passes: the graph after each is run operator by operator in NumPy; the first whose results differ from those of the imported graph is at
fault. Kernels: one that differs is compiled alone and run on what it was given. Schedules: the kernel is compiled with ever fewer
instructions of its trace. These searches halve what is left, and so take for granted that what is wrong stays wrong. Groups: one that is
wrong without a schedule is compiled up to ever fewer of its operators. What differs, and what is rounding,
`judge.py` says; what rounding does to a kernel it measures once for all variants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tilewright.accuracy.judge import Judge, judge_of_module
from tilewright.accuracy.kernels import Traced
from tilewright.compiler import Compiled, compile_optimised, optimise
from tilewright.graph.interpreter import interpret
from tilewright.graph.node import Function, GraphBuilder, Module, Node, Parameter, Value, walk_nodes
from tilewright.graph.ops import Constant, Fused
from tilewright.graph.text import format_module
from tilewright.ir.traverse import free_vars
from tilewright.kernel.schedule.given import GivenSchedule, GivenSchedules, kernel_hash
from tilewright.kernel.schedule.trace import Trace
from tilewright.kernel.script import format_kernel
from tilewright.machine.description import Machine
from tilewright.runtime.executable import Executable
from tilewright.runtime.specs import Array
from tilewright.support.errors import GraphError, TilewrightError
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
    found: Sequence[Array],
    tolerance: float | None,
) -> Culprit:
    """What makes the compiled model wrong on these inputs: the first thing in order of execution, since kernels behind memory that was
    given away too soon are given anything. found: the outputs that it gives."""
    for each in traced:
        if each.overwritten:
            return wrong_plan(compiled, f"{each.name}: {each.overwritten}")
        if each.group is None or not each.found:
            continue
        try:
            if not right_alone(each, machine, settings, None, tolerance):
                return wrong_schedule(each, machine, settings, tolerance)
        except TilewrightError as error:  # a size of a loop that no operand shows
            return Culprit("kernel", each.name, f"{wrong_of(each)}; it cannot be compiled alone: {error.what}")
        return wrong_plan(compiled, f"{each.name} is right when it runs alone: its operands, results and working memory lie on each other")
    return wrong_pass(imported, machine, settings, compiled, inputs, found, tolerance)


def wrong_plan(compiled: Compiled, about: str) -> Culprit:
    return Culprit("plan", "memory and order", about, (("optimised.txt", format_module(compiled.module, origins=True)),))


def wrong_of(each: Traced) -> str:
    return "" if each.verdict is None else each.verdict.wrong


def first_bad(count: int, good: Callable[[int], bool]) -> int:
    """The least number in 1 .. count that is not good, if 0 is good, count is not, and what follows a bad one is bad."""
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if good(middle) else (low, middle)
    return high


def wrong_pass(
    imported: Module,
    machine: Machine,
    settings: Settings,
    compiled: Compiled,
    inputs: Sequence[Array],
    found: Sequence[Array],
    tolerance: float | None,
) -> Culprit:
    """The first graph pass after which the graph means something else."""
    stages: list[tuple[str, Module]] = [("import", imported)]

    def watch(name: str, module: Module) -> None:
        changed = any(module.functions.get(key) is not function for key, function in stages[-1][1].functions.items())
        if changed:  # passes that changed nothing are no suspects
            stages.append((name, module))

    optimise(imported, machine, settings, watch)
    judge = judge_of_module(imported, inputs, interpret(imported, inputs), settings.precision == "bf16")

    def agrees(results: Sequence[Array]) -> bool:
        return all(verdict.ok for verdict in judge(results, None, tolerance))

    def good(number: int) -> bool:
        try:
            return agrees(interpret(stages[number][1], inputs))
        except TilewrightError:  # a graph that cannot be run any more
            return False

    last = len(stages) - 1
    if good(last):
        if not agrees(found):
            return wrong_plan(compiled, "kernels and graph are right, the outputs are not: the order of steps, copies, or the entry")
        about = "graph and kernels agree with the model's operators in NumPy: the other account differs from both"
        return Culprit("importer", "import", about, (("imported.txt", format_module(imported, origins=True)),))
    number = first_bad(last, good)
    name, module = stages[number]
    before = stages[number - 1]
    texts = ((f"before_{name}.txt", format_module(before[1], origins=True)), (f"after_{name}.txt", format_module(module, origins=True)))
    return Culprit("pass", name, f"the graph means something else after it ({number} of {last}; the one before is {before[0]})", texts)


def alone(group: Node) -> Module:
    """A module of one group; its operands are the inputs, but for constants. Raises GraphError where these do not show a size."""
    g = GraphBuilder()
    params: list[Value] = []
    values = []
    for value in group.inputs:
        if isinstance(value.op, Constant):
            values.append(value)
            continue
        params.append(g.one(Parameter(f"operand{len(params)}", value.type)))
        values.append(params[-1])
    dims = [dim for value in params for dim in value.shape]
    hidden = [name for name in free_vars(*dims) if name not in dims]
    if hidden:
        raise GraphError(f"no operand has the size {hidden[0].attr.name} itself", where=str(group.origin))
    results = g.emit(group.op, *values, origin=group.origin)
    names = tuple(f"operand{i}" for i in range(len(params)))
    return Module({"main": Function("main", tuple(params), results)}, "main", names, tuple(f"result{i}" for i in range(len(results))))


def run_alone(group: Node, given: Sequence[Array], machine: Machine, settings: Settings, schedules: GivenSchedules | None) -> list[Array]:
    """The results of a group compiled alone."""
    module = alone(group)
    executable = Executable(compile_optimised(module, machine, settings, schedules=schedules).artifact, settings.threads)
    return list(executable.run(dict(zip(module.input_names, given, strict=True))).values())


def right_alone(each: Traced, machine: Machine, settings: Settings, schedules: GivenSchedules | None, tolerance: float | None) -> bool:
    """Whether a kernel gives what it should when it is compiled alone and given what it was given."""
    if each.group is None:
        raise TypeError(f"{each.name} is the kernel of no group")
    judge = each.judge or judge_of_module(alone(each.group), each.given, each.expected)
    return right(judge, each.group, each.given, machine, settings, schedules, tolerance)


def right(
    judge: Judge,
    group: Node,
    given: Sequence[Array],
    machine: Machine,
    settings: Settings,
    schedules: GivenSchedules | None,
    tolerance: float | None,
) -> bool:
    return all(verdict.ok for verdict in judge(run_alone(group, given, machine, settings, schedules), None, tolerance))


def wrong_schedule(each: Traced, machine: Machine, settings: Settings, tolerance: float | None) -> Culprit:
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
            return right_alone(each, machine, settings, schedules, tolerance)
        except TilewrightError:  # no code can be made of this much of the schedule: nothing is said by that
            return True

    nodes = ", ".join(each.nodes[:3]) or each.name
    arrays = tuple((f"operand{i}", a) for i, a in enumerate(each.given)) + tuple((f"expected{i}", a) for i, a in enumerate(each.expected))
    texts = [("kernel.txt", format_kernel(code.defined)), ("schedule.py", code.schedule.trace.to_python()), ("kernel.ll", code.ir)]
    if settings.opt_level < 3 or not steps or not good(0):
        about = f"wrong also without a schedule, for {nodes}{operator_at_fault(each, machine, settings, tolerance)}"
        return Culprit("kernel", each.name, f"{about}: its definition, lowering or code generation", tuple(texts), arrays)
    number = first_bad(len(steps), good)
    step = steps[number - 1]
    about = f"instruction {number} of {len(steps)} of the schedule of {each.name}, for {nodes}: {step.name}({', '.join(step.args)})"
    texts += [("right.py", Trace(steps[: number - 1]).to_python()), ("wrong.py", Trace(steps[:number]).to_python())]
    return Culprit("schedule", step.name, about, tuple(texts), arrays)


def operator_at_fault(each: Traced, machine: Machine, settings: Settings, tolerance: float | None) -> str:
    """Which operator of a fused group makes it wrong: the first one up to which the group gives something else, and whether that one is
    wrong in a kernel of its own or only together with what it is fused with. Words to add; none for a group of one operator."""
    group = each.group
    if group is None or not isinstance(group.op, Fused):
        return ""
    body = group.op.body
    nodes = [node for node in walk_nodes(body.results) if not isinstance(node.op, (Parameter, Constant))]
    if len(nodes) < 2:
        return ""
    operands = iter(each.given)
    arrays = [np.asarray(v.op.reference(())[0]) if isinstance(v.op, Constant) else next(operands) for v in group.inputs]
    values = dict.fromkeys(value for node in nodes for value in (*node.inputs, *node.values))
    known = dict(zip(values, interpret(Function("values", body.params, tuple(values)), arrays), strict=True))

    def good(part: Node, given: Sequence[Array], results: Sequence[Value]) -> bool:
        try:
            judge = judge_of_module(alone(part), given, [known[value] for value in results])
            return right(judge, part, given, machine, settings, None, tolerance)
        except TilewrightError:  # not everything that can be computed inside of a group can be its result
            return True

    @cache
    def good_up_to(count: int) -> bool:
        values = nodes[count - 1].values
        part = Fused(Function(body.name, body.params, values))
        return good(GraphBuilder().emit(part, *group.inputs, origin=group.origin)[0].node, each.given, values)

    # Mostly the last one shows what is wrong; where it does not, as where there are several results, each is asked.
    numbers = [first_bad(len(nodes), good_up_to)] if not good_up_to(len(nodes)) else range(1, len(nodes))
    number = next((number for number in numbers if not good_up_to(number)), None)
    if number is None:
        return ", of whose operators each is right"
    node = nodes[number - 1]
    g = GraphBuilder()
    own = {value: g.one(Parameter(f"operand{i}", value.type)) for i, value in enumerate(dict.fromkeys(node.inputs))}
    single = Function(body.name, tuple(own.values()), g.emit(node.op, *(own[value] for value in node.inputs)))
    outer = [g.one(Parameter(f"outer{i}", value.type)) for i, value in enumerate(own)]
    fine = good(g.emit(Fused(single), *outer)[0].node, [known[value] for value in own], node.values)
    return f", from {node.origin or node.op.name} on, which is {'right' if fine else 'wrong also'} in a kernel of its own"
