"""LLVM IR text to object code, assembly or optimised IR, by llvmlite's LLVM.

Every call parses into an LLVM context of its own, so any number of Python threads may compile at once. llvmlite by itself would run
them one after the other: its binding takes one process-wide lock around *every* call. The three calls that take the time (parse,
optimise, emit) therefore go through a second ctypes handle of the same library, which has no lock and, as all ctypes calls, gives up
the GIL. LLVM promises that distinct contexts may be used from distinct threads. Measured with two threads on two cores: 1.00 cores busy
through the binding, 1.97 this way, with identical bytes.

What was found to matter in the options (LLVM 22):

* *Vector width.* Processors that LLVM tunes with `prefer-256-bit` (Intel's servers, `x86-64-v4`) split 512-bit masks and block copies
  into halves unless the function carries `"prefer-vector-width"="512"` or the features say `-prefer-256-bit`; a
  `"min-legal-vector-width"` below 512 halves every operation there. Zen 4 and 5 need neither. `function_attributes` gives the string.
* *Relocation and code model.* `pic` and `small`: calls go through `@PLT`, for which the JIT linker makes a stub when the callee is
  farther than 2 GiB; constants stay RIP-relative memory operands. The `large` model, the default of JITs, loads each constant's address.
* *Frame pointer and unwind tables.* Absent as long as functions carry `nounwind` and no `frame-pointer` attribute; a function without
  `nounwind` gets an `.eh_frame` entry, which the linker would have to register.
* *Data layout.* Must stand in the text before it is parsed, since the parser settles the alignment of loads without `align`. It is put
  there here.
* *Determinism.* Equal text, target and options give equal bytes, also from several threads.
* *FMA.* Contracted only where the instructions carry `contract` (or are `llvm.fmuladd`); nothing here changes arithmetic.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import llvmlite.binding as llvm
from llvmlite.binding import ffi

from tilewright.machine.description import Machine
from tilewright.support.errors import InternalError, TargetError

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class LlvmTarget:
    """What LLVM must know of the machine.

    triple: `x86_64-unknown-linux-gnu`. cpu: LLVM's name, `znver5`; empty for the baseline of the triple.
    features: LLVM's notation, `+avx512f,-prefer-256-bit`; empty for those of the cpu.
    """

    triple: str
    cpu: str = ""
    features: str = ""


@dataclass(frozen=True, slots=True)
class LlvmOptions:
    """How LLVM optimises. Every field can change the code.

    level: 0 to 3, for the pass pipeline and for instruction selection alike. loop_vectorize, slp_vectorize: off, since our code is
    vector code already, and these passes would find work only in what was left scalar on purpose. unroll_loops: LLVM's own choice of
    what to unroll; off, only loops with `llvm.loop.unroll` metadata are. relocation, code_model: see the module's docstring.
    abi: name of the ABI, needed by RISC-V with hard floats (`lp64d`).
    """

    level: int = 3
    loop_vectorize: bool = False
    slp_vectorize: bool = False
    unroll_loops: bool = True
    relocation: str = "pic"
    code_model: str = "small"
    abi: str = ""


def llvm_target(machine: Machine) -> LlvmTarget:
    """What LLVM must know of a machine."""
    return LlvmTarget(machine.triple, machine.llvm_cpu, machine.llvm_features)


def compile_to_object(ir_text: str, target: LlvmTarget, options: LlvmOptions | None = None) -> bytes:
    """The relocatable object (ELF, Mach-O or COFF by the triple) of one module in LLVM IR text; the text needs neither triple nor layout.

    Raises InternalError with the text as a note if it does not parse or verify, TargetError if LLVM has no such target.
    Safe to call from several threads at once.
    """
    return _compile(ir_text, target, options or LlvmOptions(), lambda machine, module: _emit(machine, module, as_object=True))


def compile_to_assembly(ir_text: str, target: LlvmTarget, options: LlvmOptions | None = None) -> str:
    """The assembly text of the code that `compile_to_object` emits. Raises as it does."""
    return _compile(ir_text, target, options or LlvmOptions(), lambda machine, module: _emit(machine, module, as_object=False)).decode()


def optimized_ir(ir_text: str, target: LlvmTarget, options: LlvmOptions | None = None) -> str:
    """The module as text after the pass pipeline and before instruction selection. Raises as `compile_to_object`."""
    return _compile(ir_text, target, options or LlvmOptions(), lambda _, module: str(module))


def function_attributes(vector_bits: int) -> str:
    """Attributes that each emitted function definition carries; `vector_bits` is the width its code was written for, 0 for scalar code."""
    return "nounwind" if vector_bits == 0 else f'nounwind "prefer-vector-width"="{vector_bits}"'


def data_layout(target: LlvmTarget, options: LlvmOptions | None = None) -> str:
    """LLVM's data layout string of the target. Raises TargetError if LLVM has no such target."""
    with _target_machine(target, options or LlvmOptions()) as machine:
        return str(machine.target_data)


def _compile(ir_text: str, target: LlvmTarget, options: LlvmOptions, finish: Callable[[Any, Any], Result]) -> Result:
    with _target_machine(target, options) as machine, llvm.create_context() as context:
        with _parse(ir_text, f'target datalayout = "{machine.target_data}" target triple = "{target.triple}" ', context) as module:
            _optimize(machine, module, options)
            return finish(machine, module)


def _target_machine(target: LlvmTarget, options: LlvmOptions) -> Any:
    _initialize()
    try:
        return llvm.Target.from_triple(target.triple).create_target_machine(
            cpu=target.cpu,
            features=target.features,
            opt=options.level,
            reloc=options.relocation,
            codemodel=options.code_model,
            abiname=options.abi,
        )
    except RuntimeError as error:
        raise TargetError(
            f"LLVM {'.'.join(map(str, llvm.llvm_version_info))} cannot generate code for the triple {target.triple!r}",
            why=str(error),
            hint="`tilewright doctor` lists the targets",
        ) from error


def _parse(ir_text: str, prefix: str, context: Any) -> Any:
    # The prefix shares the first line, so that line numbers in messages are those of the caller's text.
    text = prefix + ir_text
    message = ctypes.c_char_p()
    pointer = _unlocked("LLVMPY_ParseAssembly")(context, text.encode(), ctypes.byref(message))
    if not pointer:
        raise _rejected(ir_text, _take_string(message).replace(prefix, ""))
    module = llvm.ModuleRef(pointer, context)
    try:
        module.verify()
    except RuntimeError as error:
        module.close()
        raise _rejected(ir_text, str(error)) from error
    return module


def _rejected(ir_text: str, message: str) -> InternalError:
    error = InternalError("LLVM rejects the IR that was generated", why=message.strip(), hint="report this; the IR is in the error's notes")
    error.add_note(ir_text)
    return error


def _optimize(machine: Any, module: Any, options: LlvmOptions) -> None:
    with llvm.create_pipeline_tuning_options(options.level) as tuning:
        tuning.loop_vectorization = options.loop_vectorize
        tuning.loop_interleaving = options.loop_vectorize
        tuning.slp_vectorization = options.slp_vectorize
        tuning.loop_unrolling = options.unroll_loops
        with llvm.create_pass_builder(machine, tuning) as builder, builder.getModulePassManager() as passes:
            _unlocked("LLVMPY_RunNewModulePassManager")(passes, module, builder)


def _emit(machine: Any, module: Any, *, as_object: bool) -> bytes:
    message = ctypes.c_char_p()
    buffer = _unlocked("LLVMPY_TargetMachineEmitToMemory")(machine, module, int(as_object), ctypes.byref(message))
    if not buffer:
        raise _rejected(str(module), _take_string(message))
    try:
        return ctypes.string_at(ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer))
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


def _take_string(message: ctypes.c_char_p) -> str:
    """The text of a string that LLVM allocated, which is freed."""
    text = (message.value or b"").decode(errors="replace")
    ffi.lib.LLVMPY_DisposeString(message)
    return text


@cache
def _unlocked(name: str) -> Any:
    """One function of llvmlite's library without the lock of its binding, with the prototype that the binding gives it."""
    function = getattr(ctypes.CDLL(ffi.lib._name), name)
    locked = getattr(ffi.lib, name)
    function.argtypes, function.restype = locked.argtypes, locked.restype
    return function


_registration = threading.Lock()


@cache
def _register_targets() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def _initialize() -> None:
    # `cache` alone would let a second thread go on while the first is still registering targets.
    with _registration:
        _register_targets()
