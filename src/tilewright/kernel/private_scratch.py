"""Which scratch belongs to single iterations of a parallel loop."""

from __future__ import annotations

from tilewright.kernel.nodes import Buffer, For, Kernel, Stmt, Store, children, loads, own_exprs

_Path = tuple[tuple[int, bool], ...]  # the parallel and vectorized loops around, outermost first: number, whether parallel


def private_scratch(kernel: Kernel) -> dict[int, list[Buffer]]:
    """For each parallel or vectorized loop, by its number in program order, the kernel's scratch of which each iteration has its own.

    That is scratch used in this loop only (the innermost such), and local scratch used in several parallel loops but not between
    them: it lives on the stack of each.
    """
    uses: dict[Buffer, dict[_Path, None]] = {}
    wanted = set(kernel.scratch)
    count = 0

    def visit(stmt: Stmt, path: _Path) -> None:
        nonlocal count
        used = [load.attr for load in loads(*own_exprs(stmt))]
        if isinstance(stmt, Store):
            used.append(stmt.buffer)
        for buffer in used:
            if buffer in wanted:
                uses.setdefault(buffer, {})[path] = None
        if isinstance(stmt, For) and stmt.kind in ("parallel", "vectorized"):
            path = (*path, (count, stmt.kind == "parallel"))
            count += 1
        for child in children(stmt):
            visit(child, path)

    visit(kernel.body, ())
    result: dict[int, list[Buffer]] = {}
    for buffer, paths in uses.items():
        for number in _owners(buffer, list(paths)):
            result.setdefault(number, []).append(buffer)
    return result


def _owners(buffer: Buffer, paths: list[_Path]) -> list[int]:
    shared = paths[0]
    for path in paths[1:]:
        same = 0
        while same < min(len(shared), len(path)) and shared[same] == path[same]:
            same += 1
        shared = shared[:same]
    if shared:
        return [shared[-1][0]]
    tasks = {next((number for number, parallel in path if parallel), None) for path in paths}
    return [number for number in tasks if number is not None] if buffer.scope == "local" and None not in tasks else []
