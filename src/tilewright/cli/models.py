"""Opening what the user names: a model, which is compiled, or an artifact; and inputs for it."""

from __future__ import annotations

import json
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import typer

from tilewright.cli.options import pairs
from tilewright.runtime.artifact import MAGIC, Artifact
from tilewright.runtime.artifact import load as load_artifact
from tilewright.runtime.examples import Example, draw_inputs, typical_sizes
from tilewright.runtime.executable import Executable
from tilewright.runtime.formula import size_name
from tilewright.runtime.host.drawing import draw_values
from tilewright.runtime.host.kinds import ValueSpec
from tilewright.runtime.opening import Runnable, open_artifact
from tilewright.runtime.program import Program
from tilewright.runtime.specs import Array, TensorSpec, as_array, solve_sizes
from tilewright.support.errors import InputError, ModelError
from tilewright.support.settings import Settings, settings_table

COMPILE_ONLY = ("verify",)  # settings that change no code and still do nothing once a model is compiled


@dataclass(frozen=True, slots=True)
class Opened:
    """A model ready to run. `seconds`: to compile, or to load. `cached`: nothing had to be compiled."""

    executable: Runnable
    artifact: Artifact
    seconds: float
    cached: bool


def is_artifact(path: str) -> bool:
    """Whether the file is an artifact, by its first bytes. Raises ModelError when it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return file.read(len(MAGIC) - 1) == MAGIC[:-1]
    except OSError as error:
        raise ModelError(f"'{path}' cannot be opened: {error.strerror}", hint="check the path of the model") from None


def open_model(path: str, target: str, dims: Mapping[str, str], settings: Settings, asked: Mapping[str, str]) -> Opened:
    """Load an artifact, or compile a model. `asked`: the settings that the user has given; those that change code do nothing to an
    artifact, which is a usage error."""
    start = time.perf_counter()
    if is_artifact(path):
        if target != "cpu" or dims:
            raise typer.BadParameter("an artifact is already compiled for its target and dims", param_hint="--target, --dim")
        late = [row.name for row in settings_table() if row.name in asked and (row.changes_code or row.name in COMPILE_ONLY)]
        if late:
            raise typer.BadParameter(f"{', '.join(late)} cannot change an artifact, it is already compiled", param_hint="--set")
        artifact, cached = load_artifact(path), True
    else:
        from tilewright.api import make_artifact

        made = make_artifact(path, target, dims, settings)
        artifact, cached = made.artifact, made.cached
    executable = open_artifact(artifact, settings.threads, settings.max_memory)
    return Opened(executable, artifact, time.perf_counter() - start, cached)


def sizes_of(runnable: Runnable, inputs: Mapping[str, Any], asked: Mapping[str, int]) -> dict[str, int]:
    """The sizes of the symbolic dims that inputs have; of a program those that were asked for."""
    if isinstance(runnable, Program):
        return dict(asked)
    return solve_sizes([as_array(inputs[spec.name], spec) for spec in runnable.inputs], runnable.inputs, runnable.sizes)


def described_value(name: str, value: Any) -> dict[str, Any]:
    """What is said of an input: dtype and shape, of other values the kind."""
    if isinstance(value, np.ndarray):
        return {"name": name, "dtype": value.dtype.name, "shape": list(value.shape)}
    return {"name": name, "kind": type(value).__name__}


def chosen_sizes(executable: Executable, given: Mapping[str, int]) -> dict[str, int]:
    """A value for each symbolic dim of the inputs: as given, else a typical one. Raises InputError for a dim that does not exist."""
    typical = typical_sizes(executable.inputs, executable.sizes)
    unknown = [name for name in given if size_name(name) not in typical]
    if unknown:
        known = ", ".join(typical) or "none: all sizes are fixed"
        raise InputError(f"the model has no symbolic dim '{unknown[0]}'", hint=f"its symbolic dims are {known}")
    return {**typical, **{size_name(name): value for name, value in given.items()}}


def hints_of(artifact: Artifact) -> dict[str, Example]:
    """What the model says of meaningful inputs."""
    entries = artifact.manifest.get("model", {}).get("examples", {})
    return {name: Example(entry["kind"], entry["high"]) for name, entry in entries.items()}


def example_inputs(inputs: Sequence[TensorSpec], artifact: Artifact, sizes: Mapping[str, int], seed: int) -> dict[str, Array]:
    """Random inputs of the given sizes. Raises MemoryLimitError for arrays past all bounds."""
    return draw_inputs(inputs, sizes, hints_of(artifact), seed)


def read_inputs(texts: Sequence[str] | None, specs: Sequence[TensorSpec | ValueSpec]) -> dict[str, Any]:
    """Arrays of `--input name=file.npy`, and of `--input file.npz` with all inputs by name; values of `--input name=file.json`."""
    files: dict[str, Any] = {}
    for text in texts or ():
        if "=" in text:
            found = {name: _read(path, name) for name, path in pairs([text], "--input").items()}
        else:
            found = _load(text)
            if not isinstance(found, dict) or text.endswith(".json"):
                raise typer.BadParameter(f"'{text}' holds one array: say of which input, as in x={text}", param_hint="--input")
        twice = files.keys() & found.keys()
        if twice:
            raise typer.BadParameter(f"'{min(twice)}' is given twice", param_hint="--input")
        files.update(found)
    types = {spec.name: spec.dtype for spec in specs if isinstance(spec, TensorSpec)}
    # NumPy's files know no bfloat16 and the like: their elements come back as raw bytes
    raw = {name for name, a in files.items() if name in types and isinstance(a, np.ndarray) and a.dtype.kind == "V"}
    return {name: a.view(types[name]) if name in raw else a for name, a in files.items()}


def _read(path: str, name: str) -> Any:
    found = _load(path)
    if not isinstance(found, dict) or path.endswith(".json"):
        return found
    if name in found or len(found) == 1:
        return found[name] if name in found else next(iter(found.values()))
    raise InputError(f"'{path}' holds no array '{name}'", hint=f"it holds {', '.join(found)}")


def _load(path: str) -> Any:
    """The array of an .npy file, the arrays of an .npz file by name, or the value of a .json file."""
    try:
        if path.endswith(".json"):
            return json.loads(Path(path).read_text(encoding="utf-8"))
        found = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return found
        with found:
            return {name: found[name] for name in found.files}
    except OSError as error:
        raise InputError(f"'{path}' cannot be opened: {error.strerror or error}") from None
    except (ValueError, EOFError, zipfile.BadZipFile):
        kind, hint = (
            ("JSON", "check the file") if path.endswith(".json") else ("NumPy file of numbers", "write it with np.save or np.savez")
        )
        raise InputError(f"'{path}' is no {kind}", hint=hint) from None


def complete_inputs(opened: Opened, given: Mapping[str, Any], dims: Mapping[str, int], seed: int) -> dict[str, Any]:
    """The given inputs, and random ones for those not given, of sizes that fit the given ones. Raises InputError as running does, and for
    values that nobody can draw."""
    executable = opened.executable
    unknown = [name for name in given if name not in {spec.name for spec in executable.inputs}]
    if unknown:
        names = ", ".join(spec.name for spec in executable.inputs)
        raise InputError(f"the model has no input '{unknown[0]}'", hint=f"its inputs are {names}")
    if isinstance(executable, Program):
        return {**draw_values(executable, given, dims, hints_of(opened.artifact), seed), **given}
    known = [spec for spec in executable.inputs if spec.name in given]
    implied = solve_sizes([as_array(given[spec.name], spec) for spec in known], known, executable.sizes)
    for name, value in dims.items():
        if implied.get(size_name(name), value) != value:
            raise InputError(f"dim '{name}' is to be {value}, but the inputs given say {implied[size_name(name)]}")
    sizes = chosen_sizes(executable, {**dims, **implied})
    return {**example_inputs(executable.inputs, opened.artifact, sizes, seed), **given}
