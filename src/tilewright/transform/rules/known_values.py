"""Rules for values that are known before running: sizes computed with tensors, and branches whose condition is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from tilewright.graph.contents import Contents
from tilewright.graph.node import Function, Node, Value, operator_sizes, substitute_operator, walk_nodes
from tilewright.graph.ops import (
    Binary,
    BindSize,
    BroadcastTo,
    Cast,
    Concat,
    Constant,
    Gather,
    If,
    Iota,
    Loop,
    Reduce,
    RefineShape,
    Reshape,
    Select,
    SizeValue,
    Slice,
    Transpose,
    Unary,
    constant,
)
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, const
from tilewright.transform.functions import function_fields
from tilewright.transform.rewriting import Answer, Rewriter, Rules

MAX_SIZES = 8  # elements of a tensor of sizes that is worth writing out


def known_elements(r: Rewriter, node: Node) -> Answer:
    """A small integer or bool tensor whose elements are known becomes a constant, or is put together from sizes."""
    (value,) = node.values
    dtype = value.type.dtype
    if not (dtype.is_integer or dtype.kind == "bool"):
        return None
    contents = r.contents.of(value)
    if contents is None:
        return None
    if all(e.is_const for e in contents.flat):
        elements = np.array([e.value for e in contents.flat], np.bool_ if dtype.kind == "bool" else np.int64)
        return r.emit(constant(elements.reshape(contents.shape), dtype))
    if dtype is not dtypes.int64 or contents.size > MAX_SIZES or _is_written_out(value):
        return None
    return _written_out(r, value, contents)


def _is_written_out(value: Value) -> bool:
    """Built from size values by reshapes, concatenations and broadcasts only."""
    match value.op:
        case SizeValue() | Constant() | BindSize():
            return True
        case Concat() | Reshape() | BroadcastTo():
            return all(_is_written_out(operand) for operand in value.node.inputs)
    return False


def _written_out(r: Rewriter, value: Value, contents: Contents) -> Value:
    first = contents.flat[0]
    if all(e is first for e in contents.flat):
        return r.shaped(r.emit(SizeValue(first)), value.shape)
    parts = [r.emit(Reshape((const(1),)), r.emit(SizeValue(e))) for e in contents.flat]
    return r.emit(Reshape(value.shape), r.emit(Concat(0), *parts))


def known_size(r: Rewriter, node: Node) -> Answer:
    """The value of a constant size."""
    op = node.op
    assert isinstance(op, SizeValue)
    return r.emit(constant(np.int64(op.size.value))) if op.size.is_const else None


def known_branch(r: Rewriter, node: Node) -> Answer:
    """A branch whose condition is known is the function that it takes."""
    op = node.op
    assert isinstance(op, If)
    condition = r.contents.scalar(node.inputs[0])
    if condition is None or not condition.is_const:
        return None
    function = op.then_branch if condition.value else op.else_branch
    results = inlined(r, function, node.inputs[1:])
    return _with_sizes_bound(r, op, node, results)


def one_iteration(r: Rewriter, node: Node) -> Answer:
    """A loop that runs once is its body, with 0 for the number of the iteration."""
    op = node.op
    assert isinstance(op, Loop)
    if op.trip is not const(1) or op.conditional or op.fresh or _mentioned_inside(op.body, op.counter):
        return None
    results = inlined(r, op.body, node.inputs, {op.counter: const(0)})
    r.emit(BindSize(op.counter), r.emit(SizeValue(const(1))))  # for those that ask afterwards how often it ran
    stacked = [r.emit(Reshape((const(1), *value.shape)), value) for value in results[op.carried :]]
    return (*results[: op.carried], *stacked)


def _mentioned_inside(function: Function, size: Expr) -> bool:
    """Functions that the function holds mention the size."""
    held = (node.op for node in walk_nodes(function.results) if function_fields(type(node.op)))
    return any(size in operator_sizes(op) for op in held)


def inlined(
    r: Rewriter, function: Function, arguments: Sequence[Value], sizes: Mapping[Expr, Expr] = MappingProxyType({})
) -> tuple[Value, ...]:
    """The results of a function's body over these arguments, with `sizes` replaced in the operators (not in functions that they hold)."""
    mapped: dict[Value, Value] = dict(zip(function.params, arguments, strict=True))
    for node in walk_nodes(function.results):
        if node.values and node[0] not in mapped:
            results = r.emit_all(substitute_operator(node.op, sizes) if sizes else node.op, *(mapped[value] for value in node.inputs))
            mapped.update(zip(node.values, results, strict=True))
    return tuple(mapped[value] for value in function.results)


def _with_sizes_bound(r: Rewriter, op: If, node: Node, results: tuple[Value, ...]) -> tuple[Value, ...]:
    """The results under the type of the branch: the sizes in which the two functions differed stay named."""
    bound: dict[Expr, Expr] = {}
    for type_, value in zip(node.types, results, strict=True):
        for named, dim in zip(type_.shape, value.shape, strict=True):
            if named in op.fresh:
                bound.setdefault(named, dim)
    for named, dim in bound.items():
        r.emit(BindSize(named), r.emit(SizeValue(dim)))
    return tuple(
        value if value.type is type_ else r.emit(RefineShape(type_.shape), value) for type_, value in zip(node.types, results, strict=True)
    )


RULES: Rules = {
    SizeValue: (known_size,),
    If: (known_branch,),
    Loop: (one_iteration,),
    **dict.fromkeys(
        (Unary, Binary, Select, Cast, Reshape, RefineShape, BroadcastTo, Transpose, Concat, Slice, Gather, Reduce, Iota), (known_elements,)
    ),
}
