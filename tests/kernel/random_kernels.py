"""Hypothesis strategy: well-scoped kernels of every statement, for round trips through text. They need not be safe to run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tilewright.ir import dtypes, expr
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, call, cast, const, load, select, size, var
from tilewright.kernel.nodes import Block, BlockIter, Buffer, For, If, Kernel, Let, Stmt, Store, While, seq

NAMES = ["i", "j", "k", "acc", "x", "y", "i_1", "for", "range", "a.b", "tile size", "2d", "N", "float32", "ü", 'q"uote', "min"]
DTYPES = [dtypes.float32, dtypes.float64, dtypes.int32, dtypes.int64, dtypes.bool_, dtypes.bfloat16, dtypes.uint8]


@dataclass
class Scope:
    variables: list[Expr]
    buffers: list[Buffer]


@st.composite
def kernels(draw: Any) -> Kernel:
    sizes = [
        size(
            draw(st.sampled_from(NAMES)),
            draw(st.sampled_from([0, 1, None])),
            draw(st.sampled_from([None, 128])),
            draw(st.sampled_from([1, 8])),
        )
        for _ in range(draw(st.integers(0, 2)))
    ]
    sizes = list(dict.fromkeys(sizes))
    scope = Scope(list(sizes), [])
    params = list(dict.fromkeys(_buffer(draw, sizes, "global") for _ in range(draw(st.integers(1, 3)))))
    scratch = [_buffer(draw, sizes, draw(st.sampled_from(["global", "local"]))) for _ in range(draw(st.integers(0, 2)))]
    scratch = [b for b in dict.fromkeys(scratch) if b not in params]
    scope.buffers += params + scratch
    body = _suite(draw, scope, 3)
    return Kernel(
        draw(st.sampled_from(["f", *NAMES])), tuple(params[:-1]), (params[-1],), body, tuple(draw(st.permutations(sizes))), tuple(scratch)
    )


def _buffer(draw: Any, sizes: list[Expr], scope: Any) -> Buffer:
    dims = [const(3), *sizes, *(s * 2 + 1 for s in sizes)]
    shape = tuple(draw(st.lists(st.sampled_from(dims), max_size=2)))
    return Buffer(draw(st.sampled_from(NAMES)), draw(st.sampled_from(DTYPES)), shape, scope)


def _expr(draw: Any, scope: Scope, dtype: DType, depth: int) -> Expr:
    choices = ["const"]
    variables = [v for v in scope.variables if v.dtype is dtype]
    buffers = [b for b in scope.buffers if b.dtype is dtype]
    choices += ["var"] * 2 if variables else []
    if depth > 0:
        choices += ["binary", "select", "cast"] + (["load"] * 2 if buffers else []) + (["call"] if dtype.is_float else [])
    kind = draw(st.sampled_from(choices))
    if kind == "var":
        chosen: Expr = draw(st.sampled_from(variables))
        return chosen
    if kind == "load":
        buffer = draw(st.sampled_from(buffers))
        return load(buffer, tuple(_expr(draw, scope, dtypes.int64, depth - 1) for _ in buffer.shape))
    if kind == "call":
        return call(draw(st.sampled_from(["exp", "sqrt"])), _expr(draw, scope, dtype, depth - 1))
    if kind == "select":
        return select(_expr(draw, scope, dtypes.bool_, depth - 1), *(_expr(draw, scope, dtype, depth - 1) for _ in range(2)))
    if kind == "cast" and dtype.kind != "bool":
        return cast(dtype, _expr(draw, scope, draw(st.sampled_from(DTYPES)), depth - 1))
    if kind == "binary":
        if dtype.kind == "bool":
            other = draw(st.sampled_from(DTYPES[:4]))
            return expr.less(_expr(draw, scope, other, depth - 1), _expr(draw, scope, other, depth - 1))
        op = draw(st.sampled_from([expr.add, expr.sub, expr.mul, expr.minimum]))
        result: Expr = op(_expr(draw, scope, dtype, depth - 1), _expr(draw, scope, dtype, depth - 1))
        return result
    if dtype.is_float:
        return const(draw(st.floats(width=32)), dtype)
    return const(draw(st.booleans()) if dtype.kind == "bool" else draw(st.integers(0, 100)), dtype)


def _suite(draw: Any, scope: Scope, depth: int) -> Stmt:
    return seq(*(_stmt(draw, scope, depth) for _ in range(draw(st.integers(0, 3)))))


def _variable(draw: Any, scope: Scope, dtype: DType) -> Expr:
    name = draw(st.sampled_from(NAMES))
    made = var(name, dtype)
    return made if made not in scope.variables else var(f"{name}_{len(scope.variables)}", dtype)


def _stmt(draw: Any, scope: Scope, depth: int) -> Stmt:
    kind = draw(st.sampled_from(["store", "for", "if", "while", "let", "block"])) if depth > 0 else "store"
    if kind == "store":
        buffer = draw(st.sampled_from(scope.buffers))
        indices = tuple(_expr(draw, scope, dtypes.int64, 1) for _ in buffer.shape)
        return Store(buffer, indices, _expr(draw, scope, buffer.dtype, 2))
    if kind == "for":
        index = _variable(draw, scope, draw(st.sampled_from([dtypes.int64, dtypes.int64, dtypes.int32])))
        extent = _expr(draw, scope, dtypes.int64, 1)
        inner = Scope([*scope.variables, index], scope.buffers)
        return For(
            index, extent, _suite(draw, inner, depth - 1), draw(st.sampled_from(["serial", "serial", "parallel", "vectorized", "unrolled"]))
        )
    if kind == "if":
        otherwise = _suite(draw, scope, depth - 1) if draw(st.booleans()) else None
        return If(_expr(draw, scope, dtypes.bool_, 2), _suite(draw, scope, depth - 1), otherwise)
    if kind == "while":
        return While(_expr(draw, scope, dtypes.bool_, 2), _suite(draw, scope, depth - 1))
    if kind == "let":
        value = _expr(draw, scope, draw(st.sampled_from(DTYPES)), 2)
        bound = _variable(draw, scope, value.dtype)
        return Let(bound, value, _suite(draw, Scope([*scope.variables, bound], scope.buffers), depth - 1))
    return _block(draw, scope, depth)


def _block(draw: Any, scope: Scope, depth: int) -> Stmt:
    inner = Scope(list(scope.variables), list(scope.buffers))
    iters: list[BlockIter] = []
    for _ in range(draw(st.integers(0, 2))):
        v = _variable(draw, inner, draw(st.sampled_from([dtypes.int64, dtypes.int64, dtypes.int32])))
        inner.variables.append(v)
        iters.append(BlockIter(v, _expr(draw, scope, dtypes.int64, 1), draw(st.sampled_from(["spatial", "reduction"]))))
    bindings = tuple(_expr(draw, scope, dtypes.int64, 2) for _ in iters)
    predicate = _expr(draw, inner, dtypes.bool_, 2)
    sizes = [v for v in scope.variables if v.dtype is dtypes.int64][:1]
    scratch = [_buffer(draw, sizes, "local") for _ in range(draw(st.integers(0, 1)))]
    scratch = [b for b in scratch if b not in scope.buffers]
    inner.buffers += scratch
    init = _suite(draw, inner, 1) if draw(st.booleans()) else None
    body = _suite(draw, inner, depth - 1)
    return Block(draw(st.sampled_from(NAMES)), tuple(iters), bindings, body, init, predicate, tuple(scratch))
