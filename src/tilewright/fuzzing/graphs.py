"""Random graphs over all operators: `grow(seed)` gives a case of the fuzzer, a function and inputs at several values of its named sizes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.fuzzing import body_steps as b
from tilewright.fuzzing import elementwise_steps as e
from tilewright.fuzzing import indexing_steps as x
from tilewright.fuzzing import integer_steps as i
from tilewright.fuzzing import mask_steps as masks
from tilewright.fuzzing import model_steps as m
from tilewright.fuzzing import movement_steps as moves
from tilewright.fuzzing import picked_steps as picked
from tilewright.fuzzing import plain_steps as plain
from tilewright.fuzzing import reuse_steps as r
from tilewright.fuzzing import special_steps as s
from tilewright.fuzzing import structured_steps as t
from tilewright.fuzzing import unusual_steps as unusual
from tilewright.fuzzing import written_out_steps as w
from tilewright.fuzzing.generator import Generator
from tilewright.fuzzing.growth import Array, Growth, Unsuitable, input_array
from tilewright.fuzzing.model_parts import grow_part
from tilewright.fuzzing.solved_shapes import grow_solved, solved
from tilewright.graph.node import Function, Parameter, Value, walk_nodes
from tilewright.graph.ops import Constant
from tilewright.graph.shapes import canonical
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, size
from tilewright.ir.traverse import evaluate_int
from tilewright.ir.types import tensor
from tilewright.support.errors import TypeRuleError

Step = Callable[[Growth], None]
MOST_RESULTS = 8
SOLVED = 0.2  # of the cases begin with dims that are solved for


# Steps that a body of a branch or loop does not take: they bind sizes that depend on data.
OUTSIDE = ("positions", "compressed", "distinct", "suppressed", "branching", "grown_branch", "grown_loop", "picking_branch", "picking_loop")


def _in_bodies(step: Callable[[Growth, Step], None], last: Sequence[str] = ()) -> Step:
    """A step that grows bodies, which end with the steps `last`."""

    def inside(f: Growth) -> None:
        names = [name for name in STEPS if name not in OUTSIDE and not name.startswith("plain_")]
        take(f, [*(names[int(f.rng.integers(len(names)))] for _ in range(f.whole(1, 5))), *last])

    return lambda f: step(f, inside)


def _on_generator(step: Callable[[Generator], None]) -> Step:
    return lambda f: step(f.s)


STEPS: dict[str, tuple[float, Step]] = {
    **{step.__name__: (weight, step) for weight, step in (
        (2, e.math_function), (1, e.activation), (1, e.integer_function), (2, e.integer_arithmetic), (3, e.float_arithmetic), (1, e.jump),
        (1, e.compare), (0.4, e.unusual), (1.5, e.choose), (2, e.convert), (0.5, e.reinterpret), (0.7, e.source), (2, e.slice_with_steps),
        (1.5, e.pad_any), (1.5, e.join), (1.5, e.regroup), (1, e.spread), (1, e.quantization), (0.7, e.resize), (0.7, e.new_parameter),
        (4, t.contraction), (3, t.convolutions), (2, t.pooling), (3, t.reduction), (1, t.position_of_extreme), (3, t.normalized),
        (0.7, t.attention), (0.5, t.recurrent),
        (1, x.gather), (0.7, x.gather_elements), (0.7, x.gather_nd), (0.7, x.scatter_elements), (0.7, x.scatter_nd), (1, x.ordering),
        (1, x.cumulative), (0.5, x.reverse_sequence), (0.6, x.positions), (0.6, x.compressed), (0.5, x.distinct), (0.7, x.branching),
        (0.7, x.looping), (1.5, m.vision), (1.2, m.transformer), (0.4, m.narrow_round_trip), (0.7, x.scanning), (0.5, x.flattened),
        (0.3, s.refined), (0.3, s.repeated), (0.6, s.interleaved), (0.5, s.blocked), (0.6, s.blocked_convolution), (0.6, s.narrow_weights),
        (1.5, i.requantised), (1.2, i.cast_chain), (1.5, masks.masked_attention), (1.5, r.shared), (1.2, r.two_names),
        (0.4, s.suppressed), (0.4, s.trees), (0.5, s.sampled), (0.4, s.regions), (0.4, s.deformed), (0.2, s.quantized_recurrent),
        (1.2, picked.picked_slices), (1.5, w.written_norm), (0.8, w.written_softmax), (0.8, w.written_activation), (1.2, i.clamped_cast),
        (1.5, i.dequantized_product), (1.5, moves.moved_on), (1, unusual.unusual_values),
    )},
    "solved": (0.3, solved),
    "grown_branch": (0.6, _in_bodies(b.grown_branch)),
    "grown_loop": (1.2, _in_bodies(b.grown_loop)),
    "picking_branch": (0.2, _in_bodies(b.grown_branch, ("picked_slices", "picked_slices"))),
    "picking_loop": (0.5, _in_bodies(b.grown_loop, ("picked_slices", "picked_slices"))),
    **{f"plain_{step.__name__}": (0.4, _on_generator(step)) for step in dict.fromkeys(plain.STEPS)},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Grown:
    """A function and inputs: one list of arrays for each setting of its sizes, all of which the inputs' shapes determine."""

    function: Function
    inputs: tuple[tuple[Array, ...], ...]


def grow(seed: int, like: Sequence[str] = (), model: str | None = None, most: int = 24) -> Grown:
    """The case of a seed. `like`: names of STEPS (or parts of names) that it is to be made of mostly. `model`: path of a model, of which a
    part is its beginning. `most`: steps."""
    rng = np.random.default_rng(seed)
    f = grow_part(model, rng) if model is not None else None
    if f is not None:
        take_steps(f, (), int(rng.integers(0, 5)), rng, False)
        function = _finished(f)
        return Grown(function, settings_of(f, function, rng, 2))
    if not like and rng.random() < SOLVED:
        f = grow_solved(rng)
        take_steps(f, (), int(rng.integers(0, most // 2)), rng, False)
        function = _finished(f)
        return Grown(function, settings_of(f, function, rng, 3))
    low = 0 if rng.random() < 0.08 else 1
    sizes = _sizes(rng, low)
    dims = (1, 1, 2, 3, 4) if rng.random() < 0.4 else (1, 2, 3, 5, 7, 8, 9, 16, 17)
    f = Growth(Generator(rng, sizes, dims))
    for _ in range(int(rng.integers(1, 3))):
        e.new_parameter(f)
    f.parameter(dtypes.float32, f.s.shape(int(rng.integers(1, 4))))
    take_steps(f, like, int(rng.integers(3, most)), rng, low == 0)
    function = _finished(f)
    return Grown(function, settings_of(f, function, rng, 3))


def take_steps(f: Growth, like: Sequence[str], count: int, rng: np.random.Generator, empty: bool) -> None:
    """Grow a graph by some steps. `empty`: named sizes may be 0."""
    names = list(STEPS)
    chosen = [name for name in names if any(part in name for part in like)] if like else names
    if empty:  # the plain steps take named sizes to be positive
        chosen = [name for name in chosen if not name.startswith("plain_")] or names[:1]
        names = [name for name in names if not name.startswith("plain_")]
    weights = np.array([STEPS[name][0] for name in chosen])
    for _ in range(count):
        name = chosen[int(rng.choice(len(chosen), p=weights / weights.sum()))]
        take(f, [names[int(rng.integers(len(names)))] if like and rng.random() < 0.3 else name])


def take(f: Growth, names: Sequence[str]) -> None:
    """Take these steps, as far as they find what they need."""
    for name in names:
        if name == "plain_gather" and f.fresh:  # it would take from axes that may turn out empty
            continue
        with contextlib.suppress(Unsuitable, TypeRuleError):
            STEPS[name][1](f)


def _sizes(rng: np.random.Generator, low: int) -> tuple[Expr, ...]:
    """Symbolic dims for the shapes of a case: named sizes with ranges and multiples, often also sums and products of them."""
    if rng.random() < 0.4:
        return ()
    if rng.random() < 0.15:
        n = size("N", 4, 40, 4)
    else:
        n = size("N", low, 40 if rng.random() < 0.7 else None)
    m = size("M", 2, 24)
    derived = (canonical(n * 2), canonical(m + 1), canonical(n + m), canonical(m * 3 - 1))
    return (n, m) if rng.random() < 0.6 else (n, m, derived[int(rng.integers(4))])


def _finished(f: Growth) -> Function:
    """The last values and some others as results, often all that nothing reads; only parameters that they reach, and those that determine
    the named sizes."""
    taken = (Parameter,) if f.chance(0.1) else (Parameter, Constant)
    made = [value for value in f.s.pool if not isinstance(value.op, taken)] or list(f.s.params)
    picked = made[-2:] + [made[int(i)] for i in f.rng.integers(0, len(made), 3)]
    if f.chance(0.6):
        read = {value for node in walk_nodes(made) for value in node.inputs}
        ends = [value for value in made if value not in read and not isinstance(value.op, Constant)]
        picked = [ends[int(i)] for i in sorted(f.rng.permutation(len(ends))[:MOST_RESULTS])] + picked[-1:]
    results = tuple(dict.fromkeys(picked))
    reached = set(walk_nodes(results))
    params = [value for value in f.s.params if value.node in reached]
    if f.names:
        params.append(f.s.g.one(Parameter("sizes", tensor(dtypes.bool_, f.names))))
    return Function("main", tuple(params), results)


def random_sizes(rng: np.random.Generator, sizes: Sequence[Expr]) -> dict[Expr, int]:
    """Values within the ranges; small ones, powers of two and their neighbours are frequent."""
    values = {}
    for name in sizes:
        low, high = name.attr.lo, name.attr.hi
        frequent = (0, 1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 40)
        choices = [n for n in frequent if low <= n <= (40 if high is None else high) and n % name.attr.multiple == 0]
        values[name] = int(rng.choice(choices[: 12 if rng.random() < 0.7 else None]))
    return values


def near_sizes(rng: np.random.Generator, sizes: Mapping[Expr, int]) -> dict[Expr, int]:
    """Sizes next to others, as far as their ranges allow."""
    values = {}
    for name, value in sizes.items():
        low, high, multiple = name.attr.lo, name.attr.hi, name.attr.multiple
        near = [value + steps * multiple for steps in (-2, -1, 1, 2)]
        near = [n for n in near if n >= low and (high is None or n <= high)]
        values[name] = int(rng.choice(near)) if near and rng.random() < 0.8 else value
    return values


def settings_of(f: Growth, function: Function, rng: np.random.Generator, count: int) -> tuple[tuple[Array, ...], ...]:
    """Inputs at so many values of the named sizes, one where there are none; often the last ones are next to others, so that results
    grow and shrink by little."""
    settings = [random_sizes(rng, f.names) for _ in range(count if f.names else 1)]
    if count > 1 and f.names and rng.random() < 0.5:
        settings[-1] = near_sizes(rng, settings[int(rng.integers(count - 1))])
    return tuple(inputs_of(f, function, sizes, int(rng.integers(1 << 30))) for sizes in settings)


def inputs_of(f: Growth, function: Function, sizes: Mapping[Expr, int], seed: int) -> tuple[Array, ...]:
    rng = np.random.default_rng(seed)

    def array(param: Value) -> Array:
        return input_array(f.draws.get(param), rng, tuple(evaluate_int(dim, sizes) for dim in param.shape), param.type.dtype)

    return tuple(array(param) for param in function.params)
