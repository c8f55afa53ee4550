"""Element types: every numeric type of ONNX, with its NumPy form.

Sub-byte types (int2, uint2, int4, uint4, float4) are storage types: in files two or four values share a byte, the first in its low bits,
as in ONNX; in NumPy each value takes a byte (ml_dtypes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np

_finfo: Any = ml_dtypes.finfo
Kind = Literal["bool", "int", "uint", "float", "complex", "string"]


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """One element type: `name` as printed, `kind`, width in `bits`, `numpy` dtype of host arrays."""

    name: str
    kind: Kind
    bits: int
    numpy: np.dtype[Any]

    def __repr__(self) -> str:
        return self.name

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """Signed or unsigned integer (not bool)."""
        return self.kind in ("int", "uint")

    @property
    def is_signed(self) -> bool:
        return self.kind in ("int", "float")

    @property
    def bytes(self) -> int:
        """Bytes of one element in an unpacked buffer (sub-byte types take one)."""
        return max(1, self.bits // 8)

    @property
    def lowest(self) -> float | int | bool:
        """The least value; minus infinity for floats that have one."""
        if self.kind == "float":
            return -float("inf") if self.has_infinity else float(_finfo(self.numpy).min)
        if self.kind == "bool":
            return False
        return -(1 << (self.bits - 1)) if self.kind == "int" else 0

    @property
    def highest(self) -> float | int | bool:
        """The greatest value; infinity for floats that have one."""
        if self.kind == "float":
            return float("inf") if self.has_infinity else float(_finfo(self.numpy).max)
        if self.kind == "bool":
            return True
        return (1 << (self.bits - (1 if self.kind == "int" else 0))) - 1

    @property
    def has_infinity(self) -> bool:
        return self.name in ("float64", "float32", "float16", "bfloat16", "float8e5m2")


def _dtype(name: str, kind: Kind, bits: int, host: Any) -> DType:
    return DType(name, kind, bits, np.dtype(host))


bool_ = _dtype("bool", "bool", 8, np.bool_)
int2 = _dtype("int2", "int", 2, ml_dtypes.int2)
uint2 = _dtype("uint2", "uint", 2, ml_dtypes.uint2)
int4 = _dtype("int4", "int", 4, ml_dtypes.int4)
uint4 = _dtype("uint4", "uint", 4, ml_dtypes.uint4)
int8 = _dtype("int8", "int", 8, np.int8)
uint8 = _dtype("uint8", "uint", 8, np.uint8)
int16 = _dtype("int16", "int", 16, np.int16)
uint16 = _dtype("uint16", "uint", 16, np.uint16)
int32 = _dtype("int32", "int", 32, np.int32)
uint32 = _dtype("uint32", "uint", 32, np.uint32)
int64 = _dtype("int64", "int", 64, np.int64)
uint64 = _dtype("uint64", "uint", 64, np.uint64)
float8e4m3fn = _dtype("float8e4m3fn", "float", 8, ml_dtypes.float8_e4m3fn)
float8e4m3fnuz = _dtype("float8e4m3fnuz", "float", 8, ml_dtypes.float8_e4m3fnuz)
float8e5m2 = _dtype("float8e5m2", "float", 8, ml_dtypes.float8_e5m2)
float8e5m2fnuz = _dtype("float8e5m2fnuz", "float", 8, ml_dtypes.float8_e5m2fnuz)
float4e2m1 = _dtype("float4e2m1", "float", 4, ml_dtypes.float4_e2m1fn)
float8e8m0 = _dtype("float8e8m0", "float", 8, ml_dtypes.float8_e8m0fnu)
float16 = _dtype("float16", "float", 16, np.float16)
bfloat16 = _dtype("bfloat16", "float", 16, ml_dtypes.bfloat16)
float32 = _dtype("float32", "float", 32, np.float32)
float64 = _dtype("float64", "float", 64, np.float64)
complex64 = _dtype("complex64", "complex", 64, np.complex64)
complex128 = _dtype("complex128", "complex", 128, np.complex128)
string = _dtype("string", "string", 64, np.object_)

ALL: tuple[DType, ...] = (
    bool_, int2, uint2, int4, uint4, int8, uint8, int16, uint16, int32, uint32, int64, uint64,
    float4e2m1, float8e8m0, float8e4m3fn, float8e4m3fnuz, float8e5m2, float8e5m2fnuz, float16, bfloat16, float32, float64,
    complex64, complex128, string,
)  # fmt: skip
BY_NAME: dict[str, DType] = {dtype.name: dtype for dtype in ALL}
_BY_NUMPY: dict[np.dtype[Any], DType] = {dtype.numpy: dtype for dtype in ALL}


def from_numpy(dtype: Any) -> DType:
    """The DType of a NumPy dtype (or anything `np.dtype` takes); KeyError when there is none."""
    resolved = np.dtype(dtype)
    if resolved.kind in "US":
        return string
    return _BY_NUMPY[resolved.newbyteorder("=")] if resolved.kind in "iufc" else _BY_NUMPY[resolved]
