"""Winograd convolutions are chosen by cost, only where they apply, and results stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from tests.compiled_graphs import compile_graph, f32, function, module, step
from tilewright.compiler import optimise
from tilewright.graph.interpreter import interpret
from tilewright.graph.node import Function, GraphBuilder, Module, Value, walk_nodes
from tilewright.graph.ops import Binary, Constant, Convolution, Fused, constant
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, size
from tilewright.ir.types import as_shape
from tilewright.machine.targets import named_machine
from tilewright.support.settings import Settings
from tilewright.target.cpu.rules.winograd_cost import CpuConvolutionCost
from tilewright.transform.block_channels import block_channels
from tilewright.transform.choose_winograd import MOST_AMPLIFICATION, DenseConvolution, amplification, best_tile, candidates, choose_winograd
from tilewright.transform.fold_constants import fold_constants

RNG = np.random.default_rng(11)
N = size("N")
H = size("H", 4)


@dataclass(frozen=True)
class Always:
    """A target that prefers one tile."""

    tile: tuple[int, ...]

    def direct(self, convolution: DenseConvolution) -> float:
        return 10.0

    def winograd(self, convolution: DenseConvolution, tile: tuple[int, ...]) -> float:
        return 1.0 if tile == self.tile else 9.5


def convolution(
    shape: Sequence[Expr | int], outputs: int = 8, *, stride: int = 1, dilation: int = 1, groups: int = 1, taps: int = 3
) -> Function:
    def body(g: GraphBuilder, x: Value) -> Sequence[Value]:
        w = g.one(constant(RNG.uniform(-1, 1, (outputs, int(x.shape[1].value) // groups, taps, taps)).astype(np.float32)))
        one = as_shape((1, 1))
        y = g.one(Convolution((stride, stride), (dilation, dilation), one, one, groups, dtypes.float32), x, w)
        return (g.one(Binary("max"), y, g.one(constant(np.float32(0)))),)

    return function("p", [f32(*shape)], body)


def chosen(before: Function, tile: tuple[int, int] = (4, 4), lanes: int = 4) -> Function:
    return choose_winograd(fold_constants(block_channels(before, lanes)), Always(tile))


def names(f: Function) -> list[str]:
    return [node.op.name for node in walk_nodes(f.results)]


@pytest.mark.parametrize("tile", [(2, 2), (4, 4), (4, 2)])
@pytest.mark.parametrize("channels", [8, 6])
def test_results_stay(tile: tuple[int, int], channels: int) -> None:
    before = convolution((N, channels, 9, 6), channels)
    after = chosen(before, tile)
    assert names(after).count("winograd_convolution") == 1
    assert [value.type for value in after.results] == [value.type for value in before.results]
    x = RNG.uniform(-1, 1, (2, channels, 9, 6)).astype(np.float32)
    np.testing.assert_allclose(interpret(after, [x])[0], interpret(before, [x])[0], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    "before",
    [
        convolution((1, 8, 9, 9), stride=2),
        convolution((1, 8, 9, 9), dilation=2),
        convolution((1, 8, 9, 9), groups=8),
        convolution((1, 3, 9, 9)),
        convolution((1, 8, 9, 9), taps=1),
        convolution((1, 8, 9, 9), taps=7),
    ],
    ids=["strided", "dilated", "depthwise", "few channels", "one tap", "seven taps"],
)
def test_other_convolutions_stay_direct(before: Function) -> None:
    assert "winograd_convolution" not in names(chosen(before))


def test_errors_of_all_candidates_are_bounded() -> None:
    for window in ((3, 3), (5, 5), (3, 3, 3), (3,), (5, 3)):
        found = candidates(DenseConvolution(1, (16,) * len(window), window, 64, 64))
        assert found
        assert all(amplification(tile, window) <= MOST_AMPLIFICATION for tile in found)
        assert (1,) * len(window) not in found


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
def test_deep_convolutions_are_worth_it_and_shallow_ones_are_not(level: str) -> None:
    cost = CpuConvolutionCost(named_machine(level))
    assert best_tile(DenseConvolution(1, (56, 56), (3, 3), 128, 128), cost) == (4, 4)
    assert best_tile(DenseConvolution(1, (2, 3), (3, 3), 16, 16), cost) is None


def test_weights_much_larger_than_images_prefer_small_tiles() -> None:
    cost = CpuConvolutionCost(named_machine("x86-64-v4"))
    found = best_tile(DenseConvolution(1, (7, 7), (3, 3), 512, 512), cost)
    assert found is None or found < (4, 4)


@pytest.mark.parametrize(("space", "channels", "images"), [((14, 14), 128, 1), ((9, 13), 80, 3), ((28, 28), 64, N), ((H, 13), 64, N)])
def test_compiled_code_agrees(space: tuple[Expr | int, int], channels: int, images: Expr | int) -> None:
    def body(g: GraphBuilder, x: Value) -> Sequence[Value]:
        w = g.one(constant((RNG.normal(size=(channels, channels, 3, 3)) / np.sqrt(9 * channels)).astype(np.float32)))
        one = as_shape((1, 1))
        y = g.one(Convolution((1, 1), (1, 1), one, one, 1, dtypes.float32), x, w)
        return (g.one(Binary("max"), g.one(Binary("add"), y, x), g.one(constant(np.float32(0)))),)

    graph = module([f32(images, channels, *space)], body)
    compiled = compile_graph(graph)
    kernels = " ".join(symbol for symbol in compiled.artifact.objects)
    assert "winograd_convolution" in kernels
    x = RNG.uniform(-1, 1, [{N: 2, H: 7}.get(d, d) for d in (images, channels, *space)]).astype(np.float32)  # type: ignore[call-overload]
    (want,) = interpret(graph.main, [x])
    (got,) = step(compiled, [x])
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    weights = next(
        node.op.data.array for node in walk_nodes(graph.main.results) if isinstance(node.op, Constant) and node.op.data.array.ndim == 4
    )
    bound = MOST_AMPLIFICATION * (channels + 24) * 2.0**-24 * np.abs(x).max() * np.abs(weights).sum((1, 2, 3)).max()
    assert np.abs(got - want).max() < bound
    assert "winograd" not in " ".join(compile_graph(graph, precision="strict").artifact.objects)


def test_a_setting_turns_it_off() -> None:
    before = module_of(convolution((1, 64, 28, 28), 64))
    on, off = (optimise(before, named_machine("x86-64-v4"), Settings(winograd=wanted)) for wanted in (True, False))
    assert "winograd_convolution" in all_names(on.main)
    assert "winograd_convolution" not in all_names(off.main)


def module_of(f: Function) -> Module:
    return Module({"main": f}, "main", ("x",), ("y",))


def all_names(f: Function) -> set[str]:
    """Names of the operators, those in fused groups included."""
    found = set(names(f))
    for node in walk_nodes(f.results):
        if isinstance(node.op, Fused):
            found |= all_names(node.op.body)
    return found
