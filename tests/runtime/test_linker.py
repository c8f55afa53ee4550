"""Objects into the process: equal names side by side, missing symbols as errors, memory freed with the object."""

from __future__ import annotations

import ctypes
import gc
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tilewright.runtime.linker import LinkedCode, host_machine, link
from tilewright.runtime.object_symbols import read_symbols
from tilewright.support.errors import ArtifactError
from tilewright.target.cpu.llvm import LlvmTarget, compile_to_object

TRIPLES = {"linux": "{}-unknown-linux-gnu", "darwin": "{}-apple-macosx11.0.0", "win32": "{}-pc-windows-msvc"}
HOST = LlvmTarget(TRIPLES[sys.platform].format(host_machine()))
FOREIGN = LlvmTarget("aarch64-unknown-linux-gnu" if host_machine() != "aarch64" else "x86_64-unknown-linux-gnu")


def answer_object(value: int, name: str = "answer") -> bytes:
    return compile_to_object(f"define i64 @{name}() nounwind {{\n  ret i64 {value}\n}}\n", HOST)


def call(code: LinkedCode, name: str, *arguments: int) -> int:
    signature = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(arguments))
    return signature(code.address(name))(*arguments)


def is_mapped(address: int) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(bound, 16) for bound in line.split()[0].split("-"))
        if first <= address < last:
            return True
    return False


def test_equal_names_live_side_by_side() -> None:
    one, two = link([answer_object(41)]), link([answer_object(42)])
    assert (call(one, "answer"), call(two, "answer")) == (41, 42)
    one.close()
    assert call(two, "answer") == 42


def test_objects_of_one_artifact_call_each_other_and_imports() -> None:
    caller = compile_to_object(
        "declare i64 @answer()\ndeclare i64 @given()\n"
        "define i64 @both() nounwind {\n  %a = call i64 @answer()\n  %b = call i64 @given()\n  %s = add i64 %a, %b\n  ret i64 %s\n}\n",
        HOST,
    )
    callback = ctypes.CFUNCTYPE(ctypes.c_int64)(lambda: 1000)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    assert address is not None
    code = link([caller, answer_object(7)], {"given": address})
    assert call(code, "both") == 1007
    assert code.names() == ("answer", "both")


def test_memcpy_comes_from_the_process_and_constants_are_reachable() -> None:
    code = link(
        [
            compile_to_object(
                "@table = private constant [3 x i64] [i64 5, i64 6, i64 7]\n"
                "declare ptr @memcpy(ptr, ptr, i64)\n"
                "define i64 @copy(ptr %to, i64 %count) nounwind {\n"
                "  %size = mul i64 %count, 8\n  call ptr @memcpy(ptr %to, ptr @table, i64 %size)\n  ret i64 %size\n}\n",
                HOST,
            )
        ]
    )
    buffer = (ctypes.c_int64 * 3)()
    assert call(code, "copy", ctypes.addressof(buffer), 3) == 24
    assert list(buffer) == [5, 6, 7]


@pytest.mark.skipif(sys.platform != "linux", reason="maps a page at a chosen address by the C library's mmap")
def test_calls_reach_farther_than_two_gigabytes() -> None:
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    read_write_execute, private_anonymous = 7, 0x22
    far = libc.mmap(1 << 40, 65536, read_write_execute, private_anonymous, -1, 0)
    near = link([answer_object(42)])
    ctypes.memmove(far, near.address("answer"), 16)
    caller = compile_to_object(
        "declare i64 @remote()\ndefine i64 @f() nounwind {\n  %a = call i64 @remote()\n  %b = add i64 %a, 1\n  ret i64 %b\n}\n", HOST
    )
    code = link([caller], {"remote": far})
    assert abs(code.address("f") - far) > 1 << 32
    assert call(code, "f") == 43
    libc.munmap(ctypes.c_void_p(far), ctypes.c_size_t(65536))


def test_unresolved_symbols_are_an_error_that_names_them() -> None:
    needy = compile_to_object(
        "declare void @no_such_function()\ndeclare i32 @getpid()\n"
        "define void @f() nounwind {\n  call void @no_such_function()\n  call i32 @getpid()\n  ret void\n}\n",
        HOST,
    )
    with pytest.raises(ArtifactError, match="getpid, no_such_function"):
        link([needy])


def test_symbol_defined_twice_is_an_error() -> None:
    with pytest.raises(ArtifactError, match="same symbol: answer"):
        link([answer_object(1), answer_object(2)])


def test_unknown_name_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(ArtifactError, match="defines answer"):
        link([answer_object(1)]).address("question")


def test_object_for_another_processor_is_an_error() -> None:
    with pytest.raises(ArtifactError, match=f"runs on {host_machine()}"):
        link([compile_to_object("define void @f() nounwind {\n  ret void\n}\n", FOREIGN)])


@pytest.mark.parametrize("keep", [0, 3, 20, 63, 200])
def test_damaged_object_is_an_error(keep: int) -> None:
    with pytest.raises(ArtifactError):
        link([answer_object(1)[:keep]])


@pytest.mark.parametrize("triple", [form.format(machine) for form in TRIPLES.values() for machine in ("x86_64", "aarch64")])
def test_symbol_tables_of_all_formats_read_alike(triple: str) -> None:
    text = (
        "declare void @outside_with_a_long_name(ptr)\n@data = global i32 4\n@private_data = private global i32 5\n"
        "define void @entry_with_a_long_name() nounwind {\n  call void @outside_with_a_long_name(ptr @private_data)\n  ret void\n}\n"
    )
    symbols = read_symbols(compile_to_object(text, LlvmTarget(triple)))
    assert symbols.machine == triple.split("-")[0]
    assert symbols.defined == {"data", "entry_with_a_long_name"}
    assert symbols.undefined == {"outside_with_a_long_name"}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
def test_memory_is_freed_with_the_object() -> None:
    # Larger than any hole that other mappings leave, so that nobody else takes the place at once.
    code = link([compile_to_object("@room = global [33554432 x i8] zeroinitializer\n", HOST)])
    address = code.address("room")
    middle = address + (16 << 20)
    assert is_mapped(middle)
    del code
    gc.collect()
    assert not is_mapped(middle)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
def test_linking_many_times_leaves_no_mappings_behind() -> None:
    data = answer_object(3)
    for _ in range(5):
        link([data])
    gc.collect()
    before = len(Path("/proc/self/maps").read_text().splitlines())
    for _ in range(100):
        assert call(link([data]), "answer") == 3
    gc.collect()
    assert len(Path("/proc/self/maps").read_text().splitlines()) < before + 20


def test_closed_code_gives_no_addresses() -> None:
    code = link([answer_object(1)])
    code.close()
    code.close()
    with pytest.raises(ArtifactError):
        code.address("answer")


def test_linking_from_several_threads_at_once() -> None:
    objects = [answer_object(value) for value in range(8)]
    with ThreadPoolExecutor(8) as threads:
        codes = list(threads.map(lambda data: link([data]), objects * 4))
    assert [call(code, "answer") for code in codes] == list(range(8)) * 4


def test_many_functions_in_a_large_object() -> None:
    functions = "".join(
        f"define i64 @f{index}(i64 %x) nounwind {{\n  %y = add i64 %x, {index}\n  ret i64 %y\n}}\n" for index in range(2000)
    )
    code = link([compile_to_object("@weights = constant [4000000 x float] zeroinitializer\n" + functions, HOST)])
    assert call(code, "f1999", 1) == 2000
    assert len(code.names()) == 2001
