"""A random legal schedule never changes a result: random primitives on random kernels; those that do not apply must refuse."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kernel.schedule.kernels import KINDS, check_same, elementwise, matmul, scaled_product, softmax, stencil
from tilewright.ir.expr import const, size
from tilewright.ir.traverse import evaluate_int, substitute
from tilewright.kernel.nodes import Kernel
from tilewright.kernel.schedule import Schedule, Trace, replay
from tilewright.support.errors import ScheduleError

M, N = size("m", 1), size("n", 1)
SYMBOLIC = {
    "elementwise": (lambda: elementwise(M, N), {"m": 3, "n": 7}),
    "matmul": (lambda: matmul(M, 4, N), {"m": 5, "n": 6}),
    "softmax": (lambda: softmax(M, N), {"m": 3, "n": 5}),
    "stencil": (lambda: stencil(N + 2), {"n": 9}),
    "scaled_product": (lambda: scaled_product(M, 4, N), {"m": 2, "n": 3}),
}
PRIMITIVES = (
    "split", "split", "split3", "fuse", "reorder", "parallel", "vectorize", "unroll", "compute_at", "compute_at", "reverse_compute_at",
    "reverse_compute_at", "inline", "reverse_inline", "cache_read", "cache_write", "pack", "decompose_reduction", "rfactor", "clamp_reads",
    "factor_out", "pad", "set_scope", "prefetch",
)  # fmt: skip


def step(s: Schedule, draw: st.DataObject) -> Schedule:
    """One random primitive; the schedule as it was when the primitive refuses."""
    name = draw.draw(st.sampled_from(PRIMITIVES))
    loops, blocks = tuple(s.nest.loops), s.blocks()
    kernel = s.kernel

    def pick(choices):
        return draw.draw(st.sampled_from(choices))

    factor = draw.draw(st.sampled_from((1, 2, 3, 4)))
    if not loops:
        return s
    block, loop = pick(blocks), pick(loops)
    try:
        match name:
            case "split":
                return s.split(loop, factor)[0]
            case "split3":
                return s.split(loop, (None, 2, factor))[0]
            case "fuse":
                below = s.nest.loop(loop).stmt.body
                return s.fuse(loop, below.var.name)[0] if hasattr(below, "extent") else s
            case "reorder":
                around = list(s.loops_of(block))
                return s.reorder(*draw.draw(st.permutations(around))) if len(around) > 1 else s
            case "parallel" | "vectorize" | "unroll":
                return getattr(s, name)(loop)
            case "compute_at" | "reverse_compute_at":
                return getattr(s, name)(block, loop)[0]
            case "inline" | "reverse_inline":
                return getattr(s, name)(block)
            case "prefetch":
                asked = pick(tuple(b.name for b in kernel.inputs))
                steps = [(name, factor, draw.draw(st.integers(0, 2))) for name in s.nest.loops if name in s.loops_of(block)]
                sharing = [name for name, _, _ in steps if draw.draw(st.booleans())]
                ahead, lines = draw.draw(st.integers(-4, 4)), draw.draw(st.integers(1, 2))
                return s.prefetch(loop, asked, ahead, steps, lines, shared=draw.draw(st.integers(0, 40)), sharing=sharing)
            case "cache_read":
                inputs = s.nest.inputs(block)
                return s.cache_read(block, pick(inputs).name)[0] if inputs else s
            case "cache_write":
                return s.cache_write(block)[0]
            case "pack":
                buffer = pick((*kernel.inputs, *kernel.scratch))
                if buffer.name in {layout.buffer for layout in s.layouts}:
                    return s
                tiles = [draw.draw(st.sampled_from(((), (2,), (4,), (2, 3)))) for _ in buffer.shape]
                return s.pack(buffer.name, tiles, draw.draw(st.permutations(range(sum(1 + len(t) for t in tiles)))))
            case "decompose_reduction":
                return s.decompose_reduction(block, loop)[0]
            case "rfactor":
                return s.rfactor(loop, draw.draw(st.sampled_from((0, 1))))[0]
            case "factor_out":
                return s.factor_out(block)
            case "clamp_reads":
                return s.clamp_reads(block, draw.draw(st.sampled_from((0, 1))))
            case "pad":
                return s.pad(block, draw.draw(st.sampled_from((0, 1, 2))), factor)
            case _:
                return s.set_scope(pick(kernel.scratch).name, "local") if kernel.scratch else s
    except ScheduleError:
        return s


def cost(s: Schedule, sizes: dict[str, int]) -> int:
    """How many points the blocks run, recomputation included."""
    env = {v: sizes[v.name] for v in s.kernel.sizes}
    total = 0
    for placed in s.nest.blocks.values():
        points = 1
        for loop in placed.around:
            # Extents that depend on loops around count at these loops' start.
            extent = substitute(loop.extent, {other.var: const(0) for other in placed.around})
            points *= evaluate_int(extent, env)
        total += points
    return total


def scheduled(kernel: Kernel, sizes: dict[str, int], draw: st.DataObject) -> Schedule:
    """A random schedule, without steps after which the interpreter would take long."""
    s = Schedule.of(kernel)
    for _ in range(draw.draw(st.integers(1, 14))):
        following = step(s, draw)
        s = following if cost(following, sizes) < 4000 else s
    return s


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(draw=st.data())
def test_random_schedules_keep_results(kind: str, draw: st.DataObject) -> None:
    kernel = KINDS[kind]()
    s = scheduled(kernel, {}, draw)
    check_same(kernel, s)
    assert replay(Trace.from_json(s.trace.to_json()), kernel).kernel is s.kernel


@pytest.mark.parametrize("kind", SYMBOLIC)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(draw=st.data())
def test_random_schedules_of_symbolic_kernels_keep_results(kind: str, draw: st.DataObject) -> None:
    make, sizes = SYMBOLIC[kind]
    kernel = make()
    check_same(kernel, scheduled(kernel, sizes, draw), sizes)
