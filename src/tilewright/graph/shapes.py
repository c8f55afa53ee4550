"""Arithmetic on symbolic shapes: equality of dims, NumPy broadcasting, element counts and regrouping of axes.

Two dims are equal when they are the same expression after simplification; nothing else is assumed of named sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from tilewright.ir.affine import linear
from tilewright.ir.expr import Expr, const
from tilewright.ir.scalar_ops import Op
from tilewright.ir.simplify import simplify
from tilewright.ir.types import Shape, product
from tilewright.support.errors import TypeRuleError


def canonical(dim: Expr) -> Expr:
    """The dim in the form under which equal dims are the same object."""
    return dim if dim.is_const or dim.op is Op.VAR else simplify(dim)


def canonical_shape(shape: Sequence[Expr]) -> Shape:
    return tuple([canonical(dim) for dim in shape])


_ASSUMED: ContextVar[list[tuple[Expr, Expr]] | None] = ContextVar("assumed", default=None)


@contextmanager
def assuming() -> Iterator[list[tuple[Expr, Expr]]]:
    """Inside, what is not known to be equal or to differ counts as equal, and is listed: what type rules need of dims yet unknown."""
    alike: list[tuple[Expr, Expr]] = []
    token = _ASSUMED.set(alike)
    try:
        yield alike
    finally:
        _ASSUMED.reset(token)


def dims_equal(a: Expr, b: Expr) -> bool:
    """Whether the two dims are provably equal."""
    if a is b:
        return True
    if a.is_const and b.is_const:
        return False
    return canonical(a) is canonical(b) or _is_assumed(a, b)


def _is_assumed(a: Expr, b: Expr) -> bool:
    """Whether a - b is 0, provably or by `assuming`."""
    apart = canonical(a - b)
    if apart.is_const:
        return apart is const(0)
    if (alike := _ASSUMED.get()) is not None:
        alike.append((a, b))
    return alike is not None


def shapes_equal(a: Sequence[Expr], b: Sequence[Expr]) -> bool:
    return len(a) == len(b) and all(dims_equal(x, y) for x, y in zip(a, b))


def is_one(dim: Expr) -> bool:
    return dim.is_const and dim.value == 1


def is_zero(dim: Expr) -> bool:
    return dim.is_const and dim.value == 0


def format_shape(shape: Sequence[Expr]) -> str:
    return f"[{', '.join(map(repr, shape))}]"


def broadcast_dims(a: Expr, b: Expr) -> Expr | None:
    """The dim of the result, or None when the two do not broadcast (or cannot be shown to)."""
    if a is b or is_one(b):
        return a
    if is_one(a):
        return b
    return a if dims_equal(a, b) else None


def broadcast_shapes(*shapes: Sequence[Expr], operator: str = "broadcast") -> Shape:
    """The NumPy broadcast of the shapes. Two different symbolic dims do not broadcast: raises TypeRuleError that names both."""
    rank = max((len(shape) for shape in shapes), default=0)
    result: list[Expr] = [const(1)] * rank
    for shape in shapes:
        offset = rank - len(shape)
        for i, dim in enumerate(shape):
            joined = broadcast_dims(result[offset + i], dim)
            if joined is None:
                raise _no_broadcast(operator, shapes, offset + i, result[offset + i], dim)
            result[offset + i] = joined
    return tuple(result)


def _no_broadcast(operator: str, shapes: Sequence[Sequence[Expr]], axis: int, a: Expr, b: Expr) -> TypeRuleError:
    listed = " and ".join(format_shape(shape) for shape in shapes)
    if a.is_const and b.is_const:
        why = f"axis {axis} of the result has sizes {a!r} and {b!r}, and neither is 1"
    else:
        why = f"axis {axis} of the result has sizes {a!r} and {b!r}, which are not known to be equal"
    return TypeRuleError(f"{operator}: the shapes {listed} do not broadcast", why=why)


def broadcast_index(shape: Sequence[Expr], indices: Sequence[Expr]) -> tuple[Expr, ...]:
    """Where to read an operand of this shape for the point `indices` of the broadcast result."""
    own = indices[len(indices) - len(shape) :]
    return tuple([const(0) if is_one(dim) else index for dim, index in zip(shape, own, strict=True)])


def element_count(shape: Sequence[Expr]) -> Expr:
    return canonical(product(tuple(shape)))


def normalize_axis(axis: int, rank: int, operator: str) -> int:
    """The axis counted from the front. Raises TypeRuleError outside [-rank, rank)."""
    if not -rank <= axis < rank:
        raise TypeRuleError(f"{operator}: axis {axis} does not exist in a tensor of {rank} axes")
    return axis % rank


def normalize_axes(axes: Sequence[int], rank: int, operator: str) -> tuple[int, ...]:
    """Sorted axes counted from the front. Raises TypeRuleError for an axis that does not exist or is named twice."""
    found = sorted(normalize_axis(axis, rank, operator) for axis in axes)
    if len(set(found)) != len(found):
        raise TypeRuleError(f"{operator}: an axis is named twice in {tuple(axes)}")
    return tuple(found)


def counts_equal(a: Sequence[Expr], b: Sequence[Expr]) -> bool | None:
    """Whether two shapes have the same number of elements; None when that cannot be decided."""
    x, y = element_count(a), element_count(b)
    if x is y:
        return True
    if canonical(x - y).is_const:
        return False
    if _is_assumed(x, y):
        return True
    p, q = linear(x), linear(y)
    # n * 12 and n * 13: equal only when there are no elements, which nobody means.
    proportional = p.constant == q.constant == 0 and len(p.terms) == 1 and p.terms.keys() == q.terms.keys()
    return False if proportional else None


def matching_groups(a: Sequence[Expr], b: Sequence[Expr]) -> list[tuple[range, range]]:
    """The finest common grouping of two shapes with one element count: ranges of axes of `a` and of `b` whose products are equal,
    in order, covering both. [2, 3, 4] and [6, 2, 2] group as ([2, 3], [6]), ([4], [2, 2])."""
    prefixes = {element_count(b[:j]): j for j in range(len(b), -1, -1)}
    groups: list[tuple[range, range]] = []
    i0 = j0 = 0
    for i in range(1, len(a)):
        j = prefixes.get(element_count(a[:i]))
        if j is not None and j0 <= j < len(b):
            groups.append((range(i0, i), range(j0, j)))
            i0, j0 = i, j
    groups.append((range(i0, len(a)), range(j0, len(b))))
    return groups


def flatten_index(dims: Sequence[Expr], indices: Sequence[Expr]) -> Expr:
    """Row-major position of `indices` in a block of `dims`."""
    result = const(0)
    for dim, index in zip(dims, indices, strict=True):
        result = index if is_one(dim) and result is const(0) else result * dim + index
    return result


def unflatten_index(dims: Sequence[Expr], flat: Expr) -> tuple[Expr, ...]:
    """Indices in a block of `dims` of the row-major position `flat`."""
    reversed_indices: list[Expr] = []
    significant = [i for i, dim in enumerate(dims) if not is_one(dim)]
    first = significant[0] if significant else -1
    for i in range(len(dims) - 1, -1, -1):
        if is_one(dims[i]):
            reversed_indices.append(const(0))
        elif i == first:
            reversed_indices.append(flat)
        else:
            reversed_indices.append(flat % dims[i])
            flat = flat // dims[i]
    return tuple(reversed(reversed_indices))


def reshape_index(source: Sequence[Expr], target: Sequence[Expr], indices: Sequence[Expr]) -> tuple[Expr, ...]:
    """Where `source` holds the element at `indices` of `target`, its reshape. Only axes whose boundaries differ are flattened and split
    again, so that most indices stay plain."""
    if any(is_zero(dim) for dim in source):
        return tuple([const(0)] * len(source))
    result: list[Expr] = []
    for mine, theirs in matching_groups(source, target):
        own = [source[i] for i in mine]
        dims = [target[j] for j in theirs]
        at = [indices[j] for j in theirs]
        result.extend(unflatten_index(own, flatten_index(dims, at)))
    return tuple(result)
