"""Steps that grow a graph by branches and loops whose bodies are grown by steps themselves: what they compute with is captured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.fuzzing.generator import Generator, Known
from tilewright.fuzzing.growth import Growth, Unsuitable, elements
from tilewright.fuzzing.indexing_steps import condition
from tilewright.graph.node import Function, GraphBuilder, Parameter, Value
from tilewright.graph.ops import Binary, Constant, Loop, SizeValue, branch
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, const

Steps = Callable[[Growth], None]
OPERANDS = 2  # values that a body is given from outside, at most
LARGEST = 1000  # elements of each


def body(f: Growth, label: str, params: Sequence[Value], known: Sequence[Known], steps: Steps) -> Growth:
    """A graph that begins with these parameters, and grows. Parameters that it adds are named after the label."""
    inner = Growth(Generator(f.rng, f.s.sizes, f.s.dims), label=label, fresh=f.fresh)
    inner.s.pool.update(zip(params, known, strict=True))
    steps(inner)
    f.fresh = inner.fresh
    return inner


def given(f: Growth) -> list[Value]:
    """Some values for a body to compute with. Raises Unsuitable where there are none."""
    found = [f.pick(lambda value, known: elements(value) <= LARGEST and known.bound <= 100) for _ in range(f.whole(1, OPERANDS))]
    values = list(dict.fromkeys(value for value in found if value is not None))
    if not values:
        raise Unsuitable
    return values


def made(inner: Growth) -> list[Value]:
    """What a body computes, newest first."""
    return [value for value in reversed(inner.s.pool) if not isinstance(value.op, (Parameter, Constant))]


def captures(f: Growth, inner: Growth) -> list[Value]:
    """An operand for each parameter that a body has added: a value of the kind that it takes, or a new one."""
    found = []
    for param in inner.s.params:
        how, least = inner.draws.get(param), inner.known(param)

        def fits(value: Value, known: Known, param: Value = param, least: Known = least) -> bool:
            return value.type is param.type and known.exact >= least.exact and known.bound <= least.bound

        value = f.pick(fits) if how is None and f.chance(0.6) else None
        found.append(value or f.operand(param.type.dtype, param.shape, how, least.bound))
    return found


def _places(f: Growth, params: Sequence[Value]) -> list[Value]:
    """For each parameter another of its type: a permutation of them, in which now and then one takes two places."""
    places = list(params)
    for group in {param.type: [i for i, other in enumerate(params) if other.type is param.type] for param in params}.values():
        order = [group[(n + 1) % len(group)] for n in range(len(group))] if f.chance(0.5) else [int(i) for i in f.rng.permutation(group)]
        for i, source in zip(group, order, strict=True):
            places[i] = params[source if f.chance(0.85) else group[0]]
    return places


def grown_branch(f: Growth, steps: Steps) -> None:
    """An `if` whose branches compute different things of the same types."""
    values = given(f)
    params = [GraphBuilder().one(Parameter(f"p{i}", value.type)) for i, value in enumerate(values)]
    known = [f.known(value) for value in values]
    yes, no = (body(f, label, params, known, steps) for label in ("yes", "no"))
    results = made(yes)[: f.whole(1, 2)] or params[:1]
    others = []
    for result in results:
        same = [value for value in made(no) if value.type is result.type]
        others.append(f.among(*same) if same else no.picked(result.type.dtype, result.shape))
    pairs = zip(map(yes.known, results), map(no.known, others), strict=True)
    joined = [Known(max(a.bound, b.bound), a.exact and b.exact) for a, b in pairs]
    taken = (*params, *yes.s.params, *no.s.params)
    functions = Function("yes", taken, tuple(results)), Function("no", taken, tuple(others))
    operands = (*values, *captures(f, yes), *captures(f, no))
    outcome = branch(f.s.g, condition(f), operands, *functions, lambda: f.fresh_size("cut"))
    f.s.pool.update(zip(outcome, joined, strict=True))


def grown_loop(f: Growth, steps: Steps) -> None:
    """A loop that carries values of any dtypes, floats of which are clamped, and stacks what its body computes. Some of them change places
    from one iteration to the next, and some are dropped."""
    values = given(f)
    moving = f.chance(0.5)
    if moving:  # several of one type
        values = [*values, *(f.picked(values[0].type.dtype, values[0].shape) for _ in range(f.whole(1, 3)))]
    params = [GraphBuilder().one(Parameter(f"c{i}", value.type)) for i, value in enumerate(values)]
    # Rounding errors of one iteration come into the next, and values into each other's places.
    bound = max([4.0, *(f.known(value).bound for value in values if value.type.dtype.is_float)])
    known = [Known(bound, False) if value.type.dtype.is_float else Known(1e30, f.known(value).exact) for value in values]
    counter = f.fresh_size("i")
    number = GraphBuilder().one(SizeValue(counter))
    inner = body(f, "captured", (*params, number), (*known, Known(8.0, True)), steps)
    after: list[Value] = []
    for param, place, k in zip(params, _places(f, params), known, strict=True):
        same = [value for value in made(inner) if value.type is param.type and (inner.known(value).exact or not k.exact)]
        if moving and f.chance(0.7):
            after.append(place)
            continue
        value = f.among(*same) if same else param
        if param.type.dtype.is_float and value is not param:
            low, high = (inner.number(n, param.type.dtype) for n in (-4, 4))
            value = inner.s.g.one(Binary("min"), inner.s.g.one(Binary("max"), value, low), high)
        after.append(value)
    stacked = [value for value in made(inner) if elements(value) <= LARGEST][: f.whole(0, 2)]
    going = [value for value in made(inner) if value.type.dtype is dtypes.bool_ and not value.type.rank and inner.known(value).exact]
    trip: Expr | None = f.among(const(0), const(1), const(2), const(4), *f.s.sizes)
    if f.chance(0.2):  # only the condition ends it
        trip, going = None, [inner.s.g.one(Binary("less"), number, inner.number(f.whole(0, 4), dtypes.int64))]
    conditional = bool(going) and (trip is None or f.chance(0.7))
    function = Function("body", (*params, *inner.s.params), (*going[: int(conditional)], *after, *stacked))
    first = [condition(f)] if conditional else []
    op = Loop(function, len(params), counter, trip, conditional)
    outcome = f.s.g.emit(op, *first, *values, *captures(f, inner))
    f.s.pool.update(zip(outcome, (*known, *map(inner.known, stacked)), strict=True))
