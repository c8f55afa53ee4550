"""Parts of a model as the beginning of cases: connected operators, with other dims and other functions, inputs of which are numbers.

A part is grown from one node of the model towards its operands. Dims are mapped alike wherever they occur, products of dims to products, so
that most reshapes still fit; what a type rule then refuses is tried again. Inputs are searched for: those that leave fewer infinities and
NaNs in the part are kept (the search by loss of NNSmith, with the count of such elements as the loss).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from tilewright.frontend.onnx.importer import import_model
from tilewright.frontend.onnx.loader import load_model
from tilewright.fuzzing.generator import Generator, Known, draw
from tilewright.fuzzing.growth import MOST_ELEMENTS, Array, Draw, Growth, elements_of
from tilewright.graph.interpreter import interpret
from tilewright.graph.node import Function, Node, Operator, Parameter, Value, map_operator, operator_sizes, walk_nodes
from tilewright.graph.ops import Binary, Constant, Reduce, RefineShape, Unary, WindowReduce, constant
from tilewright.ir.expr import Expr, const
from tilewright.ir.prove import equal_dims
from tilewright.ir.traverse import evaluate_int, free_vars
from tilewright.ir.types import TensorType
from tilewright.support.errors import ModelError, TilewrightError
from tilewright.transform.inline_calls import inline_calls

JUMPS = frozenset(
    ["floor", "ceil", "round", "trunc", "sign", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "floormod", "fmod"]
)
JUMPING = frozenset(
    ["quantize", "dynamic_quantize", "arg_reduce", "max_pool_indices", "top_k", "sort", "unique", "nonzero_indices", "non_max_suppression"]
)
SMALL = 7  # dims up to this keep their value: windows, groups, heads
BINS = (1, 2, 3, 4, 5, 8, 9, 12, 16, 17, 24, 32, 33)
TRIES = 12
SEARCH = 8  # draws of inputs
SAME_DOMAIN: tuple[tuple[str, ...], ...] = (
    ("neg", "abs", "tanh", "sigmoid", "erf", "sin", "cos", "atan"),
    ("add", "sub", "mul", "max", "min"),
    ("sum", "max", "min"),
)
Transform = Callable[[Array], Array]
TRANSFORMS: tuple[Transform, ...] = (
    lambda x: x, lambda x: x / 4, lambda x: np.abs(x) + 0.25, lambda x: x / 16 + 0.5, lambda x: np.zeros_like(x) + 0.5, lambda x: x * 4,
)  # fmt: skip


@lru_cache(maxsize=4)
def nodes_of(model: str) -> tuple[Node, ...]:
    """The nodes of a model that parts are made of, operands first: computed from tensors whose sizes no data decides, and which no size is
    refused for."""
    main = inline_calls(import_model(load_model(Path(model)), {}).module).main
    known = {v for param in main.params for dim in param.shape for v in free_vars(dim)}
    return tuple(
        node
        for node in walk_nodes(main.results)
        if not isinstance(node.op, (Parameter, Constant))
        and not node.op.defines
        and not hasattr(node.op, "interpret")
        and not (isinstance(node.op, RefineShape) and not equal_dims(node.inputs[0].shape, node.types[0].shape))
        and all(v in known for type_ in (*node.types, *(value.type for value in node.inputs)) for v in free_vars(*type_.shape))
    )


def expect_parts(model: str) -> None:
    """Check that cases can be made of parts of the model, which is at a path. Raises ModelError."""
    try:
        why = None if nodes_of(model) else "all that it computes has sizes that only running finds, or is no operator of numbers"
    except TilewrightError as error:
        why = error.what
    if why is not None:
        hint = "name a model whose inputs and outputs are tensors of numbers"
        raise ModelError(f"'{model}' has no parts that cases can be made of", why=why, hint=hint)


def grow_part(model: str, rng: np.random.Generator) -> Growth | None:
    """A graph that begins as a part of the model; None where no dims were found that fit."""
    nodes = nodes_of(model)
    if not nodes:
        return None
    for attempt in range(TRIES):
        part = pick_part(nodes, int(rng.integers(1, 2 + (TRIES - attempt) * 2)), rng)
        f = rebuilt(part, rng)
        if f is not None and search_inputs(f):
            return f
    return None


def pick_part(nodes: Sequence[Node], most: int, rng: np.random.Generator) -> list[Node]:
    """Some node and what it is computed from, up to so many nodes, operands first. A node that rounds or compares is taken only where its
    operands are inputs of the part, which are exact."""
    allowed, order = set(nodes), {node: i for i, node in enumerate(nodes)}
    chosen: set[Node] = set()
    front = [nodes[int(rng.integers(len(nodes)))]]
    while front and len(chosen) < most:
        node = front.pop(int(rng.integers(len(front))))
        if node in chosen:
            continue
        chosen.add(node)
        if not jumps(node):
            front += [value.node for value in node.inputs if value.node in allowed]
    return sorted(chosen, key=order.__getitem__)


def jumps(node: Node) -> bool:
    """Whether rounding errors of its operands may make an element of a result another one altogether."""
    if not any(value.type.dtype.is_float for value in node.inputs):
        return False
    cut = node.op.name == "cast" and not node.types[0].dtype.is_float
    return cut or node.op.name in JUMPING or getattr(node.op, "fn", "") in JUMPS


def rebuilt(part: Sequence[Node], rng: np.random.Generator) -> Growth | None:
    """The part with other dims and functions. None where a type rule refuses it or a value is too large."""
    inner = {value for node in part for value in node.values}
    outer = list(dict.fromkeys(value for node in part for value in node.inputs if value not in inner))
    dims = other_dims([dim for value in (*outer, *inner) for dim in value.shape], rng)

    def dim(e: Expr) -> Expr:
        return dims.get(e, e)

    f = Growth(Generator(rng, tuple(free_vars(*(d for value in outer for d in value.shape)))))
    if any(v not in f.names for node in part for v in free_vars(*operator_sizes(node.op))):
        return None  # an attribute mentions a size that no input of the part has
    mapped: dict[Value, Value] = {}
    try:
        for value in outer:
            shape = tuple(map(dim, value.shape))
            if elements_of(shape) > 2 * MOST_ELEMENTS:  # before anything of this size is made
                return None
            if isinstance(value.op, Constant):
                mapped[value] = f.s.g.one(constant(fitted(value.op.data.array, [int(d.value) for d in shape]), value.type.dtype))
            else:
                mapped[value] = f.parameter(value.type.dtype, shape)
        for node in part:
            op = map_operator(node.op, dim)
            op = other_function(op, rng) if rng.random() < 0.15 else op
            results = f.s.g.emit(op, *(mapped[value] for value in node.inputs))
            mapped.update(zip(node.values, results, strict=True))
            f.s.pool.update({result: Known(1e3, not result.type.dtype.is_float) for result in results})
    except (TilewrightError, ValueError, IndexError, KeyError):
        return None
    return f if all(elements_of(value.shape) <= 2 * MOST_ELEMENTS for value in mapped.values()) else None


def other_dims(dims: Sequence[Expr], rng: np.random.Generator) -> dict[Expr, Expr]:
    """What each constant dim becomes: products of two others become the product of what those become."""
    known: dict[int, int] = {}
    for n in sorted({int(dim.value) for dim in dims if dim.is_const}):
        factors = [(a, n // a) for a in known if 1 < a < n and n % a == 0 and n // a in known]
        multiples = [a for a in known if 1 < a < n and n % a == 0]
        if n <= SMALL:
            known[n] = n
        elif factors:
            a, b = factors[int(rng.integers(len(factors)))]
            known[n] = known[a] * known[b]
        elif multiples and rng.random() < 0.7:
            known[n] = known[multiples[-1]] * (n // multiples[-1])
        else:
            known[n] = n if n <= 64 and rng.random() < 0.3 else int(rng.choice(BINS))
    return {const(n): const(m) for n, m in known.items()}


def fitted(array: Array, shape: Sequence[int]) -> Array:
    """An array of another shape of the same rank, made of the elements of this one, over and over."""
    for axis, n in enumerate(shape):
        array = np.take(array, np.arange(n) % max(array.shape[axis], 1), axis) if array.shape[axis] != n else array
    return np.ascontiguousarray(array)


def other_function(op: Operator, rng: np.random.Generator) -> Operator:
    """The operator with another function of the same kind, where it has one."""
    if not isinstance(op, (Unary, Binary, Reduce, WindowReduce)):
        return op
    kind = SAME_DOMAIN[0] if isinstance(op, Unary) else SAME_DOMAIN[1] if isinstance(op, Binary) else SAME_DOMAIN[2]
    return replace(op, fn=str(rng.choice(kind))) if op.fn in kind else op


def search_inputs(f: Growth) -> bool:
    """Set how the inputs of the part are drawn, and the bounds of its values; whether at least half of its elements are numbers."""
    values = [value for value in f.s.pool if not isinstance(value.op, (Parameter, Constant))]
    function = Function("part", tuple(f.s.params), tuple(values))
    least: float | None = None
    for _ in range(SEARCH):
        draws = {param: drawn(TRANSFORMS[int(f.rng.integers(len(TRANSFORMS)))], param.type) for param in f.s.params}
        sizes = {v: max(v.attr.lo or 0, v.attr.multiple, 2) for v in f.names}
        try:
            arrays = [draws[p](f.rng, tuple(evaluate_int(d, sizes) for d in p.shape)).astype(p.type.dtype.numpy) for p in f.s.params]
            results = interpret(function, arrays, sizes)
        except (TilewrightError, ValueError, IndexError):  # dims or indices that do not fit after all
            continue
        wide = [np.asarray(result).astype(np.float64) for result in results]
        elements = sum(array.size for array in wide)
        loss = sum(int(np.count_nonzero(~np.isfinite(array))) for array in wide) / max(elements, 1)
        if least is None or loss < least:
            least = loss
            f.draws.update(draws)
            for value, array in zip(values, wide, strict=True):
                bound = float(np.abs(array[np.isfinite(array)]).max(initial=0.0))
                f.s.pool[value] = Known(4 * bound + 1, f.s.pool[value].exact)
        if least == 0.0:
            break
    return least is not None and least < 0.5


def drawn(transform: Transform, type_: TensorType) -> Draw:
    """How a parameter is drawn: floats transformed, integers 0 or 1, which index everything that is not empty."""
    dtype = type_.dtype
    if dtype.is_float:
        return lambda rng, shape: np.asarray(transform(draw(rng, shape, dtype).astype(np.float64)))
    return lambda rng, shape: rng.integers(0, 2, shape)
