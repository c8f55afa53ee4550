"""Faults to be found: passes and schedule primitives that change what is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.graph.node import Function, builder_for
from tilewright.graph.ops import Binary, Constant, ConstantData
from tilewright.ir.expr import const
from tilewright.kernel.nodes import Store, map_stmt, with_fields
from tilewright.kernel.schedule.change import Change


def slightly_off(original: Callable[..., Function], by: float = 0.01) -> Callable[..., Function]:
    """A pass that also makes the first result larger, by one percent."""

    def broken(function: Function, *others: Any) -> Function:
        good = original(function, *others)
        value = good.results[0]
        factor = np.full((1,) * value.type.rank, 1 + by, value.type.dtype.numpy)
        g = builder_for(good.results)
        off = g.one(Binary("mul"), value, g.one(Constant(ConstantData(factor))))
        return Function(good.name, good.params, (off, *good.results[1:]))

    return broken


def doubled(original: Callable[..., Change]) -> Callable[..., Change]:
    """A primitive after which kernels store twice what they should."""

    def broken(nest: Any, *arguments: Any, **attributes: Any) -> Change:
        change = original(nest, *arguments, **attributes)

        def twice(stmt: Any) -> Any:
            if isinstance(stmt, Store):
                wrong = stmt.buffer in change.kernel.outputs and stmt.value.dtype.is_float
                return with_fields(stmt, value=stmt.value * const(2.0, stmt.value.dtype)) if wrong else stmt
            return map_stmt(stmt, twice)

        return Change(with_fields(change.kernel, body=twice(change.kernel.body)), change.results, change.layout)

    return broken
