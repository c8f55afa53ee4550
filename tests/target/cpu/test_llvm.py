"""LLVM IR text to objects: errors carry the IR, bytes are deterministic, options act, and several threads compile at once."""

from __future__ import annotations

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor

import llvmlite.binding as llvm
import pytest
from llvmlite.binding import ffi

from tilewright.machine.targets import named_machine
from tilewright.support.errors import InternalError, TargetError
from tilewright.target.cpu.llvm import (
    LlvmOptions,
    LlvmTarget,
    _unlocked,
    compile_to_assembly,
    compile_to_object,
    data_layout,
    function_attributes,
    llvm_target,
    optimized_ir,
)

LINUX = "x86_64-unknown-linux-gnu"
ZEN5 = LlvmTarget(LINUX, "znver5")
GENERIC = LlvmTarget(LINUX)

SCALE = """
define void @scale(ptr noalias %a, ptr noalias %b) nounwind {{
  %v = load <16 x float>, ptr %a
  %w = fmul <16 x float> %v, {factor}
  store <16 x float> %w, ptr %b
  ret void
}}
""".format(factor="splat (float 3.0)")

COUNTED_LOOP = """
define void @twice(ptr noalias %a, ptr noalias %b, i64 %n) nounwind {
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %p = getelementptr float, ptr %a, i64 %i
  %q = getelementptr float, ptr %b, i64 %i
  %v = load float, ptr %p
  %w = fadd float %v, %v
  store float %w, ptr %q
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""


@pytest.mark.parametrize(
    ("triple", "magic"),
    [
        (LINUX, b"\x7fELF"),
        ("aarch64-unknown-linux-gnu", b"\x7fELF"),
        ("arm64-apple-macosx11.0.0", b"\xcf\xfa\xed\xfe"),
        ("x86_64-pc-windows-msvc", b"\x64\x86"),
        ("riscv64-unknown-linux-gnu", b"\x7fELF"),
    ],
)
def test_object_format_follows_the_triple(triple: str, magic: bytes) -> None:
    assert compile_to_object(SCALE, LlvmTarget(triple)).startswith(magic)


def test_text_that_does_not_parse_is_an_internal_error_with_the_ir() -> None:
    text = "define void @f() {\n  %x = frobnicate i32 1\n  ret void\n}\n"
    with pytest.raises(InternalError, match="frobnicate") as caught:
        compile_to_object(text, ZEN5)
    assert caught.value.__notes__ == [text]
    assert "2:" in str(caught.value), "the message names the line of the caller's own text"
    assert "datalayout" not in str(caught.value)


def test_text_that_does_not_verify_is_an_internal_error() -> None:
    text = "define i32 @f(i1 %c) {\n br i1 %c, label %a, label %b\na:\n %x = add i32 1, 1\n br label %b\nb:\n ret i32 %x\n}\n"
    with pytest.raises(InternalError, match="dominate") as caught:
        compile_to_assembly(text, ZEN5)
    assert caught.value.__notes__ == [text]


def test_machine_gives_its_triple_cpu_and_features() -> None:
    machine = named_machine("znver5")
    assert llvm_target(machine) == LlvmTarget(machine.triple, machine.llvm_cpu, machine.llvm_features)
    assert "%zmm" in compile_to_assembly(SCALE, llvm_target(machine))


def test_unknown_triple_is_a_target_error() -> None:
    with pytest.raises(TargetError, match="z80"):
        compile_to_object(SCALE, LlvmTarget("z80-unknown-none"))


def test_layout_of_the_target_is_known_to_the_parser() -> None:
    # Without a layout in the text the parser would assume 4-byte alignment of i64.
    text = "define i64 @f(ptr %p) nounwind {\n  %v = load i64, ptr %p\n  ret i64 %v\n}\n"
    assert "align 8" in optimized_ir(text, ZEN5)
    assert "align 4" in optimized_ir(text, LlvmTarget("i686-unknown-linux-gnu"))
    assert data_layout(ZEN5) in optimized_ir(text, ZEN5)


def test_cpu_and_features_choose_the_instructions() -> None:
    assert "%zmm" in compile_to_assembly(SCALE, ZEN5)
    assert "%zmm" not in compile_to_assembly(SCALE, GENERIC)
    assert "%zmm" in compile_to_assembly(SCALE, LlvmTarget(LINUX, "", "+avx512f"))


def test_vector_width_attribute_keeps_full_registers_on_cores_tuned_for_half() -> None:
    copy = """
    define void @copy(ptr noalias %a, ptr noalias %b) {attributes} {{
      call void @llvm.memcpy.p0.p0.i64(ptr %a, ptr %b, i64 256, i1 false)
      ret void
    }}
    declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
    """
    server = LlvmTarget(LINUX, "sapphirerapids")
    assert "%zmm" not in compile_to_assembly(copy.format(attributes=function_attributes(0)), server)
    assert "%zmm" in compile_to_assembly(copy.format(attributes=function_attributes(512)), server)


def test_automatic_vectorisation_is_off_unless_asked_for() -> None:
    assert "x float>" not in optimized_ir(COUNTED_LOOP, ZEN5)
    assert "x float>" in optimized_ir(COUNTED_LOOP, ZEN5, LlvmOptions(loop_vectorize=True))


def test_unrolling_can_be_turned_off() -> None:
    kept = optimized_ir(COUNTED_LOOP, ZEN5, LlvmOptions(unroll_loops=False))
    assert kept.count("fadd") == 1
    assert optimized_ir(COUNTED_LOOP, ZEN5).count("fadd") > 1


def test_level_zero_optimises_nothing() -> None:
    text = "define i32 @f() nounwind {\n  %p = alloca i32\n  store i32 7, ptr %p\n  %v = load i32, ptr %p\n  ret i32 %v\n}\n"
    assert "alloca" in optimized_ir(text, ZEN5, LlvmOptions(level=0))
    assert "alloca" not in optimized_ir(text, ZEN5)


def test_no_frame_pointer_and_no_unwind_table() -> None:
    assembly = compile_to_assembly(SCALE, ZEN5)
    assert "%rbp" not in assembly
    assert ".cfi" not in assembly


def test_far_calls_go_through_stubs() -> None:
    text = "declare void @elsewhere()\ndefine void @f() nounwind {\n  call void @elsewhere()\n  ret void\n}\n"
    assert "elsewhere@PLT" in compile_to_assembly(text, ZEN5)


def test_equal_inputs_give_equal_bytes_from_any_thread() -> None:
    expected = compile_to_object(COUNTED_LOOP, ZEN5)
    with ThreadPoolExecutor(4) as threads:
        objects = list(threads.map(lambda _: compile_to_object(COUNTED_LOOP, ZEN5), range(16)))
    assert set(objects) == {expected}


def test_errors_in_one_thread_leave_others_alone() -> None:
    def compile_one(index: int) -> bool:
        if index % 2:
            with pytest.raises(InternalError):
                compile_to_object("define nonsense", ZEN5)
            return True
        return compile_to_object(SCALE, ZEN5).startswith(b"\x7fELF")

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(compile_one, range(32)))


def test_heavy_calls_run_while_the_lock_of_the_binding_is_held() -> None:
    context = llvm.create_context()
    outcome: list[object] = []
    message = ctypes.c_char_p()
    pointers = _unlocked("LLVMPY_ParseAssembly")

    def parse() -> None:
        outcome.append(pointers(context, SCALE.encode(), ctypes.byref(message)))

    worker = threading.Thread(target=parse, daemon=True)
    with ffi.lib._lock:
        worker.start()
        worker.join(20)
    assert outcome, "the call waited for the lock, so compilations would run one after the other"
    assert outcome[0]
    llvm.ModuleRef(outcome[0], context).close()
    context.close()
