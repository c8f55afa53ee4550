"""What a host program does, step by step: data that stands in a manifest.

A step reads and defines values by name, and a body sees the names around it. Parts are compiled models, called by number; everything
else is an operator of `table.py`, or control over bodies.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tilewright.runtime.host.calling import STRINGS, Array, strings
from tilewright.support.errors import ArtifactError

Names: TypeAlias = tuple[str, ...]  # "" where an input is left out or an output is not wanted


@dataclass(frozen=True, slots=True)
class Part:
    """Call compiled part `number`."""

    number: int
    inputs: Names
    outputs: Names


@dataclass(frozen=True, slots=True)
class Apply:
    """Apply an operator of the table. `where`: the node of the model."""

    domain: str
    operator: str
    attributes: Mapping[str, Any]
    inputs: Names
    outputs: Names
    where: str = ""


@dataclass(frozen=True, slots=True)
class Literal:
    """Define a constant."""

    value: Array
    outputs: Names


@dataclass(frozen=True, slots=True)
class Body:
    """Steps over `params` and the names around them, to `results`."""

    params: Names
    steps: tuple[Step, ...]
    results: Names


@dataclass(frozen=True, slots=True)
class Branch:
    """`then` or `otherwise`, by a bool."""

    condition: str
    then: Body
    otherwise: Body
    outputs: Names


@dataclass(frozen=True, slots=True)
class Repeat:
    """ONNX's Loop: at most `trips` times ("" for no limit), while `condition` ("" for always) and what the body says hold. The body takes
    number, condition, carried values; it gives condition, carried values, and `outputs` past these are stacked over all rounds.
    `empty`: dtype and shape of each stacked one, for no rounds at all."""

    trips: str
    condition: str
    carried: Names
    body: Body
    outputs: Names
    empty: tuple[tuple[str, tuple[int, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Over:
    """ONNX's SequenceMap: the body for each element of the first sequence; others that are sequences go along with it."""

    inputs: Names
    body: Body
    outputs: Names


Step: TypeAlias = Part | Apply | Literal | Branch | Repeat | Over
KINDS: dict[str, Any] = {kind.__name__: kind for kind in (Part, Apply, Literal, Body, Branch, Repeat, Over)}


def to_data(value: Any) -> Any:
    """Steps as plain data: dataclasses as {"": name, field: ...}, arrays as {"": "array", ...}."""
    if type(value).__name__ in KINDS:
        fields = {name: to_data(getattr(value, name)) for name in value.__dataclass_fields__}
        return {"": type(value).__name__, **fields}
    if isinstance(value, np.ndarray):
        if value.dtype == STRINGS:
            return {"": "array", "shape": list(value.shape), "strings": value.reshape(-1).tolist()}
        content = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"": "array", "shape": list(value.shape), "dtype": value.dtype.str, "base64": content}
    if isinstance(value, Mapping):
        return {name: to_data(item) for name, item in value.items()}
    return [to_data(item) for item in value] if isinstance(value, (list, tuple)) else value


def from_data(data: Any) -> Any:
    """What `to_data` wrote. Raises ArtifactError for anything else."""
    try:
        return _from_data(data)
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError("the artifact's host program is malformed", why=f"{type(error).__name__}: {error}") from None


def _from_data(data: Any) -> Any:
    if isinstance(data, list):
        return tuple(_from_data(item) for item in data)
    if not isinstance(data, dict):
        return data
    kind = data.get("")
    if kind is None:
        return {name: _from_data(item) for name, item in data.items()}
    if kind == "array":
        if "strings" in data:
            return strings(data["strings"], data["shape"])
        return np.frombuffer(base64.b64decode(data["base64"]), np.dtype(data["dtype"])).reshape(data["shape"])
    return KINDS[kind](**{name: _from_data(item) for name, item in data.items() if name != ""})


def walk(steps: Sequence[Step]) -> list[Step]:
    """The steps, and those of all bodies."""
    found: list[Step] = []
    for step in steps:
        found.append(step)
        bodies = {Branch: ("then", "otherwise"), Repeat: ("body",), Over: ("body",)}.get(type(step), ())
        for name in bodies:
            found.extend(walk(getattr(step, name).steps))
    return found
