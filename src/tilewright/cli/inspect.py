"""tilewright inspect: what the compiler makes of a model, stage by stage."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.answer import Answer, command
from tilewright.cli.options import Debug, DimRanges, Json, Model, SetOptions, Target, output_path, pairs, settings_for
from tilewright.cli.tables import table

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from tilewright.frontend.dims import DimRange
    from tilewright.frontend.onnx.loader import LoadedModel
    from tilewright.graph.node import Module, Node
    from tilewright.kernel.schedule.given import GivenSchedules
    from tilewright.machine.description import Machine
    from tilewright.support.settings import Settings
    from tilewright.target.cpu.groups import GroupCode


class Stage(StrEnum):
    GRAPH = "graph"
    OPTIMISED = "optimised"
    PLAN = "plan"
    KERNELS = "kernels"
    SCHEDULE = "schedule"
    LOWERED = "lowered"
    LLVM = "llvm"
    ASM = "asm"


LAYER_STAGES = (Stage.KERNELS, Stage.SCHEDULE, Stage.LOWERED, Stage.LLVM, Stage.ASM)


@dataclass(frozen=True, slots=True)
class Layer:
    """One kernel of the model: its number in order of execution, the model's nodes that it computes, and its fused node in the graph."""

    number: int
    origins: tuple[str, ...]
    node: Node

    @property
    def name(self) -> str:
        from tilewright.graph.ops import Fused

        return self.node.op.body.name if isinstance(self.node.op, Fused) else self.node.op.name


@command
def inspect(
    model: Model,
    stage: Annotated[
        Stage | None,
        typer.Option("--stage", help="What to show. Default: the optimised graph; with --layer, everything of that layer."),
    ] = None,
    layer: Annotated[str | None, typer.Option("--layer", metavar="NAME", help="A node of the model, or a part of its name.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the layers: each kernel with the nodes that it computes.")] = False,
    space: Annotated[bool, typer.Option("--space", help="Show what the schedule could be, what was taken and why.")] = False,
    schedule: Annotated[
        str | None, typer.Option("--schedule", metavar="FILE.json", help="Schedules of some kernels, as for compile.")
    ] = None,
    export: Annotated[
        str | None, typer.Option("--export", metavar="FILE.json", help="Write the schedules, for compile --schedule.")
    ] = None,
    target: Target = "cpu",
    dim: DimRanges = None,
    set_: SetOptions = None,
    json: Json = False,
    debug: Debug = False,
) -> Answer:
    """Show what the compiler makes of a model."""
    if layer is not None and (list_ or stage in (Stage.GRAPH, Stage.OPTIMISED, Stage.PLAN)):
        raise typer.BadParameter(f"{'the list' if list_ else stage} is of the whole model: leave --layer out", param_hint="--layer")
    if list_ and stage is not None:
        raise typer.BadParameter("the list is of no stage", param_hint="--stage")
    if (space or export is not None) and (list_ or stage is not None):
        raise typer.BadParameter("leave --stage and --list out", param_hint="--space" if space else "--export")
    settings, dims = settings_for(set_), pairs(dim, "--dim")
    path = None if export is None else output_path(export, model, "--export")

    from tilewright.api import dim_range, read_schedule, target_machine
    from tilewright.compiler import optimise
    from tilewright.frontend.onnx.loader import load_model
    from tilewright.graph.text import format_module
    from tilewright.kernel.schedule.given import parse_given

    given = read_schedule(schedule, settings)
    machine = target_machine(target)
    modules = imported_parts(load_model(model), {name: dim_range(name, value) for name, value in dims.items()})
    if stage is Stage.GRAPH:
        return texts(of_parts("graph", [format_module(module, origins=True) for module in modules]))
    modules = [optimise(module, machine, settings) for module in modules]
    found = [layer for module in modules for layer in layers_of(module)]
    found = [replace(layer, number=number) for number, layer in enumerate(found)]
    if list_:
        return listing(found)
    if layer is None and stage in (None, Stage.OPTIMISED) and not space and path is None:
        return texts(of_parts("optimised", [format_module(module, origins=True) for module in modules]))
    if layer is None and stage is Stage.PLAN:
        return texts(of_parts("plan", [plan_text(module, machine, settings) for module in modules]))
    if layer is not None:
        found = matching(found, layer)
    codes = codes_of(found, machine, settings, None if given is None else parse_given(given, str(schedule)))
    if space or path is not None:
        return spaces(codes, path)
    return layer_texts(codes, LAYER_STAGES if stage is None else (stage,), machine)


def imported_parts(loaded: LoadedModel, dims: Mapping[str, DimRange | int]) -> list[Module]:
    """The graph of a model; of one that is compiled as a program those of its parts."""
    from tilewright.frontend.onnx.host import may_want_host, partition, wants_host
    from tilewright.frontend.onnx.importer import import_model
    from tilewright.support.errors import ModelError, UnsupportedOperatorError

    if not wants_host(loaded.proto):
        try:
            return [import_model(loaded, dims).module]
        except (ModelError, UnsupportedOperatorError):
            if not may_want_host(loaded.proto):
                raise
    return list(partition(loaded, dims).parts)


def of_parts(title: str, found: Sequence[str]) -> dict[str, str]:
    """Texts by title; those of a program's parts by number."""
    return {title if len(found) == 1 else f"part {number}: {title}": text for number, text in enumerate(found)}


def layers_of(module: Module) -> list[Layer]:
    """The fused groups of a module in order of execution, those inside of loops and branches at their place."""
    from tilewright.graph.node import Function, walk_nodes
    from tilewright.graph.ops import Fused
    from tilewright.plan.build import origins_of

    found: list[Layer] = []

    def visit(function: Function) -> None:
        for node in walk_nodes(function.results):
            if isinstance(node.op, Fused):
                found.append(Layer(len(found), tuple(str(origin) for origin in origins_of(node)), node))
            else:
                for inner in held_functions(node.op):
                    visit(inner)

    for function in module.functions.values():
        visit(function)
    return found


def held_functions(op: Any) -> list[Any]:
    """The functions among an operator's attributes."""
    from dataclasses import fields

    from tilewright.graph.node import Function

    return [value for f in fields(op) if isinstance(value := getattr(op, f.name), Function)]


def matching(layers: Sequence[Layer], wanted: str) -> list[Layer]:
    """Layers that compute the node `wanted`, or whose number it is; else those with a node whose name contains it. InputError for none."""
    from tilewright.support.errors import InputError

    def names(layer: Layer) -> list[str]:
        return [origin.partition(" node ")[2].strip("'") or origin for origin in layer.origins] or [layer.name]

    tests: tuple[Callable[[Layer], bool], ...] = (
        lambda layer: wanted == str(layer.number),
        lambda layer: wanted in names(layer) or wanted == layer.name,
        lambda layer: any(wanted.lower() in name.lower() for name in (*layer.origins, layer.name)),
    )
    for test in tests:
        found = [layer for layer in layers if test(layer)]
        if found:
            return found
    close = difflib.get_close_matches(wanted, [name for layer in layers for name in names(layer)], n=3, cutoff=0.4)
    hint = f"did you mean {', '.join(close)}? " if close else ""
    raise InputError(f"no layer computes a node '{wanted}'", hint=f"{hint}--list shows all; a node may have been folded away")


def codes_of(
    layers: Sequence[Layer], machine: Machine, settings: Settings, schedules: GivenSchedules | None
) -> list[tuple[GroupCode, list[Layer]]]:
    """The code of each layer; layers of equal code come together, in the order of the first."""
    from tilewright.graph.in_place import constant_operands
    from tilewright.graph.ops import Fused
    from tilewright.target.cpu.groups import make_code

    found: dict[Any, tuple[GroupCode, list[Layer]]] = {}
    for layer in layers:
        op = layer.node.op
        if isinstance(op, Fused):
            constants = constant_operands(layer.node)
            key = (op.body, constants, op.turn)
            if key not in found:
                found[key] = (make_code(op.body, constants, machine, settings, op.turn, schedules), [])
            found[key][1].append(layer)
    return list(found.values())


def title_of(layers: Sequence[Layer]) -> str:
    """Numbers of layers of equal code, and the model's nodes that the first of them computes."""
    numbers = ", ".join(str(layer.number) for layer in layers)
    return f"layer {numbers}: {', '.join(layers[0].origins) or layers[0].name}"


def layer_texts(codes: Sequence[tuple[GroupCode, list[Layer]]], stages: Sequence[Stage], machine: Machine) -> Answer:
    """The chosen forms of layers."""
    parts: dict[str, str] = {}
    data = []
    for code, layers in codes:
        forms = {str(stage): form(code, stage, machine) for stage in stages}
        data.append(
            {"layers": [layer.number for layer in layers], "origins": list(layers[0].origins), "symbol": code.symbol, "forms": forms}
        )
        parts |= {f"{title_of(layers)}: {name}": text for name, text in forms.items()}
    return Answer({"layers": data}, lambda console: show(console, parts))


def spaces(codes: Sequence[tuple[GroupCode, list[Layer]]], path: Path | None) -> Answer:
    """The spaces of layers, and their schedules written to a file."""
    from tilewright.cli import spaces as found

    if path is not None:
        found.write(path, [(code, layers[0].origins) for code, layers in codes])
    data = [
        {"layers": [layer.number for layer in layers], "origins": list(layers[0].origins), **found.of_code(code)} for code, layers in codes
    ]
    titles = [title_of(layers) for _, layers in codes]
    answer = {"layers": data, "export": None if path is None else str(path)}
    return Answer(answer, lambda console: found.show(console, titles, data, path))


def form(code: GroupCode, stage: Stage, machine: Machine) -> str:
    """One form of a kernel as text."""
    from tilewright.target.cpu.llvm import compile_to_assembly, llvm_target

    match stage:
        case Stage.KERNELS:
            return repr(code.defined)
        case Stage.SCHEDULE:
            return code.schedule.trace.to_python()
        case Stage.LOWERED:
            return repr(code.lowered)
        case Stage.LLVM:
            return code.ir
        case _:
            return compile_to_assembly(code.ir, llvm_target(machine))


def plan_text(module: Module, machine: Machine, settings: Settings) -> str:
    """The steps of the plan, one a line, with the places of their arguments."""
    from tilewright.plan.build import build_plan
    from tilewright.target.cpu.groups import GroupCompiler

    with GroupCompiler(machine, settings) as groups:
        plan, constants = build_plan(module, groups)
    head = [f"working memory: {plan.arena_bytes!r} bytes", f"weights: {len(constants)} constants", ""]
    return "\n".join([*head, *step_lines(plan.steps, "")])


def step_lines(steps: Sequence[Any], indent: str) -> list[str]:
    from tilewright.plan.steps import Branch, Launch, Loop

    lines: list[str] = []
    for step in steps:
        match step:
            case Launch(kernel, args, _, origins):
                comment = f"  # {', '.join(map(str, origins))}" if origins else ""
                lines.append(f"{indent}{kernel.name}({', '.join(map(place_text, args))}){comment}")
            case Branch(condition, then, otherwise):
                lines += [f"{indent}if {place_text(condition)}:", *step_lines(then, indent + "    ")]
                lines += [f"{indent}else:", *step_lines(otherwise, indent + "    ")]
            case Loop(counter, trip, condition, body):
                limits = [f"{counter!r} < {trip!r}"] if trip is not None else []
                limits += [place_text(condition)] if condition is not None else []
                lines += [f"{indent}while {' and '.join(limits) or 'True'}:", *step_lines(body, indent + "    ")]
            case _:
                fields = (getattr(step, name) for name in step.__dataclass_fields__)
                lines.append(f"{indent}{type(step).__name__.lower()} {', '.join(map(field_text, fields))}")
    return lines


def place_text(place: Any) -> str:
    """`arena[0]+64: float32[8]`"""
    offset = "" if place.offset.is_const and place.offset.value == 0 else f"+{place.offset!r}"
    return f"{place.region.kind}[{place.region.index}]{offset}: {place.type!r}"


def field_text(value: Any) -> str:
    from tilewright.plan.steps import Place, Region

    if isinstance(value, Place):
        return place_text(value)
    return f"{value.kind}[{value.index}]" if isinstance(value, Region) else repr(value)


def listing(layers: Sequence[Layer]) -> Answer:
    data = {"layers": [{"number": layer.number, "kernel": layer.name, "origins": list(layer.origins)} for layer in layers]}

    def show_list(console: Console) -> None:
        console.print(table(("", "kernel", "nodes of the model"), ((x.number, x.name, ", ".join(x.origins)) for x in layers), right=(0,)))

    return Answer(data, show_list)


def texts(parts: dict[str, str]) -> Answer:
    return Answer(parts, lambda console: show(console, parts))


def show(console: Console, parts: dict[str, str]) -> None:
    """Texts, each below its title unless there is only one. Never wrapped: they may be read by programs."""
    for title, text in parts.items():
        if len(parts) > 1:
            console.print(f"# {title}", style="bold", soft_wrap=True)
        console.print(text.rstrip("\n"), soft_wrap=True)
        if len(parts) > 1:
            console.print()
