"""Running a plan step by step from Python: for profiles and for looking at what each kernel computed.

Slower than the plan's native function, but it runs the same kernels on the same memory layout, so that what is seen here is what runs.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.ir.expr import Expr
from tilewright.ir.traverse import evaluate_int
from tilewright.ir.types import bind_shape
from tilewright.plan.steps import Allocate, Bind, Branch, Check, Copy, Grow, Launch, Loop, Place, Plan, Region, SetSize, Step
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.constants import ALIGNMENT
from tilewright.runtime.executable import aligned_empty
from tilewright.runtime.linker import link
from tilewright.runtime.pool import PoolReference, process_pools
from tilewright.support.errors import ShapeError

Array = np.ndarray[Any, np.dtype[Any]]
_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)

# called after each launch with the step, its results as arrays, and the seconds that it took
Watch = Callable[[Launch, Sequence[Array], float], None]
# called before each launch with the step and its operands, as they lie in memory: results may take their place
Before = Callable[[Launch, Sequence[Array]], None]


@dataclass(slots=True)
class Stepper:
    """Runs `plan` with the kernels of `artifact`; `offsets` are those of the constants in its weights."""

    plan: Plan
    artifact: Artifact
    offsets: Sequence[int]
    threads: int = 1
    repeat: int = 1
    before: Before | None = None
    sizes: dict[Expr, int] = field(default_factory=dict)
    memory: dict[Region, Array] = field(default_factory=dict)
    _code: Any = None
    _pool: Any = None
    _functions: dict[str, Any] = field(default_factory=dict)

    def run(self, inputs: Sequence[Array], sizes: Mapping[Expr, int], watch: Watch) -> list[Array]:
        """The outputs for C-contiguous `inputs`; `sizes` are those of the inputs' shapes."""
        self._code = link(list(self.artifact.objects.values()), process_pools.code(self.artifact.pool).imports)
        self._pool = PoolReference(self.artifact.pool, self.threads)
        self.sizes = dict(sizes)
        self.memory = {Region("arena", 0): aligned_empty(evaluate_int(self.plan.arena_bytes, self.sizes))}
        for i, array in enumerate(inputs):
            self.memory[Region("input", i)] = array.reshape(-1).view(np.uint8)
        for i, offset in enumerate(self.offsets):
            self.memory[Region("constant", i)] = self.artifact.weights[offset:]
        for i, type_ in enumerate(self.plan.outputs):
            if i not in self.plan.late_outputs:
                self.memory[Region("output", i)] = aligned_empty(evaluate_int(type_.bytes, self.sizes))
        self._steps(self.plan.steps, watch)
        return [self.view(Place(Region("output", i), _ZERO, type_)).copy() for i, type_ in enumerate(self.plan.outputs)]

    def view(self, place: Place) -> Array:
        """The tensor at a place, as it is now."""
        start = evaluate_int(place.offset, self.sizes)
        shape = bind_shape(place.type.shape, self.sizes)
        size = int(np.prod(shape, dtype=np.int64)) * place.type.dtype.bytes
        return self.memory[place.region][start : start + size].view(place.type.dtype.numpy).reshape(shape)

    def _steps(self, steps: Sequence[Step], watch: Watch) -> None:
        for step in steps:
            self._step(step, watch)

    def _step(self, step: Step, watch: Watch) -> None:
        match step:
            case Launch():
                self._launch(step, watch)
            case Copy(target, source):
                self.view(Place(target.region, target.offset, source.type))[...] = self.view(source)
            case Bind(bound, source):
                self.sizes[bound] = int(self.view(source).item())
            case SetSize(bound, value):
                self.sizes[bound] = evaluate_int(value, self.sizes)
            case Allocate(arena, bytes_) | Grow(arena, bytes_):
                self._allocate(arena, evaluate_int(bytes_, self.sizes), isinstance(step, Grow))
            case Check(condition, message, show):
                if not evaluate_int(condition, self.sizes):
                    raise ShapeError(message.format(*[evaluate_int(e, self.sizes) for e in show]))
            case Branch(condition, then, otherwise):
                self._steps(then if bool(self.view(condition)) else otherwise, watch)
            case Loop():
                trip = None if step.trip is None else evaluate_int(step.trip, self.sizes)
                count = 0
                while (trip is None or count < trip) and (step.condition is None or bool(self.view(step.condition))):
                    self.sizes[step.counter] = count
                    self._steps(step.body, watch)
                    count += 1
                self.sizes[step.counter] = count

    def _allocate(self, region: Region, size: int, keep: bool) -> None:
        old = self.memory.get(region)
        if old is not None and old.size >= size:
            return
        made = aligned_empty(size + ALIGNMENT)
        if keep and old is not None:
            made[: old.size] = old
        self.memory[region] = made

    def _launch(self, step: Launch, watch: Watch) -> None:
        if self.before is not None:
            self.before(step, [self.view(place) for place in step.args[: len(step.kernel.inputs)]])
        function = self._functions.setdefault(step.kernel.name, _KERNEL(self._code.address(step.kernel.name)))
        starts = [self.memory[place.region].ctypes.data + evaluate_int(place.offset, self.sizes) for place in step.args]
        args = np.array([*starts, *(evaluate_int(size, self.sizes) for size in step.sizes)], np.int64)
        best = float("inf")
        for _ in range(self.repeat):
            begin = time.perf_counter()
            function(self._pool.handle, args.ctypes.data)
            best = min(best, time.perf_counter() - begin)
        first = len(step.kernel.inputs)
        watch(step, [self.view(place) for place in step.args[first : first + len(step.kernel.outputs)]], best)


def _zero() -> Expr:
    from tilewright.ir.expr import const

    return const(0)


_ZERO = _zero()
