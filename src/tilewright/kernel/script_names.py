"""What a decorated kernel function may take from the Python scope around it: numbers, dtypes, expressions, words of the language."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr
from tilewright.ir.parser import number
from tilewright.kernel.script import RESERVED


def inline_constants(function: ast.FunctionDef, around: Mapping[str, Any]) -> dict[str, Expr]:
    """Replaces, in the function's syntax tree, names of `around` that are numbers by literals, dtypes by their names, and attributes of
    modules (`tw.float32`, `tw.parallel`) likewise. Returns the expressions (usually sizes) that it uses, by name."""
    inliner = _Inliner(function, around)
    function.args = inliner.visit(function.args)
    function.body = [inliner.visit(node) for node in function.body]
    return inliner.expressions


_FOLD: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def _literal(value: bool | int | float, at: ast.expr) -> ast.expr:
    """A literal as Python's parser makes it: negative numbers are a minus before a constant."""
    if isinstance(value, bool) or not value < 0:
        return ast.copy_location(ast.Constant(value), at)
    return ast.copy_location(ast.UnaryOp(ast.USub(), ast.copy_location(ast.Constant(-value), at)), at)


def _integer(node: ast.expr) -> int | None:
    value = number(node)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


class _Inliner(ast.NodeTransformer):
    def __init__(self, function: ast.FunctionDef, around: Mapping[str, Any]) -> None:
        self.around = around
        self.expressions: dict[str, Expr] = {}
        self.own = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        self.own |= {argument.arg for argument in function.args.args}
        self.own |= {node.arg for node in ast.walk(function) if isinstance(node, ast.keyword) and node.arg is not None}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if not isinstance(node.ctx, ast.Load) or node.id in self.own or node.id not in self.around:
            return node
        return self.replaced(node, node.id, self.around[node.id])

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        module = self.around.get(node.value.id) if isinstance(node.value, ast.Name) and node.value.id not in self.own else None
        if not isinstance(module, ModuleType):
            return node
        if node.attr in RESERVED or node.attr in ("In", "Out"):
            return ast.copy_location(ast.Name(node.attr, ast.Load()), node)
        return self.replaced(node, node.attr, getattr(module, node.attr, None))

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """Folds what the literals made constant, so that `TILE * 8` is an extent like any other."""
        self.generic_visit(node)
        fold = _FOLD.get(type(node.op))
        left, right = _integer(node.left), _integer(node.right)
        if fold is None or left is None or right is None or (right == 0 and isinstance(node.op, (ast.FloorDiv, ast.Mod))):
            return node
        return _literal(fold(left, right), node)

    def replaced(self, node: ast.expr, name: str, value: Any) -> ast.expr:
        if isinstance(value, (bool, int, float, np.integer, np.floating)):
            return _literal(value.item() if isinstance(value, np.generic) else value, node)
        if isinstance(value, DType):
            return ast.copy_location(ast.Name(value.name, ast.Load()), node)
        if isinstance(value, Expr):
            self.expressions[name] = value
            return ast.copy_location(ast.Name(name, ast.Load()), node)
        return node
