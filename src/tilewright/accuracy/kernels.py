"""What each kernel of a compiled model computes, beside what the graph says that it should.

The plan runs step by step, on the memory that it will have in use. Before each launch the kernel's operands are looked at as they lie
there: what the graph says of these very operands is what the kernel should give. So errors of the kernels before do not add up, one that
is wrong answers for nobody else, and kernels in loops and branches are judged like all others, at each turn. Operands that are no longer
what a kernel before had stored there show that the plan gave their memory away too soon.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tilewright.accuracy.errors import LARGE, Error, error_of, is_large, share_beyond, tolerance_of
from tilewright.accuracy.judge import Judge, Verdict, judge_of_node
from tilewright.compiler import Compiled, constant_offsets
from tilewright.graph.in_place import stacked
from tilewright.graph.interpreter import Interpreter, bind_inputs, interpret
from tilewright.graph.node import Function, GraphBuilder, Node, Value, walk_nodes
from tilewright.graph.ops import Constant, ConstantData, Fused
from tilewright.ir.expr import Expr
from tilewright.ir.traverse import evaluate_int
from tilewright.ir.types import bind_shape
from tilewright.plan.steps import Launch, Place, walk_steps
from tilewright.runtime.specs import Array
from tilewright.target.cpu.stepper import Stepper

JUDGED_CALLS = 16  # of a kernel in a loop the first calls are judged, then those whose number is a power of two


@dataclass(slots=True)
class Traced:
    """One kernel: its name, the nodes of the model that it computes, and its group in the graph. calls: how often it ran; judged: how many
    of these were judged. verdict: the worst, with dtype and shape of that result; None for a kernel that never ran. given, found, expected:
    operands without constants and results of the first call that was wrong, else empty; judge: that of this call. overwritten: the
    operand that had changed since it was stored, and the kernel that had stored it; empty where none had."""

    name: str
    nodes: tuple[str, ...]
    group: Node | None
    calls: int = 0
    judged: int = 0
    verdict: Verdict | None = None
    dtype: str = ""
    shape: tuple[int, ...] = ()
    given: tuple[Array, ...] = ()
    found: tuple[Array, ...] = ()
    expected: tuple[Array, ...] = ()
    judge: Judge | None = None
    overwritten: str = ""

    @property
    def ok(self) -> bool:
        return not self.overwritten and (self.verdict is None or self.verdict.ok)


def trace_kernels(compiled: Compiled, inputs: Sequence[Array], threads: int | None, tolerance: float | None = None) -> list[Traced]:
    """Run the plan step by step and judge every kernel. tolerance: of the relative error, in place of what rounding errors allow."""
    sizes = sizes_of_inputs(compiled, inputs)
    launches = [step for step in walk_steps(compiled.plan.steps) if isinstance(step, Launch)]
    traced = {id(step): Traced(step.kernel.name, tuple(str(origin) for origin in step.origins), step.group) for step in launches}
    stepper = stepper_of(compiled, threads)
    watcher = _Watcher(compiled, stepper, tolerance, traced)
    stepper.before = watcher.before
    stepper.run([np.ascontiguousarray(x) for x in inputs], sizes, watcher.after)
    return [traced[id(step)] for step in launches]


def merged(runs: Sequence[Sequence[Traced]], compiled: Compiled) -> list[Traced]:
    """What several runs found, as one: the worst verdicts, and what was given where a kernel was first wrong."""
    if not runs:
        launches = [step for step in walk_steps(compiled.plan.steps) if isinstance(step, Launch)]
        return [Traced(step.kernel.name, tuple(map(str, step.origins)), step.group) for step in launches]
    found = []
    for turns in zip(*runs, strict=True):
        judged = [each for each in turns if each.verdict is not None] or [turns[0]]
        worst = max(judged, key=lambda each: (False, False, 0.0) if each.verdict is None else rank(each.verdict))
        shown = next((each for each in turns if each.found), worst)
        overwritten = next((each.overwritten for each in turns if each.overwritten), "")
        counts = sum(each.calls for each in turns), sum(each.judged for each in turns)
        kept = replace(worst, given=shown.given, found=shown.found, expected=shown.expected, judge=shown.judge, overwritten=overwritten)
        found.append(replace(kept, calls=counts[0], judged=counts[1]))
    return found


def sizes_of_inputs(compiled: Compiled, inputs: Sequence[Array]) -> dict[Expr, int]:
    """The sizes that the inputs' shapes determine."""
    sizes: dict[Expr, int] = {}
    bind_inputs([param.type for param in compiled.module.main.params], inputs, sizes)
    return sizes


def stepper_of(compiled: Compiled, threads: int | None) -> Stepper:
    offsets, _ = constant_offsets([constant.type for constant in compiled.constants])
    return Stepper(compiled.plan, compiled.artifact, offsets, threads or 1)


@dataclass(slots=True)
class _Watcher:
    compiled: Compiled
    stepper: Stepper
    tolerance: float | None
    traced: dict[int, Traced]
    operands: list[Array] = field(default_factory=list)
    expected: list[Array] = field(default_factory=list)
    stored: dict[Value, tuple[int, str]] = field(default_factory=dict)  # checksum of what a kernel has stored, and its name

    def before(self, step: Launch, operands: Sequence[Array]) -> None:
        each, group = self.traced[id(step)], step.group
        each.calls += 1
        self.expected = []
        if group is None:
            return
        for number, (value, array) in enumerate(zip(group.inputs, operands, strict=True)):
            found, writer = self.stored.get(value, (0, ""))
            if writer and not each.overwritten and found != checksum(array):
                each.overwritten = f"operand {number} is no longer what {writer} has stored"
        if each.calls > JUDGED_CALLS and each.calls & (each.calls - 1):
            return
        self.operands = [self.as_it_is(value, place, array) for value, place, array in zip(group.inputs, step.args, operands, strict=False)]
        self.expected = Interpreter(self.compiled.module).results_of(group, self.operands, dict(self.stepper.sizes))

    def as_it_is(self, value: Value, place: Place, array: Array) -> Array:
        """An operand, where it is a constant not as it is stored for the kernel."""
        if isinstance(value.op, Constant):
            return constant_of(value)
        whole = stacked(value)
        if whole is None:
            return np.array(array)
        shape = bind_shape(value.shape, {})
        number = evaluate_int(place.offset, self.stepper.sizes) // evaluate_int(place.type.bytes, {})
        return np.array(constant_of(whole).reshape(-1, *shape)[number])

    def after(self, step: Launch, results: Sequence[Array], seconds: float) -> None:
        each, group = self.traced[id(step)], step.group
        if group is None:
            return
        self.stored.update((value, (checksum(array), each.name)) for value, array in zip(group.values, results, strict=True))
        if not self.expected:
            return
        each.judged += 1
        judge = judge_of_node(group, self.operands, dict(self.stepper.sizes), self.expected, self.compiled.module)
        for result, verdict in zip(results, judge(results, None, self.tolerance), strict=True):
            if each.verdict is None or rank(verdict) > rank(each.verdict):
                each.verdict, each.dtype, each.shape = verdict, result.dtype.name, result.shape
            if not verdict.ok and not each.found:
                each.group = settled(group, self.operands)
                each.given = tuple(a for v, a in zip(each.group.inputs, self.operands, strict=True) if not isinstance(v.op, Constant))
                each.found, each.expected = tuple(np.array(r) for r in results), tuple(self.expected)
                each.judge = judge


def settled(group: Node, operands: Sequence[Array]) -> Node:
    """The group with those of its operands that are slices of constants as constants themselves, as which it was compiled."""
    g = GraphBuilder()
    known = [
        value if stacked(value) is None else g.one(Constant(ConstantData(array)))
        for value, array in zip(group.inputs, operands, strict=True)
    ]
    return group if known == list(group.inputs) else g.emit(group.op, *known, origin=group.origin)[0].node


def rank(verdict: Verdict) -> tuple[bool, bool, float]:
    """Orders verdicts, the worst last."""
    return not verdict.ok, verdict.rounding, verdict.error.relative


def constant_of(value: Value) -> Array:
    (array,) = value.op.reference(())
    return np.asarray(array)


def checksum(array: Array) -> int:
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


@dataclass(frozen=True, slots=True)
class Drift:
    """The first kernel whose result lies far off what the reference gives from the model's inputs (`is_large`), all errors before it
    included: its nodes and its error, and the share of elements that do."""

    name: str
    nodes: tuple[str, ...]
    error: Error
    share: float


def first_drift(compiled: Compiled, inputs: Sequence[Array], threads: int | None) -> Drift | None:
    """Where results of the compiled model and of the reference begin to go apart. Holds all results of the reference at once."""
    main = compiled.module.main
    groups = [node for node in walk_nodes(main.results) if isinstance(node.op, Fused)]
    values = [value for node in groups for value in node.values]
    expected = dict(zip(values, interpret(Function("kernels", main.params, tuple(values)), inputs), strict=True))
    found: list[Drift] = []

    def after(step: Launch, results: Sequence[Array], seconds: float) -> None:
        if found or step.group is None:
            return
        for value, result in zip(step.group.values, results, strict=True):
            right = expected.pop(value, None)
            if right is None:
                continue
            error = error_of(result, right)
            if is_large(error, right.dtype) and not found:
                nodes = tuple(str(origin) for origin in step.origins)
                found.append(Drift(step.kernel.name, nodes, error, share_beyond(result, right, max(LARGE, tolerance_of(right.dtype)))))

    stepper_of(compiled, threads).run([np.ascontiguousarray(x) for x in inputs], sizes_of_inputs(compiled, inputs), after)
    return found[0] if found else None
