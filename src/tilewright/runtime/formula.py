"""Integer formulas over named sizes, as text: dims and memory formulas in a manifest, evaluated without the compiler."""

from __future__ import annotations

import ast
import keyword
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.support.errors import ArtifactError

_NODES = (
    ast.Expression, ast.Constant, ast.Name, ast.Load, ast.BinOp, ast.UnaryOp, ast.USub, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod,
    ast.Call, ast.Compare, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq, ast.BoolOp, ast.And, ast.Or, ast.Not,
)  # fmt: skip


def _select(condition: int, if_true: int, if_false: int) -> int:
    return if_true if condition else if_false


def _trunc_div(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


FUNCTIONS: dict[str, Callable[..., int]] = {
    "min": min,
    "max": max,
    "select": _select,
    "trunc_div": _trunc_div,
    "trunc_mod": lambda a, b: a - b * _trunc_div(a, b),
}


def size_name(name: str) -> str:
    """A dim's name as formulas call its size: an identifier, in the form in which Python reads it, that is no keyword or function."""
    text = "".join(c if f"_{c}".isidentifier() else "_" for c in unicodedata.normalize("NFKC", name)) or "size"
    if not text.isidentifier():
        return f"n{text}"
    return f"{text}_" if keyword.iskeyword(text) or text in FUNCTIONS else text


class Formula:
    """One formula. `names` are the sizes that it needs."""

    __slots__ = ("_function", "names", "text")

    def __init__(self, text: str) -> None:
        """Raises ArtifactError when the text is not an integer formula."""
        try:
            tree = ast.parse(text, mode="eval")
        except (SyntaxError, ValueError):
            raise ArtifactError(f"'{text}' is not a formula of sizes") from None
        for node in ast.walk(tree):
            known = isinstance(node, _NODES)
            if isinstance(node, ast.Constant):
                known = isinstance(node.value, int)
            if isinstance(node, ast.Call):
                known = isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS and not node.keywords
            if not known:
                raise ArtifactError(f"'{text}' is not a formula of sizes")
        self.text = text
        self.names = tuple(dict.fromkeys(n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id not in FUNCTIONS))
        self._function: Callable[..., int] = _function(tree.body, self.names)

    def __call__(self, sizes: Mapping[str, int]) -> int:
        """The value; KeyError when a size is missing."""
        return int(self._function(*[sizes[name] for name in self.names]))

    def __repr__(self) -> str:
        return self.text


def _function(body: ast.expr, names: Sequence[str]) -> Callable[..., Any]:
    """The function of an expression, its arguments in the order of `names`."""
    taken = ast.arguments(posonlyargs=[], args=[ast.arg(name) for name in names], kwonlyargs=[], kw_defaults=[], defaults=[])
    lambda_ = ast.fix_missing_locations(ast.Expression(ast.Lambda(taken, body)))
    made: Callable[..., Any] = eval(compile(lambda_, "<formula>", "eval"), {"__builtins__": {}, **FUNCTIONS})
    return made


def together(groups: Sequence[Sequence[Formula] | None], names: Sequence[str]) -> Callable[..., tuple[Any, ...]]:
    """One function of the sizes `names`, in this order, for the values of all formulas: a tuple of integers for each group, None for
    a group that is None."""
    rows: list[ast.expr] = [
        ast.Constant(None) if group is None else ast.Tuple([ast.parse(formula.text, mode="eval").body for formula in group], ast.Load())
        for group in groups
    ]
    return _function(ast.Tuple(rows, ast.Load()), names)
