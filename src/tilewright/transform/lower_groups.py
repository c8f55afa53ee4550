"""Fused groups to kernels: each operator's definition in turn, on one builder."""

from __future__ import annotations

from tilewright.graph.node import Function, Parameter, Value, define, walk_nodes
from tilewright.graph.ops import Constant
from tilewright.ir.expr import const
from tilewright.kernel.builder import KernelBuilder, Tensor
from tilewright.kernel.nodes import Buffer, Kernel


def lower_group(body: Function) -> Kernel:
    """The kernel of a fused group's body: inputs are its parameters, outputs its results. One-element constants become literals."""
    k = KernelBuilder(body.name)
    tensors: dict[Value, Tensor] = {}
    for i, param in enumerate(body.params):
        tensors[param] = k.input(f"x{i}", param.type.dtype, param.shape)
    for node in walk_nodes(body.results):
        if isinstance(node.op, Parameter):
            continue
        if isinstance(node.op, Constant):
            tensors[node[0]] = literal(node[0], node.op)
            continue
        results = define(node.op, k, tuple(tensors[value] for value in node.inputs))
        tensors.update(zip(node.values, results, strict=True))
    return k.finish([tensors[value] for value in body.results])


def literal(value: Value, op: Constant) -> Tensor:
    """A one-element constant as a tensor whose elements are a number in the kernel's code."""
    dtype = value.type.dtype
    number = op.data.array.reshape(-1)[0]
    plain = bool(number) if dtype.kind == "bool" else float(number) if dtype.is_float else int(number)
    return Tensor(Buffer("literal", dtype, value.shape), const(plain, dtype))
