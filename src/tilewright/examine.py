"""What a model needs, before anything is compiled: everything missing, and estimates of memory and work.

report = tw.check("model.onnx")
if not report.ok:
    print(report)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.api import Dims, dim_range, target_machine
from tilewright.compiler import check_memory, constant_offsets, optimise
from tilewright.frontend.dims import DimRange
from tilewright.frontend.onnx.host import may_want_host, partition, wants_host
from tilewright.frontend.onnx.loader import LoadedModel, load_model
from tilewright.frontend.onnx.survey import Refusal, node_named, operator_counts, refusal, survey
from tilewright.graph.in_place import constant_operands
from tilewright.graph.node import Function, Module, Node
from tilewright.graph.ops import Fused
from tilewright.ir.expr import Expr, const, maximum
from tilewright.ir.simplify import simplify
from tilewright.ir.types import TensorType, sizes_of
from tilewright.kernel.nodes import Buffer, Kernel, Seq
from tilewright.kernel.operations import operations
from tilewright.machine.description import Machine
from tilewright.plan.build import CompiledGroup, build_plan, origins_of
from tilewright.plan.memory import typical_value
from tilewright.plan.steps import Branch, Launch, Loop, Plan, Step, walk_steps
from tilewright.runtime.examples import typical_sizes
from tilewright.runtime.specs import SizeSpec, TensorSpec, tensor_spec
from tilewright.support.errors import InternalError, MemoryLimitError, TilewrightError, UnsupportedOperatorError
from tilewright.support.progress import NullProgress, Progress
from tilewright.support.settings import Settings, current_settings
from tilewright.target.cpu.groups import make_code

UNSUPPORTED_EXIT_CODE = UnsupportedOperatorError.exit_code


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes of weights; bytes of working memory and scalar operations of one inference, each as a formula of the dims and as its value at
    `sizes`; kernels in the plan. Multiply-adds count as two operations. open_ended: there are tensors whose size is known only while
    running; they need memory on top."""

    weights: int
    memory_formula: str
    memory: int
    operations_formula: str
    operations: int
    kernels: int
    open_ended: bool
    sizes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Report:
    """The result of `check`. missing: nodes that cannot be compiled, all of them. operators: (domain, operator) -> number of nodes.
    by_name: nodes that could only be checked by name, since they depend on results of unknown type. estimate: of what can be compiled;
    None when nothing can be planned."""

    model: str
    target: str
    missing: tuple[Refusal, ...]
    operators: Mapping[tuple[str, str], int]
    by_name: int
    estimate: Estimate | None

    @property
    def ok(self) -> bool:
        """Whether the model can be compiled as it is."""
        return not self.missing

    @property
    def problems(self) -> str:
        """Their number, in words."""
        return "1 problem" if len(self.missing) == 1 else f"{len(self.missing)} problems"

    @property
    def exit_code(self) -> int:
        """0, or the exit code of the command: that of an unsupported node if there is one, else that of the first error."""
        codes = [refusal.error.exit_code for refusal in self.missing]
        return UNSUPPORTED_EXIT_CODE if UNSUPPORTED_EXIT_CODE in codes else next(iter(codes), 0)

    def refused(self, domain: str, operator: str) -> int:
        """How many nodes with this operator cannot be compiled."""
        return sum(1 for refusal in self.missing if (refusal.domain, refusal.operator) == (domain, operator))

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "model": self.model,
            "target": self.target,
            "ok": self.ok,
            "missing": [_refusal_data(refusal) for refusal in self.missing],
            "checked_by_name_only": self.by_name,
            "operators": [
                {"domain": domain or "ai.onnx", "operator": name, "nodes": count, "refused": self.refused(domain, name)}
                for (domain, name), count in sorted(self.operators.items())
            ],
            "estimate": None if self.estimate is None else _estimate_data(self.estimate),
        }

    def __str__(self) -> str:
        lines = [f"{self.model}: {'can be compiled' if self.ok else self.problems} for {self.target}"]
        for missing in self.missing:
            place = missing.error.where or missing.node
            lines.append(f"  {place}: {missing.error.what}" if place else f"  {missing.error.what}")
        return "\n".join(lines)


def _refusal_data(refusal: Refusal) -> dict[str, Any]:
    return {
        "node": refusal.node,
        "operator": refusal.operator,
        "domain": refusal.domain or "ai.onnx",
        "opset": refusal.opset,
        "dtypes": list(refusal.dtypes),
        "attributes": list(refusal.attributes),
        **refusal.error.to_json(),
    }


def _estimate_data(estimate: Estimate) -> dict[str, Any]:
    return {
        "weights_bytes": estimate.weights,
        "memory_formula": estimate.memory_formula,
        "memory_bytes": estimate.memory,
        "operations_formula": estimate.operations_formula,
        "operations": estimate.operations,
        "kernels": estimate.kernels,
        "open_ended": estimate.open_ended,
        "sizes": dict(estimate.sizes),
    }


def check(model: Any, target: str = "cpu", *, dims: Dims | None = None, progress: Progress | None = None, **settings: Any) -> Report:
    """Everything in a model that cannot be compiled for a target, in one go, with estimates of memory and work. Generates no code.

    model, target, dims, settings: as `compile` takes them. Raises ModelError when the file is no model at all, TargetError, SettingsError.
    """
    chosen = current_settings().changed(**settings)
    machine = target_machine(target)
    ranges = {name: dim_range(name, value) for name, value in (dims or {}).items()}
    loaded = load_model(model)
    progress = progress or NullProgress()
    by_name = 0
    with progress.stage("import"):
        if wants_host(loaded.proto):
            modules, missing = _parts(loaded, ranges)
        else:
            found = survey(loaded, ranges)
            modules, missing, by_name = [] if found.module is None else [found.module], list(found.refusals), found.by_name
            if missing and may_want_host(loaded.proto):  # as `compile` does
                modules, missing = _parts(loaded, ranges)
    estimates = []
    for module in modules:
        groups = _Groups(machine, chosen, loaded)
        try:
            estimates.append(_estimate(module, groups, progress))
        except TilewrightError as error:
            missing.append(refusal(error, loaded, node_named(loaded, error.where), {}))
        missing += groups.missing
    return Report(loaded.source, machine.name, tuple(missing), operator_counts(loaded), by_name, _together(estimates))


def _parts(loaded: LoadedModel, dims: Mapping[str, DimRange | int]) -> tuple[list[Module], list[Refusal]]:
    """The parts of a model with strings, sequences, optionals or maps, and what is refused."""
    missing: list[Refusal] = []
    try:
        return list(partition(loaded, dims, missing).parts), missing
    except TilewrightError as error:
        return [], [*missing, refusal(error, loaded, node_named(loaded, error.where), {})]


def _together(estimates: Sequence[Estimate]) -> Estimate | None:
    """The estimate of parts that run one after the other."""
    if len(estimates) <= 1:
        return estimates[0] if estimates else None
    return Estimate(
        weights=sum(each.weights for each in estimates),
        memory_formula=f"max({', '.join(each.memory_formula for each in estimates)})",
        memory=max(each.memory for each in estimates),
        operations_formula=" + ".join(each.operations_formula for each in estimates),
        operations=sum(each.operations for each in estimates),
        kernels=sum(each.kernels for each in estimates),
        open_ended=any(each.open_ended for each in estimates),
        sizes={name: value for each in estimates for name, value in each.sizes.items()},
    )


@dataclass(slots=True)
class _Groups:
    """Makes the kernels of fused groups for a plan, down to LLVM text but not to code; a group that fails is noted and left empty."""

    machine: Machine
    settings: Settings
    model: LoadedModel
    codes: dict[tuple[Function, frozenset[int]], CompiledGroup] = field(default_factory=dict)
    work: dict[str, Expr] = field(default_factory=dict)
    missing: list[Refusal] = field(default_factory=list)

    def __call__(self, node: Node) -> CompiledGroup | None:
        if not isinstance(node.op, Fused):
            return None
        constants = constant_operands(node)
        key = (node.op.body, constants)
        if key not in self.codes:
            try:
                code = make_code(node.op.body, constants, self.machine, self.settings)
                self.codes[key] = code.group
                self.work[code.group.kernel.name] = operations(code.defined)
            except Exception as error:
                self.refuse(node, error)
                self.codes[key] = CompiledGroup(_empty_kernel(node))
        return self.codes[key]

    def refuse(self, node: Node, error: Exception) -> None:
        origins = origins_of(node)
        if not isinstance(error, TilewrightError):
            error = InternalError("no kernel can be made", why=f"{type(error).__name__}: {error}", hint="report it with the model")
        if origins:
            error = error.located(str(origins[0]))
        self.missing.append(refusal(error, self.model, node_named(self.model, error.where), {}))


def _empty_kernel(node: Node) -> Kernel:
    """A kernel with the arguments of a group and nothing in it, to plan around one that cannot be made."""
    inputs = tuple(Buffer(f"x{i}", value.type.dtype, value.type.shape) for i, value in enumerate(node.inputs))
    outputs = tuple(Buffer(f"y{i}", type_.dtype, type_.shape) for i, type_ in enumerate(node.types))
    types = [*(value.type for value in node.inputs), *node.types]
    return Kernel("missing", inputs, outputs, Seq(()), sizes_of(types))


def _estimate(module: Module, groups: _Groups, progress: Progress) -> Estimate:
    with progress.stage("optimise"):
        module = optimise(module, groups.machine, groups.settings)
    with progress.stage("kernels") as stage:
        plan, constants = build_plan(module, groups, lambda: stage.advance(1))
    _, weights = constant_offsets([constant.type for constant in constants])
    try:
        check_memory(plan, weights, groups.settings)
    except MemoryLimitError as error:
        groups.missing.append(refusal(error, groups.model, None, {}))
    total = simplify(_work(plan.steps, groups.work))
    sizes = plan_sizes(plan)
    values = {size: sizes[size.name] for size in plan.sizes if size.name in sizes}
    return Estimate(
        weights=weights,
        memory_formula=repr(plan.arena_bytes),
        memory=typical_value(plan.arena_bytes, values),
        operations_formula=repr(total),
        operations=typical_value(total, values),
        kernels=sum(isinstance(step, Launch) for step in walk_steps(plan.steps)),
        open_ended=plan.arenas > 1 or bool(plan.late_outputs),
        sizes=sizes,
    )


def plan_sizes(plan: Plan) -> dict[str, int]:
    """Typical values of the sizes of a plan's inputs."""
    specs = [_spec(f"input {i}", type_) for i, type_ in enumerate(plan.inputs)]
    return typical_sizes(specs, [SizeSpec(s.name, s.attr.lo, s.attr.hi, s.attr.multiple) for s in plan.sizes[: plan.input_sizes]])


def _spec(name: str, type_: TensorType) -> TensorSpec:
    return tensor_spec({"name": name, "dtype": type_.dtype.numpy.name, "shape": [repr(dim) for dim in type_.shape]})


def _work(steps: tuple[Step, ...], each: Mapping[str, Expr]) -> Expr:
    """Operations of all kernels launched: of a branch the larger side, of a loop without a trip count one iteration."""
    total: Expr = const(0)
    for step in steps:
        match step:
            case Launch(kernel=kernel):
                total = total + each.get(kernel.name, const(0))
            case Branch(_, then, otherwise):
                total = total + maximum(_work(then, each), _work(otherwise, each))
            case Loop(_, trip, _, body):
                total = total + _work(body, each) * (1 if trip is None else trip)
    return total
