"""Ensembles of decision trees over the rows of a matrix.

The nodes of all trees share tables. A child is the number of a node, or -1 - l for leaf l; leaf l contributes the weights
`leaf_weight[e]` to the targets `leaf_target[e]` for e in [leaf_begin[l], leaf_begin[l + 1]).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

import numpy as np

from tilewright.graph.node import Array, Operator
from tilewright.graph.ops.elementwise import expect_inputs
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, call, cast, ceildiv, const, equal, logical_and, logical_or, maximum, minimum, not_equal, select
from tilewright.ir.types import TensorType
from tilewright.kernel.builder import KernelBuilder, StmtBuilder, Tensor
from tilewright.kernel.nodes import LoopKind
from tilewright.support.errors import TypeRuleError

# A node sends a row to its true child when `x[feature] MODE split`; "member": when x[feature] is one of the node's values.
MODES = ("leq", "lt", "gte", "gt", "eq", "neq", "member")
TREES = 16  # that a row goes down at once: enough loads in flight to hide how long each takes
AGGREGATES = ("sum", "average", "min", "max")
_TABLES = ("roots", "feature", "split", "if_true", "if_false", "leaf_begin", "leaf_target", "leaf_weight")
_TESTS: dict[str, Callable[[Expr, Expr], Expr]] = {
    "leq": lambda x, s: x <= s,
    "lt": lambda x, s: x < s,
    "gte": lambda x, s: x >= s,
    "gt": lambda x, s: x > s,
    "eq": equal,
    "neq": not_equal,
}


@dataclass(frozen=True, slots=True, eq=False)
class TreeEnsemble(Operator):
    """(x[n, features], roots, feature, split, if_true, if_false, leaf_begin, leaf_target, leaf_weight, *more) -> [n, targets].

    Tables are int32 vectors; `split` and `leaf_weight` have x's dtype (float32 or float64). `mode` is one of MODES for every node, or
    "mixed": then `more` starts with mode int8 (index into MODES), member_begin int32, members (x's dtype): node j tests members
    [member_begin[j], member_begin[j + 1]). With `missing`, `more` ends with a bool table: NaN goes to the true child there. Targets
    that no tree contributes to are 0.
    """

    name: ClassVar[str] = "tree_ensemble"
    targets: int
    aggregate: str
    mode: str
    missing: bool = False

    @property
    def tables(self) -> tuple[str, ...]:
        mixed = ("mode", "member_begin", "members") if self.mode == "mixed" else ()
        return (*_TABLES, *mixed, *(("missing_true",) if self.missing else ()))

    def infer(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        expect_inputs("tree_ensemble", inputs, 1 + len(self.tables))
        x, *tables = inputs
        if self.aggregate not in AGGREGATES or self.mode not in (*MODES[:-1], "mixed"):
            raise TypeRuleError(f"tree_ensemble: there is no aggregate {self.aggregate!r} or mode {self.mode!r}")
        if x.rank != 2 or x.dtype not in (dtypes.float32, dtypes.float64):
            raise TypeRuleError(f"tree_ensemble takes a float32 or float64 matrix, not {x!r}")
        wanted = {"split": x.dtype, "leaf_weight": x.dtype, "members": x.dtype, "mode": dtypes.int8, "missing_true": dtypes.bool_}
        for label, table in zip(self.tables, tables, strict=True):
            if table.rank != 1 or table.dtype is not wanted.get(label, dtypes.int32):
                raise TypeRuleError(f"tree_ensemble: the table {label} is {table!r}")
        return (TensorType(x.dtype, (x.shape[0], const(self.targets))),)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        x = inputs[0]
        t = dict(zip(self.tables, inputs[1:], strict=True))
        out = np.zeros((x.shape[0], self.targets), x.dtype)
        for n, row in enumerate(x):
            seen = np.zeros(self.targets, np.bool_)
            for root in t["roots"]:
                node = int(root)
                while node >= 0:
                    node = int((t["if_true"] if self._goes(row, node, t) else t["if_false"])[node])
                for e in range(t["leaf_begin"][-1 - node], t["leaf_begin"][-node]):
                    target, weight = int(t["leaf_target"][e]), t["leaf_weight"][e]
                    out[n, target] = _combined(self.aggregate, out[n, target], weight) if seen[target] else weight
                    seen[target] = True
        return (out / x.dtype.type(len(t["roots"])) if self.aggregate == "average" else out,)

    def _goes(self, row: Array, node: int, t: dict[str, Array]) -> bool:
        value, split = row[t["feature"][node]], t["split"][node]
        if self.missing and np.isnan(value):
            return bool(t["missing_true"][node])
        mode = MODES[t["mode"][node]] if self.mode == "mixed" else self.mode
        if mode == "member":
            return bool(np.any(t["members"][t["member_begin"][node] : t["member_begin"][node + 1]] == value))
        tests = {"leq": value <= split, "lt": value < split, "gte": value >= split, "gt": value > split, "eq": value == split}
        return bool(tests.get(mode, value != split))

    def define(self, k: KernelBuilder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """A row goes down several trees at once, each in a lane of its own until the last of them is at a leaf, so that their chains of
        dependent loads overlap. What the leaves say is added tree by tree."""
        x = inputs[0]
        t = dict(zip(self.tables, inputs[1:], strict=True))
        rows, trees = x.shape[0], t["roots"].shape[0]
        extreme = self.aggregate in ("min", "max")
        together: LoopKind = "serial" if self.mode == "mixed" else "vectorized"

        def body(s: StmtBuilder, outs: tuple[Tensor, ...], n: Expr) -> None:
            out, *seen = outs
            with s.loop("target", self.targets) as target:
                s.store(out, (n, target), 0)
                if extreme:
                    s.store(seen[0], (n, target), False)
            if self.missing:
                missing = s.local("missing", dtypes.bool_, (), False)
                with s.loop("feature", x.shape[1]) as feature:
                    s.store(missing, (), logical_or(missing[()], call("isnan", x[n, feature])))
            node = s.local("node", dtypes.int32, (TREES,))
            with s.loop("group", ceildiv(trees, const(TREES))) as group:
                with s.loop("lane", TREES, together) as lane:
                    s.store(node, (lane,), t["roots"][minimum(group * TREES + lane, trees - 1)])
                descending = reduce(maximum, [node[lane] for lane in range(TREES)]) >= 0
                if self.missing:
                    with s.when(missing[()]), s.repeat_while(descending), s.loop("lane", TREES, together) as lane:
                        self._descend(s, x, t, node, lane, n, True)
                with s.repeat_while(descending), s.loop("lane", TREES, together) as lane:
                    self._descend(s, x, t, node, lane, n, False)
                with s.loop("lane", minimum(const(TREES), trees - group * TREES)) as lane:
                    leaf = s.let("leaf", cast(dtypes.int64, -1 - node[lane]))
                    begin = s.let("begin", cast(dtypes.int64, t["leaf_begin"][leaf]))
                    with s.loop("entry", cast(dtypes.int64, t["leaf_begin"][leaf + 1]) - begin) as entry:
                        at = (n, s.let("target", cast(dtypes.int64, t["leaf_target"][begin + entry])))
                        weight = s.let("weight", t["leaf_weight"][begin + entry])
                        old = out[at]
                        if extreme:
                            best = maximum(old, weight) if self.aggregate == "max" else minimum(old, weight)
                            s.store(out, at, select(seen[0][at], best, weight))
                            s.store(seen[0], at, True)
                        else:
                            s.store(out, at, old + weight)
            if self.aggregate == "average":
                with s.loop("target", self.targets) as target:
                    s.store(out, (n, target), out[n, target] / cast(x.dtype, trees))

        shape = (rows, const(self.targets))
        extra = [TensorType(dtypes.bool_, shape)] if extreme else []
        return k.opaque("trees", [TensorType(x.dtype, shape), *extra], (rows,), body)[:1]

    def _descend(self, s: StmtBuilder, x: Tensor, t: dict[str, Tensor], node: Tensor, lane: Expr, row: Expr, missing: bool) -> None:
        """One step down a tree; at a leaf it stays. `missing`: the row has a NaN."""
        here = s.let("here", node[lane])
        at = s.let("at", cast(dtypes.int64, maximum(here, 0)))
        value = s.let("value", x[row, cast(dtypes.int64, t["feature"][at])])
        goes = self._test(s, t, at, value)
        if missing:
            goes = select(call("isnan", value), t["missing_true"][at], goes)
        s.store(node, (lane,), select(here >= 0, select(goes, t["if_true"][at], t["if_false"][at]), here))

    def _test(self, s: StmtBuilder, t: dict[str, Tensor], at: Expr, value: Expr) -> Expr:
        split = t["split"][at]
        if self.mode == "mixed":
            mode = s.let("mode", t["mode"][at])
            found = s.local("found", dtypes.bool_, (), False)
            with s.when(equal(mode, MODES.index("member"))):
                begin = s.let("begin", cast(dtypes.int64, t["member_begin"][at]))
                with s.loop("member", cast(dtypes.int64, t["member_begin"][at + 1]) - begin) as member:
                    s.store(found, (), logical_or(found[()], equal(t["members"][begin + member], value)))
            goes = logical_and(equal(mode, MODES.index("member")), found[()])
            for i, name in enumerate(MODES[:-1]):
                goes = logical_or(goes, logical_and(equal(mode, i), _TESTS[name](value, split)))
        else:
            goes = _TESTS[self.mode](value, split)
        return goes


def _combined(aggregate: str, old: Any, new: Any) -> Any:
    if aggregate == "min":
        return min(old, new)
    return max(old, new) if aggregate == "max" else old + new
