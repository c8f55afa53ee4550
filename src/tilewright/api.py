"""The public functions: `compile`, `load`. `import tilewright` loads this file only when one of them is used.

Front end and compiler are imported where a model must really be compiled: one that the cache holds needs neither.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import tilewright
from tilewright.frontend.dims import DimRange
from tilewright.ir.types import LARGEST_DIM
from tilewright.machine.description import Machine
from tilewright.machine.detect import detect_host
from tilewright.machine.targets import parse_target, resolve_target
from tilewright.runtime.artifact import Artifact, save
from tilewright.runtime.artifact import load as load_artifact
from tilewright.runtime.examples import hints_in
from tilewright.runtime.executable import Executable
from tilewright.runtime.opening import Runnable, load, open_artifact
from tilewright.support.cache import Cache, open_cache
from tilewright.support.errors import (
    ArtifactError,
    InputError,
    InternalError,
    MemoryLimitError,
    ModelError,
    ScheduleError,
    SettingsError,
    TargetError,
    TilewrightError,
    UnsupportedOperatorError,
)
from tilewright.support.file_hashes import file_hash
from tilewright.support.hashing import content_hash, hash_tree
from tilewright.support.host_limits import usable_memory
from tilewright.support.progress import NullProgress, Progress, make_progress
from tilewright.support.settings import Settings, current_settings

if TYPE_CHECKING:
    from tilewright.accuracy.validate import Validation
    from tilewright.compiler import Compiled
    from tilewright.frontend.onnx.loader import LoadedModel

Dims = Mapping[str, "int | tuple[int, int] | str | DimRange"]


def compile(  # noqa: A001 (the name that users look for)
    model: Any,
    *,
    target: str = "cpu",
    dims: Dims | None = None,
    schedule: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    reporter: Progress | None = None,
    verify_inputs: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Runnable:
    """Compile a model to native code.

    model: path of an ONNX file, its bytes, or an `onnx.ModelProto`. target: `cpu` is this machine; see the targets page.
    dims: for symbolic dims by name a fixed size, a range `(low, high)`, or text `"low..high:multiple"`; others take any size.
    schedule: schedules of some kernels, in place of the compiler's own: a file that `tilewright inspect --export` wrote, or its data.
    verify_inputs: arrays of some inputs by name, which `verify=True` takes in place of random ones.
    settings: any of the settings page, for this call only. Raises a TilewrightError that names the model's node.
    """
    chosen = current_settings().changed(**settings)
    made = make_artifact(model, target, dims, chosen, reporter, schedule, verify_inputs)
    return open_artifact(made.artifact, chosen.threads, chosen.max_memory)


@dataclass(frozen=True, slots=True)
class Made:
    """An artifact, whether it came out of the cache, and what of it was validated: one entry for each part, none without `verify`."""

    artifact: Artifact
    cached: bool
    validated: tuple[Validation, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """What a model is to be compiled to, and with what: dims, machine, settings, cache if any, and what somebody gives: schedules, and
    inputs to verify with."""

    dims: Mapping[str, DimRange | int]
    machine: Machine
    settings: Settings
    cache: Cache | None = None
    progress: Progress = field(default_factory=NullProgress)
    schedule: Mapping[str, Any] | None = None
    verify_inputs: Mapping[str, Any] = field(default_factory=dict)


def make_artifact(
    model: Any,
    target: str,
    dims: Dims | None,
    settings: Settings,
    progress: Progress | None = None,
    schedule: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    verify_inputs: Mapping[str, Any] | None = None,
) -> Made:
    """What `compile` compiles, not loaded: it may be for another machine. Raises as `compile` does."""
    given = read_schedule(schedule, settings)
    machine = target_machine(target)
    ranges = dim_ranges(dims)
    cache = open_cache(settings)
    if verify_inputs and not settings.verify:
        raise InputError("inputs are given to verify with, and nothing is verified", hint="--verify, or verify=True, verifies")
    request = Request(ranges, machine, settings, cache, progress or make_progress(settings.progress), given, verify_inputs or {})
    path = Path(model) if isinstance(model, (str, os.PathLike)) else None  # others are cheap to miss and costly to hash
    key = None
    if cache is not None and path is not None:
        key = artifact_key(path, request, cache)
        found = None if settings.verify or key is None else cached_artifact(key, settings, cache)
        if found is not None:
            return Made(found, True)
    from tilewright.frontend.onnx.loader import load_model

    loaded = load_model(model)
    if cache is not None and path is not None and key is None:
        note_external_files(path, loaded, cache)
        key = artifact_key(path, request, cache)
    names = [entry.name for entry in loaded.proto.graph.input]
    unknown = [name for name in request.verify_inputs if name not in names]
    if unknown:
        raise InputError(f"the model has no input '{unknown[0]}'", where=", ".join(names))
    validated: list[Validation] = []
    artifact = artifact_of(loaded, request, validated)
    if cache is not None and key is not None:
        keep(artifact, cache, key)
    return Made(artifact, False, tuple(validated))


def artifact_of(loaded: LoadedModel, request: Request, validated: list[Validation]) -> Artifact:
    """Compile an opened model: whole, or as a program where its values are more than tensors of numbers. With `verify`, what of each part
    was validated is added to `validated`. Raises as `compile_loaded`, and VerifyError."""
    from tilewright.frontend.onnx.host import may_want_host, wants_host

    if wants_host(loaded.proto):
        return compile_as_program(loaded, request, validated)
    try:
        compiled = compile_loaded(loaded, request)
        validate_part(compiled, loaded, request, validated)
        return compiled.artifact
    except (ModelError, UnsupportedOperatorError):
        if not may_want_host(loaded.proto):
            raise
    return compile_as_program(loaded, request, validated)


def validate_part(compiled: Compiled, loaded: LoadedModel, request: Request, validated: list[Validation]) -> None:
    """With `verify`, run each kernel beside the reference. Raises VerifyError where one differs."""
    if not request.settings.verify:
        return
    from tilewright.accuracy.validate import validate

    hints = hints_in({entry.key: entry.value for entry in loaded.proto.metadata_props})
    with internal_faults(loaded):
        made = validate(compiled, request.machine, request.settings, hints, progress=request.progress, given=request.verify_inputs)
        validated.append(made)


def compile_as_program(loaded: LoadedModel, request: Request, validated: list[Validation]) -> Artifact:
    """Compile the parts of a model with strings, sequences, optionals or maps. Raises as `compile_loaded`."""
    from tilewright.compiler import compile_program
    from tilewright.frontend.onnx.host import partition

    if request.schedule is not None:
        what = "schedules cannot be given for a model with strings, sequences, optionals or maps"
        raise ScheduleError(what, where=loaded.source, why="it is compiled in several parts")
    with internal_faults(loaded):
        with request.progress.stage("import"):
            program = partition(loaded, request.dims)
        with_what = request.machine, request.settings, request.cache, request.progress, described(loaded)
        watch = partial(validate_part, loaded=loaded, request=request, validated=validated)
        return compile_program(program.parts, program.body, program.inputs, program.outputs, *with_what, watch, program.ranges)


def cached_artifact(key: str, settings: Settings, cache: Cache) -> Artifact | None:
    """The artifact that the cache holds under a key, unless it is damaged or known to need too much memory."""
    found = cache.get_file(key)
    if found is None:
        return None
    try:
        artifact = load_artifact(found)
    except ArtifactError:  # the disk has damaged it, or another process has just removed it
        cache.remove(key)
        return None
    return artifact if fits(artifact, settings) else None  # compiling says in full what does not fit


def fits(artifact: Artifact, settings: Settings) -> bool:
    """Whether an artifact is not known to need more memory than it may."""
    limit = settings.max_memory or usable_memory()
    known = [str(artifact.manifest["memory"][what]) for what in ("arena", "outputs")]
    return limit is None or artifact.weights.nbytes + sum(int(text) for text in known if text.isdecimal()) <= limit


def read_schedule(schedule: str | os.PathLike[str] | Mapping[str, Any] | None, settings: Settings) -> Mapping[str, Any] | None:
    """The data of given schedules. Raises ScheduleError for a file that cannot be read or is no JSON, SettingsError where nothing is
    scheduled."""
    if schedule is None:
        return None
    if settings.opt_level < 3:
        raise SettingsError(
            "a schedule is given, and nothing is scheduled", where=f"opt_level={settings.opt_level}", hint="leave opt_level at 3"
        )
    if isinstance(schedule, Mapping):
        return schedule
    try:
        found = json.loads(Path(schedule).read_text(encoding="utf-8"))
    except OSError as error:
        raise ScheduleError(f"'{schedule}' cannot be opened: {error.strerror}", hint="check the path of the schedules") from None
    except ValueError as error:
        raise ScheduleError(f"'{schedule}' is no JSON: {error}", hint="`tilewright inspect MODEL --export FILE` writes one") from None
    return found if isinstance(found, Mapping) else {"kernels": found}


def compile_loaded(loaded: LoadedModel, request: Request) -> Compiled:
    """Compile an opened model, and keep everything that was made on the way. Raises TilewrightErrors only, but for
    interrupts and what the system says of files."""
    from tilewright.compiler import compile_module
    from tilewright.frontend.onnx.importer import import_model
    from tilewright.kernel.schedule.given import parse_given

    schedules = None if request.schedule is None else parse_given(request.schedule)
    with internal_faults(loaded):
        with request.progress.stage("import"):
            module = import_model(loaded, request.dims).module
        with_what = request.machine, request.settings, request.cache, request.progress, described(loaded)
        return compile_module(module, *with_what, schedules)


@contextmanager
def internal_faults(loaded: LoadedModel) -> Iterator[None]:
    """Turn what is no error of the user's into an InternalError that names the model."""
    try:
        yield
    except (TilewrightError, OSError):
        raise
    except MemoryError as error:
        raise MemoryLimitError("the model needs more memory to be compiled than there is", where=loaded.source, why=str(error)) from None
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise InternalError("the model cannot be compiled", where=loaded.source, why=why) from error


def described(loaded: LoadedModel) -> dict[str, Any]:
    """What an artifact says of the model that it was made of."""
    examples = hints_in({entry.key: entry.value for entry in loaded.proto.metadata_props})
    return {
        "source": Path(loaded.source).name,
        "producer": loaded.proto.producer_name,
        "examples": {name: {"kind": example.kind, "high": example.high} for name, example in sorted(examples.items())},
    }


def target_machine(target: str) -> Machine:
    """The machine that a target string means. Raises TargetError."""
    given: Any = target
    if not isinstance(given, str):
        raise TargetError(f"the target {given!r} is no text", hint="write cpu for the machine at hand")
    return resolve_target(parse_target(given), detect_host)


def dim_ranges(dims: Any) -> dict[str, DimRange | int]:
    """What a user says of all dims. Raises SettingsError when it makes no sense."""
    if dims is not None and not isinstance(dims, Mapping):
        what = f"dims is a {type(dims).__name__}, not a mapping of dims by name"
        raise SettingsError(what, hint='dims={"batch": (1, 64), "seq": "8..512:8"}')
    return {name: dim_range(name, value) for name, value in (dims or {}).items()}


def dim_range(name: str, value: Any) -> DimRange | int:
    """What a user says of a dim: as `Dims` has it. Raises SettingsError when it makes no sense."""
    if isinstance(value, DimRange):
        return value
    hint = "give a number, (low, high) or 'low..high:multiple'"
    if isinstance(value, (tuple, list)) and len(value) == 2:
        low, high = value
        return dim_range(name, f"{low}..{'' if high is None else high}")
    if isinstance(value, bool) or not isinstance(value, (str, int, np.integer)):
        raise SettingsError(f"dim '{name}': {value!r} is not understood", hint=hint)
    if not isinstance(value, str):
        if not 0 <= value <= LARGEST_DIM:
            raise SettingsError(f"dim '{name}' cannot be {value}", why=f"sizes are from 0 to {LARGEST_DIM:,}")
        return int(value)
    text = value
    bounds, _, multiple = text.partition(":")
    low, dots, high = bounds.partition("..")
    try:
        if not dots:
            return dim_range(name, int(low))
        parsed = DimRange(int(low or 0), int(high) if high else None, int(multiple or 1))
    except ValueError:
        raise SettingsError(f"dim '{name}': {value!r} is not understood", hint=hint) from None
    if parsed.lo < 0 or parsed.multiple < 1 or max(parsed.lo, parsed.hi or 0, parsed.multiple) > LARGEST_DIM:
        why = f"sizes are from 0 to {LARGEST_DIM:,}, and a multiple is at least 1"
        raise SettingsError(f"dim '{name}' cannot have the range {value!r}", why=why)
    if parsed.hi is not None and -(-parsed.lo // parsed.multiple) * parsed.multiple > parsed.hi:
        raise SettingsError(f"dim '{name}': the range {value!r} holds no size")
    return parsed


def artifact_key(path: Path, request: Request, cache: Cache) -> str | None:
    """The cache key of a whole artifact: content of the model and of the files beside it, dims, target, settings that change code, given
    schedules, and the compiler's own sources. None for a model that cannot be read, or of which nobody has noted yet which other files it
    consists of."""
    try:
        model = file_hash(path, cache)
        external = cache.get(external_key(model))
        if external is None:
            return None
        files = [path.parent / name for name in json.loads(external)]
        hashes = [model, *(file_hash(file, cache) for file in files if file.is_file())]
    except OSError:
        return None
    ranges = {name: value if isinstance(value, int) else (value.lo, value.hi, value.multiple) for name, value in request.dims.items()}
    sources = hash_tree(Path(tilewright.__file__).parent)
    code = request.machine, request.settings.code_key(), request.schedule
    return content_hash("artifact", sources, path.name, hashes, ranges, *code)


def note_external_files(path: Path, loaded: LoadedModel, cache: Cache) -> None:
    """Keep in the cache which files hold weights of a model, so that its key can be told without parsing it."""
    from tilewright.frontend.onnx.loader import external_files

    cache.put(external_key(file_hash(path, cache)), json.dumps(external_files(loaded.proto)).encode())


def external_key(model: str) -> str:
    """Key of the names of the files beside a model whose hash is `model`."""
    return content_hash("external files", model)


def keep(artifact: Artifact, cache: Cache, key: str) -> None:
    """Put an artifact into the cache."""
    with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
        path = Path(folder) / "artifact.tw"
        save(artifact, path)
        cache.put_file(key, path)


__all__ = ["Executable", "Runnable", "compile", "load"]
