"""Opening ONNX models: file, bytes or ModelProto to a parsed message plus lazily read, memory-mapped weights."""

from __future__ import annotations

import errno
import math
import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from tilewright.frontend.onnx.functions import check_functions
from tilewright.frontend.onnx.wire import WireError, cut_weights
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.types import LARGEST_DIM
from tilewright.runtime.artifact import MAGIC
from tilewright.support.errors import ModelError, UnsupportedDtypeError
from tilewright.support.host_limits import usable_memory

Array = np.ndarray[Any, np.dtype[Any]]

DTYPES: dict[int, DType] = {
    onnx.TensorProto.FLOAT: dtypes.float32,
    onnx.TensorProto.UINT8: dtypes.uint8,
    onnx.TensorProto.INT8: dtypes.int8,
    onnx.TensorProto.UINT16: dtypes.uint16,
    onnx.TensorProto.INT16: dtypes.int16,
    onnx.TensorProto.INT32: dtypes.int32,
    onnx.TensorProto.INT64: dtypes.int64,
    onnx.TensorProto.STRING: dtypes.string,
    onnx.TensorProto.BOOL: dtypes.bool_,
    onnx.TensorProto.FLOAT16: dtypes.float16,
    onnx.TensorProto.DOUBLE: dtypes.float64,
    onnx.TensorProto.UINT32: dtypes.uint32,
    onnx.TensorProto.UINT64: dtypes.uint64,
    onnx.TensorProto.COMPLEX64: dtypes.complex64,
    onnx.TensorProto.COMPLEX128: dtypes.complex128,
    onnx.TensorProto.BFLOAT16: dtypes.bfloat16,
    17: dtypes.float8e4m3fn,
    18: dtypes.float8e4m3fnuz,
    19: dtypes.float8e5m2,
    20: dtypes.float8e5m2fnuz,
    21: dtypes.uint4,
    22: dtypes.int4,
    23: dtypes.float4e2m1,
    24: dtypes.float8e8m0,
    25: dtypes.uint2,
    26: dtypes.int2,
}


def dtype_of(code: int, where: str = "") -> DType:
    """The DType of an ONNX element type number."""
    if code not in DTYPES:
        names = {number: name for name, number in onnx.TensorProto.DataType.items()}
        raise UnsupportedDtypeError(f"ONNX element type {names.get(code, code)} is not supported", where=where or None)
    return DTYPES[code]


@dataclass(slots=True)
class LoadedModel:
    """A parsed model. `proto` lacks the large weights; `tensor(t)` gives any TensorProto of it as an array (weights of a file are
    views of the mapped file, aligned or not). `source` names it in messages, `folder` is where external data lies."""

    proto: onnx.ModelProto
    source: str
    folder: Path | None = None
    mapped: Any = None
    cut: dict[str, tuple[int, int]] = field(default_factory=dict)
    external: dict[str, Any] = field(default_factory=dict)

    def tensor(self, tensor: onnx.TensorProto) -> Array:
        """The value of a TensorProto. Raises ModelError when its data is missing, truncated or outside of the model's folder."""
        dtype = dtype_of(tensor.data_type, f"tensor '{tensor.name}'")
        shape = tuple(tensor.dims)
        if any(dim < 0 for dim in shape):
            raise ModelError(f"tensor '{tensor.name}' has a negative dim: {list(shape)}", where=self.source)
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            return self._external(tensor, dtype, shape)
        where = self.cut.get(tensor.name)
        if where is not None and not tensor.HasField("raw_data"):
            return self._view(memoryview(self.mapped), where[0], where[1], dtype, shape, tensor.name)
        try:
            array: Array = onnx.numpy_helper.to_array(tensor)
        except (ValueError, TypeError, RuntimeError) as error:
            raise ModelError(f"tensor '{tensor.name}' cannot be read: {error}", where=self.source) from None
        if dtype.kind == "string":
            return array
        return array if array.dtype == dtype.numpy else array.astype(dtype.numpy)

    def dense(self, sparse: onnx.SparseTensorProto) -> Array:
        """The value of a sparse tensor: indices are flat positions, or one row of coordinates for each value."""
        values, indices = self.tensor(sparse.values), self.tensor(sparse.indices)
        shape = tuple(sparse.dims)
        if any(dim < 0 for dim in shape) or math.prod(shape) * values.dtype.itemsize > (usable_memory() or LARGEST_DIM):
            raise ModelError(f"sparse tensor '{sparse.values.name}' cannot have the shape {list(shape)}", where=self.source)
        try:
            result = np.zeros(shape, values.dtype)
            if indices.ndim == 1:
                result.reshape(-1)[indices] = values
            else:
                result[tuple(indices.T)] = values
        except (IndexError, ValueError, MemoryError) as error:
            raise ModelError(f"sparse tensor '{sparse.values.name}' is malformed: {error}", where=self.source) from None
        return result

    def _view(self, data: memoryview, offset: int, length: int, dtype: DType, shape: tuple[int, ...], name: str) -> Array:
        count = math.prod(shape)
        if dtype is dtypes.string:
            raise ModelError(f"tensor '{name}' of strings lies in raw bytes", where=self.source, why="ONNX keeps strings in the message")
        needed = (count * dtype.bits + 7) // 8
        if needed != length:
            raise ModelError(
                f"tensor '{name}' holds {length} bytes where its shape {list(shape)} and type {dtype} need {needed}",
                where=self.source,
                hint="the file is damaged or was cut short; export or download it again",
            )
        raw = np.frombuffer(data, np.uint8, length, offset)
        if dtype.bits < 8:
            parts = [(raw >> shift) & ((1 << dtype.bits) - 1) for shift in range(0, 8, dtype.bits)]
            values, sign = np.stack(parts, axis=-1).reshape(-1)[:count], 1 << (dtype.bits - 1)
            signed = ((values.astype(np.int8) ^ sign) - sign) if dtype.kind == "int" else values
            decoded: Array = signed.view(dtype.numpy) if dtype.kind == "float" else signed.astype(dtype.numpy)
            return decoded.reshape(shape)
        view: Array = raw.view(dtype.numpy).reshape(shape)
        return view

    def _external(self, tensor: onnx.TensorProto, dtype: DType, shape: tuple[int, ...]) -> Array:
        info = {entry.key: entry.value for entry in tensor.external_data}
        location = info.get("location", "")
        if self.folder is None:
            raise ModelError(
                f"tensor '{tensor.name}' keeps its data in '{location}', but the model has no folder", hint="give the path of the file"
            )
        path = (self.folder / location.replace("\0", "?")).resolve()  # no file has a NUL in its name
        # download caches keep links to the model and its data, which lie side by side elsewhere
        folders = (self.folder.resolve(), Path(self.source).resolve().parent)
        if not location or not any(path.is_relative_to(folder) for folder in folders):
            raise ModelError(f"tensor '{tensor.name}' points outside of the model's folder: '{location}'", where=self.source)
        if location not in self.external:
            try:
                self.external[location] = _map_file(path)
            except OSError as error:
                raise ModelError(f"external data file '{location}' cannot be opened: {error.strerror}", where=self.source) from None
        data = memoryview(self.external[location])
        try:
            offset, length = int(info.get("offset", 0)), int(info["length"]) if "length" in info else None
            if offset < 0 or (length is not None and length < 0):
                raise ValueError
        except ValueError:
            raise ModelError(f"tensor '{tensor.name}' has a malformed external data offset or length", where=self.source) from None
        length = (math.prod(shape) * dtype.bits + 7) // 8 if length is None else length
        if offset + length > len(data):
            raise ModelError(
                f"external data file '{location}' is too short for tensor '{tensor.name}'",
                where=self.source,
                why=f"{offset + length} bytes are needed, {len(data)} are there",
                hint="the file was cut short; export or download it again",
            )
        return self._view(data, offset, length, dtype, shape, tensor.name)


_WITH_TENSORS = (onnx.GraphProto, onnx.NodeProto, onnx.AttributeProto, onnx.FunctionProto, onnx.SparseTensorProto)


def external_files(message: Any) -> list[str]:
    """Names of the files that hold external data of a model, also of tensors in subgraphs, attributes and functions. Sorted."""
    return sorted({entry.value for tensor in _tensors(message) for entry in tensor.external_data if entry.key == "location"})


def _tensors(message: Any) -> Iterator[onnx.TensorProto]:
    for field_, value in message.ListFields():
        if field_.message_type is None:
            continue
        for item in value if hasattr(value, "__len__") else (value,):
            if isinstance(item, onnx.TensorProto):
                yield item
            elif isinstance(item, _WITH_TENSORS):
                yield from _tensors(item)


def _map_file(path: Path) -> Any:
    if path.exists() and not path.is_file():  # opening a pipe waits for somebody who writes into it
        raise OSError(errno.EINVAL, "it is no regular file")
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            return b""
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def load_model(model: Any) -> LoadedModel:
    """Open a model: a path, the bytes of a file, or an `onnx.ModelProto`. Raises ModelError when it is no ONNX model."""
    if isinstance(model, onnx.ModelProto):
        check_functions(model)
        return LoadedModel(model, "ModelProto")
    if isinstance(model, (bytes, bytearray, memoryview)):
        return LoadedModel(_parse(lambda: bytes(model), "bytes"), "bytes")
    if not isinstance(model, (str, os.PathLike)):
        raise ModelError(f"a {type(model).__name__} is no model", hint="give the path of an ONNX file, its bytes, or an onnx.ModelProto")
    path = Path(model)
    try:
        mapped = _map_file(path)
    except OSError as error:
        raise ModelError(f"'{path}' cannot be opened: {error.strerror}", hint="check the path of the model") from None
    if len(mapped) == 0:
        raise ModelError(f"'{path}' is not an ONNX model", why="the file is empty", hint="check that the download or export is complete")
    if bytes(mapped[: len(MAGIC) - 1]) == MAGIC[:-1]:
        raise ModelError(f"'{path}' is an artifact: it is compiled already", hint="give the model that it was made of, or run it as it is")
    cut: dict[str, tuple[int, int]] = {}

    def stripped() -> bytes:
        content, found = cut_weights(memoryview(mapped))
        cut.update(found)
        return content

    proto = _parse(stripped, str(path))
    return LoadedModel(proto, str(path), path.parent, mapped, cut)


def _parse(content: Callable[[], bytes], source: str) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content())
    except (DecodeError, WireError, ValueError) as error:
        raise ModelError(
            f"'{source}' is not an ONNX model", why=f"its bytes do not parse: {error}", hint="check that the download or export is complete"
        ) from None
    if not proto.HasField("graph") or not proto.opset_import:
        raise ModelError(f"'{source}' is not an ONNX model", why="it has no graph or no operator set", hint="check the path of the model")
    damaged = _first_bytes(proto)
    if damaged is not None:
        raise ModelError(f"'{source}' is damaged: {damaged!r} stands where a name must", hint="export or download the model again")
    check_functions(proto)
    return proto


def _first_bytes(message: Message) -> bytes | None:
    """A text in the message that is no UTF-8, if there is one: protobuf hands such texts out as bytes."""
    for kind, value in message.ListFields():
        if kind.type == FieldDescriptor.TYPE_MESSAGE:
            for part in value if isinstance(value, Iterable) else (value,):
                found = _first_bytes(part)
                if found is not None:
                    return found
        elif kind.type == FieldDescriptor.TYPE_STRING:
            for text in (value,) if isinstance(value, (str, bytes)) else value:
                if isinstance(text, bytes):
                    return text
    return None
