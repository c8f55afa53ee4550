"""A second entry to an executable's code in which a clock stands around every kernel.

The plan's entry function calls kernels by symbol. Here its object is linked once more, against small functions of the kernels' names that
read the processor's counter, call the kernel that is already linked, and note both readings. So the plain entry pays nothing, and what
is measured is the very code that runs: one native call for the whole inference, kernels in its order, threads awake in between.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from tilewright.runtime.artifact import Artifact
from tilewright.runtime.linker import LinkedCode, host_machine, link
from tilewright.runtime.pool import process_pools

ENTRY_TYPE = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 7)
FIRST_CAPACITY = 4096  # launches recorded, to begin with
HEADER = 2  # words before the records: their number, the capacity
RECORD = 3  # words of a record: launch, counter before, counter after

# The counter that user programs may read and that runs at one rate on all cores.
COUNTERS = {"x86_64": "llvm.readcyclecounter", "aarch64": "llvm.readsteadycounter"}

_TEXT = """
declare i64 @COUNTER()

define i64 @tw_profile_counter() nounwind {
  %now = call i64 @COUNTER()
  ret i64 %now
}

define internal void @tw.record(ptr %args, i64 %begin, i64 %end) nounwind noinline {
  %buffer = inttoptr i64 BUFFER to ptr
  %count = load i64, ptr %buffer
  %next = add i64 %count, 1
  store i64 %next, ptr %buffer
  %capacity.at = getelementptr i64, ptr %buffer, i64 1
  %capacity = load i64, ptr %capacity.at
  %room = icmp ult i64 %count, %capacity
  br i1 %room, label %note, label %done
note:
  %launch.at = getelementptr i64, ptr %args, i64 -1
  %launch = load i64, ptr %launch.at
  %words = mul i64 %count, 3
  %offset = add i64 %words, 2
  %first = getelementptr i64, ptr %buffer, i64 %offset
  %second = getelementptr i64, ptr %first, i64 1
  %third = getelementptr i64, ptr %first, i64 2
  store i64 %launch, ptr %first
  store i64 %begin, ptr %second
  store i64 %end, ptr %third
  br label %done
done:
  ret void
}
"""

_AROUND = """
define void @"NAME"(ptr %pool, ptr %args) nounwind {
  %kernel = inttoptr i64 ADDRESS to ptr
  %begin = call i64 @COUNTER()
  call void %kernel(ptr %pool, ptr %args)
  %end = call i64 @COUNTER()
  call void @tw.record(ptr %args, i64 %begin, i64 %end)
  ret void
}
"""


@dataclass(frozen=True, slots=True)
class Recording:
    """One inference. launches: number of each launch in order of execution; begins, ends: seconds since the call of the entry; total:
    seconds of that call; sizes: the plan's sizes in order, as they were at its end."""

    launches: tuple[int, ...]
    begins: tuple[float, ...]
    ends: tuple[float, ...]
    total: float
    sizes: tuple[int, ...]


class Recorder:
    """An instrumented entry: callable as the plain one is; `last` is the recording of the latest call. For one thread at a time."""

    def __init__(self, artifact: Artifact, code: LinkedCode, sizes: int) -> None:
        """code: the artifact's linked kernels; sizes: number of the plan's sizes. Raises ArtifactError as `link` does."""
        self._artifact, self._code, self._sizes = artifact, code, sizes
        self.last = Recording((), (), (), 0.0, ())
        self._build(FIRST_CAPACITY)

    def _build(self, capacity: int) -> None:
        entry = str(self._artifact.manifest["entry"])
        self._buffer = np.zeros(HEADER + RECORD * capacity, np.int64)
        self._buffer[1] = capacity
        kernels = {name: self._code.address(name) for name in self._artifact.objects if name != entry}
        around = _compiled(instrument_text(kernels, self._buffer.ctypes.data))
        imports = process_pools.code(self._artifact.pool).imports
        self._linked = link([self._artifact.objects[entry], around], imports)
        self._entry = ENTRY_TYPE(self._linked.address(entry))
        self._counter: Callable[[], int] = ctypes.CFUNCTYPE(ctypes.c_int64)(self._linked.address("tw_profile_counter"))
        self._rate = counter_rate(self._counter)

    def __call__(self, *arguments: Any) -> int:
        self._buffer[0] = 0
        begin, first = time.perf_counter(), self._counter()
        answer = int(self._entry(*arguments))
        total = time.perf_counter() - begin
        if self._buffer[0] > self._buffer[1]:  # a loop has launched more than there was room for: the next call has it
            self._build(2 * int(self._buffer[0]))
            self.last = Recording((), (), (), total, ())
            return answer
        rows = self._buffer[HEADER : HEADER + RECORD * int(self._buffer[0])].reshape(-1, RECORD)
        begins, ends = ((rows[:, i] - first) / self._rate for i in (1, 2))
        launches = tuple(int(launch) for launch in rows[:, 0])
        self.last = Recording(launches, tuple(begins.tolist()), tuple(ends.tolist()), total, tuple(arguments[3][: self._sizes]))
        return answer


def counter_rate(counter: Callable[[], int], seconds: float = 0.02) -> float:
    """Counts per second, against the system's clock."""
    begin, first = time.perf_counter(), counter()
    while time.perf_counter() - begin < seconds:
        pass
    end, last = time.perf_counter(), counter()
    return (last - first) / (end - begin)


def instrument_text(kernels: dict[str, int], buffer: int) -> str:
    """LLVM IR of the functions around kernels at these addresses, which note what they measure at the address `buffer`."""
    parts = [_TEXT.replace("BUFFER", str(buffer))]
    parts += [_AROUND.replace("NAME", name).replace("ADDRESS", str(address)) for name, address in kernels.items()]
    return "".join(parts).replace("COUNTER", COUNTERS.get(host_machine(), "llvm.readcyclecounter"))


def _compiled(text: str) -> bytes:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(opt=1, reloc="pic", codemodel="small")
    with llvm.parse_assembly(text) as module:
        module.triple = target.triple
        module.data_layout = str(machine.target_data)
        return bytes(machine.emit_object(module))
