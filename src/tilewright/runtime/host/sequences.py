"""Sequences, which are lists, and optionals, which are a value or None."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.runtime.host.calling import Array, Attributes, Table
from tilewright.support.errors import InputError


def construct(inputs: Sequence[Any], attributes: Attributes) -> list[Any]:
    return list(inputs)


def empty(inputs: Sequence[Any], attributes: Attributes) -> list[Any]:
    return []


def position(operator: str, items: Sequence[Any], given: Any, beyond: bool = False) -> int:
    """A place in a sequence, counted from the front; with `beyond` one past the end as well. Raises InputError outside of it."""
    place = int(np.asarray(given).reshape(-1)[0])
    place += len(items) if place < 0 else 0
    if not 0 <= place < len(items) + beyond:
        raise InputError(f"{operator}: position {place} in a sequence of {len(items)}")
    return place


def at(inputs: Sequence[Any], attributes: Attributes) -> Any:
    return inputs[0][position("SequenceAt", inputs[0], inputs[1])]


def insert(inputs: Sequence[Any], attributes: Attributes) -> list[Any]:
    items = inputs[0]
    place = len(items) if len(inputs) < 3 or inputs[2] is None else position("SequenceInsert", items, inputs[2], beyond=True)
    return [*items[:place], inputs[1], *items[place:]]


def erase(inputs: Sequence[Any], attributes: Attributes) -> list[Any]:
    items = inputs[0]
    place = position("SequenceErase", items, -1 if len(inputs) < 2 or inputs[1] is None else inputs[1])
    return [*items[:place], *items[place + 1 :]]


def length(inputs: Sequence[Any], attributes: Attributes) -> Array:
    return np.asarray(len(inputs[0]), np.int64)


def split(inputs: Sequence[Any], attributes: Attributes) -> list[Array]:
    """In parts of one size (the last may be smaller), of given sizes, or of one element each."""
    x, axis = inputs[0], attributes.get("axis", 0)
    given = inputs[1] if len(inputs) > 1 else None
    count = x.shape[axis]
    if given is not None and np.ndim(given) == 1:
        sizes = [int(size) for size in given]
        if sum(sizes) != count:
            raise InputError(f"SplitToSequence: parts of {sizes} make {sum(sizes)}, axis {axis} has {count}")
    else:
        each = 1 if given is None else int(given)
        if each <= 0:
            raise InputError(f"SplitToSequence: parts of {each} elements")
        sizes = [min(each, count - start) for start in range(0, count, each)]
    parts = np.split(x, np.cumsum(sizes)[:-1], axis) if sizes else []
    if given is None and not attributes.get("keepdims", 1):
        parts = [part.squeeze(axis) for part in parts]
    return [np.ascontiguousarray(part).reshape(part.shape) for part in parts]


def concat(inputs: Sequence[Any], attributes: Attributes) -> Array:
    if not inputs[0]:
        raise InputError("ConcatFromSequence of an empty sequence")
    join = np.stack if attributes.get("new_axis", 0) else np.concatenate
    return join(inputs[0], axis=attributes["axis"])


def optional(inputs: Sequence[Any], attributes: Attributes) -> Any:
    return inputs[0] if inputs else None


def has_element(inputs: Sequence[Any], attributes: Attributes) -> Array:
    return np.asarray(bool(inputs) and inputs[0] is not None)


def get_element(inputs: Sequence[Any], attributes: Attributes) -> Any:
    if inputs[0] is None:
        raise InputError("OptionalGetElement of an optional without a value")
    return inputs[0]


OPERATORS: Table = {
    ("", "SequenceConstruct"): construct,
    ("", "SequenceEmpty"): empty,
    ("", "SequenceAt"): at,
    ("", "SequenceInsert"): insert,
    ("", "SequenceErase"): erase,
    ("", "SequenceLength"): length,
    ("", "SplitToSequence"): split,
    ("", "ConcatFromSequence"): concat,
    ("", "Optional"): optional,
    ("", "OptionalHasElement"): has_element,
    ("", "OptionalGetElement"): get_element,
}
