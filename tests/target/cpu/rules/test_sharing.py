"""How cores share convolutions in blocked channels: by rows, so that each reads little that another one has written, and what of it is
asked for before it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import pytest

from tests.compiled_graphs import f32, function
from tilewright.graph.node import GraphBuilder, Value
from tilewright.graph.ops import BlockedConvolution
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, const
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import evaluate_int, walk
from tilewright.ir.types import TensorType, tensor
from tilewright.kernel.lower.pipeline import lower
from tilewright.kernel.nodes import Buffer, For, If, Kernel, Let, Prefetch, Stmt, Store, children, walk_stmts
from tilewright.machine.targets import named_machine
from tilewright.target.cpu.rules.choose import schedule_kernel
from tilewright.transform.fuse import fuse
from tilewright.transform.lower_groups import lower_group

NONE, ONE = (const(0), const(0)), (const(1), const(1))
MACHINE = replace(named_machine("emeraldrapids"), cores=2)

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


def lines_of(stmt: Stmt, buffer: Buffer, values: Mapping[Expr, int], kind: type[Stmt]) -> Iterator[int]:
    """Cache lines of a parameter that requests (`kind` Prefetch) ask for, or that stores (`kind` Store) read for their results."""
    per_line = 64 // buffer.dtype.bytes
    if isinstance(stmt, Prefetch) and kind is Prefetch and stmt.buffer is buffer:
        yield evaluate_int(stmt.offset, values) // per_line
    elif isinstance(stmt, Store) and kind is Store:
        for load in (e for e in walk(stmt.value) if e.op is Op.LOAD and e.attr is buffer):
            position = 0
            for index, dim in zip(load.args, buffer.shape, strict=True):
                position = position * evaluate_int(dim, {}) + evaluate_int(index, values)
            yield position // per_line
    elif isinstance(stmt, For):
        for i in range(1 if stmt.kind == "vectorized" else evaluate_int(stmt.extent, values)):
            yield from lines_of(stmt.body, buffer, {**values, stmt.var: i}, kind)
    elif isinstance(stmt, Let):
        yield from lines_of(stmt.body, buffer, {**values, stmt.var: evaluate_int(stmt.value, values)}, kind)
    elif isinstance(stmt, If):
        chosen = stmt.then if evaluate_int(stmt.condition, values) else stmt.otherwise
        yield from lines_of(chosen, buffer, values, kind) if chosen is not None else ()
    else:
        for child in children(stmt):
            yield from lines_of(child, buffer, values, kind)


SHORT_RUNS: dict[str, tuple[list[TensorType], int]] = {
    "panels are shared": ([f32(1, 2, 7, 7, 16), f32(384, 32, 1, 1)], 1),
    "rows are shared": ([f32(1, 2, 14, 14, 16), f32(384, 32, 1, 1)], 1),
    "every other row and column": ([u8(1, 2, 14, 14, 16), s8(512, 32, 1, 1)], 2),
    "bytes": ([u8(1, 2, 7, 7, 16), s8(512, 32, 1, 1)], 1),
}


@pytest.mark.parametrize("case", SHORT_RUNS)
def test_rows_in_short_runs_are_asked_for_by_the_tile_before_while_the_first_panel_is_used(case: str) -> None:
    types, step = SHORT_RUNS[case]
    op = BlockedConvolution((step, step), (1, 1), NONE, NONE, False, 16, dtypes.int32 if types[0].dtype is dtypes.uint8 else dtypes.float32)
    kernel = lower(schedule_kernel(kernel_of(types, lambda g, x: g.one(op, x[0], x[1])), frozenset({1}), MACHINE).kernel)
    loop, image = parallel_loop(kernel), kernel.inputs[0]
    half = evaluate_int(loop.extent, {}) // MACHINE.cores
    for begin in range(0, MACHINE.cores * half, half):
        asked = [set(lines_of(loop.body, image, {loop.var: i}, Prefetch)) for i in range(begin, begin + half)]
        read = [set(lines_of(loop.body, image, {loop.var: i}, Store)) for i in range(begin, begin + half)]
        tiles = read.index(read[0], 1) if read[0] in read[1:] else half  # of a panel
        assert tiles < half, "there are panels after the first"
        assert all(asked[i] >= read[i + 1] for i in range(tiles - 1)), "the next tile's rows"
        assert not any(asked[tiles:]), "later panels find the rows in their second cache"


def test_one_core_has_written_everything_itself() -> None:
    types, _ = SHORT_RUNS["panels are shared"]
    op = BlockedConvolution((1, 1), (1, 1), NONE, NONE, False, 16)
    kernel = kernel_of(types, lambda g, x: g.one(op, x[0], x[1]))
    alone = schedule_kernel(kernel, frozenset({1}), replace(MACHINE, cores=1)).kernel
    assert kernel.inputs[0] not in {stmt.buffer for stmt in walk_stmts(alone.body) if isinstance(stmt, Prefetch)}


@pytest.mark.parametrize(("side", "channels"), [(13, 112), (11, 48), (9, 80)])
def test_ragged_tiles_of_rows_in_short_runs_are_asked_for_as_well(side: int, channels: int) -> None:
    """Panels and row tiles that do not come out even have iters of other extents than the definition's."""
    op = BlockedConvolution((1, 1), (1, 1), NONE, NONE, False, 16)
    kernel = kernel_of([f32(1, 2, side, side, 16), f32(channels, 32, 1, 1)], lambda g, x: g.one(op, x[0], x[1]))
    scheduled = schedule_kernel(kernel, frozenset({1}), MACHINE).kernel
    assert kernel.inputs[0] in {stmt.buffer for stmt in walk_stmts(scheduled.body) if isinstance(stmt, Prefetch)}
