"""Regions of statements, and what kind of computation a block is."""

from __future__ import annotations

from tests.kernel.schedule.kernels import convolution, elementwise, matmul, softmax
from tilewright.ir import dtypes
from tilewright.ir.expr import cast, size
from tilewright.kernel.builder import KernelBuilder
from tilewright.kernel.nodes import Kernel, blocks
from tilewright.kernel.regions import Region, accesses, covers, iters_of, pattern, regions
from tilewright.kernel.schedule import Schedule


def shown(region: Region) -> str:
    dims = ", ".join(f"{start!r}:+{extent!r}" for start, extent in region.dims)
    return f"{region.buffer.name}[{dims}]{'' if region.exact else ' at most'}"


def of_loop(s: Schedule, loop: str) -> tuple[list[str], list[str]]:
    found = regions(s.nest.loop(loop).stmt.body, s.nest.loop(loop).scope)
    return [shown(r) for r in found.reads.values()], [shown(r) for r in found.writes.values()]


def patterns(kernel: Kernel) -> dict[str, str]:
    return {block.name: pattern(block) for block in blocks(kernel.body)}


def test_whole_kernel() -> None:
    found = regions(matmul(6, 5, 10).body)
    assert [shown(r) for r in found.reads.values()] == [
        "C[0:+6, 0:+10]",
        "A[0:+6, 0:+5]",
        "B[0:+5, 0:+10]",
        "bias[0:+10]",
        "D[0:+6, 0:+10]",
    ]


def test_a_tile_of_a_ragged_product() -> None:
    m = size("m", 1)
    s = Schedule.of(matmul(m, 5, 10))
    s, (outer, inner) = s.split("i", 4)
    s = s.reorder(outer, "i_1", "k", inner)
    reads, writes = of_loop(s, outer)
    assert reads == ["C[i_o * 4:+4, 0:+10]", "A[i_o * 4:+4, 0:+5]", "B[0:+5, 0:+10]"]
    assert writes == ["C[i_o * 4:+4, 0:+10]"]


def test_windows_overlap() -> None:
    s = Schedule.of(convolution(side=7, window=3, stride=2))
    reads, writes = of_loop(s, s.loops_of("C")[2])
    assert "P[i_4:+1, 0:+2, i_6 * 2:+3, 0:+9]" in reads
    assert writes == ["C[i_4:+1, i_5:+1, i_6:+1, 0:+4]"]


def test_windows_with_gaps_are_not_exact() -> None:
    s = Schedule.of(convolution(side=6, window=2, stride=3))
    reads, _ = of_loop(s, s.loops_of("C")[2])
    assert "P[i_4:+1, 0:+2, i_6 * 3:+2, 0:+8] at most" in reads


def test_indices_that_depend_on_data_take_the_whole_dimension() -> None:
    b = KernelBuilder("gather")
    x, at = b.input("x", dtypes.float32, (9, 4)), b.input("at", dtypes.int32, (5,))
    y = b.compute("y", (5, 4), lambda i, j: x[cast(dtypes.int64, at[i]), j])
    found = regions(b.finish((y,)).body).reads
    assert shown(found[x.buffer]) == "x[0:+9, 0:+4] at most"
    assert found[x.buffer].bounded == (False, True)


def test_patterns() -> None:
    assert patterns(elementwise()) == {"A": "elementwise", "B": "broadcast", "C": "elementwise"}
    assert patterns(convolution()) == {"P": "injective", "C": "reduction", "D": "broadcast"}
    b = KernelBuilder("swap")
    x = b.input("x", dtypes.float32, (3, 4))
    y = b.compute("y", (4, 3), lambda i, j: x[j, i])
    (z,) = b.opaque("z", [_tensor()], (4,), lambda s, outs, i: _copy_row(s, outs[0], y, i))
    assert patterns(b.finish((z,))) == {"y": "injective", "z": "opaque"}


def _tensor():
    from tilewright.ir.types import tensor

    return tensor(dtypes.float32, (4, 3))


def _copy_row(s, out, y, i) -> None:
    with s.loop("j", 3) as j:
        s.store(out, (i, j), y[i, j])


def test_opaque_bodies_are_read_through_their_loops() -> None:
    b = KernelBuilder("rows")
    y = b.input("y", dtypes.float32, (4, 3))
    (z,) = b.opaque("z", [_tensor()], (4,), lambda s, outs, i: _copy_row(s, outs[0], y, i))
    kernel = b.finish((z,))
    s = Schedule.of(kernel)
    assert of_loop(s, "i") == (["y[i:+1, 0:+3]"], ["z[i:+1, 0:+3]"])


def test_iters_that_loads_depend_on() -> None:
    block = blocks(matmul().body)[0]
    used = {a.buffer.name: [v.name for v in iters_of(a, block)] for a in accesses(block).loads}
    assert used == {"C": ["v", "v_1"], "A": ["v", "r"], "B": ["v_1", "r"]}


def test_covering() -> None:
    kernel = softmax(4, 11)
    row = regions(kernel.body).reads
    e = next(b for b in row if b.name == "e")
    s = Schedule.of(kernel)
    one = regions(s.nest.loop("i_4").stmt.body, s.nest.loop("i_4").scope).reads[e]
    assert covers(row[e], one, s.nest.loop("i_4").scope)
    assert not covers(one, row[e], s.nest.loop("i_4").scope)
