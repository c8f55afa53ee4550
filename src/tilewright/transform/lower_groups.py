"""Fused groups to kernels: each operator's definition in turn, on one builder."""

from __future__ import annotations

from tilewright.graph.node import Function, Node, Parameter, Value, define, walk_nodes
from tilewright.graph.ops import Constant
from tilewright.ir.expr import const
from tilewright.ir.types import TensorType
from tilewright.kernel.builder import KernelBuilder, Tensor
from tilewright.kernel.nodes import Buffer, Kernel
from tilewright.support.errors import VerifyError


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
        expect_types(node, results)
        tensors.update(zip(node.values, results, strict=True))
    return k.finish([tensors[value] for value in body.results])


def expect_types(node: Node, results: tuple[Tensor, ...]) -> None:
    """Raise VerifyError when a definition gives other results than the operator's type rule says: what is seen without a proof."""
    found = tuple(TensorType(result.dtype, tuple(result.shape)) for result in results)
    if len(found) == len(node.types) and not any(contradict(a, b) for a, b in zip(found, node.types, strict=True)):
        return
    defined, inferred = (", ".join(map(repr, types)) or "nothing" for types in (found, node.types))
    raise VerifyError(
        f"operator {node.op.name} defines {defined}, its type rule says {inferred}",
        where=None if node.origin is None else str(node.origin),
    )


def contradict(a: TensorType, b: TensorType) -> bool:
    dims = zip(a.shape, b.shape, strict=False)
    return a.dtype is not b.dtype or a.rank != b.rank or any(x.is_const and y.is_const and x.value != y.value for x, y in dims)


def literal(value: Value, op: Constant) -> Tensor:
    """A one-element constant as a tensor whose elements are a number in the kernel's code."""
    dtype = value.type.dtype
    number = op.data.array.reshape(-1)[0]
    plain = bool(number) if dtype.kind == "bool" else float(number) if dtype.is_float else int(number)
    return Tensor(Buffer("literal", dtype, value.shape), const(plain, dtype))
