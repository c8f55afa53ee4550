"""Walking, rewriting and evaluating scalar expressions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from tilewright.ir.expr import Expr, rebuild
from tilewright.ir.scalar_ops import Op, evaluate, wrap_integer


def transform(e: Expr, visit: Callable[[Expr], Expr | None], memo: dict[Expr, Expr] | None = None) -> Expr:
    """Bottom-up rewrite: each node, rebuilt over its rewritten arguments, is offered to `visit`, which answers a replacement or None.
    Shared nodes are visited once; pass the same `memo` to share work between calls with the same `visit`."""
    memo = {} if memo is None else memo
    done = memo.get(e)
    if done is not None:
        return done
    result = e
    if e.args:
        args = tuple([memo[a] if a in memo else transform(a, visit, memo) for a in e.args])
        if args != e.args:
            result = rebuild(e, args)
    replacement = visit(result)
    if replacement is not None:
        result = replacement
    memo[e] = result
    return result


def substitute(e: Expr, mapping: Mapping[Expr, Expr], memo: dict[Expr, Expr] | None = None) -> Expr:
    """`e` with each node that is a key of `mapping` (usually variables) replaced; replaced nodes are not looked into again."""
    memo = {} if memo is None else memo
    done = memo.get(e)
    if done is not None:
        return done
    replacement = mapping.get(e)
    if replacement is None:
        replacement = e
        if e.args:
            args = tuple([substitute(a, mapping, memo) for a in e.args])
            if args != e.args:
                replacement = rebuild(e, args)
    memo[e] = replacement
    return replacement


def walk(*roots: Expr) -> Iterator[Expr]:
    """Every distinct node below the roots, arguments before users."""
    seen: set[Expr] = set()
    stack: list[tuple[Expr, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            yield node
        elif node not in seen:
            seen.add(node)
            if node.args:
                stack.append((node, True))
                stack.extend([(a, False) for a in reversed(node.args)])
            else:
                yield node


_NONE: frozenset[Expr] = frozenset()
_MARKED = frozenset({Op.VAR, Op.LOAD, Op.SELECT, Op.MIN, Op.MAX})


def marked(*roots: Expr) -> tuple[Expr, ...]:
    """Variables, loads, selects, minima and maxima among what `walk` gives, in its order; kept at the nodes, since passes ask for these
    again and again."""
    if len(roots) == 1:
        return _marks(roots[0])
    found: dict[Expr, None] = {}
    for root in roots:
        found.update(dict.fromkeys(_marks(root)))
    return tuple(found)


def _marks(e: Expr) -> tuple[Expr, ...]:
    below = e.marks
    if below is None:
        below = marked(*e.args) if e.args else ()
        e.marks = below  # without e, which would keep itself alive
    return (*below, e) if e.op in _MARKED else below


def variables_in(e: Expr) -> frozenset[Expr]:
    """The variables in `e`; kept at the node, for questions that are asked again and again. `free_vars` tells them in order."""
    if not e.args:
        return frozenset((e,)) if e.op is Op.VAR else _NONE
    found = e.variables
    if found is None:
        found = e.variables = _NONE.union(*[variables_in(a) for a in e.args])
    return found


def depends_on(e: Expr, variables: Collection[Expr]) -> bool:
    """Whether any of `variables` occurs in `e`."""
    return not variables_in(e).isdisjoint(variables) if e.args else e in variables


def free_vars(*roots: Expr) -> tuple[Expr, ...]:
    """The variables in the roots, in order of first use."""
    return tuple([node for node in marked(*roots) if node.op is Op.VAR])


def solve_for(dim: Expr, unknown: Expr, n: int, known: Mapping[Expr, int]) -> int | None:
    """The value of a variable at which an integer expression is `n`, given its other variables. None where there is none, where the
    expression is not linear there, or where it is `n` at a value beside it too, as quotients are."""
    at_zero = evaluate_int(dim, {**known, unknown: 0})
    slope = evaluate_int(dim, {**known, unknown: 1}) - at_zero
    if slope == 0 or (n - at_zero) % slope:
        return None
    found = (n - at_zero) // slope
    before, here, after = (evaluate_int(dim, {**known, unknown: found + step}) for step in (-1, 0, 1))
    return found if here == n and before != n and after != n else None


def evaluate_int(e: Expr, env: Mapping[Expr, int], memo: dict[Expr, int] | None = None) -> int:
    """The value of an integer or bool expression without loads, given its variables; KeyError for an unknown variable. Shared nodes are
    evaluated once; pass the same `memo` to share work between calls with the same `env`."""
    if e.op is Op.CONST:
        return int(e.attr)
    if e.op is Op.VAR:
        return env[e]
    memo = {} if memo is None else memo
    found = memo.get(e)
    if found is None:
        found = memo[e] = _evaluate_int(e, env, memo)
    return found


def _evaluate_int(e: Expr, env: Mapping[Expr, int], memo: dict[Expr, int]) -> int:
    if e.op is Op.SELECT:
        return evaluate_int(e.args[1] if evaluate_int(e.args[0], env, memo) else e.args[2], env, memo)
    if e.op is Op.NOT:
        value = evaluate_int(e.args[0], env, memo)
        return int(not value) if e.dtype.kind == "bool" else wrap_integer(~value, e.dtype)
    if e.op is Op.CAST:
        value = evaluate_int(e.args[0], env, memo)
        return int(value != 0) if e.dtype.kind == "bool" else wrap_integer(value, e.dtype)
    result = evaluate(e.op, e.args[0].dtype, *[evaluate_int(a, env, memo) for a in e.args])
    if result is None:
        raise ZeroDivisionError(f"{e!r} divides by zero")
    return int(result)
