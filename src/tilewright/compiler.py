"""The compiler on one page: every pass by name, in order, with the reason for the order.

model file --frontend--> Graph --transform--> Graph --lower--> Kernels + Plan --codegen--> Artifact
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import tilewright
from tilewright.graph.node import Function, Module
from tilewright.graph.shapes import canonical
from tilewright.ir.expr import Expr, const
from tilewright.ir.types import TensorType
from tilewright.kernel.nodes import Kernel
from tilewright.kernel.schedule.given import GivenSchedules
from tilewright.kernel.work import Work
from tilewright.machine.description import Machine
from tilewright.plan.build import PlannedConstant, build_plan
from tilewright.plan.steps import Launch, Plan, walk_steps
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.constants import ALIGNMENT
from tilewright.runtime.executable import aligned_empty
from tilewright.runtime.host.kinds import ValueSpec
from tilewright.runtime.host.steps import Body, to_data
from tilewright.runtime.specs import SizeSpec
from tilewright.support.cache import Cache
from tilewright.support.errors import MemoryLimitError
from tilewright.support.hashing import content_hash
from tilewright.support.host_limits import usable_memory
from tilewright.support.progress import NullProgress, Progress
from tilewright.support.settings import Settings
from tilewright.target.cpu.bf16_cost import CpuProductCost, direct_speed
from tilewright.target.cpu.dots import activation_dtype, rounds_bf16
from tilewright.target.cpu.entry import RuntimeCheck, emit_entry
from tilewright.target.cpu.groups import GroupCompiler
from tilewright.target.cpu.layout_cost import CpuLayoutCost, block_sizes
from tilewright.target.cpu.llvm import llvm_target
from tilewright.target.cpu.manifest import kernel_entry, target_entry
from tilewright.target.cpu.rules.pairs_cost import CpuPairCost
from tilewright.target.cpu.rules.winograd_cost import CpuConvolutionCost
from tilewright.target.cpu.thread_pool import thread_pool_object
from tilewright.transform.bf16_products import bf16_products
from tilewright.transform.bf16_storage import bf16_storage
from tilewright.transform.block_channels import best_lanes, block_channels
from tilewright.transform.causal_masks import causal_masks
from tilewright.transform.choose_winograd import choose_winograd
from tilewright.transform.decompose import open_composites
from tilewright.transform.drop_unit_axes import drop_unit_axes
from tilewright.transform.fold_batch_norm import fold_batch_norm
from tilewright.transform.fold_constants import fold_constants
from tilewright.transform.functions import on_all_functions
from tilewright.transform.fuse import fuse, isolate
from tilewright.transform.inline_calls import inline_calls
from tilewright.transform.integer_products import integer_products
from tilewright.transform.merge_rows import merge_rows
from tilewright.transform.narrow_storage import narrow_storage
from tilewright.transform.narrow_weights import narrow_weights
from tilewright.transform.pair_convolutions import pair_convolutions
from tilewright.transform.phase_convolutions import phase_convolutions
from tilewright.transform.push_movement import push_movement
from tilewright.transform.recognise import recognise_composites
from tilewright.transform.simplify import simplify_graph
from tilewright.transform.sink_constants import sink_constants
from tilewright.transform.turn_in_loops import turn_in_loops
from tilewright.transform.verify import verify_module

ENTRY = "tilewright_entry"  # stands for the entry's symbol, which is the hash of its own text


@dataclass(frozen=True, slots=True)
class GraphPass:
    """A pass over one function. `level`: the least `opt_level` at which it runs; 0 for those that code generation cannot do without.
    `exact`: results keep their bits; others do not run under `precision="strict"`. `setting`: those that turn it off, if any.
    `precision`: the only one under which it runs, if there is one."""

    name: str
    apply: Callable[[Function], Function]
    level: int
    reason: str
    exact: bool = True
    setting: str = ""
    precision: str = ""

    def runs(self, settings: Settings) -> bool:
        """Whether the settings want it."""
        wanted = settings.precision == self.precision if self.precision else self.exact or settings.precision != "strict"
        return settings.opt_level >= self.level and wanted and all(getattr(settings, name) for name in self.setting.split())


def graph_passes(machine: Machine, precision: str = "default") -> tuple[GraphPass, ...]:
    """All passes in order, with the target's opinion, under a precision, where one asks for it."""
    speed = direct_speed(machine) if precision == "bf16" else 1.0
    cost, products = CpuConvolutionCost(machine, speed), CpuProductCost(machine)
    sizes = block_sizes(machine, precision == "bf16")

    def layouts(lanes: int) -> CpuLayoutCost:
        return CpuLayoutCost(machine, speed, lanes)

    def blocked(function: Function) -> Function:
        lanes = best_lanes(function, sizes, layouts)
        return block_channels(function, lanes, layouts(lanes))

    pairs = CpuPairCost(machine)
    return (
        GraphPass("sink_constants", sink_constants, 0, "first: constants that reach loop bodies can be folded and packed there"),
        GraphPass("simplify", simplify_graph, 1, "canonical form, which every pattern below is written in"),
        GraphPass(
            "integer_products",
            lambda f: integer_products(f, activation_dtype(machine)),
            1,
            "after simplify, which brings transposes into products; before folding, which would make floats of weights",
            False,
        ),
        GraphPass(
            "narrow_weights",
            lambda f: narrow_weights(f, machine.l1d.size),
            2,
            "after products of integers took their weights; before folding, which would make floats of the rest",
            False,
        ),
        GraphPass("fold_constants", fold_constants, 1, "after simplify, which brings constants together; patterns match constants"),
        GraphPass("recognise_composites", recognise_composites, 1, "while decomposed norms, GELUs, softmaxes stand as exported", False),
        GraphPass("push_movement", push_movement, 1, "after recognition, which wants last axes; before weights meet what follows"),
        GraphPass("fold_batch_norm", fold_batch_norm, 1, "while batch norms still are one node next to their convolution", False),
        GraphPass("phase_convolutions", phase_convolutions, 1, "after batch norms went into weights; convolutions from here on", False),
        GraphPass("drop_unit_axes", drop_unit_axes, 1, "all convolutions are there, and batch norms no longer are between them"),
        GraphPass("open_composites", open_composites, 0, "what no kernel definition takes whole becomes core operators"),
        GraphPass("simplify_opened", simplify_graph, 1, "decompositions leave neutral elements and shape changes behind"),
        GraphPass("fold_opened", fold_constants, 1, "decompositions compute on constants: biases added, weights sliced"),
        GraphPass(
            "block_channels",
            blocked,
            3,
            "channels and their users are in the open",
            setting="layouts",
        ),
        GraphPass("fold_blocked", fold_constants, 3, "biases and weights filled up to whole blocks"),
        GraphPass(
            "choose_winograd",
            lambda f: choose_winograd(f, cost),
            3,
            "weights are constants of whole blocks, which it transforms",
            exact=False,
            setting="winograd",
        ),
        GraphPass("sink_folded", sink_constants, 0, "weights that only folding made constants reach the loops that use them"),
        GraphPass(
            "bf16_products",
            lambda f: bf16_products(f, products),
            1,
            "layouts and algorithms are chosen, and weights have reached loops; before fusion, which takes roundings where they are made",
            exact=False,
            precision="bf16",
        ),
        GraphPass(
            "bf16_storage",
            lambda f: bf16_storage(f, machine.l2.size) if rounds_bf16(machine) else f,
            1,
            "it is known which products take bfloat16; before fusion, which takes roundings where they are made",
            exact=False,
            precision="bf16",
        ),
        GraphPass("causal_masks", causal_masks, 2, "masks have become constants; before fusion, whose groups take them as formulas", False),
        GraphPass(
            "merge_rows",
            lambda f: merge_rows(f, machine.lanes(32)),
            2,
            "nothing moves or looks at axes from here on, products find what follows them, and what is not blocked stays so",
        ),
        GraphPass(
            "narrow_storage",
            narrow_storage,
            2,
            "just before fusion, which stores what meets another product, and after the last simplification, which would undo it",
            setting="fusion",
        ),
        GraphPass("fuse", fuse, 2, "last: groups are final, nothing may look inside afterwards", setting="fusion"),
        GraphPass("isolate", isolate, 0, "what is in no group yet gets one of its own: everything, where fusion is off"),
        GraphPass(
            "pair_convolutions",
            lambda f: pair_convolutions(f, pairs),
            3,
            "what follows each convolution is in its group, and nothing else moves between groups",
            setting="fusion pair_convolutions",
        ),
        GraphPass("turn_in_loops", lambda f: turn_in_loops(f, machine.l2.size), 3, "each group reads its weights, and it is known which"),
    )


def optimise(
    module: Module, machine: Machine, settings: Settings, watch: Callable[[str, Module], None] = lambda name, module: None
) -> Module:
    """The module after all graph passes of `settings.opt_level`; `watch` sees it after each."""
    module = inline_calls(module)  # before every pass: they look at one function at a time
    for graph_pass in graph_passes(machine, settings.precision):
        if graph_pass.runs(settings):
            module = on_all_functions(module, graph_pass.apply)
            if settings.verify:
                verify_module(module, graph_pass.name)
            watch(graph_pass.name, module)
    return module


@dataclass(frozen=True, slots=True)
class Compiled:
    """All that compilation made: the optimised graph, the plan with its constants, and the artifact. imported: the graph before all passes,
    where they were run."""

    module: Module
    plan: Plan
    constants: tuple[PlannedConstant, ...]
    artifact: Artifact
    imported: Module | None = None


def compile_module(
    module: Module,
    machine: Machine,
    settings: Settings,
    cache: Cache | None = None,
    progress: Progress | None = None,
    source: Mapping[str, Any] | None = None,
    schedules: GivenSchedules | None = None,
) -> Compiled:
    """Graph to artifact. `source` describes the model in the manifest. `schedules`: those that somebody gives, in place of the defaults."""
    progress = progress or NullProgress()
    with progress.stage("optimise", len(graph_passes(machine))) as stage:
        optimised = optimise(module, machine, settings, lambda name, _: stage.advance(1, name))
    return replace(compile_optimised(optimised, machine, settings, cache, progress, source, schedules), imported=module)


def compile_optimised(
    module: Module,
    machine: Machine,
    settings: Settings,
    cache: Cache | None = None,
    progress: Progress | None = None,
    source: Mapping[str, Any] | None = None,
    schedules: GivenSchedules | None = None,
) -> Compiled:
    """What is left of `compile_module` after the graph passes."""
    progress = progress or NullProgress()
    with GroupCompiler(machine, settings, cache, schedules) as groups:
        with progress.stage("kernels") as stage:
            # planning asks for each group's code in order of execution; LLVM starts on the first while the rest is being planned
            plan, constants = build_plan(module, groups, lambda: stage.advance(1))
        groups.check_schedules()
        offsets, total = constant_offsets([constant.type for constant in constants])
        check_memory(plan, total, settings)
        text, checks = emit_entry(plan, machine, ENTRY, offsets)
        entry = f"tw_entry_{content_hash(text)[:16]}"
        groups.submit(entry, text.replace(ENTRY, entry))
        weights = aligned_empty(total)
        with progress.stage("weights", len(constants)) as stage:
            for constant, offset in zip(constants, offsets, strict=True):
                array = constant.array()
                weights[offset : offset + array.nbytes] = array.reshape(-1).view("uint8") if array.nbytes else []
                weights[offset + array.nbytes : offset + -(-array.nbytes // ALIGNMENT) * ALIGNMENT] = 0  # builds are identical
                stage.advance(1)
        work = groups.work()
        with progress.stage("code", len(groups.pending)):
            objects = groups.objects()
    manifest = make_manifest(module, plan, machine, settings, entry, checks, total, source or {}, work)
    artifact = Artifact(manifest, objects, thread_pool_object(llvm_target(machine)), weights)
    return Compiled(module, plan, constants, artifact)


def compile_program(
    parts: Sequence[Module],
    body: Body,
    inputs: Sequence[ValueSpec],
    outputs: Sequence[ValueSpec],
    machine: Machine,
    settings: Settings,
    cache: Cache | None = None,
    progress: Progress | None = None,
    source: Mapping[str, Any] | None = None,
    watch: Callable[[Compiled], None] = lambda part: None,
    ranges: Sequence[SizeSpec] = (),
) -> Artifact:
    """A model with values that are no tensors of numbers: its parts, each compiled, and the host steps around them. `watch` sees each.
    ranges: what is declared of the inputs' dims, by the names that the model gives them."""
    made = [compile_module(part, machine, settings, cache, progress, {}) for part in parts]
    for part in made:
        watch(part)
    compiled = tuple(part.artifact for part in made)
    fixed = [int(part.manifest["memory"]["arena"]) for part in compiled if str(part.manifest["memory"]["arena"]).isdecimal()]
    manifest = {
        "tilewright": tilewright.__version__,
        "model": dict(source or {}),
        "target": target_entry(machine),
        "settings": dict(settings.code_key()),
        "inputs": [_value(spec) for spec in inputs],
        "outputs": [_value(spec) for spec in outputs],
        "sizes": [asdict(size) for size in ranges],
        "input_sizes": len(ranges),
        "open_ended": len(fixed) < len(compiled) or any(part.manifest["open_ended"] for part in compiled),
        "program": to_data(body),
        "memory": {"arena": str(max(fixed, default=0)), "weights": sum(int(part.weights.nbytes) for part in compiled), "outputs": "0"},
        "kernels": [kernel for part in compiled for kernel in part.manifest["kernels"]],
    }
    return Artifact(manifest, {}, b"", aligned_empty(0), compiled)


def _value(spec: ValueSpec) -> dict[str, Any]:
    return {"name": spec.name, "kind": spec.kind, "shape": None if spec.shape is None else list(spec.shape)}


def constant_offsets(types: Sequence[TensorType]) -> tuple[list[int], int]:
    """Where each constant lies in the weights, and their size."""
    offsets, cursor = [], 0
    for type_ in types:
        offsets.append(cursor)
        cursor += -(-int(type_.bytes.value) // ALIGNMENT) * ALIGNMENT
    return offsets, cursor


def memory_limit(settings: Settings) -> int | None:
    """Bytes that one inference may need: as set, else what this machine has. None where that is unknown."""
    return settings.max_memory or usable_memory()


def check_memory(plan: Plan, weights: int, settings: Settings) -> None:
    """Refuse a plan that is known to need more than `settings.max_memory`, or than this machine has. Says which node needs most."""
    limit = memory_limit(settings)
    arena = int(plan.arena_bytes.value) if plan.arena_bytes.is_const else 0
    known = output_bytes(plan)
    outputs = int(known.value) if known.is_const else 0
    needed = arena + weights + outputs
    if limit is None or needed <= limit:
        return
    launches = [step for step in walk_steps(plan.steps) if isinstance(step, Launch) and step.origins]
    largest = max(launches, key=operand_bytes, default=None)
    raise MemoryLimitError(
        f"the model needs {needed:,} bytes, the limit is {limit:,}",
        where=None if largest is None else f"{largest.origins[0]}, with {operand_bytes(largest):,} bytes of operands and results",
        why=f"weights {weights:,}, working memory {arena:,}, outputs {outputs:,}",
        hint="raise max_memory, or compile for smaller dims" if settings.max_memory else "compile for smaller dims, or on a larger machine",
    )


def operand_bytes(step: Launch) -> int:
    """Bytes of a kernel's operands and results, those of symbolic size left out."""
    return sum(int(place.type.bytes.value) for place in step.args if place.type.bytes.is_const)


def output_bytes(plan: Plan) -> Expr:
    """Bytes of the outputs whose sizes are known when an inference starts."""
    return canonical(sum((type_.bytes for i, type_ in enumerate(plan.outputs) if i not in plan.late_outputs), const(0)))


def make_manifest(
    module: Module,
    plan: Plan,
    machine: Machine,
    settings: Settings,
    entry: str,
    checks: Sequence[RuntimeCheck],
    weights: int,
    source: Mapping[str, Any],
    work: Mapping[Kernel, Work],
) -> dict[str, Any]:
    """What the artifact says of itself: plain data."""
    launches = [step for step in walk_steps(plan.steps) if isinstance(step, Launch)]
    return {
        "tilewright": tilewright.__version__,
        "model": dict(source),
        "target": target_entry(machine),
        "settings": dict(settings.code_key()),
        "inputs": [_tensor(name, type_) for name, type_ in zip(module.input_names, plan.inputs, strict=True)],
        "outputs": [_tensor(name, type_) for name, type_ in zip(module.output_names, plan.outputs, strict=True)],
        "sizes": [{"name": s.name, "lo": s.attr.lo, "hi": s.attr.hi, "multiple": s.attr.multiple} for s in plan.sizes],
        "input_sizes": plan.input_sizes,
        "late_outputs": list(plan.late_outputs),
        "open_ended": plan.arenas > 1 or bool(plan.late_outputs),  # memory on top of the formula, for sizes known only while running
        "entry": entry,
        "memory": {"arena": repr(plan.arena_bytes), "weights": weights, "outputs": repr(output_bytes(plan))},
        "checks": [{"message": check.message, "shown": check.shown} for check in checks],
        "kernels": [kernel_entry(step, work[step.kernel]) for step in launches],
    }


def _tensor(name: str, type_: TensorType) -> dict[str, Any]:
    return {"name": name, "dtype": type_.dtype.numpy.name, "shape": [repr(dim) for dim in type_.shape]}
