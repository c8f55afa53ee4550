"""What an operator's importer sees: the node with its inputs as values, attributes decoded, and the graph builder.

Importers are functions `(ctx) -> Value | Sequence[Value | None]`, listed in each family file's `IMPORTERS` table.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx

from tilewright.frontend.onnx.loader import LoadedModel, dtype_of
from tilewright.graph.contents import Contents, ContentsAnalysis
from tilewright.graph.interpreter import interpret
from tilewright.graph.node import Array, Function, GraphBuilder, Operator, Origin, Parameter, Value, walk_nodes
from tilewright.graph.ops import (
    Binary,
    BindSize,
    BroadcastTo,
    Cast,
    Concat,
    Constant,
    ConstantData,
    Reduce,
    RefineShape,
    Reshape,
    Select,
    SizeValue,
    Slice,
    Transpose,
    Unary,
)
from tilewright.graph.shapes import canonical, dims_equal
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, ExprLike, as_expr, const, maximum, size
from tilewright.ir.types import TensorType, as_shape, static_shape
from tilewright.runtime.formula import size_name
from tilewright.support.errors import ModelError, TypeRuleError, UnsupportedOperatorError

EVALUATED_ELEMENTS = 4096  # of each tensor on the way to a constant that importing needs
EVALUATED_NODES = 256

Importer: TypeAlias = "Callable[[NodeContext], Value | Sequence[Value | None]]"
Table: TypeAlias = dict[tuple[str, str], Importer]  # (domain, operator) -> importer; "" is ai.onnx

MOST_AXES = 64  # of a tensor; NumPy, too, stops there
RANKED = frozenset({"Reshape", "Expand", "ConstantOfShape", "AffineGrid"})  # whose result has an axis for each of a list of sizes
FARTHEST = 1 << 40  # no axis is as long


@dataclass(slots=True)
class ModelState:
    """Shared by all graphs of one import: builder, contents of shape tensors, bound sizes, operator sets, sequences of tensors."""

    model: LoadedModel
    opsets: dict[str, int]
    g: GraphBuilder = field(default_factory=GraphBuilder)
    contents: ContentsAnalysis = field(default_factory=ContentsAnalysis)
    fresh: dict[str, int] = field(default_factory=dict)
    sequences: dict[Value, tuple[Value, ...]] = field(default_factory=dict)  # by the value that stands for the sequence

    def fresh_size(self, name: str, lo: int | None = 0, hi: int | None = None, multiple: int = 1) -> Expr:
        """A new named size; `name` is made an identifier and unique."""
        unique = base = size_name(name)
        while unique in self.fresh:
            self.fresh[base] += 1
            unique = f"{base}_{self.fresh[base]}"
        self.fresh[unique] = 0
        return size(unique, lo, hi, multiple)


@dataclass(slots=True)
class NodeContext:
    """One node being imported. `inputs` has None for inputs left out; `import_graph` imports a graph attribute as a closed function of the
    given parameters followed by what `captured` answers, `inlined` imports one without inputs in place; `definition` imports the node
    by the definition that ONNX itself gives, `expansion` by a given one."""

    node: onnx.NodeProto
    state: ModelState
    inputs: tuple[Value | None, ...]
    import_graph: Callable[[onnx.GraphProto, Sequence[Value]], Function]
    captured: Callable[[onnx.GraphProto], tuple[Value, ...]]
    definition: Callable[[], Sequence[Value | None]]
    inlined: Callable[[onnx.GraphProto], tuple[Value, ...]]
    attempted: Callable[[onnx.GraphProto], Function | ModelError]
    expansion: Callable[[onnx.FunctionProto, Sequence[Value | None]], Sequence[Value | None]]

    @property
    def g(self) -> GraphBuilder:
        return self.state.g

    @property
    def op_type(self) -> str:
        return self.node.op_type

    @property
    def version(self) -> int:
        """The operator set version that the model imports for the node's domain."""
        return self.state.opsets.get(self.node.domain if self.node.domain != "ai.onnx" else "", 1)

    @property
    def output_count(self) -> int:
        return len(self.node.output)

    def wants(self, index: int) -> bool:
        """Whether output `index` has a name, so that somebody may use it."""
        return index < len(self.node.output) and bool(self.node.output[index])

    def has(self, index: int) -> bool:
        return index < len(self.inputs) and self.inputs[index] is not None

    def input(self, index: int) -> Value:
        """Input `index`; ModelError when the model leaves it out."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is None:
            raise ModelError(f"{self.op_type} needs input {index}, which the model leaves out", where=self.where)
        return value

    def optional(self, index: int) -> Value | None:
        return self.inputs[index] if index < len(self.inputs) else None

    @property
    def where(self) -> str:
        return str(origin_of(self.node))

    def items(self, index: int) -> tuple[Value, ...]:
        """The tensors of an input that is a sequence."""
        value = self.input(index)
        if value not in self.state.sequences:
            raise ModelError(f"input {index} of {self.op_type} is no sequence", where=self.where)
        return self.state.sequences[value]

    def sequence(self, items: Sequence[Value]) -> Value:
        """A sequence of tensors, which stands in a scope as a value that no operator reads."""
        token = self.one(Parameter(f"sequence {len(self.state.sequences)}", TensorType(dtypes.bool_, ())))
        self.state.sequences[token] = tuple(items)
        return token

    # ---- attributes

    def attribute(self, name: str, default: Any = None) -> Any:
        """The attribute decoded (int, float, str, list, ndarray, GraphProto), or `default`."""
        for attribute in self.node.attribute:
            if attribute.name == name:
                return self._decode(attribute)
        return default

    @property
    def attribute_names(self) -> set[str]:
        return {attribute.name for attribute in self.node.attribute}

    def _decode(self, attribute: onnx.AttributeProto) -> Any:
        kinds = onnx.AttributeProto
        match attribute.type:
            case kinds.STRING:
                return attribute.s.decode("utf-8", "replace")
            case kinds.STRINGS:
                return [s.decode("utf-8", "replace") for s in attribute.strings]
            case kinds.TENSOR:
                return self.state.model.tensor(attribute.t)
            case kinds.TENSORS:
                return [self.state.model.tensor(t) for t in attribute.tensors]
            case kinds.INTS | kinds.FLOATS:
                return list(onnx.helper.get_attribute_value(attribute))
            case _:
                return onnx.helper.get_attribute_value(attribute)

    def require(self, name: str) -> Any:
        """A mandatory attribute; ModelError when it is missing."""
        value = self.attribute(name)
        if value is None:
            raise ModelError(f"{self.op_type} lacks the attribute '{name}'", where=self.where)
        return value

    def dtype_attribute(self, name: str, default: DType | None = None) -> DType:
        code = self.attribute(name)
        if code is None and default is not None:
            return default
        return dtype_of(int(code if code is not None else 0), self.where)

    # ---- emitting

    def emit(self, op: Operator, *inputs: Value) -> tuple[Value, ...]:
        return self.g.emit(op, *inputs)

    def one(self, op: Operator, *inputs: Value) -> Value:
        return self.g.one(op, *inputs)

    def constant(self, array: Any, dtype: DType | None = None) -> Value:
        """A constant tensor from an array or number."""
        value = np.asarray(array) if dtype is None else np.asarray(array).astype(dtype.numpy)
        return self.one(Constant(ConstantData(value)))

    def scalar_like(self, number: float, value: Value) -> Value:
        """A rank-0 constant of the dtype of `value`. Raises TypeRuleError for a fraction among integers."""
        if value.type.dtype.is_integer and not float(number).is_integer():
            raise TypeRuleError(f"{self.op_type} of {value.type.dtype.name} by {number:g}, which is no integer", where=self.where)
        return self.constant(number, value.type.dtype)

    def cast(self, value: Value, dtype: DType) -> Value:
        return value if value.type.dtype is dtype else self.one(Cast(dtype), value)

    def unary(self, fn: str, value: Value) -> Value:
        return self.one(Unary(fn), value)

    def binary(self, fn: str, a: Value, b: Value | float) -> Value:
        """An elementwise function of two operands, or of one and a number; dims that the model asserts to be equal are refined."""
        if not isinstance(b, Value):
            return self.one(Binary(fn), a, self.scalar_like(b, a))
        return self.one(Binary(fn), *self.align(a, b))

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        return self.one(Select(), *self.align(condition, a, b))

    def reduce(self, fn: str, value: Value, axes: Iterable[int], keepdims: bool = True) -> Value:
        chosen = tuple(sorted(axes))
        return self.one(Reduce(fn, chosen, keepdims), value) if chosen else value

    def transpose(self, value: Value, perm: Iterable[int]) -> Value:
        order = tuple(perm)
        return value if order == tuple(range(value.type.rank)) else self.one(Transpose(order), value)

    def broadcast(self, value: Value, shape: Iterable[ExprLike]) -> Value:
        target = as_shape(shape)
        return value if target == value.shape else self.one(BroadcastTo(target), value)

    def number(self, value: Value) -> Value:
        """A one-element tensor as a rank-0 tensor."""
        return self.reshape(value, ())

    def reshape(self, value: Value, shape: Iterable[ExprLike]) -> Value:
        target = as_shape(shape)
        return value if target == value.shape else self.one(Reshape(target), value)

    def slice_axis(self, value: Value, axis: int, start: ExprLike, length: ExprLike, step: int = 1) -> Value:
        """value[..., start : start + length*step : step, ...] on one axis."""
        starts = [const(0)] * value.type.rank
        sizes = list(value.shape)
        steps = [1] * value.type.rank
        starts[axis], sizes[axis], steps[axis] = as_expr(start), as_expr(length), step
        return self.one(Slice(tuple(starts), tuple(sizes), tuple(steps)), value)

    def axis(self, axis: int, rank: int) -> int:
        """A non-negative axis; ModelError when it is out of range."""
        if not -rank <= axis < max(rank, 1):
            raise ModelError(f"{self.op_type}: axis {axis} is out of range for rank {rank}", where=self.where)
        return axis + rank if axis < 0 else axis

    def dim(self, value: Value, axis: int) -> Expr:
        """The dim of an axis; ModelError where the value has fewer axes."""
        if axis >= value.type.rank:
            raise ModelError(f"{self.op_type}: an input is {value.type!r}", where=self.where, why=f"it must have more than {axis} axes")
        return value.shape[axis]

    def seed(self) -> int:
        """The seed of a random operator: its attribute, or a number that only this node has."""
        given = self.attribute("seed")
        if given is None:
            return zlib.crc32(self.where.encode())
        return int(given) if float(given).is_integer() else int(np.float32(given).view(np.uint32))

    # ---- tensors that hold sizes

    def constant_of(self, index: int) -> Array | None:
        """The value of an input that is a constant of the model."""
        value = self.optional(index)
        if value is None:
            return None
        if isinstance(value.op, Constant):
            return value.op.data.array
        empty = static_shape(value.shape)
        if empty is not None and 0 in empty:
            return np.zeros(empty, value.type.dtype.numpy)
        contents = self.state.contents.of(value)
        if contents is not None and all(e.is_const for e in contents.flat):
            return np.array([e.value for e in contents.flat], value.type.dtype.numpy).reshape(contents.shape)
        return None if contents is not None else evaluated(value)

    def require_constant(self, index: int, what: str) -> Array:
        """Like `constant_of`, for what must be known to compile: UnsupportedOperatorError otherwise."""
        array = self.constant_of(index)
        if array is None:
            raise UnsupportedOperatorError(f"{self.op_type} with a {what} that is computed at run time is not supported", where=self.where)
        return array

    def contents(self, value: Value) -> Contents | None:
        """What an integer tensor holds, as expressions; None when it is known only at run time."""
        return self.state.contents.of(value)

    def ratios(self, value: Value) -> Contents | None:
        """What a float tensor computed from sizes holds, as quotients (`graph.ratios.Ratio`); None when it is known only at run time."""
        return self.state.contents.ratios(value)

    def as_size(self, value: Value, name: str = "", lo: int | None = 0, hi: int | None = None, position: bool = False) -> Expr:
        """The number in a one-element tensor (floats are cut off) as an expression; a size from `lo` to `hi` is bound at run time when it
        is not known. A `position`, whose distance from an axis does not matter once it is beyond either end, is bound as one that is not
        farther than FARTHEST, so that sums and products with it do not overflow: models write the largest int64 for "to the end"."""
        known = self.state.contents.scalar(value)
        if known is not None:
            return known
        scalar = self.cast(self.reshape(value, ()), dtypes.int64)
        known = self.state.contents.scalar(scalar)
        if known is not None:
            return known
        if position:
            scalar = self.binary("min", self.binary("max", scalar, -FARTHEST), FARTHEST)
        bound = self.state.fresh_size(name or (self.node.output[0] if self.node.output else self.op_type), lo, hi)
        self.emit(BindSize(bound), scalar)
        one = np.empty((1,) * value.type.rank, object)
        one[...] = bound
        self.state.contents.known[value] = one
        flat = np.empty((), object)
        flat[()] = bound
        self.state.contents.known[scalar] = flat
        return bound

    def as_positions(self, value: Value, name: str = "", count: int | None = None) -> tuple[Expr, ...]:
        """The numbers in a rank-1 integer tensor as `as_size` gives positions, of any sign."""
        return self.as_sizes(value, name, lo=None, position=True, count=count)

    def as_sizes(
        self,
        value: Value,
        name: str = "",
        lo: int | None = 0,
        hi: int | None = None,
        position: bool = False,
        count: int | None = None,
    ) -> tuple[Expr, ...]:
        """The numbers in a rank-1 integer tensor as expressions; those not known are bound at run time, as `as_size` does. A tensor of open
        length is asserted to have `count` of them, where that is given."""
        self.expect_integers(value)
        known = self.contents(value)
        if known is not None:
            return tuple(known.reshape(-1))
        if value.type.rank != 1:
            raise ModelError(f"{self.op_type} takes sizes of shape {list(value.shape)}", where=self.where, why="they must be a list")
        given = value if count is None else self.refine(value, (count,))
        (length,) = given.shape
        if not length.is_const:
            if self.op_type in RANKED:
                raise UnsupportedOperatorError(f"{self.op_type} whose rank depends on data is not supported", where=self.where)
            given_as = next((repr(text) for text, other in zip(self.node.input, self.inputs, strict=False) if other is value), "a list")
            raise UnsupportedOperatorError(
                f"{self.op_type} with {given_as}, of which the length {length!r} is open, is not supported",
                where=self.where,
                why="how many axes it is about must be known when the model is compiled",
                hint="declare the length of that input, or fix it with dims",
            )
        if length.value > MOST_AXES:
            raise ModelError(f"{self.op_type} takes {length.value:,} sizes", where=self.where, why=f"a tensor may have {MOST_AXES} axes")
        found = []
        for i in range(int(length.value)):
            element = self._element(given, i)
            found.append(self.as_size(element, f"{name or self.node.output[0]}_{i}", lo, hi, position))
        return tuple(found)

    def integers_of(self, index: int) -> list[int] | None:
        """The numbers in an integer input that is a constant of the model."""
        array = self.constant_of(index)
        if array is None:
            return None
        self.expect_integers(self.input(index))
        numbers: list[int] = array.reshape(-1).tolist()
        return numbers

    def expect_integers(self, value: Value) -> None:
        """Raises ModelError where sizes, positions or axes are no integers."""
        if not value.type.dtype.is_integer:
            raise ModelError(f"{self.op_type}: sizes, positions or axes are {value.type!r}", where=self.where, why="they must be integers")

    def _element(self, value: Value, index: int) -> Value:
        """Element `index` of a rank-1 tensor; looks through a concatenation, so that known parts stay known."""
        op = value.op
        if isinstance(op, Concat):
            at = index
            for part in value.node.inputs:
                length = int(part.shape[0].value) if part.shape[0].is_const else -1
                if length < 0:
                    break
                if at < length:
                    return self._element(part, at)
                at -= length
        return self.slice_axis(value, 0, index, 1) if value.shape[0] is not const(1) else value

    def size_tensor(self, dims: Sequence[Expr]) -> Value:
        """A rank-1 int64 tensor of sizes."""
        if not dims:
            return self.constant(np.zeros(0, np.int64))
        if all(dim.is_const for dim in dims):
            return self.constant(np.array([dim.value for dim in dims], np.int64))
        parts = [self.reshape(self.size_scalar(dim), (1,)) for dim in dims]
        return parts[0] if len(parts) == 1 else self.one(Concat(0), *parts)

    def size_scalar(self, dim: Expr) -> Value:
        return self.constant(np.int64(dim.value)) if dim.is_const else self.one(SizeValue(dim))

    def size_number(self, dim: Expr, dtype: DType) -> Value:
        """A size as a scalar of another dtype."""
        return self.constant(dim.value, dtype) if dim.is_const else self.cast(self.size_scalar(dim), dtype)

    # ---- dims that the model asserts to be equal

    def align(self, *values: Value) -> tuple[Value, ...]:
        """Operands of a broadcasting operator with dims made provably equal: where two symbolic dims meet that the compiler cannot prove
        equal, the model asserts that they are, and the later operand is refined (checked at run time)."""
        rank = max(value.type.rank for value in values)
        target: list[Expr] = [const(1)] * rank
        for value in values:
            for position, dim in enumerate(value.shape, rank - value.type.rank):
                current = target[position]
                if current is const(1) or (dim.is_const and not current.is_const and dim is not const(1)):
                    target[position] = dim
        return tuple(self.refine(value, kept_ones(value.shape, target[rank - value.type.rank :])) for value in values)

    def refine(self, value: Value, shape: Iterable[ExprLike]) -> Value:
        """`value` with dims asserted to be `shape` (checked at run time where not provable); dims that are known, and different, stay
        for the operator to refuse. ModelError when it has another rank."""
        wanted = as_shape(shape)
        if value.type.rank != len(wanted):
            raise ModelError(f"{self.op_type}: an input is {value.type!r}", where=self.where, why=f"it must have {len(wanted)} axes")
        dims = zip(value.shape, wanted, strict=True)
        refined = tuple(dim if (new.is_const and dim.is_const) or dims_equal(dim, new) else new for dim, new in dims)
        return value if refined == value.shape else self.one(RefineShape(refined), value)

    def refine_axis(self, value: Value, axis: int, dim: ExprLike) -> Value:
        """`value` with the dim of one axis asserted to be `dim`."""
        self.dim(value, axis)
        return self.refine(value, [*value.shape[:axis], dim, *value.shape[axis + 1 :]])

    def at_least(self, value: Value, axis: int, least: Expr) -> Value:
        """`value` with the dim of one axis asserted to be `least` or more (checked at run time where not provable)."""
        dim = self.dim(value, axis)
        enough = canonical(maximum(dim, least))
        if dims_equal(enough, dim):
            return value
        if enough.is_const and dim.is_const:
            what = f"{self.op_type}: axis {axis} has {dim!r} elements, {least!r} are asked for"
            raise ModelError(what, where=self.where)
        return self.one(RefineShape((*value.shape[:axis], enough, *value.shape[axis + 1 :])), value)


def kept_ones(shape: Sequence[Expr], target: Sequence[Expr]) -> list[Expr]:
    """The shape that a value is asserted to have, for it to broadcast to `target`."""
    return [dim if dim is const(1) else wanted for dim, wanted in zip(shape, target, strict=True)]


def evaluated(value: Value) -> Array | None:
    """The value of a small tensor that is computed from small constants alone."""
    nodes = []
    for node in walk_nodes([value]):
        nodes.append(node)
        small = all(static_shape(t.shape) is not None and t.count.value <= EVALUATED_ELEMENTS for t in node.types)
        if not small or isinstance(node.op, Parameter) or len(nodes) > EVALUATED_NODES:
            return None
    return interpret(Function("constant", (), (value,)), [])[0]


def origin_of(node: onnx.NodeProto) -> Origin:
    """The origin of an ONNX node: its name, or that of its first output."""
    return Origin(node.name or next((name for name in node.output if name), "?"), node.op_type)
