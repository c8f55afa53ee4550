"""The rewrite engine: tables of (pattern, replacement, condition) and the one driver that applies them.

Patterns are ordinary expressions over pattern variables, `x = any_of("x")` or `c = constant("c")`:

    Rule("min-of-max", minimum(maximum(x, y), x), x)
    Rule("min-left", minimum(x, y), x, x <= y)

Commutative operators match in both orders. A rule written for one dtype serves its whole `domain`. Where matching must see through
the order of a sum, `bind` finds the bindings instead; the pattern still says what they mean, and the tests prove the rule from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, TypeAlias, TypeVar

from tilewright.ir import dtypes
from tilewright.ir.affine import SUMS, Unrepresentable, expect_exact
from tilewright.ir.bounds import Interval
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import TRUE, Expr, VarInfo, call, const, make, rebuild
from tilewright.ir.facts import Facts
from tilewright.ir.interning import bits_key
from tilewright.ir.scalar_ops import COMMUTATIVE, Op
from tilewright.support.errors import InternalError

Bindings: TypeAlias = dict[Expr, Expr]
Binder: TypeAlias = Callable[[Expr, Facts], Bindings | None]
_A = TypeVar("_A")
_B = TypeVar("_B")
Domain = Literal["int64", "narrow", "integer", "float", "bool", "any"]

_IN_DOMAIN: dict[Domain, Callable[[DType], bool]] = {
    "int64": lambda dtype: dtype is dtypes.int64,
    "narrow": lambda dtype: dtype.is_integer and dtype is not dtypes.int64,
    "integer": lambda dtype: dtype.is_integer,
    "float": lambda dtype: dtype.is_float,
    "bool": lambda dtype: dtype.kind == "bool",
    "any": lambda dtype: True,
}
# Nested rule applications before the driver takes them for an endless chain.
_CHAIN_LIMIT = 200


class PatternInfo(VarInfo):
    """A pattern variable: matches any expression, or any constant."""

    __slots__ = ("is_constant",)

    def __init__(self, name: str, is_constant: bool) -> None:
        super().__init__(name)
        self.is_constant = is_constant

    def key(self) -> Any:
        return (self.name, "constant" if self.is_constant else "any")


def any_of(name: str, dtype: DType = dtypes.int64) -> Expr:
    """A pattern variable for any expression. `dtype` stands for the rule's domain; a bool one matches bools."""
    return make(Op.VAR, dtype, (), PatternInfo(name, False))


def constant(name: str, dtype: DType = dtypes.int64) -> Expr:
    """A pattern variable for any constant."""
    return make(Op.VAR, dtype, (), PatternInfo(name, True))


@dataclass(frozen=True, slots=True)
class Rule:
    """`pattern` may be replaced by `replacement` where `condition`, a bool expression over the same variables, certainly holds.

    domain: the dtypes it holds for; pattern, replacement and condition are written in one of them. bind: finds the bindings for a node
    with the pattern's root operator, and answers only such that satisfy the condition.
    """

    name: str
    pattern: Expr
    replacement: Expr
    condition: Expr = TRUE
    domain: Domain = "int64"
    bind: Binder | None = None


_Match: TypeAlias = Callable[[Expr, dict[Any, Any]], bool]
_Build: TypeAlias = Callable[[dict[Any, Any]], Expr]


class CompiledRule:
    """A rule as closures: `apply(e, facts)` gives the replacement or None."""

    __slots__ = ("bind", "build", "condition", "first", "in_domain", "matchers", "name", "second")

    def __init__(self, rule: Rule, pattern: Expr) -> None:
        general = _general_dtype(rule)
        self.name = rule.name
        self.bind = rule.bind
        self.in_domain = _IN_DOMAIN[rule.domain]
        self.matchers = [_compile_match(a, general, rule.domain) for a in pattern.args]
        self.build = _compile_build(rule.replacement, general)
        self.condition = None if rule.condition is TRUE or rule.bind is not None else _compile_build(rule.condition, general)
        # Operators that the first two arguments must have: most rules fail here, at the price of two comparisons.
        required = [None if a.op is Op.VAR else a.op for a in pattern.args] + [None, None]
        self.first, self.second = required[0], required[1]

    def apply(self, e: Expr, facts: Facts) -> Expr | None:
        if self.bind is not None:
            found = self.bind(e, facts) if self.in_domain(e.args[0].dtype) else None
            return None if found is None else self.build({**found, "dtype": e.args[0].dtype})
        args = e.args
        if (self.first is not None and args[0].op is not self.first) or (self.second is not None and args[1].op is not self.second):
            return None
        bindings: dict[Any, Any] = {}
        for matcher, argument in zip(self.matchers, args, strict=True):
            if not matcher(argument, bindings):
                return None
        if self.condition is not None and not facts.holds(self.condition(bindings)):
            return None
        return self.build(bindings)


RuleTable: TypeAlias = Mapping[Op, tuple[CompiledRule, ...]]


def compile_rules(rules: Iterable[Rule]) -> RuleTable:
    """The rules indexed by root operator, in order, with one entry for each order of commutative operands."""
    table: dict[Op, list[CompiledRule]] = {}
    for rule in rules:
        patterns = [rule.pattern] if rule.bind is not None else _orders(rule.pattern)
        table.setdefault(rule.pattern.op, []).extend(CompiledRule(rule, pattern) for pattern in dict.fromkeys(patterns))
    return {op: tuple(compiled) for op, compiled in table.items()}


Normaliser: TypeAlias = Callable[["Rewriter", Expr], "Expr | None"]


class Rewriter:
    """One rewriting run. `whole` procedures rewrite a node with everything below it and replace the walk (None: they decline); `normal`
    procedures see nodes whose arguments are done, before the rules do. `memo` may be shared by runs with the same rules and facts."""

    __slots__ = ("_active", "facts", "memo", "normal", "rules", "trace", "whole")

    def __init__(
        self,
        rules: RuleTable,
        facts: Facts,
        memo: dict[Expr, Expr] | None = None,
        trace: list[str] | None = None,
        whole: Mapping[Op, Normaliser] | None = None,
        normal: Mapping[Op, Normaliser] | None = None,
    ) -> None:
        self.rules, self.facts, self.trace = rules, facts, trace
        self.memo = {} if memo is None else memo
        self.whole, self.normal = whole or {}, normal or {}
        self._active: dict[Expr, str] = {}

    def rewrite(self, e: Expr) -> Expr:
        """The expression with rules applied until none applies. InternalError when rules chase each other in a loop."""
        done = self.memo.get(e)
        if done is not None:
            return done
        whole = self.whole.get(e.op)
        result = None if whole is None else _tried(whole, self, e)
        if result is None:
            # Also with the same arguments: parsers build nodes that the constructors would have folded.
            node = rebuild(e, tuple([self.rewrite(a) for a in e.args])) if e.args else e
            result = self._reduce(e) if node is e else self.rewrite(node)
        self.memo[e] = self.memo[result] = result
        return result

    def _reduce(self, e: Expr) -> Expr:
        normal = self.normal.get(e.op)
        if normal is not None:
            result = _tried(normal, self, e)
            if result is not None and result is not e:
                return self._follow(e, normal.__name__, result)
        for rule in self.rules.get(e.op, ()):
            result = _tried(rule.apply, e, self.facts)
            if result is not None and result is not e:
                return self._follow(e, rule.name, result)
        return e

    def _follow(self, e: Expr, name: str, result: Expr) -> Expr:
        if e in self._active or len(self._active) > _CHAIN_LIMIT:
            names = list(self._active.values())
            if e in self._active:
                names = names[list(self._active).index(e) :]
            raise InternalError(
                f"rewrite rules do not terminate: {', '.join(dict.fromkeys([*names, name]))}",
                why=f"they lead from `{e!r}` back to it" if e in self._active else f"the chain is over {_CHAIN_LIMIT} steps long",
            )
        if self.trace is not None:
            self.trace.append(name)
        self._active[e] = name
        try:
            return self.rewrite(result)
        finally:
            del self._active[e]


def _tried(step: Callable[[_A, _B], Expr | None], a: _A, b: _B) -> Expr | None:
    """What a rule or procedure makes, None where int64 lacks the numbers for it."""
    try:
        return step(a, b)
    except Unrepresentable:
        return None


def rewrite(e: Expr, rules: Iterable[Rule] | RuleTable, env: Mapping[Expr, Interval], trace: list[str] | None = None) -> Expr:
    """`e` rewritten bottom-up to a fixpoint of `rules` (a table from `compile_rules` saves compiling them).

    `env` gives the ranges that conditions are proved from. The names of the rules applied are appended to `trace`. Raises InternalError
    that names the rules when they loop.
    """
    table = rules if isinstance(rules, Mapping) else compile_rules(rules)
    return Rewriter(table, Facts(env, {}), trace=trace).rewrite(e)


def _general_dtype(rule: Rule) -> DType:
    """The dtype that stands for the domain in the rule's text."""
    return {"float": dtypes.float32, "bool": dtypes.bool_}.get(rule.domain, dtypes.int64)


def _orders(pattern: Expr) -> list[Expr]:
    if not pattern.args:
        return [pattern]
    result = []
    for args in product(*(_orders(a) for a in pattern.args)):
        result.append(make(pattern.op, pattern.dtype, args, pattern.attr))
        if pattern.op in COMMUTATIVE:
            result.append(make(pattern.op, pattern.dtype, args[::-1], pattern.attr))
    return result


def _compile_match(pattern: Expr, general: DType, domain: Domain) -> _Match:
    if pattern.op is Op.VAR:
        return _match_variable(pattern, general, _IN_DOMAIN[domain])
    if pattern.op is Op.CONST:
        key = bits_key(pattern.attr)
        return lambda e, bindings: e.op is Op.CONST and bits_key(e.attr) == key
    op, attr = pattern.op, pattern.attr
    matchers = [_compile_match(a, general, domain) for a in pattern.args]

    def match(e: Expr, bindings: dict[Any, Any]) -> bool:
        if e.op is not op or e.attr != attr:
            return False
        return all(matcher(argument, bindings) for matcher, argument in zip(matchers, e.args, strict=True))

    return match


def _match_variable(pattern: Expr, general: DType, in_domain: Callable[[DType], bool]) -> _Match:
    is_constant, is_general = pattern.attr.is_constant, pattern.dtype is general

    def match(e: Expr, bindings: dict[Any, Any]) -> bool:
        bound = bindings.get(pattern)
        if bound is not None:
            return bound is e
        if is_constant and e.op is not Op.CONST:
            return False
        if not is_general:
            if e.dtype is not pattern.dtype:
                return False
        else:
            dtype = bindings.get("dtype")
            if dtype is None:
                if not in_domain(e.dtype):
                    return False
                bindings["dtype"] = e.dtype
            elif dtype is not e.dtype:
                return False
        bindings[pattern] = e
        return True

    return match


def _compile_build(e: Expr, general: DType) -> _Build:
    if e.op is Op.VAR:
        return lambda bindings: bindings[e]
    if e.op is Op.CONST:
        if e.dtype is not general:
            return lambda bindings: e
        return lambda bindings: const(e.attr, bindings["dtype"])
    parts = [_compile_build(a, general) for a in e.args]
    if e.op is Op.CALL:
        return lambda bindings: call(e.attr, *[part(bindings) for part in parts])
    if e.op in SUMS and e.dtype is dtypes.int64:
        return lambda bindings: _sum(e, tuple([part(bindings) for part in parts]))
    return lambda bindings: rebuild(e, tuple([part(bindings) for part in parts]))


def _sum(e: Expr, args: tuple[Expr, ...]) -> Expr:
    """A sum or product with other operands. Raises Unrepresentable: a rule may need numbers that the expression it replaces does not."""
    if args[0].dtype is dtypes.int64:
        expect_exact(make(e.op, dtypes.int64, args))  # as it stands: a constant that is folded has wrapped
    return rebuild(e, args)
