"""Graphs that the differential fuzzer found to go wrong once, shrunk: compiled code agrees with the interpreter.

Each is the text that the fuzzer prints. Inputs are small multiples of 1/4; named sizes take the values given.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field

import numpy as np
import pytest

from tilewright.fuzzing.cases import Case, How, run_case
from tilewright.fuzzing.generator import draw
from tilewright.graph.text_parser import parse_module
from tilewright.ir.traverse import evaluate_int, free_vars


@dataclass(frozen=True)
class Graph:
    """A module's text, and values of its sizes: one inference for each."""

    text: str
    sizes: tuple[dict[str, int], ...] = field(default=({},))
    constants: dict[str, np.ndarray] = field(default_factory=dict)


GRAPHS = {
    "dot product of bytes without an axis for the lanes": Graph(
        """
        def main(x: uint8[2]):
            v0 = constant([1, 4], int8[2])
            v1 = contract(x, v0, spec="k,k->", dtype=int32)
            return v1
        """
    ),
    "blocked convolution with fewer blocks than a register tile of Winograd's products": Graph(
        """
        def main(x: float32[4, 2, 1, 8, 4], w: float32[4, 8, 2, 2]):
            v1 = blocked_convolution(
                x, w, strides=(1, 1), dilations=(1, 1), low=(1, 1), high=(1, 1), depthwise=False, lanes=4,
            )
            return v1
        """
    ),
    "convolution that reads padding only, whose weights were still asked for": Graph(
        """
        def main(x: float64[2, 4, 2, 1]):
            v0 = constant("sha256:965c714f7fc915711bcbc317", float64[4, 4, 4, 1])
            v1 = convolution(
                x, v0, strides=(1, 3), dilations=(1, 2), low=(1, 1), high=(1, 0), groups=1, dtype=float64,
            )
            return v1
        """,
        constants={"sha256:965c714f7fc915711bcbc317": np.arange(64.0).reshape(4, 4, 4, 1) / 4},
    ),
    "transposed convolution whose weights are filled up with zeros": Graph(
        """
        M = size(lo=2, hi=24)

        def main(x: float32[M, 19, 3, 3]):
            v0 = constant("sha256:f87ce262d287e71603644197", float32[19, 1, 2, 2])
            v1 = convolution_transpose(
                x, v0, strides=(2, 2), dilations=(1, 1), low=(0, 0), high=(0, 0), output_padding=(0, 0), groups=1, dtype=float32,
            )
            return v1
        """,
        ({"M": 3}, {"M": 24}),
        constants={"sha256:f87ce262d287e71603644197": np.arange(76, dtype=np.float32).reshape(19, 1, 2, 2) % 7 - 3},
    ),
    "contraction with an empty result": Graph(
        """
        def main(x: int8[1, 1, 2, 0]):
            v0 = constant([1, 1], uint8[1, 1, 1, 2])
            v1 = contract(v0, x, spec="abmk,abkn->abmn", dtype=int32)
            return v1
        """
    ),
    "concatenation of nothing": Graph(
        """
        def main(a: float32[1, 1, 2, 0], b: float32[1, 2, 2, 0], c: float32[1, 1, 2, 0]):
            v0 = concat(b, c, a, axis=1)
            return v0
        """
    ),
    "transposed convolution with an empty axis": Graph(
        """
        def main(x: float32[2, 1, 1, 2], w: float32[1, 2, 1, 1]):
            v0 = convolution_transpose(
                x, w, strides=(3, 3), dilations=(2, 1), low=(1, 1), high=(1, 0), output_padding=(1, 0), groups=1, dtype=float32,
            )
            return v0
        """
    ),
    "no elements of a size that depends on data": Graph(
        """
        def main(x: float32[5]):
            v0 = constant(0.0, float32[()])
            v1 = binary(x, v0, fn="not_equal")
            v2 = cast(v1, dtype=int64)
            v3 = reduce(v2, fn="sum", axes=(0,), keepdims=False)
            v4 = bind_size(v3, size=count)
            v5 = nonzero_indices(v1, count=count)
            v6 = slice(v5, starts=(0, 0), sizes=(0, count), steps=(1, 1))
            return v6
        """
    ),
    "powers of wide integers, which took minutes to compile": Graph(
        """
        N = size(lo=1, hi=40)

        def main(x: int64[N], y: int64[N]):
            v0 = binary(x, y, fn="pow")
            return v0
        """,
        ({"N": 7}, {"N": 40}),
    ),
    "tails of one narrow element, of which too many bytes were stored": Graph(
        """
        def main(x: bfloat16[4, 33, 5], w: bfloat16[4, 5]):
            v0 = contract(x, w, spec="bmk,bk->bm", dtype=bfloat16)
            v1 = cast(v0, dtype=float32)
            v2 = unary(v1, fn="floor")
            v3 = cast(v2, dtype=int8)
            return v0, v3
        """,
        ({}, {}),  # of two inferences one has the forbidden page right behind its results
    ),
    "sums of symbolic length, which read past the end of their operands": Graph(
        """
        M = size(lo=2, hi=24)

        def main(x: float32[M, M], y: float32[M], z: int8[M, M], w: int8[M]):
            v0 = contract(x, y, spec="mk,k->m", dtype=float32)
            v1 = contract(z, w, spec="mk,k->m", dtype=int32)
            v2 = reduce(x, fn="max", axes=(1,), keepdims=False)
            return v0, v1, v2
        """,
        ({"M": 4}, {"M": 4}, {"M": 9}, {"M": 9}, {"M": 23}, {"M": 23}),
    ),
    "an intermediate result that simplification made useless": Graph(
        """
        def main(x: float32[5, 17, 12, 8], y: float32[5, 17, 12, 8], z: float32[17, 1, 1]):
            v0 = binary(y, z, fn="add")
            v1 = bitcast(v0, dtype=int32)
            v2 = binary(v1, v1, fn="less_equal")
            v3 = select(v2, x, y)
            v4, v5 = sort(v3, axis=3, descending=False)
            return v5
        """
    ),
    "division by a tensor known to be zero": Graph(
        """
        def main(x: int64[1, 1]):
            v0 = binary(x, x, fn="bitwise_xor")
            v1 = binary(v0, v0, fn="floormod")
            v2 = binary(x, v0, fn="div")
            v3 = constant([7], int64[1])
            v4 = binary(v3, v0, fn="floordiv")
            return v1, v2, v4
        """
    ),
}


@pytest.mark.parametrize("how", [How("cpu", 3, 2), How("cpu", 0, 1)], ids=["optimised", "plain"])
@pytest.mark.parametrize("name", GRAPHS)
def test_graph(name: str, how: How) -> None:
    graph = GRAPHS[name]
    function = parse_module(textwrap.dedent(graph.text).strip() + "\n", graph.constants).main
    inputs = []
    for turn, sizes in enumerate(graph.sizes):
        rng = np.random.default_rng(turn)
        bound = {v: sizes[v.name] for param in function.params for dim in param.shape for v in free_vars(dim)}
        shapes = [[evaluate_int(dim, bound) for dim in param.shape] for param in function.params]
        inputs.append(tuple(draw(rng, shape, param.type.dtype) for shape, param in zip(shapes, function.params, strict=True)))
    finding = run_case(Case(function, tuple(inputs), how, 0))
    assert finding is None, finding.text
