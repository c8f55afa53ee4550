"""How cores share convolutions of bytes in blocked channels: by rows, so that each reads little that another one has written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest

from tests.compiled_graphs import function
from tilewright.graph.node import GraphBuilder, Value
from tilewright.graph.ops import BlockedConvolution
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, const
from tilewright.ir.traverse import evaluate_int
from tilewright.ir.types import TensorType, tensor
from tilewright.kernel.lower.pipeline import lower
from tilewright.kernel.nodes import For, If, Kernel, Let, Stmt, Store, children, walk_stmts
from tilewright.machine.targets import named_machine
from tilewright.target.cpu.rules.choose import schedule_kernel
from tilewright.transform.fuse import fuse
from tilewright.transform.lower_groups import lower_group

NONE, ONE = (const(0), const(0)), (const(1), const(1))
MACHINE = named_machine("emeraldrapids")

Body = Callable[[GraphBuilder, Sequence[Value]], Value]


def u8(*shape: int) -> TensorType:
    return tensor(dtypes.uint8, shape)


def s8(*shape: int) -> TensorType:
    return tensor(dtypes.int8, shape)


def blocked(border: tuple[Expr, Expr]) -> Body:
    op = BlockedConvolution((1, 1), (1, 1), border, border, False, 16, dtypes.int32)
    return lambda g, x: g.one(op, x[0], x[1])


CASES: dict[str, tuple[list[TensorType], Body]] = {
    "pointwise": ([u8(1, 4, 8, 8, 16), s8(96, 64, 1, 1)], blocked(NONE)),
    "as many weights as bytes of the image": ([u8(1, 16, 16, 16, 16), s8(256, 256, 1, 1)], blocked(NONE)),
    "3x3": ([u8(1, 2, 16, 16, 16), s8(96, 32, 3, 3)], blocked(ONE)),
}


def kernel_of(types: list[TensorType], body: Body) -> Kernel:
    (group,) = {value.node for value in fuse(function("p", types, lambda g, *x: [body(g, x)])).results}
    return lower_group(group.op.body)


def rows_written(stmt: Stmt, results: Sequence[object], values: Mapping[Expr, int]) -> Iterator[int]:
    """The rows of a result that a statement stores to."""
    if isinstance(stmt, Store):
        if stmt.buffer in results:
            yield evaluate_int(stmt.indices[2], values)
    elif isinstance(stmt, For):
        for i in range(1 if stmt.kind == "vectorized" else evaluate_int(stmt.extent, values)):
            yield from rows_written(stmt.body, results, {**values, stmt.var: i})
    elif isinstance(stmt, Let):
        yield from rows_written(stmt.body, results, {**values, stmt.var: evaluate_int(stmt.value, values)})
    elif isinstance(stmt, If):
        chosen = stmt.then if evaluate_int(stmt.condition, values) else stmt.otherwise
        yield from rows_written(chosen, results, values) if chosen is not None else ()
    else:
        for child in children(stmt):
            yield from rows_written(child, results, values)


def parallel_loop(kernel: Kernel) -> For:
    """The loop whose tasks write the results."""
    loops = [stmt for stmt in walk_stmts(kernel.body) if isinstance(stmt, For) and stmt.kind == "parallel"]
    return next(loop for loop in loops if any(isinstance(s, Store) and s.buffer in kernel.outputs for s in walk_stmts(loop)))


@pytest.mark.parametrize("case", CASES)
def test_cores_share_images_by_rows(case: str) -> None:
    types, body = CASES[case]
    kernel = lower(schedule_kernel(kernel_of(types, body), frozenset({1}), MACHINE).kernel)
    loop = parallel_loop(kernel)
    tasks, height = evaluate_int(loop.extent, {}), evaluate_int(kernel.outputs[0].shape[2], {})
    assert tasks % 2 == 0
    first = {row for i in range(tasks // 2) for row in rows_written(loop.body, kernel.outputs, {loop.var: i})}
    assert first == set(range(height // 2)), "the first half of the tasks writes the first half of the rows, in all channels"
