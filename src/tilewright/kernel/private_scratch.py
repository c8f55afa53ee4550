"""Which scratch belongs to single iterations of a parallel loop."""

from __future__ import annotations

from tilewright.kernel.nodes import Buffer, For, Kernel, Stmt, Store, children, loads, own_exprs


def private_scratch(kernel: Kernel) -> dict[int, list[Buffer]]:
    """For each parallel or vectorized loop, by its number in program order, the kernel's scratch that is used nowhere but in it."""
    paths: dict[Buffer, tuple[int, ...]] = {}
    wanted = set(kernel.scratch)
    count = 0

    def use(buffer: Buffer, path: tuple[int, ...]) -> None:
        if buffer not in wanted:
            return
        known = paths.get(buffer, path)
        shared = 0
        while shared < min(len(known), len(path)) and known[shared] == path[shared]:
            shared += 1
        paths[buffer] = path[:shared]

    def visit(stmt: Stmt, path: tuple[int, ...]) -> None:
        nonlocal count
        for load in loads(*own_exprs(stmt)):
            use(load.attr, path)
        if isinstance(stmt, Store):
            use(stmt.buffer, path)
        if isinstance(stmt, For) and stmt.kind in ("parallel", "vectorized"):
            path = (*path, count)
            count += 1
        for child in children(stmt):
            visit(child, path)

    visit(kernel.body, ())
    result: dict[int, list[Buffer]] = {}
    for buffer in kernel.scratch:
        if paths.get(buffer):
            result.setdefault(paths[buffer][-1], []).append(buffer)
    return result
