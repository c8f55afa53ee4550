"""What schedules of kernels decide for sizes that are known only while running: they serve few and many alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from tests.compiled_graphs import f32, function
from tilewright.graph.ops import BlockedConvolution, Contract, Reduce, WindowReduce
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, const, size
from tilewright.ir.traverse import evaluate_int, free_vars
from tilewright.kernel.nodes import For, Kernel, Prefetch, Stmt, blocks, children, walk_stmts
from tilewright.kernel.schedule.space import Space
from tilewright.machine.targets import named_machine
from tilewright.target.cpu.rules.choose import schedule_kernel
from tilewright.target.cpu.rules.structure import few_sizes, geometric_mean
from tilewright.transform.fuse import fuse
from tilewright.transform.lower_groups import lower_group

N = size("N", 1)
LAST = (size("image", 1) + 31) // 32  # a side of the image in the last layers of a network
BORDER = (const(0), const(0), const(1), const(1), const(0))
POOLING = WindowReduce("max", (1, 1, 3, 3, 1), (1,) * 5, (1,) * 5, BORDER, BORDER)


def kernel_of(types, body) -> Kernel:  # type: ignore[no-untyped-def]
    (group,) = {value.node for value in fuse(function("p", types, body)).results}
    return lower_group(group.op.body)


def asked(stmt: Stmt, values: Mapping[Expr, int]) -> Iterator[int]:
    """The positions that a statement asks for, in order."""
    if isinstance(stmt, Prefetch):
        yield evaluate_int(stmt.offset, values)
    elif isinstance(stmt, For):
        for i in range(evaluate_int(stmt.extent, values)):
            yield from asked(stmt.body, {**values, stmt.var: i})
    else:
        for child in children(stmt):
            yield from asked(child, values)


@pytest.mark.parametrize("rows", [70, 131, 300])
def test_the_whole_next_panel_is_asked_for_whatever_the_number_of_rows(rows: int) -> None:
    depth = 16
    kernel = kernel_of([f32(N, depth), f32(depth, 192)], lambda g, x, w: [g.one(Contract("mk,kn->mn", dtypes.float32), x, w)])
    schedule = schedule_kernel(kernel, frozenset({1}), named_machine("x86-64-v4"))
    (panels, _, width) = next(buffer.shape for buffer in schedule.kernel.inputs if len(buffer.shape) == 3)
    panel = depth * int(width.value)
    lines = {position // 16 for position in asked(schedule.kernel.body, {N: rows})}
    assert lines >= set(range(panel // 16, int(panels.value) * panel // 16)), "of all panels but the first"
    assert max(lines) < (int(panels.value) + 2) * panel // 16


@pytest.mark.parametrize("images", [N, 1, 4])
def test_few_images_do_not_read_their_weights_again_for_each_row(images: Expr | int) -> None:
    border = (const(1), const(1))
    op = BlockedConvolution((2, 2), (1, 1), border, border, False, 16)
    types = [f32(images, 16, 14, 14, 16), f32(512, 256, 3, 3)]
    space = Space()
    schedule_kernel(kernel_of(types, lambda g, x, w: [g.one(op, x, w)]), frozenset({1}), named_machine("emeraldrapids"), space=space)
    assert {decision.options[decision.taken] for decision in space.decisions if decision.name.endswith("row_blocks")} == {1}


@pytest.mark.parametrize("machine", ["emeraldrapids", "x86-64-v3"])
@pytest.mark.parametrize("window", [1, 3])
def test_tiles_of_layers_of_few_pixels_lie_along_their_columns(window: int, machine: str) -> None:
    """With 64 pixels in mind, of which 2 are left, the rows of a tile were images of the batch: of one image all others were in vain."""
    border = (const(window // 2),) * 2
    lanes = named_machine(machine).lanes(32)
    op = BlockedConvolution((1, 1), (1, 1), border, border, False, lanes)
    types = [f32(N, 256 // lanes, LAST, LAST, lanes), f32(512, 256, window, window)]
    space = Space()
    schedule = schedule_kernel(kernel_of(types, lambda g, x, w: [g.one(op, x, w)]), frozenset({1}), named_machine(machine), space=space)
    (rows, _) = next(decision.options[decision.taken] for decision in space.decisions if decision.name.endswith(".tile"))
    (product,) = (block for block in blocks(schedule.kernel.body) if block.name == "blocked_convolution")
    own = {s.var for s in walk_stmts(schedule.kernel.body) if isinstance(s, For) and s.kind == "unrolled" and s.extent is const(rows)}
    image = product.bindings[0]
    column = product.bindings[2 if window == 1 else 3]  # of a pointwise one all pixels
    assert rows >= 4
    assert not own.isdisjoint(free_vars(column))
    assert own.isdisjoint(free_vars(image))


def test_tiles_of_a_row_of_unknown_length_are_one_task() -> None:
    """Each task tells by divisions which row it has; they take as long as many multiply-adds."""
    op = BlockedConvolution((2, 2), (1, 1), (const(0),) * 2, (const(0),) * 2, False, 16)
    types = [f32(N, 16, 2 * LAST, 2 * LAST, 16), f32(512, 256, 1, 1)]
    schedule = schedule_kernel(kernel_of(types, lambda g, x, w: [g.one(op, x, w)]), frozenset({1}), named_machine("emeraldrapids"))
    (task,) = [s for s in walk_stmts(schedule.kernel.body) if isinstance(s, For) and s.kind == "parallel"]
    inside = [s for s in walk_stmts(task.body) if isinstance(s, For) and s.kind == "serial" and not s.extent.is_const]
    assert len(inside) == 1


def test_points_of_a_pooling_lie_along_columns() -> None:
    space = Space()
    kernel = kernel_of([f32(N, 4, LAST, LAST, 16)], lambda g, x: [g.one(POOLING, x)])
    schedule_kernel(kernel, frozenset(), named_machine("emeraldrapids"), space=space)
    assert space.point()["points side by side"] >= 4


@pytest.mark.parametrize(("length", "vectors"), [(N, 2), (512, 8), (size("L", 0, 100), 2), (17, 1)])
def test_reductions_of_unknown_length_serve_short_ones(length: Expr | int, vectors: int) -> None:
    space = Space()
    kernel = kernel_of([f32(40, length)], lambda g, x: [g.one(Reduce("sum", (1,), False), x)])
    schedule_kernel(kernel, frozenset(), named_machine("emeraldrapids"), space=space)
    assert {d.options[d.taken] for d in space.decisions if d.name.endswith("accumulators")} == {vectors}


def test_few_sizes_stay_in_their_range() -> None:
    a, b = size("A", 3, 10), size("B", 0)
    assert few_sizes(a * 2 + b) == [{a: const(v), b: const(w)} for v, w in ((3, 1), (6, 2), (10, 4), (10, 8))]
    assert few_sizes() == [{}]
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
