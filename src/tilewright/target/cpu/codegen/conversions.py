"""Value conversions between dtypes, and between memory and registers."""

from __future__ import annotations

from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.target.cpu.codegen.llvm_types import is_narrow_float, memory_type, number, splat_constant, value_type, vector
from tilewright.target.cpu.codegen.narrow_floats import Native, decode, encode, round_to
from tilewright.target.cpu.codegen.text import Function, Operand


def from_memory(fn: Function, element: Operand, dtype: DType, lanes: int, native: Native) -> Operand:
    """A loaded element (or vector of them) as a value."""
    if is_narrow_float(dtype):
        return decode(fn, element, dtype, lanes, native)
    if dtype.kind == "bool":
        return fn.op(f"icmp ne {vector('i8', lanes)} {element}, zeroinitializer" if lanes else f"icmp ne i8 {element}, 0")
    if dtype.is_integer and dtype.bits < 8:
        return fn.op(f"trunc {vector('i8', lanes)} {element} to {vector(value_type(dtype), lanes)}")
    return element


def to_memory(fn: Function, value: Operand, dtype: DType, lanes: int, native: Native) -> Operand:
    """A value as the element that is stored."""
    if is_narrow_float(dtype):
        return encode(fn, value, dtype, lanes, native)
    if memory_type(dtype) != value_type(dtype):
        return fn.op(f"zext {vector(value_type(dtype), lanes)} {value} to {vector(memory_type(dtype), lanes)}")
    return value


def convert(fn: Function, value: Operand, source: DType, target: DType, lanes: int, native: Native, in_range: bool = False) -> Operand:
    """The value of `source` as `target`: floats to integers truncate towards zero, integers wrap, to bool is `!= 0`.

    Floats past the range of an integer: narrow integers take the low bits of the saturated int32, wider ones saturate; NaN gives 0.
    in_range: the float is known to be inside the range, or NaN (whose result is then any number).
    """
    source_type, target_type = vector(value_type(source), lanes), vector(value_type(target), lanes)
    if target.kind == "bool":
        zero = splat_constant(0, "", lanes) if lanes else ("0.0" if source.is_float else "0")
        return fn.op(f"{'fcmp une' if source.is_float else 'icmp ne'} {source_type} {value}, {zero}")
    if target.is_integer:
        if source.is_float:
            return _float_to_integer(fn, value, source, target, lanes, in_range)
        if source_type == target_type:
            return value
        if source.kind != "bool" and source.bits > target.bits:
            return fn.op(f"trunc {source_type} {value} to {target_type}")
        return fn.op(f"{'sext' if source.kind == 'int' else 'zext'} {source_type} {value} to {target_type}")
    if not source.is_float:
        value = fn.op(f"{'sitofp' if source.kind == 'int' else 'uitofp'} {source_type} {value} to {target_type}")
    elif source_type != target_type:
        value = fn.op(f"{'fptrunc' if source is dtypes.float64 else 'fpext'} {source_type} {value} to {target_type}")
    if is_narrow_float(target) and not _holds(target, source):
        value = round_to(fn, value, target, lanes, native)
    return value


def _holds(target: DType, source: DType) -> bool:
    """Whether every value of `source` is one of `target`."""
    return source is target or (source.kind == "bool" and target is not dtypes.float8e8m0)


def _float_to_integer(fn: Function, value: Operand, source: DType, target: DType, lanes: int, in_range: bool) -> Operand:
    source_type, target_type = vector(value_type(source), lanes), vector(value_type(target), lanes)
    through = "i32" if target.bits < 32 or target is dtypes.int32 else "i64"
    wide = vector(through, lanes)
    signed = target is not dtypes.uint64
    if in_range:
        # An out of range result is poison, which `freeze` makes some number.
        raw = fn.op(f"{'fptosi' if signed else 'fptoui'} {source_type} {value} to {wide}")
        result: Operand = fn.op(f"freeze {wide} {raw}")
    elif lanes:
        result = _saturated(fn, value, source, through, signed, lanes)
    else:
        name = f"@llvm.fpto{'si' if signed else 'ui'}.sat.{mangled(through, lanes)}.{mangled(value_type(source), lanes)}"
        fn.module.declare(f"declare {wide} {name}({source_type})")
        result = fn.op(f"call {wide} {name}({source_type} {value})")
    return result if wide == target_type else fn.op(f"trunc {wide} {result} to {target_type}")


def _saturated(fn: Function, value: Operand, source: DType, through: str, signed: bool, lanes: int) -> Operand:
    """What `llvm.fptosi.sat` gives, of which LLVM 22 makes many instructions for vectors: floats clamped to those that an integer can be,
    the greatest integer for what was above, 0 for NaN."""
    type_, wide = vector(value_type(source), lanes), vector(through, lanes)
    bits = int(through[1:]) - signed
    lowest = -(2.0**bits) if signed else 0.0
    greatest = 2.0**bits - 2.0 ** (bits - (53 if source is dtypes.float64 else 24))
    if bits < 53 and source is dtypes.float64:
        greatest = 2.0**bits - 1
    low, high, past = (splat_constant(number(v, dtypes.float64), value_type(source), lanes) for v in (lowest, greatest, 2.0**bits))
    above = fn.op(f"fcmp ogt {type_} {value}, {low}")
    clamped = fn.op(f"select <{lanes} x i1> {above}, {type_} {value}, {type_} {low}")
    below = fn.op(f"fcmp olt {type_} {clamped}, {high}")
    clamped = fn.op(f"select <{lanes} x i1> {below}, {type_} {clamped}, {type_} {high}")
    raw = fn.op(f"fpto{'si' if signed else 'ui'} {type_} {clamped} to {wide}")
    most = splat_constant((1 << bits) - 1, through, lanes)
    over = fn.op(f"fcmp oge {type_} {value}, {past}")
    result = fn.op(f"select <{lanes} x i1> {over}, {wide} {most}, {wide} {raw}")
    known = fn.op(f"fcmp ord {type_} {value}, zeroinitializer")
    return fn.op(f"select <{lanes} x i1> {known}, {wide} {result}, {wide} zeroinitializer")


def rounded_integer(fn: Function, value: Operand, target: DType, lanes: int) -> Operand:
    """The nearest integer, half to even, of a float32 that is known to be in the range of `target` (or NaN, which gives any number): one
    instruction on x86, where rounding and then truncating are two."""
    wide, source = vector("i32", lanes), vector("float", lanes)
    name = f"@llvm.lrint.{mangled('i32', lanes)}.{mangled('float', lanes)}"
    fn.module.declare(f"declare {wide} {name}({source})")
    result = fn.op(f"freeze {wide} {fn.op(f'call {wide} {name}({source} {value})')}")
    return result if target.bits == 32 else fn.op(f"trunc {wide} {result} to {vector(value_type(target), lanes)}")


def mangled(type_: str, lanes: int) -> str:
    """A type as it stands in the name of an overloaded intrinsic: `v16f32`."""
    return (f"v{lanes}" if lanes else "") + {"float": "f32", "double": "f64"}.get(type_, type_)
