"""What each kernel of a compiled model computes, beside what the graph says that it should."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.compiler import Compiled, constant_offsets
from tilewright.graph.interpreter import bind_inputs, interpret
from tilewright.graph.node import Function, Node, walk_nodes
from tilewright.graph.ops import Fused
from tilewright.ir.expr import Expr
from tilewright.plan.steps import Launch, walk_steps
from tilewright.runtime.specs import Array
from tilewright.target.cpu.stepper import Stepper


@dataclass(frozen=True, slots=True)
class Traced:
    """One kernel: its name, the nodes of the model that it computes, and its group in the graph; its results as found and as expected, both
    empty for a kernel inside of a loop or branch, which has no single result."""

    name: str
    nodes: tuple[str, ...]
    group: Node | None
    found: tuple[Array, ...]
    expected: tuple[Array, ...]


def trace_kernels(compiled: Compiled, inputs: Sequence[Array], threads: int | None) -> list[Traced]:
    """Run the plan step by step. Each kernel works on what the kernels before it computed."""
    main = compiled.module.main
    groups = [node for node in walk_nodes(main.results) if isinstance(node.op, Fused)]
    launches = [step for step in compiled.plan.steps if isinstance(step, Launch)]
    values = [value for node in groups for value in node.values]
    sizes: dict[Expr, int] = {}
    bind_inputs([param.type for param in main.params], inputs, sizes)
    expected = iter(interpret(Function("kernels", main.params, tuple(values)), inputs))
    results_of = {node: tuple(next(expected) for _ in node.values) for node in groups}
    by_launch = {id(step): (step.group, results_of[step.group]) for step in launches if step.group in results_of}
    found: dict[int, tuple[Array, ...]] = {}

    def watch(step: Launch, results: Sequence[Array], seconds: float) -> None:
        if id(step) in by_launch:
            found[id(step)] = tuple(np.array(result) for result in results)

    offsets, _ = constant_offsets([constant.type for constant in compiled.constants])
    Stepper(compiled.plan, compiled.artifact, offsets, threads or 1).run([np.ascontiguousarray(x) for x in inputs], sizes, watch)
    traced = []
    for step in walk_steps(compiled.plan.steps):
        if isinstance(step, Launch):
            group, values_expected = by_launch.get(id(step), (None, ()))
            nodes = tuple(str(origin) for origin in step.origins)
            traced.append(Traced(step.kernel.name, nodes, group, found.get(id(step), ()), values_expected if id(step) in found else ()))
    return traced
