"""The loop nest of a kernel as indented text, for error messages and tests: loops, blocks with their bindings, and bodies of one store."""

from __future__ import annotations

from tilewright.kernel.nodes import Block, For, If, Kernel, Prefetch, Seq, Stmt, Store, children


def loop_tree(kernel: Kernel) -> str:
    """One line for each loop and block:

    parallel i in n:
      C(v: i, r: k) where i < m: C[v] = C[v] + A[v, r]; init C[v] = 0.0
    """
    return "\n".join(_lines(kernel.body, ""))


def _lines(stmt: Stmt, indent: str) -> list[str]:
    match stmt:
        case For(var, extent, body, kind):
            prefix = "" if kind == "serial" else f"{kind} "
            return [f"{indent}{prefix}{var.name} in {extent!r}:", *_lines(body, indent + "  ")]
        case Block():
            bindings = ", ".join(f"{it.var.name}: {b!r}" for it, b in zip(stmt.iters, stmt.bindings, strict=True))
            where = "" if stmt.predicate.is_const else f" where {stmt.predicate!r}"
            init = "" if stmt.init is None else f"; init {_short(stmt.init)}"
            return [f"{indent}{stmt.name}({bindings}){where}: {_short(stmt.body)}{init}"]
        case If(condition, then, otherwise):
            lines = [f"{indent}if {condition!r}:", *_lines(then, indent + "  ")]
            return lines if otherwise is None else [*lines, f"{indent}else:", *_lines(otherwise, indent + "  ")]
        case Seq(stmts):
            return [line for child in stmts for line in _lines(child, indent)]
        case _:
            return [f"{indent}{_short(stmt)}"]


def _short(stmt: Stmt) -> str:
    match stmt:
        case Store(buffer, indices, value):
            return f"{buffer.name}[{', '.join(map(repr, indices))}] = {value!r}"
        case If(condition, then, None):
            return f"if {condition!r}: {_short(then)}"
        case Prefetch(buffer, offset):
            return f"prefetch {buffer.name} at {offset!r}"
        case _:
            return f"{type(stmt).__name__.lower()} of {len(children(stmt))} statements"
