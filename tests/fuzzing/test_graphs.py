"""What the fuzzer's graphs are made of: combinations that faults of compilers hide in are among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tilewright.fuzzing.cases import module_of
from tilewright.fuzzing.graphs import Grown, grow
from tilewright.graph.in_place import picked_axis
from tilewright.graph.interpreter import Interpreter, interpret
from tilewright.graph.node import Function, Node, Parameter, walk_nodes
from tilewright.graph.ops import (
    Binary,
    Call,
    Cast,
    Constant,
    Contract,
    Convolution,
    Dequantize,
    Loop,
    Pad,
    Quantize,
    Reduce,
    Reshape,
    Slice,
    Softmax,
    Transpose,
    Unary,
)
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr
from tilewright.transform.verify import verify_module

NARROW = ("int8", "uint8", "int16", "uint16")


def graphs(steps: str, seeds: int) -> Iterator[Grown]:
    return (grow(seed, tuple(steps.split(",")), most=8) for seed in range(seeds))


def nodes(steps: str, seeds: int) -> Iterator[Node]:
    return (node for grown in graphs(steps, seeds) for node in walk_nodes(grown.function.results))


@pytest.mark.parametrize("operator", [Contract, Convolution])
def test_products_have_factors_of_every_pair_of_narrow_integers(operator: type) -> None:
    steps = "contraction" if operator is Contract else "convolutions"
    pairs = {tuple(str(value.type.dtype) for value in node.inputs) for node in nodes(steps, 500) if isinstance(node.op, operator)}
    assert pairs >= {(a, b) for a in NARROW for b in NARROW}


def values_of(steps: str, seeds: int, wanted: Callable[[Node], bool]) -> Iterator[tuple[Node, np.ndarray]]:
    """The first result of each node that is wanted, at the first inputs."""
    for grown in graphs(steps, seeds):
        found = [node for node in walk_nodes(grown.function.results) if wanted(node)]
        function = Function("main", grown.function.params, tuple(node[0] for node in found))
        yield from zip(found, interpret(function, grown.inputs[0]), strict=True)


@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint16])
def test_quantisation_passes_both_ends(dtype: dtypes.DType) -> None:
    found = values_of("requantised", 150, lambda node: isinstance(node.op, Quantize) and node.op.dtype is dtype)
    ends = {end for _, array in found for end in (array.min(initial=0), array.max(initial=0)) if array.size}
    assert ends >= {dtype.lowest, dtype.highest}


def test_integers_of_products_have_their_full_range() -> None:
    found = values_of("contraction", 60, lambda node: isinstance(node.op, (Parameter, Constant)) and str(node.types[0].dtype) in NARROW)
    ends = {(str(node.types[0].dtype), int(end)) for node, array in found if array.size for end in (array.min(), array.max())}
    assert ends >= {(name, int(end)) for name in NARROW for d in (dtypes.BY_NAME[name],) for end in (d.lowest, d.highest)}


def changes_places(node: Node) -> bool:
    if not isinstance(node.op, Loop):
        return False
    body = node.op.body
    first = int(node.op.conditional)
    carried, after = body.params[: node.op.carried], body.results[first : first + node.op.carried]
    return sum(a in carried and a is not b for a, b in zip(after, carried, strict=True)) > 1


def wraps_and_is_compared(node: Node) -> bool:
    """A comparison of what a cast of negative numbers to a wider unsigned dtype was made into."""
    chain, value = [], node.inputs[0] if isinstance(node.op, Binary) and node.op.fn in ("less", "greater", "equal") else None
    while value is not None and isinstance(value.op, Cast):
        chain.append((value.node.inputs[0].type.dtype, value.type.dtype))
        value = value.node.inputs[0]
    return len(chain) > 1 and any(a.kind == "int" and b.kind == "uint" and b.bits > a.bits for a, b in chain)


def known(dim: Expr) -> int:
    return int(dim.value) if dim.is_const else 0


def two_names(node: Node) -> bool:
    """One operand, and a view of the same value behind movement."""
    if not isinstance(node.op, Binary):
        return False
    behind = {value for start in node.inputs for value in start.node.inputs if isinstance(start.op, (Reshape, Slice)) or start.node.inputs}
    return any(value in behind or any(value in b.node.inputs for b in behind) for value in node.inputs)


def multiplies_by_a_slice_of(source: type) -> Callable[[Node], bool]:
    """A product that reads a slice, perhaps regrouped or converted, which an index picks of what `source` makes."""

    def is_met(node: Node) -> bool:
        if isinstance(node.op, Loop):
            return any(map(is_met, walk_nodes(node.op.body.results)))
        if not isinstance(node.op, Contract):
            return False
        for value in node.inputs:
            while isinstance(value.op, (Reshape, Transpose, Cast, Dequantize)):
                value = value.node.inputs[0]
            if picked_axis(value.node) is not None and isinstance(value.node.inputs[0].op, source):
                return not isinstance(value.node.inputs[1].op, Constant)
        return False

    return is_met


def in_loops(is_met: Callable[[Node], bool]) -> Callable[[Node], bool]:
    return lambda node: isinstance(node.op, Loop) and is_met(node)


def normalises_other_axes_than_the_last(node: Node) -> bool:
    """A mean of squares over axes of which one that is none of them comes after."""
    if not (isinstance(node.op, Reduce) and node.op.fn == "sum") or node.inputs[0].op != Binary("mul"):
        return False
    square, rank = node.inputs[0].node, node.inputs[0].type.rank
    return square.inputs[0] is square.inputs[1] and max(node.op.axes) < rank - 1


def clamps_past_the_range(node: Node) -> bool:
    """A conversion to an integer after a minimum that is greater than the integer can be."""
    value = node.inputs[0] if isinstance(node.op, Cast) and node.op.dtype.is_integer else None
    if value is None or not isinstance(value.op, Binary) or value.op.fn != "min" or not isinstance(value.node.inputs[1].op, Constant):
        return False
    return bool(value.node.inputs[1].op.data.array > float(node.op.dtype.highest))


def code_less_zero(node: Node) -> int:
    """The greatest code less its zero point of dequantized constants of bytes, past a cache; 0 for others."""
    if not isinstance(node.op, Dequantize) or len(node.inputs) < 3 or not all(isinstance(v.op, Constant) for v in node.inputs):
        return 0
    codes, zero = (value.op.data.array.astype(int) for value in (node.inputs[0], node.inputs[2]))
    return int(codes.max() - zero) if zero.ndim == 0 and codes.size > 12288 and codes.min() - zero >= -128 else 0


def compares_with_nan(node: Node) -> bool:
    """A minimum or maximum with a constant NaN."""
    constants = [value.op.data.array for value in node.inputs if isinstance(value.op, Constant)]
    return isinstance(node.op, Binary) and node.op.fn in ("min", "max") and any(a.size == 1 and bool(a != a) for a in constants)


def comes_back(node: Node) -> bool:
    """A padding of what another one has cropped, at the same end."""
    inner = node.inputs[0].op if isinstance(node.op, Pad) else None
    if not isinstance(inner, Pad):
        return False
    pairs = [*zip(inner.low, node.op.low, strict=True), *zip(inner.high, node.op.high, strict=True)]
    return any(a.value < 0 < b.value for a, b in pairs)


MET: dict[str, tuple[str, Callable[[Node], bool]]] = {
    "carried values that change places": ("grown_loop", changes_places),
    "casts that wrap and widen": ("cast_chain", wraps_and_is_compared),
    "2-bit integers": ("cast_chain", lambda node: isinstance(node.op, Cast) and node.op.dtype in (dtypes.int2, dtypes.uint2)),
    "masks over several tiles of keys": (
        "masked_attention",
        lambda node: isinstance(node.op, Softmax) and known(node.types[0].shape[-1]) >= 128 and known(node.types[0].shape[-2]) >= 3,
    ),
    "one memory by two names": ("two_names", two_names),
    "norms over other axes than the last": ("written_norm", normalises_other_axes_than_the_last),
    "clamps past the range of an integer": ("clamped_cast", clamps_past_the_range),
    "weights past the end of a byte by one": ("dequantized_product", lambda node: code_less_zero(node) == 128),
    "weights at the end of a byte": ("dequantized_product", lambda node: code_less_zero(node) == 127),
    "extremes with NaN": ("unusual_values", compares_with_nan),
    "paddings of crops": ("moved_on", comes_back),
    "products by slices of constants": ("picked_slices", multiplies_by_a_slice_of(Constant)),
    "products by slices of what is computed": ("picked_slices", multiplies_by_a_slice_of(Unary)),
    "products by slices of constants in loops": ("picking_loop", in_loops(multiplies_by_a_slice_of(Constant))),
    "products by slices of captured and carried values in loops": ("picking_loop", in_loops(multiplies_by_a_slice_of(Parameter))),
}


@pytest.mark.parametrize("what", MET)
def test_graphs_have(what: str) -> None:
    steps, is_met = MET[what]
    assert any(map(is_met, nodes(steps, 150)))


def test_sizes_come_next_to_others() -> None:
    """Of the inputs of a case, so that results grow by little from one call to the next."""
    apart = set()
    for seed in range(60):
        first, *others = grow(seed, most=4).inputs
        for other in others:
            apart.update(b - a for x, y in zip(first, other, strict=True) for a, b in zip(x.shape, y.shape, strict=True))
    assert {-2, -1, 1, 2} <= apart


def test_values_have_several_readers() -> None:
    counts = []
    for grown in graphs("shared", 30):
        read = [value for node in walk_nodes(grown.function.results) for value in set(node.inputs) if node.inputs]
        made = [value for value in read if not isinstance(value.op, (Parameter, Constant))]
        counts.append(max((made.count(value) for value in set(made)), default=0))
    assert max(counts) >= 4
    assert sum(count >= 2 for count in counts) > 20


def test_parts_of_graphs_are_functions_that_are_called() -> None:
    """The module with functions computes what the graph does; functions are called more than once, and call others."""
    nested = again = 0
    for seed in range(40):
        grown = grow(seed, ("unary", "binary", "convert") if seed % 2 else (), most=12)
        module = module_of(grown.function, seed + 1)
        verify_module(module)
        results = Interpreter(module).run(module.main, list(grown.inputs[0]), {})
        for got, wanted in zip(results, interpret(grown.function, grown.inputs[0]), strict=True):
            np.testing.assert_array_equal(got, wanted)
        calls = {name: [n.op.function for n in walk_nodes(f.results) if isinstance(n.op, Call)] for name, f in module.functions.items()}
        assert set(module.functions) == {"main", *(name for names in calls.values() for name in names)}
        nested += bool(calls.get("part"))
        again += any(names.count("repeated") > 1 for names in calls.values())
    assert nested
    assert again
