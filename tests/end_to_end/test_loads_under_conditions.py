"""Elements that are loaded under two conditions at once, one of which all lanes share: in every way in which vectors are loaded."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiled_graphs import check, module
from tilewright.graph.ops import Binary, Gather, Pad, Select, Slice, Transpose, constant
from tilewright.ir import dtypes
from tilewright.ir.expr import const
from tilewright.ir.types import as_shape, tensor

ROWS, COLUMNS = 5, 37
ZERO = const(0)
READS = ("in order", "every second", "every fifth", "backwards", "gathered", "turned")


def read(g, x, how: str):
    """x [64, 200] as [ROWS, COLUMNS]."""
    match how:
        case "in order":
            return g.one(Slice(as_shape((3, 7)), as_shape((ROWS, COLUMNS)), (1, 1)), x)
        case "every second" | "every fifth":
            step = 2 if how == "every second" else 5
            return g.one(Slice(as_shape((3, 7)), as_shape((ROWS, COLUMNS)), (1, step)), x)
        case "backwards":
            return g.one(Slice(as_shape((3, 199)), as_shape((ROWS, COLUMNS)), (1, -1)), x)
        case "gathered":
            rows = g.one(Slice(as_shape((3, 0)), as_shape((ROWS, 200)), (1, 1)), x)
            return g.one(Gather(1), rows, g.one(constant(np.random.default_rng(0).integers(0, 200, COLUMNS))))
        case _:
            part = g.one(Slice(as_shape((3, 7)), as_shape((COLUMNS, ROWS)), (1, 1)), x)
            return g.one(Transpose((1, 0)), part)


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.int8], ids=str)
@pytest.mark.parametrize("where", ["before padding", "behind padding", "chosen lanes", "chosen lanes before padding", "beside"])
@pytest.mark.parametrize("how", READS)
def test_lanes_and_rows(how: str, where: str, dtype: dtypes.DType) -> None:
    """Rows that a condition leaves out are 0, lanes that one leaves out have another number."""

    def body(g, x, keep, also):
        taken, zero, one = read(g, x, how), g.one(constant(0, dtype)), g.one(constant(1, dtype))
        rows = g.one(Select(), keep, taken, zero)
        match where:
            case "before padding":
                return [g.one(Pad((ZERO, ZERO), (ZERO, const(3)), "constant"), rows, one)]
            case "behind padding":
                return [g.one(Pad((ZERO, const(2)), (ZERO, const(1)), "constant"), rows, one)]
            case "chosen lanes":
                return [g.one(Select(), also, rows, one)]
            case "chosen lanes before padding":
                return [g.one(Pad((ZERO, ZERO), (ZERO, const(3)), "constant"), g.one(Select(), also, rows, zero), one)]
            case _:
                return [g.one(Binary("add"), taken, g.one(Select(), also, taken, zero))]

    types = [tensor(dtype, (64, 200)), tensor(dtypes.bool_, (ROWS, 1)), tensor(dtypes.bool_, (1, COLUMNS))]
    rng = np.random.default_rng(1)
    x = rng.integers(1, 50, (64, 200)).astype(dtype.numpy)
    some, none = np.arange(ROWS)[:, None] % 2 == 0, np.zeros((ROWS, 1), bool)
    check(module(types, body), (x, some, rng.random((1, COLUMNS)) < 0.5), (x, none, np.ones((1, COLUMNS), bool)))
