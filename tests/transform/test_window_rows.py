"""Convolutions of few channels as ones of one channel over rows of pixels: the same sums, from windows that lie side by side."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import pytest

from tests.compiled_graphs import Array, host, module
from tilewright.compiler import compile_module, optimise
from tilewright.graph.interpreter import interpret
from tilewright.graph.node import Function, GraphBuilder, Module, Node, Value, walk_nodes
from tilewright.graph.ops import BlockedConvolution, Convolution, Fused, constant
from tilewright.ir import dtypes
from tilewright.ir.expr import const, size
from tilewright.ir.types import TensorType, tensor
from tilewright.machine.description import Machine
from tilewright.machine.targets import named_machine
from tilewright.runtime.executable import Executable
from tilewright.support.settings import Settings
from tilewright.target.cpu.layout_cost import CpuLayoutCost
from tilewright.transform.window_rows import row_windows

F32, F16, BF16, U8, S8, I32 = dtypes.float32, dtypes.float16, dtypes.bfloat16, dtypes.uint8, dtypes.int8, dtypes.int32
N, W = size("N"), size("W", 8)
TILES, PLAIN = named_machine("sapphirerapids"), named_machine("icelake-server")
HAS_TILES = host().vector_bits == 512 and host().has("amx-int8", "amx-bf16")
RNG = np.random.default_rng(5)

# (space, channels, window, strides, dilations, low, high)
Case = tuple[Sequence[int], int, Sequence[int], Sequence[int], Sequence[int], Sequence[int], Sequence[int]]
CASES: dict[str, Case] = {
    "7x7 by 2": ((37, 41), 3, (7, 7), (2, 2), (1, 1), (3, 3), (3, 3)),
    "3x3 by 2, asymmetric": ((33, 35), 3, (3, 3), (2, 2), (1, 1), (0, 1), (2, 0)),
    "one channel": ((20, 30), 1, (4, 8), (1, 1), (1, 1), (1, 2), (2, 5)),
    "dilated rows": ((30, 29), 4, (3, 5), (1, 3), (4, 1), (4, 0), (0, 2)),
    "sound": ((200,), 2, (10,), (5,), (1,), (9,), (4,)),
    "video": ((6, 19, 21), 3, (3, 5, 5), (1, 2, 2), (1, 1, 1), (1, 2, 2), (1, 2, 2)),
    "no padding": ((16, 64), 3, (4, 4), (4, 4), (1, 1), (0, 0), (0, 0)),
}


def operator(case: Case, dtype: dtypes.DType) -> Convolution:
    _, _, _, strides, dilations, low, high = case
    return Convolution(tuple(strides), tuple(dilations), tuple(map(const, low)), tuple(map(const, high)), 1, dtype)


def numbers(dtype: dtypes.DType, shape: Sequence[int]) -> Array:
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        return RNG.integers(info.min, info.max, tuple(shape), dtype.numpy, endpoint=True)
    return (RNG.integers(-8, 9, tuple(shape)) / 8).astype(dtype.numpy)  # exact in bfloat16, as are their products and sums


def model(case: Case, x: dtypes.DType, w: dtypes.DType, outputs: int = 32) -> Module:
    space, channels, window, *_ = case
    op = operator(case, I32 if x.is_integer else x)
    weights = numbers(w, (outputs, channels, *window))

    def body(g: GraphBuilder, image: Value) -> Sequence[Value]:
        return (g.one(op, image, g.one(constant(weights))),)

    return module([tensor(x, (N, channels, *space))], body)


def rewritten(f: Function, channels: int) -> Function | None:
    """The function of one convolution with its windows side by side."""
    node = next(node for node in walk_nodes(f.results) if isinstance(node.op, Convolution))
    g = GraphBuilder()
    found = row_windows(g, node.op, *node.inputs, channels)
    return None if found is None else Function(f.name, f.params, (g.one(found[0], *found[1:]),))


def inner_nodes(f: Function) -> list[Node]:
    """The nodes of a function and of the groups in it."""
    nodes = list(walk_nodes(f.results))
    return nodes + [inner for node in nodes if isinstance(node.op, Fused) for inner in walk_nodes(node.op.body.results)]


SETTINGS = Settings().changed(cache=False, precision="bf16", verify=True)


@pytest.mark.parametrize("spare", [0, 1, 3])
@pytest.mark.parametrize("case", CASES)
def test_results_are_the_same(case: str, spare: int) -> None:
    m = model(CASES[case], F32, F32)
    after = rewritten(m.main, CASES[case][1] + spare)
    assert after is not None
    assert after.results[0].type == m.main.results[0].type
    x = numbers(F32, (2, CASES[case][1], *CASES[case][0]))
    for want, got in zip(interpret(m, [x]), interpret(after, [x]), strict=True):
        np.testing.assert_array_equal(got, want)


def test_what_does_not_lie_side_by_side_stays() -> None:
    space, channels, window, strides, _, low, high = CASES["7x7 by 2"]
    assert rewritten(model((space, channels, window, strides, (1, 2), low, high), F32, F32).main, 4) is None


@pytest.mark.parametrize(
    ("machine", "dtype", "speed", "channels", "width", "want"),
    [
        (TILES, F32, 4.0, 3, 7, 4),
        (TILES, F32, 4.0, 2, 7, 2),
        (TILES, F32, 4.0, 3, 4, 3),
        (TILES, F32, 4.0, 1, 8, 1),
        (TILES, F32, 1.0, 3, 7, 0),
        (TILES, F32, 4.0, 1, 34, 0),
        (TILES, F32, 4.0, 3, 10, 3),
        (TILES, F16, 4.0, 3, 7, 4),
        (TILES, BF16, 4.0, 3, 7, 4),
        (TILES, BF16, 1.0, 3, 7, 0),
        (TILES, S8, 1.0, 3, 7, 4),
        (TILES, S8, 1.0, 1, 16, 1),
        (PLAIN, S8, 1.0, 3, 7, 0),
        (PLAIN, F32, 2.0, 3, 7, 0),
    ],
)
def test_so_many_channels_as_fill_steps(machine: Machine, dtype: dtypes.DType, speed: float, channels: int, width: int, want: int) -> None:
    case = ((32, 32), channels, (width, width), (2, 2), (1, 1), (width, width), (0, 0))
    f = model(case, U8 if dtype is S8 else dtype, dtype).main
    node = next(node for node in walk_nodes(f.results) if isinstance(node.op, Convolution))
    assert CpuLayoutCost(machine, speed).window_channels(node) == want


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["bytes", "bf16"])
def test_compiled_for_tiles(case: str, kind: str) -> None:
    """Exact: sums of bytes, and of eighths that bfloat16 holds."""
    x, w = (U8, S8) if kind == "bytes" else (F32, F32)
    m = model(CASES[case], x, w)
    machine = TILES if HAS_TILES else host()
    of = compile_module(m, machine, SETTINGS)
    space, channels, window, *_ = CASES[case]
    for images in (1, 3):
        image = numbers(x, (images, channels, *space))
        (got,) = Executable(of.artifact, 2).run({m.input_names[0]: image}).values()
        (want,) = interpret(m, [image])
        assert prod(window) * channels < 1 << 10
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("case", ["7x7 by 2", "3x3 by 2, asymmetric", "dilated rows", "sound"])
def test_infinities_stay_in_windows_that_hold_them(case: str) -> None:
    m = model(CASES[case], F32, F32)
    space, channels, *_ = CASES[case]
    after = optimise(m, TILES, SETTINGS).main
    assert any(isinstance(n.op, BlockedConvolution) and n.inputs[0].type.dtype is dtypes.bfloat16 for n in inner_nodes(after))
    of = compile_module(m, TILES, SETTINGS) if HAS_TILES else None
    for special in (np.inf, np.nan):
        image = numbers(F32, (2, channels, *space))
        image[0, 0, ..., 0] = image[0, -1, ..., -1] = image[1, :, space[0] // 2] = special
        (want,) = interpret(m, [image])
        results = list(interpret(after, [image]))
        if of is not None:
            results += Executable(of.artifact, 1).run({m.input_names[0]: image}).values()
        for got in results:
            np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))
            np.testing.assert_array_equal(got[np.isfinite(want)], want[np.isfinite(want)])
        assert 0 < np.isfinite(want).mean() < 1


def test_half_precision_models_go_the_same_way() -> None:
    m = model(CASES["7x7 by 2"], F16, F16)
    factors = [n.inputs[0].type.dtype for n in inner_nodes(optimise(m, TILES, SETTINGS).main) if isinstance(n.op, BlockedConvolution)]
    assert factors == [dtypes.bfloat16]
    machine = TILES if HAS_TILES else host()
    of = compile_module(m, machine, SETTINGS)
    image = numbers(F16, (2, 3, 37, 41))
    (got,) = Executable(of.artifact, 1).run({m.input_names[0]: image}).values()
    np.testing.assert_array_equal(got, interpret(m, [image])[0])


def test_images_of_unknown_width() -> None:
    """Widths that are known only while running keep the sizes that they had."""
    op = operator(CASES["7x7 by 2"], F32)
    weights = numbers(F32, (32, 3, 7, 7))
    m = module([TensorType(F32, (N, const(3), const(32), W))], lambda g, x: (g.one(op, x, g.one(constant(weights))),))
    machine = TILES if HAS_TILES else host()
    of = compile_module(m, machine, SETTINGS)
    for width in (8, 31, 64):
        image = numbers(F32, (1, 3, 32, width))
        (got,) = Executable(of.artifact, 1).run({m.input_names[0]: image}).values()
        np.testing.assert_array_equal(got, interpret(m, [image])[0])
