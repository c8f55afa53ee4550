"""A loaded artifact that runs: `exe(x)`, `exe.run({"input": x})`.

One call is one native call for the whole inference. An executable may be called from several threads at once: each call takes its own
arena; the thread pool serves one of them at a time, the others run on their own thread.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.runtime import artifact as files
from tilewright.runtime.artifact import Artifact, manifest_faults
from tilewright.runtime.constants import ALIGNMENT, OUT_OF_MEMORY, SHOWN
from tilewright.runtime.formula import Formula
from tilewright.runtime.linker import link
from tilewright.runtime.pool import PoolReference, process_pools
from tilewright.runtime.recycled import RecycledOutput
from tilewright.runtime.specs import (
    Array,
    Room,
    SizeSolver,
    SizeSpec,
    TensorSpec,
    as_array,
    fixed_shape,
    size_sources,
    small_outputs,
    solve_sizes,
    tensor_spec,
)
from tilewright.support.errors import ArtifactError, InputError, MemoryLimitError, ShapeError
from tilewright.support.host_limits import usable_cores, usable_memory
from tilewright.support.settings import Settings

if TYPE_CHECKING:
    from tilewright.runtime.instrument import Recorder
    from tilewright.runtime.profile import Profile

_ENTRY = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 7)
_RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_from_buffer: Callable[[Any], ctypes.c_char] = ctypes.c_char.from_buffer
_addressof = ctypes.addressof
LARGEST_MEMORY = 1 << 48  # bytes, where the machine does not say how much it has
KEPT_ARENAS = 4  # idle arenas that an executable keeps for later calls


def aligned_empty(size: int) -> Array:
    """Uninitialised bytes whose first is aligned to ALIGNMENT."""
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]


class CallMemory:
    """What one call of the native entry works in: the arena, and the arrays through which arguments go, with their addresses."""

    __slots__ = (
        "arena", "arena_address", "bytes", "failure", "failure_address", "inputs", "inputs_address", "outputs", "outputs_address", "sizes",
    )  # fmt: skip

    def __init__(self, arena: Array, inputs: int, outputs: int, sizes: int) -> None:
        self.arena = arena
        self.bytes = arena.size
        self.arena_address = _address(arena)
        self.inputs = (ctypes.c_void_p * max(inputs, 1))()
        self.outputs = (ctypes.c_void_p * max(outputs, 1))()
        self.sizes = (ctypes.c_int64 * max(sizes, 1))()
        self.failure = (ctypes.c_int64 * SHOWN)()
        self.inputs_address = ctypes.addressof(self.inputs)
        self.outputs_address = ctypes.addressof(self.outputs)
        self.failure_address = ctypes.addressof(self.failure)


@dataclass(frozen=True, slots=True)
class CallShapes:
    """What the shapes of the arguments decide about a call: the sizes, the shapes of the outputs (None for those that are known only while
    running), the bytes of the arena, and those that are left for tensors of data-dependent size. inputs: these shapes, None where there is
    no choice."""

    inputs: list[tuple[int, ...]] | None
    sizes: Mapping[str, int]
    outputs: Sequence[tuple[int, ...] | None]
    arena: int
    left: int


def _address(array: Array) -> int:
    try:
        return _addressof(_from_buffer(array))  # a quarter of the other way's time
    except (BufferError, TypeError, ValueError):  # read-only, without elements, or of a dtype that buffers do not have
        address: int = array.__array_interface__["data"][0]
        return address


def _argument(value: Any, spec: TensorSpec, shape: tuple[int, ...] | None) -> Array:
    """The argument as the native code takes it; `shape`: the only one that it can have, None where sizes decide."""
    if type(value) is np.ndarray and value.dtype == spec.dtype:
        flags = value.flags
        fits = value.ndim == len(spec.shape) if shape is None else value.shape == shape
        if fits and flags.c_contiguous and flags.aligned:
            return value
    array = as_array(value, spec)
    if shape is not None and array.shape != shape:
        solve_sizes([array], [spec], ())
    return array


class Executable:
    """A compiled model, ready to run. `inputs` and `outputs` describe its arguments and results; `manifest` says how it was made."""

    def __init__(self, artifact: Artifact, threads: int | None = None, max_memory: int | str | None = None) -> None:
        """threads: default is what affinity mask and cgroup quota allow. max_memory: bytes that one inference may need, weights and outputs
        included, as the setting has it; by default what the machine has. Raises ArtifactError when the code does not fit this machine,
        SettingsError for threads or a limit that are none."""
        chosen = Settings().changed(threads=threads, max_memory=max_memory)
        manifest = artifact.manifest
        with manifest_faults():
            self.inputs: tuple[TensorSpec, ...] = tuple(tensor_spec(entry) for entry in manifest["inputs"])
            self.outputs: tuple[TensorSpec, ...] = tuple(tensor_spec(entry) for entry in manifest["outputs"])
            self.sizes = tuple(SizeSpec(s["name"], s["lo"], s["hi"], s.get("multiple", 1)) for s in manifest["sizes"])
            self._input_sizes = int(manifest["input_sizes"])
            self._late_outputs = frozenset(manifest["late_outputs"])
            self._open_ended = bool(manifest["open_ended"])
            self._arena_bytes = Formula(manifest["memory"]["arena"])
            self._output_bytes = Formula(manifest["memory"]["outputs"])
            self._checks = [(str(c["message"]), int(c["shown"])) for c in manifest["checks"]]
            entry = str(manifest["entry"])
            _require_features(manifest)
        self.manifest = manifest
        self.artifact = artifact
        self.threads = chosen.threads or usable_cores()
        self._pool = PoolReference(artifact.pool, self.threads)
        self._code = link(list(artifact.objects.values()), process_pools.code(artifact.pool).imports)
        self._entry = _ENTRY(self._code.address(entry))
        self._release = _RELEASE(self._code.address(f"{entry}_release"))
        self._weights = _aligned(artifact.weights)
        self._weights_address = _address(self._weights)
        self._limit = chosen.max_memory or usable_memory() or LARGEST_MEMORY
        self._idle: list[CallMemory] = []  # several threads take and give: one operation of the list each
        self._recycled = [RecycledOutput() for _ in self.outputs]
        with manifest_faults():  # what calls need not work out again where no sizes are left open
            self._fixed_inputs = [fixed_shape(spec) for spec in self.inputs]
            self._small_outputs = small_outputs(self.outputs)
            self._all_fixed = None not in self._fixed_inputs and self._input_sizes == 0
            self._solver = SizeSolver(self.inputs, self.sizes)
            planned = [None if i in self._late_outputs else spec for i, spec in enumerate(self.outputs)]
            self._room = Room(planned, self._arena_bytes, self._solver.names)
            self._latest = self._shapes(None, {}) if self._all_fixed else CallShapes(None, {}, (), 0, 0)
        self._input_names = tuple(spec.name for spec in self.inputs)
        self._output_names = tuple(spec.name for spec in self.outputs)
        self._size_names = tuple(size.name for size in self.sizes[: self._input_sizes])

    # ---- running

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Results for positional or named arguments: one array, or a tuple when the model has several outputs."""
        values = self._in_order(self._named(args, kwargs)) if kwargs or len(args) != len(self.inputs) else args
        results = self._invoke(values)
        return results[0] if len(results) == 1 else tuple(results)

    def _named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by name."""
        if len(args) > len(self.inputs):
            raise InputError(f"{len(args)} arguments are passed, the model takes {len(self.inputs)}", where=self._signature())
        named = dict(zip(self._input_names, args, strict=False))
        twice = named.keys() & kwargs.keys()
        if twice:
            raise InputError(f"input '{min(twice)}' is passed twice", where=self._signature())
        return {**named, **kwargs}

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Results by name."""
        results = self._invoke(self._in_order(inputs))
        return {name: results[i] for i, name in enumerate(self._output_names)}

    def _in_order(self, given: Any) -> list[Any]:
        """The values of a mapping of arguments by name, in the order of the inputs. Raises InputError unless it has all of them and
        no others."""
        if type(given) is not dict and not isinstance(given, Mapping):
            what = f"run takes a mapping of arrays by name, not a {type(given).__name__}"
            raise InputError(what, where=self._signature(), hint="call the executable itself for arrays by position")
        if len(given) != len(self._input_names):
            self._refuse_names(given)
        values = []
        for name in self._input_names:
            if name not in given:
                self._refuse_names(given)
            values.append(given[name])
        return values

    def _invoke(self, values: Sequence[Any], entry: Callable[..., int] | None = None) -> list[Array]:
        """Check the arguments, one for each input, solve for sizes, run the entry function, or `entry` in its place."""
        arrays = list(map(_argument, values, self.inputs, self._fixed_inputs))
        given = None if self._all_fixed else [array.shape for array in arrays]
        latest = self._latest
        if latest.inputs != given:
            sizes = self._solver(arrays)
            latest = self._latest = self._shapes(given, sizes)
        memory = self._take_memory(latest.arena)
        try:
            return self._call(entry or self._entry, arrays, latest, memory)
        finally:
            self._give_memory(memory)

    def _shapes(self, given: list[tuple[int, ...]] | None, sizes: Mapping[str, int]) -> CallShapes:
        """What is decided about calls at these sizes. Raises MemoryLimitError where what is known to be needed is over the limit."""
        shapes, arena = self._room(sizes)
        weights, outputs = int(self._weights.nbytes), self._output_bytes(sizes)
        left = self._limit - weights - arena - outputs
        if left < 0:
            raise MemoryLimitError(
                f"the inference needs {self._limit - left:,} bytes, the limit is {self._limit:,}",
                where=", ".join(f"{name} = {value}" for name, value in sizes.items()) or None,
                why=f"weights {weights:,}, working memory {arena:,}, outputs {outputs:,}",
                hint="raise max_memory, or pass smaller inputs" if sizes else "raise max_memory",
            )
        return CallShapes(given, sizes, shapes, arena, left)

    def _refuse_names(self, given: Mapping[str, Any]) -> None:
        known = {spec.name for spec in self.inputs}
        extra = [name for name in given if name not in known]
        missing = [spec.name for spec in self.inputs if spec.name not in given]
        what = f"the model has no input '{extra[0]}'" if extra else f"input '{missing[0]}' is missing"
        raise InputError(what, where=self._signature())

    def _call(self, entry: Callable[..., int], arrays: Sequence[Array], shapes: CallShapes, memory: CallMemory) -> list[Array]:
        results: list[Array | None]
        if self._small_outputs is None:
            results = [None if shape is None else self._empty_output(i, shape) for i, shape in enumerate(shapes.outputs)]
        else:
            results = [np.empty(shape, dtype) for shape, dtype in self._small_outputs]
        inputs, outputs = memory.inputs, memory.outputs
        for i, array in enumerate(arrays):
            inputs[i] = _address(array)
        for i, result in enumerate(results):
            outputs[i] = None if result is None else _address(result)
        for i, name in enumerate(self._size_names):
            memory.sizes[i] = shapes.sizes[name]
        if self._open_ended:
            memory.failure[0] = shapes.left
        code = entry(
            self._pool.handle,
            memory.inputs_address,
            memory.outputs_address,
            memory.sizes,
            self._weights_address,
            memory.arena_address,
            memory.failure_address,
        )
        if code == 0 and not self._late_outputs:
            return results  # type: ignore[return-value]  # none is late
        late = {size.name: int(value) for size, value in zip(self.sizes, memory.sizes, strict=False)}
        try:
            if code != 0:
                raise self._failure(code, list(memory.failure), late)
            return [self._late(i, outputs[i], late) if result is None else result for i, result in enumerate(results)]
        finally:
            for i in self._late_outputs:
                if outputs[i]:
                    self._release(outputs[i])

    def _empty_output(self, index: int, shape: Sequence[int]) -> Array:
        """Room for an output. Raises MemoryLimitError where there is none."""
        spec = self.outputs[index]
        try:
            return self._recycled[index].take(shape, spec.dtype)
        except (MemoryError, ValueError):  # ValueError: past what NumPy can count
            raise MemoryLimitError(f"there is no memory for the output '{spec.name}' of shape {list(shape)}", where=repr(spec)) from None

    def _late(self, index: int, address: int | None, sizes: Mapping[str, int]) -> Array:
        """A copy of an output whose size was known only while running."""
        result = self._empty_output(index, self.outputs[index].shape_at(sizes))
        if result.nbytes and address:
            ctypes.memmove(result.ctypes.data, address, result.nbytes)
        return result

    def _failure(self, code: int, values: Sequence[int], sizes: Mapping[str, int]) -> Exception:
        if code == OUT_OF_MEMORY:
            why = f"tensors of data-dependent size are over the limit of {self._limit:,} bytes, or the system refused memory for them"
            return MemoryLimitError("the inference ran out of memory", why=why, hint="raise max_memory")
        message, shown = self._checks[code - 1]
        what = message.format(*[int(value) for value in values[:shown]])
        sources = size_sources(what, self.inputs, {name: sizes[name] for name in self._size_names})
        return ShapeError(what, why="the inputs break a constraint of the model" + (f": {sources}" if sources else ""))

    def _take_memory(self, size: int) -> CallMemory:
        """What one inference works in, for it alone until it is given back; `size`: bytes of its arena."""
        try:
            while (memory := self._idle.pop()).bytes < size:
                pass  # too small now, and likely again
            return memory
        except IndexError:  # none is idle
            pass
        try:
            return CallMemory(aligned_empty(size), len(self.inputs), len(self.outputs), len(self.sizes))
        except (MemoryError, ValueError):  # ValueError: past what NumPy can count
            raise MemoryLimitError(f"the inference needs {size} bytes of working memory, which the system refuses") from None

    def _give_memory(self, memory: CallMemory) -> None:
        """Keep it for later calls, in place of one that was given back earlier if there are many."""
        self._idle.append(memory)
        if len(self._idle) > KEPT_ARENAS:
            del self._idle[:-KEPT_ARENAS]

    # ---- about

    def profile(self, /, *args: Any, repeat: int = 20, **kwargs: Any) -> Profile:
        """Run the model `repeat` times on arguments as `__call__` takes them, with a clock around every kernel: where the time goes, and
        how far from the machine's limit. `print` shows it; `to_json`, `chrome_trace` and `html` give it to others."""
        from tilewright.runtime.profile import measure

        return measure(self, self._named(args, kwargs), repeat)

    def recorder(self) -> Recorder:
        """An entry with a clock around every kernel, for `record`."""
        from tilewright.runtime.instrument import Recorder

        return Recorder(self.artifact, self._code, len(self.sizes))

    @property
    def entry(self) -> Callable[..., int]:
        """The plan's native entry function, with the arguments that `target/cpu/entry.py` lists."""
        return self._entry

    def record(self, inputs: Mapping[str, Any], entry: Callable[..., int]) -> list[Array]:
        """Results as of `run`, in order, of `entry` in place of the plan's own."""
        return self._invoke(self._in_order(inputs), entry)

    def _signature(self) -> str:
        return "inputs are " + ", ".join(map(repr, self.inputs))

    def memory(self, /, **sizes: int) -> dict[str, int]:
        """Bytes that an inference at `sizes` needs: `arena` (planned peak of what lies between inputs and outputs), `outputs` (both without
        those of data-dependent size), `weights`.
        Raises InputError when a size is missing, negative where it has a least value, or unknown."""
        self._expect_sizes(sizes)
        return {"arena": self._arena_bytes(sizes), "outputs": self._output_bytes(sizes), "weights": int(self._weights.nbytes)}

    def _expect_sizes(self, sizes: Mapping[str, Any]) -> None:
        known = {size.name: size for size in self.sizes}
        about = f"the sizes are {', '.join(known)}" if known else "the model has no sizes: all dims are fixed"
        for name, value in sizes.items():
            if name not in known:
                raise InputError(f"the model has no size '{name}'", why=about)
            if not isinstance(value, (int, np.integer)) or (value < 0 and known[name].lo is not None):
                raise InputError(f"the size {name} cannot be {value!r}", why="sizes are integers from 0 up")
        needed = dict.fromkeys((*self._arena_bytes.names, *self._output_bytes.names))
        missing = [name for name in needed if name not in sizes]
        if missing:
            example = ", ".join(f"{name}={sizes.get(name, 8)}" for name in needed)
            raise InputError(f"the size {missing[0]} is missing", why=about, hint=f"memory({example})")

    def save(self, path: str | Path) -> None:
        """Write the artifact to a file; it appears complete or not at all."""
        files.save(self.artifact, path)

    def __reduce__(self) -> Any:
        raise TypeError("an Executable cannot be copied or pickled: save() it, and tilewright.load() the file where it is needed")

    def __repr__(self) -> str:
        return f"<Executable ({', '.join(map(repr, self.inputs))}) -> ({', '.join(map(repr, self.outputs))})>"


def _aligned(weights: Array) -> Array:
    if weights.nbytes == 0 or weights.ctypes.data % ALIGNMENT == 0:
        return weights
    copy = aligned_empty(weights.nbytes)
    copy[:] = weights
    return copy


def _require_features(manifest: Mapping[str, Any]) -> None:
    """Refuse code for another platform, or for instructions that this processor lacks, instead of crashing on it."""
    from tilewright.runtime.host_features import host_platform, missing_features, platform_of

    target = manifest.get("target", {})
    name, triple, isa = target.get("name", ""), target.get("triple", ""), target.get("isa", ())
    if not all(isinstance(text, str) for text in (name, triple, *isa)):
        raise TypeError("the target is described by other things than texts")
    wanted = platform_of(triple)
    if wanted != host_platform():
        raise ArtifactError(
            f"the artifact was compiled for {wanted}, this is {host_platform()}",
            where=name,
            hint="compile it for this machine: --target cpu",
        )
    lacking = missing_features(isa)
    if lacking:
        raise ArtifactError(
            f"the artifact was compiled for {name}, which has what this processor lacks: {', '.join(lacking)}",
            hint="compile it for this machine, or for a lower level such as cpu:x86-64-v3",
        )
