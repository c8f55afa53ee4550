"""The inputs of a model: their types, and the named sizes in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx

from tilewright.frontend.dims import DimRange
from tilewright.frontend.onnx.context import ModelState
from tilewright.frontend.onnx.loader import dtype_of
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, const
from tilewright.ir.types import TensorType
from tilewright.support.errors import ModelError, UnsupportedDtypeError


@dataclass(slots=True)
class Dims:
    """The symbolic dims of a model: `declared` by the caller, `named` as sizes once an input has them."""

    state: ModelState
    declared: Mapping[str, DimRange | int]
    named: dict[str, Expr] = field(default_factory=dict)

    def types(self, inputs: Sequence[onnx.ValueInfoProto], source: str) -> list[TensorType]:
        """The types of the inputs. Raises ModelError for what cannot be passed to a compiled model, and for declared dims that no input
        has."""
        types = [self.type(info) for info in inputs]
        unknown = [name for name in self.declared if name not in self.named]
        if unknown:
            listed = ", ".join(f"'{name}'" for name in self.named) or "none"
            raise ModelError(f"no input has a dim named '{unknown[0]}'", where=source, why=f"the symbolic dims are: {listed}")
        return types

    def type(self, info: onnx.ValueInfoProto) -> TensorType:
        """The type of one input; symbolic dims are shared by name, unnamed ones get names from input and axis."""
        kind = info.type.WhichOneof("value")
        if kind != "tensor_type":
            raise ModelError(
                f"input '{info.name}' is a {kind or 'value without type'}, not a tensor",
                hint="only tensors can be passed to a compiled model",
            )
        tensor = info.type.tensor_type
        if not tensor.HasField("shape"):
            raise ModelError(
                f"input '{info.name}' has no shape, so that its rank is not known",
                hint="run shape inference on the model or declare the shape",
            )
        dtype = dtype_of(tensor.elem_type, f"input '{info.name}'")
        if dtype is dtypes.string:
            raise UnsupportedDtypeError(f"input '{info.name}' holds strings", hint="only numbers can be passed to a compiled model")
        shape = tuple(self.dim(dim, f"{info.name}_{axis}") for axis, dim in enumerate(tensor.shape.dim))
        found = TensorType(dtype, shape)
        if not found.is_possible:
            raise ModelError(f"input '{info.name}' of type {found} is larger than any memory")
        return found

    def dim(self, dim: onnx.TensorShapeProto.Dimension, unnamed: str) -> Expr:
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            return const(dim.dim_value)
        named_by_model = any(c.isalnum() for c in dim.dim_param)  # "?" says that nothing is known, not that all "?" are equal
        name = dim.dim_param if named_by_model else unnamed
        if name not in self.named:
            declared = self.declared.get(name, DimRange())
            if isinstance(declared, int):
                self.named[name] = const(declared)
            else:
                self.named[name] = self.state.fresh_size(name, declared.lo, declared.hi, declared.multiple)
        return self.named[name]
