"""Translation validation: every kernel of a compiled model, run alone on operands that the reference computes, beside what it should give.

    checked = validate(compiled, machine, settings)

The optimised graph is run operator by operator in NumPy on random inputs, at several values of its sizes. Where it reaches a group, the
group's kernel runs on the same operands: of the right dtypes, with indices in range, as they come up in the model, also in the bodies of
loops and branches. So a kernel is judged by itself (`judge.py`), and what is wrong before it does not hide it. What the optimised graph
gives is beside what the graph gave before all passes: kernels say nothing of a pass that made another graph of it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.accuracy.bisect import wrong_pass, wrong_schedule
from tilewright.accuracy.judge import Judge, judge_of_module, judge_of_node
from tilewright.accuracy.kernels import Traced, settled
from tilewright.compiler import Compiled, constant_offsets
from tilewright.graph.interpreter import Interpreter, Sizes, interpret
from tilewright.graph.node import Module, Node
from tilewright.graph.ops import Constant
from tilewright.ir.traverse import evaluate_int, free_vars
from tilewright.ir.types import bind_shape
from tilewright.machine.description import Machine
from tilewright.plan.build import EachSlice
from tilewright.plan.steps import Launch, walk_steps
from tilewright.runtime.constants import ALIGNMENT
from tilewright.runtime.examples import Example, draw_inputs, nearest, typical_sizes
from tilewright.runtime.executable import aligned_empty
from tilewright.runtime.host_features import host_platform, missing_features, platform_of
from tilewright.runtime.linker import link
from tilewright.runtime.pool import PoolReference, process_pools
from tilewright.runtime.specs import Array, SizeSpec, TensorSpec, as_array, solve_sizes, tensor_spec
from tilewright.support.errors import TilewrightError, VerifyError
from tilewright.support.progress import NullProgress, Progress
from tilewright.support.settings import Settings
from tilewright.target.cpu.groups import named
from tilewright.target.cpu.llvm import llvm_target

HINT = "a fault of ours: report it with what `tilewright compare MODEL --bisect --bundle FOLDER` writes"
WISHES = (None, 1, 7, 32)  # values of symbolic sizes, where their ranges allow: typical ones, then these


@dataclass(frozen=True, slots=True)
class Context:
    """What a kernel was compiled for."""

    module: Module
    machine: Machine
    settings: Settings


@dataclass(frozen=True, slots=True)
class Validation:
    """What was validated: kernels of so many, at so many sets of sizes. reason: why nothing was, where that is so."""

    kernels: int = 0
    total: int = 0
    sizes: tuple[Mapping[str, int], ...] = ()
    reason: str = ""

    def __str__(self) -> str:
        return self.reason or f"{self.kernels} of {self.total} kernels at {len(self.sizes)} sets of sizes"


def validate(
    compiled: Compiled,
    machine: Machine,
    settings: Settings,
    hints: Mapping[str, Example] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    given: Mapping[str, Any] | None = None,
) -> Validation:
    """Run each kernel beside the reference. given: arrays of some inputs, in place of random ones; the sizes that they imply stay. Raises
    VerifyError with the kernel, the model's nodes and the schedule where they differ, and InputError for given inputs that do not fit."""
    if not runs_here(machine):
        return Validation(reason=f"no kernel was run: code for {machine.name} does not run on this machine")
    launches = {step.group: step for step in walk_steps(compiled.plan.steps) if isinstance(step, Launch) and step.group is not None}
    manifest = compiled.artifact.manifest
    inputs = [tensor_spec(entry) for entry in manifest["inputs"]]
    known = [SizeSpec(**entry) for entry in manifest["sizes"][: manifest["input_sizes"]]]
    own = [spec for spec in inputs if spec.name in (given or {})]
    fixed = {spec.name: as_array((given or {})[spec.name], spec) for spec in own}
    implied = solve_sizes(list(fixed.values()), own, known)
    runner = Runner(compiled, settings.threads or 1)
    seen: set[Node] = set()
    done: list[Mapping[str, int]] = []
    refused = ""
    with (progress or NullProgress()).stage("validate") as stage:
        for number, sizes in enumerate(sets_of_sizes(inputs, known, implied)):
            check = Checker(Context(compiled.module, machine, settings), runner, launches, seen, lambda name: stage.advance(1, name))
            arrays = {**draw_inputs(inputs, sizes, hints or {}, seed + number), **fixed}
            ordered = [np.asarray(array, order="C") for array in arrays.values()]
            try:
                check_passes(check.context, compiled, ordered, check.run(compiled.module.main, ordered, {}))
            except VerifyError:
                raise
            except TilewrightError as error:  # these sizes, or random inputs, break a condition that the model makes
                refused = error.what
                continue
            done.append(sizes)
    if refused and not done:
        ran = f"{len(seen)} of {len(launches)} kernels"
        why = f"{ran}, then random inputs broke what the model asks of them: {refused}; --input gives others"
        return Validation(len(seen), len(launches), reason=why)
    return Validation(len(seen), len(launches), tuple(done))


def check_passes(context: Context, compiled: Compiled, inputs: Sequence[Array], results: Sequence[Array]) -> None:
    """Whether the optimised graph gives, as `results`, what the graph gave before all passes. Raises VerifyError with the pass."""
    imported = compiled.imported
    if imported is None:
        return
    judge = judge_of_module(imported, inputs, interpret(imported, inputs), context.settings.precision == "bf16")
    wrong = next(((name, v) for name, v in zip(imported.output_names, judge(results), strict=True) if not v.ok), None)
    if wrong is not None:
        name, verdict = wrong
        culprit = wrong_pass(imported, context.machine, context.settings, compiled, inputs, results, None)
        raise VerifyError(
            "the optimised graph does not compute what the model says",
            where=f"output '{name}'",
            why=f"{verdict.wrong}, relative error {verdict.error.relative:.2g}\n{culprit}",
            hint=HINT,
        )


def runs_here(machine: Machine) -> bool:
    """Whether this process can run a machine's code."""
    return platform_of(llvm_target(machine).triple) == host_platform() and not missing_features(sorted(machine.isa))


def sets_of_sizes(
    inputs: Sequence[TensorSpec], known: Sequence[SizeSpec], implied: Mapping[str, int] | None = None
) -> Iterator[dict[str, int]]:
    """Values of the symbolic dims of the inputs: typical ones, the least, odd ones, larger ones; each set once. implied: those that are
    known."""
    typical = typical_sizes(inputs, known)
    ranges = {size.name: size for size in known}
    sets = [{n: v if wish is None else nearest(ranges.get(n, SizeSpec(n, 0, None)), wish) for n, v in typical.items()} for wish in WISHES]
    sets = [{**sizes, **(implied or {})} for sizes in sets]
    yield from (sizes for i, sizes in enumerate(sets) if sizes not in sets[:i])


class Runner:
    """Calls kernels of a compiled model on arrays."""

    def __init__(self, compiled: Compiled, threads: int) -> None:
        self.artifact = compiled.artifact
        self.code = link(list(self.artifact.objects.values()), process_pools.code(self.artifact.pool).imports)
        self.pool = PoolReference(self.artifact.pool, threads)
        self.constants = compiled.constants
        self.offsets, _ = constant_offsets([constant.type for constant in compiled.constants])

    def __call__(self, launch: Launch, operands: Sequence[Array], sizes: Sizes) -> list[Array]:
        """The results of one kernel. Memory that it does not write shows as NaN and as the largest numbers."""
        kernel = launch.kernel
        first = len(kernel.inputs)
        memory = []
        for i, place in enumerate(launch.args):
            held = self.constants[place.region.index].layout if place.region.kind == "constant" else None
            if i < first and isinstance(held, EachSlice):  # which of them this is, the plan finds out while running
                memory.append(held.layout.pack(operands[i]).reshape(-1).view(np.uint8))
            elif i < first and place.region.kind == "constant" and all(v in sizes for v in free_vars(place.offset)):
                memory.append(self.artifact.weights[self.offsets[place.region.index] + evaluate_int(place.offset, sizes) :])
            elif i < first:
                memory.append(np.ascontiguousarray(operands[i]).reshape(-1).view(np.uint8))
            else:
                memory.append(aligned_empty(evaluate_int(place.type.bytes, sizes) + ALIGNMENT))
                memory[-1][:] = 0xFF
        args = np.array([*(m.ctypes.data for m in memory), *(evaluate_int(size, sizes) for size in launch.sizes)], np.int64)
        _KERNEL(self.code.address(kernel.name))(self.pool.handle, args.ctypes.data)
        results = []
        for place, raw in zip(launch.args[first : first + len(kernel.outputs)], memory[first:], strict=False):
            shape, dtype = bind_shape(place.type.shape, sizes), place.type.dtype.numpy
            results.append(raw[: int(np.prod(shape, dtype=np.int64)) * dtype.itemsize].view(dtype).reshape(shape))
        return results


_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


class Checker(Interpreter):
    """The reference, which has each group's kernel run beside it the first time that it comes to the group."""

    __slots__ = ("context", "launches", "note", "reached", "runner", "seen")

    def __init__(
        self, context: Context, runner: Runner, launches: Mapping[Node, Launch], seen: set[Node], note: Callable[[str], None]
    ) -> None:
        super().__init__(context.module)
        self.context, self.runner, self.launches, self.seen, self.note = context, runner, launches, seen, note
        self.reached: set[Node] = set()

    def _node(self, node: Node, inputs: list[Array], sizes: Sizes) -> list[Array]:
        expected = super()._node(node, inputs, sizes)
        launch = self.launches.get(node)
        if launch is not None and node not in self.reached:
            self.reached.add(node)
            found = self.runner(launch, inputs, sizes)
            judge = judge_of_node(node, inputs, sizes, expected, self.module)
            for number, verdict in enumerate(judge(found)):
                if not verdict.ok:
                    wrong = f"result {number} {verdict.wrong}, relative error {verdict.error.relative:.2g}"
                    raise refusal(self.context, launch, node, wrong, inputs, found, expected, judge)
            self.seen.add(node)
            self.note(launch.kernel.name)
        return expected


def refusal(
    context: Context,
    launch: Launch,
    node: Node,
    wrong: str,
    operands: Sequence[Array],
    found: Sequence[Array],
    expected: Sequence[Array],
    judge: Judge,
) -> VerifyError:
    """The error that names the kernel, its nodes, and the step of its schedule that makes it wrong."""
    shapes = ", ".join(f"{array.dtype}{list(array.shape)}" for array in operands)
    why = [f"{wrong}, for operands {shapes}"]
    group = settled(node, operands)
    given = tuple(array for value, array in zip(group.inputs, operands, strict=True) if not isinstance(value.op, Constant))
    nodes = tuple(map(str, launch.origins))
    traced = Traced(launch.kernel.name, nodes, group, given=given, found=tuple(found), expected=tuple(expected), judge=judge)
    try:
        why.append(str(wrong_schedule(traced, context.machine, context.settings, None)))
    except TilewrightError as error:  # it cannot be compiled alone: then the name of the kernel has to do
        why.append(f"its schedule could not be bisected: {error.what}")
    return VerifyError(
        f"the kernel {launch.kernel.name} does not compute what the model says",
        where=named(node),
        why="\n".join(why),
        hint=HINT,
    )
