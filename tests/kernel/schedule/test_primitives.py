"""Each primitive: the loop nest before and after, as golden text, and the result unchanged."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.kernel.schedule.kernels import (
    byte_product,
    check_same,
    convolution,
    elementwise,
    matmul,
    pointwise,
    scaled_product,
    short_product,
    softmax,
    stencil,
)
from tilewright.ir.dtypes import uint8
from tilewright.ir.expr import size
from tilewright.kernel.nodes import Kernel
from tilewright.kernel.schedule import PackedLayout, Schedule

M, N = size("m", 1), size("n", 1)
Golden = Callable[[str, str], None]


def inlined_elementwise() -> Schedule:
    return Schedule.of(elementwise(M, N)).inline("A").inline("B")


def tiled_matmul() -> tuple[Schedule, str]:
    s = Schedule.of(matmul(M, 5, 10)).inline("D")
    s, (io, ii) = s.split("i", 4)
    s, (jo, ji) = s.split("i_1", 4)
    s = s.reorder(io, jo, "k", ii, ji)
    return s, jo


def split(s: Schedule) -> Schedule:
    s, _ = s.split("i_5", (None, 2, 4))
    return s.split("i_4", 3)[0]


def split_evenly(s: Schedule) -> Schedule:
    return s.split("i_1", (None, 5))[0]


def compute_at(s: Schedule) -> Schedule:
    s, (outer, _) = s.split("i_1", 8)
    return s.compute_at("P", outer)[0]


def reverse_compute_at(_: Schedule) -> Schedule:
    s, tile = tiled_matmul()
    return s.reverse_compute_at("E", tile)[0]


def cache_write(s: Schedule) -> Schedule:
    s, (copy, *_) = s.cache_write("C")
    s, (io, ii) = s.split("i", 4)
    s = s.reorder(io, "i_1", "k", ii)
    return s.reverse_compute_at(copy, "i_1")[0]


def cache_read(s: Schedule) -> Schedule:
    s, (copy, *_) = s.cache_read("C", "A")
    return s.compute_at(copy, "i")[0]


def decompose_reduction(_: Schedule) -> Schedule:
    s, _tile = tiled_matmul()
    s = s.vectorize("i_1_i")
    return s.decompose_reduction("C", "k")[0]


def rfactor(s: Schedule) -> Schedule:
    s, (_, lanes) = s.split("k", 4)
    s, _ = s.rfactor(lanes)
    return s.vectorize(lanes)


def factor_out(s: Schedule) -> Schedule:
    s, (runs, _) = s.split("k", 4)
    s, (partial, *_) = s.rfactor(runs)
    return s.factor_out(partial)


def vectorized_reduction(s: Schedule) -> Schedule:
    s, (_, lanes) = s.split("k", 4)
    s, (_, final) = s.rfactor(lanes)
    return s.vectorize(lanes).vectorize(final)


def clamp_reads(_: Schedule) -> Schedule:
    s, tile = tiled_matmul()
    s, _ = s.reverse_compute_at("E", tile)
    return s.clamp_reads("C", 0).clamp_reads("C", 1)


def prefetch(_: Schedule) -> Schedule:
    s, tile = tiled_matmul()
    return s.prefetch(tile, "B", 40, [("i_o", 8, 2), (tile, 16, 0)], lines=2)


def prefetch_shared(_: Schedule) -> Schedule:
    s, tile = tiled_matmul()
    return s.prefetch(tile, "B", 40, [("i_o", 8, 0)], lines=2, shared=80, sharing=("i_o", tile))


def prefetch_beyond(_: Schedule) -> Schedule:
    """A buffer of a size that is known only while running, and one of 50 elements, which is not near."""
    s, tile = tiled_matmul()
    return s.prefetch(tile, "A", 40, [(tile, 16, 0)], lines=2, beyond=20).prefetch(tile, "B", 8, [(tile, 1, 0)], beyond=49)


def prefetch_only(_: Schedule) -> Schedule:
    """In the first of every three iterations of a loop outside."""
    s, tile = tiled_matmul()
    return s.prefetch(tile, "B", 40, [(tile, 16, 0)], only=("i_o", 3))


def pad(s: Schedule) -> Schedule:
    return s.pad("C", 1, 4).pad("C", 2, 2).pad("E", 1, 4)


def fuse_and_parallel(s: Schedule) -> Schedule:
    s, fused = s.fuse("i_4", "i_5")
    return s.parallel(fused)


CASES: dict[str, tuple[Callable[[], Kernel], Callable[[Schedule], Schedule]]] = {
    "split": (lambda: elementwise(M, N), split),
    "split_evenly": (elementwise, split_evenly),
    "fuse": (lambda: elementwise(M, N), fuse_and_parallel),
    "reorder": (matmul, lambda s: s.reorder("k", "i", "i_1")),
    "vectorize_unroll": (elementwise, lambda s: s.vectorize("i_1").unroll("i_2").parallel("i_4")),
    "inline": (elementwise, lambda s: s.inline("A").inline("B")),
    "reverse_inline": (elementwise, lambda s: s.reverse_inline("B").reverse_inline("C")),
    "compute_at": (stencil, compute_at),
    "compute_at_padding": (convolution, lambda s: s.compute_at("P", s.loops_of("C")[2])[0]),
    "reverse_compute_at": (lambda: matmul(M, 5, 10), reverse_compute_at),
    "compute_at_keeps_what_counts": (lambda: short_product(M), lambda s: s.compute_at("C", "i_3")[0].decompose_reduction("C", "C_k2")[0]),
    "rfactor_keeps_what_counts": (lambda: short_product(M), lambda s: s.rfactor("k_1")[0]),
    "cache_read": (matmul, cache_read),
    "cache_write": (matmul, cache_write),
    "set_scope": (matmul, lambda s: s.set_scope("C", "local")),
    "pack": (lambda: matmul(6, 5, 10), lambda s: s.pack("B", ((), (4,)), (1, 0, 2)).pack("C", ((2,), ()), (0, 2, 1))),
    "flatten": (lambda: pointwise(M, N), lambda s: s.flatten("C", 1)[0]),
    "decompose_reduction": (lambda: matmul(M, 5, 10), decompose_reduction),
    "rfactor": (lambda: softmax(M, N), rfactor),
    "vectorized_reduction": (lambda: softmax(M, N), vectorized_reduction),
    "factor_out": (lambda: scaled_product(M, 8, 5), factor_out),
    "clamp_reads": (lambda: matmul(M, 5, 10), clamp_reads),
    "prefetch": (lambda: matmul(M, 5, 10), prefetch),
    "prefetch_shared": (lambda: matmul(M, 5, 10), prefetch_shared),
    "prefetch_beyond": (lambda: matmul(M, 5, 10), prefetch_beyond),
    "prefetch_only": (lambda: matmul(M, 5, 10), prefetch_only),
    "pad": (lambda: matmul(M, 5, 10), pad),
    "dot": (lambda: byte_product(M, 8, 5), lambda s: s.dot("C", 2, 4)),
    "dot_keeps_what_counts": (lambda: short_product(M, 2, 8, 12, uint8), lambda s: s.dot("C", 3, 4)),
    "dot_ragged": (byte_product, lambda s: s.pack("B", ((4,), ()), (0, 2, 1)).dot("C", 2, 4)),
}
SIZES = {"m": 6, "n": 11}


@pytest.mark.parametrize("name", CASES)
def test_before_and_after(name: str, golden: Golden) -> None:
    make, apply = CASES[name]
    kernel = make()
    s = apply(Schedule.of(kernel))
    check_same(kernel, s, SIZES)
    golden(name, f"{Schedule.of(kernel)}\n\n->\n\n{s}\n")


def test_buffers_of_the_kernel_follow() -> None:
    s = Schedule.of(matmul()).inline("D").set_scope("C", "local")
    assert [(b.name, b.scope) for b in s.kernel.scratch] == [("C", "local")]
    s, (copy, *_) = s.cache_write("E")
    assert [b.name for b in s.kernel.scratch] == ["C", "E_local"]
    assert s.reverse_inline(copy).kernel.scratch == s.kernel.scratch[:1]


def test_clamped_scratch_grows_to_whole_tiles() -> None:
    s = clamp_reads(Schedule.of(matmul()))
    (c,) = s.kernel.scratch
    assert repr(c) == "C: float32[(m + 3) // 4 * 4, 12]"


def test_packed_layout_pads_with_zeros_and_comes_back() -> None:
    layout = PackedLayout("B", ((), (4,)), (1, 0, 2))
    array = np.arange(1, 31, dtype=np.float32).reshape(3, 10)
    packed = layout.pack(array)
    assert packed.shape == layout.packed_shape(array.shape) == (3, 3, 4)
    assert packed[2, 1].tolist() == [19.0, 20.0, 0.0, 0.0]
    np.testing.assert_array_equal(layout.unpack(packed, array.shape), array)


def test_layout_is_recorded_for_inputs_only() -> None:
    s = Schedule.of(matmul()).pack("B", ((), (4,)), (1, 0, 2)).pack("C", ((2,), ()), (0, 2, 1))
    assert s.layouts == (PackedLayout("B", ((), (4,)), (1, 0, 2)),)


def test_axes_are_one_wherever_they_are_side_by_side() -> None:
    s, loop = Schedule.of(pointwise(M, N)).flatten("E", "v_9")
    assert {b.name: len(b.shape) for b in (*s.kernel.inputs, *s.kernel.outputs, *s.kernel.scratch)} == {
        "x": 3, "w": 2, "bias": 1, "y": 3, "E": 3, "C": 3, "D": 3,
    }  # fmt: skip
    assert all(len(placed.stmt.iters) == (5 if name == "C" else 3) for name, placed in s.nest.blocks.items())
    assert loop in s.loops_of("E")


def test_queries() -> None:
    s = Schedule.of(matmul())
    assert s.blocks() == ("C", "D", "E")
    assert s.loops_of("C") == ("i", "i_1", "k")
    assert s.consumers("C") == ("D",)
    assert s.producers("E") == ("D",)


def test_lanes_within_one_row_of_a_fused_loop() -> None:
    # 16 lanes do not cross rows of 32: the row is the same in all of them, so the column tells the lane.
    kernel = elementwise(4, 32)
    s, fused = Schedule.of(kernel).inline("A").inline("B").fuse("i_4", "i_5")
    s, (_, _, lane) = s.split(fused, (None, 2, 16))
    check_same(kernel, s.vectorize(lane), {})


def test_clamping_what_accumulates_takes_its_init_along() -> None:
    """Else the rows past the end would be loaded before anything stored them."""
    kernel = scaled_product(M, 10, N)
    s = Schedule.of(kernel)
    s, (_, inner) = s.split("i", [None, 3])
    s, _ = s.decompose_reduction("C", inner)
    clamped = s.clamp_reads("C", 0)
    check_same(kernel, clamped, {"m": 2, "n": 3})
    assert clamped.clamp_reads("C_init", 0).kernel is clamped.kernel, "it is done already"
