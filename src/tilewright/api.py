"""The public functions: `compile`, `load`. `import tilewright` loads this file only when one of them is used."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tilewright
from tilewright.compiler import Compiled, compile_module, memory_limit
from tilewright.frontend.onnx.importer import DimRange, import_model
from tilewright.frontend.onnx.loader import LoadedModel, external_files, load_model
from tilewright.machine.description import Machine
from tilewright.machine.detect import detect_host
from tilewright.machine.targets import parse_target, resolve_target
from tilewright.runtime.artifact import Artifact, save
from tilewright.runtime.artifact import load as load_artifact
from tilewright.runtime.examples import hints_in
from tilewright.runtime.executable import Executable, load
from tilewright.support.cache import Cache, open_cache
from tilewright.support.errors import ArtifactError, InternalError, SettingsError, TilewrightError
from tilewright.support.hashing import content_hash, hash_file, hash_tree
from tilewright.support.progress import Progress, make_progress
from tilewright.support.settings import Settings, current_settings

LARGEST_DIM = 1 << 48  # more elements of any dtype than an address space holds

Dims = Mapping[str, "int | tuple[int, int] | str | DimRange"]


def compile(  # noqa: A001 (the name that users look for)
    model: Any,
    *,
    target: str = "cpu",
    dims: Dims | None = None,
    reporter: Progress | None = None,
    **settings: Any,
) -> Executable:
    """Compile a model to native code.

    model: path of an ONNX file, its bytes, or an `onnx.ModelProto`. target: `cpu` is this machine; see the targets page.
    dims: for symbolic dims by name a fixed size, a range `(low, high)`, or text `"low..high:multiple"`; others take any size.
    settings: any of the settings page, for this call only. Raises a TilewrightError that names the model's node.
    """
    chosen = current_settings().changed(**settings)
    return Executable(make_artifact(model, target, dims, chosen, reporter).artifact, chosen.threads)


@dataclass(frozen=True, slots=True)
class Made:
    """An artifact, and whether it came out of the cache."""

    artifact: Artifact
    cached: bool


def make_artifact(model: Any, target: str, dims: Dims | None, settings: Settings, progress: Progress | None = None) -> Made:
    """What `compile` compiles, not loaded: it may be for another machine. Raises as `compile` does."""
    machine = target_machine(target)
    shown = progress or make_progress(settings.progress)
    ranges = {name: dim_range(name, value) for name, value in (dims or {}).items()}
    cache = open_cache(settings)
    loaded = load_model(model)
    key = artifact_key(loaded, ranges, machine, settings) if cache is not None else None
    if cache is not None and key is not None:
        found = None if settings.verify else cache.get_file(key)
        if found is not None:
            try:
                artifact = load_artifact(found)
                if fits(artifact, settings):  # else compiling says in full what does not
                    return Made(artifact, True)
            except ArtifactError:  # the disk has damaged it, or another process has just removed it
                cache.remove(key)
    compiled = compile_loaded(loaded, ranges, machine, settings, cache, shown)
    if cache is not None and key is not None:
        keep(compiled, cache, key)
    return Made(compiled.artifact, False)


def fits(artifact: Artifact, settings: Settings) -> bool:
    """Whether an artifact is not known to need more memory than it may."""
    arena, limit = str(artifact.manifest["memory"]["arena"]), memory_limit(settings)
    return limit is None or artifact.weights.nbytes + (int(arena) if arena.isdecimal() else 0) <= limit


def compile_loaded(
    loaded: LoadedModel, dims: Mapping[str, DimRange | int], machine: Machine, settings: Settings, cache: Cache | None, progress: Progress
) -> Compiled:
    """Compile an opened model, and keep everything that was made on the way. Raises TilewrightErrors only, but for lack of memory and
    interrupts."""
    try:
        with progress.stage("import"):
            module = import_model(loaded, dims).module
        return compile_module(module, machine, settings, cache, progress, described(loaded))
    except (TilewrightError, MemoryError, OSError):
        raise
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
    return resolve_target(parse_target(target), detect_host)


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
            raise SettingsError(f"dim '{name}' cannot be {value}")
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
        raise SettingsError(f"dim '{name}': the range {value!r} is negative or too large")
    if parsed.hi is not None and -(-parsed.lo // parsed.multiple) * parsed.multiple > parsed.hi:
        raise SettingsError(f"dim '{name}': the range {value!r} holds no size")
    return parsed


def artifact_key(loaded: LoadedModel, dims: Mapping[str, DimRange | int], machine: Machine, settings: Settings) -> str | None:
    """The cache key of a whole artifact: model content, dims, target, settings that change code, and the compiler's own sources.
    None for models that are not files, which are cheap to miss and costly to hash."""
    if loaded.mapped is None:
        return None
    folder = loaded.folder or Path()
    source = Path(loaded.source)
    hashes = [hash_file(source), *(hash_file(folder / name) for name in external_files(loaded.proto) if (folder / name).is_file())]
    ranges = {name: value if isinstance(value, int) else (value.lo, value.hi, value.multiple) for name, value in dims.items()}
    sources = hash_tree(Path(tilewright.__file__).parent)
    return content_hash("artifact", sources, source.name, hashes, ranges, machine, settings.code_key())


def keep(compiled: Compiled, cache: Cache, key: str) -> None:
    """Put an artifact into the cache."""
    with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
        path = Path(folder) / "artifact.tw"
        save(compiled.artifact, path)
        cache.put_file(key, path)


__all__ = ["Executable", "compile", "load"]
