"""Random inputs that make sense to a model: token ids below the size of its vocabulary, masks that start with ones."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from tilewright.runtime.specs import Array, SizeSpec, TensorSpec
from tilewright.support.errors import MemoryLimitError

EXAMPLE_KEY = "example."
"""Prefix of the metadata keys of a model that say what a meaningful example of an input is; see `ExampleKind`."""

BATCH = 1  # typical size of a symbolic first axis
OTHER = 64  # typical size of the other symbolic axes

ExampleKind: TypeAlias = Literal["normal", "integers", "prefix_mask"]
"""normal: N(0, 1). integers: uniform in [0, high). prefix_mask: in each row ones, then zeros."""


@dataclass(frozen=True, slots=True)
class Example:
    """How to draw a meaningful example of a model input; `high` is the exclusive bound of `integers`."""

    kind: ExampleKind = "normal"
    high: int = 2

    def to_json(self) -> str:
        return json.dumps({"kind": self.kind, "high": self.high})


def hints_in(metadata: Mapping[str, str]) -> dict[str, Example]:
    """What a model's metadata says of its inputs, by input; entries that are not understood are left out."""
    found: dict[str, Example] = {}
    for key, text in metadata.items():
        if key.startswith(EXAMPLE_KEY):
            try:
                found[key.removeprefix(EXAMPLE_KEY)] = Example(**json.loads(text))
            except (ValueError, TypeError):
                continue
    return found


def draw(generator: np.random.Generator, shape: tuple[int, ...], example: Example) -> Array:
    """One random tensor of the example's kind."""
    if example.kind == "normal":
        return generator.standard_normal(shape, dtype=np.float32)
    if example.kind == "integers":
        return generator.integers(0, example.high, shape)
    *rows, width = shape
    lengths = generator.integers((width + 1) // 2, width + 1, (*rows, 1))
    return np.less(np.arange(width), lengths)


def typical_sizes(specs: Sequence[TensorSpec], sizes: Sequence[SizeSpec]) -> dict[str, int]:
    """A value for each symbolic dim of the inputs: BATCH for those that are a first axis, OTHER for the rest, or the nearest in range."""
    axes: dict[str, int] = {}
    for spec in specs:
        for axis, dim in enumerate(spec.shape):
            for name in dim.names:
                axes[name] = min(axis, axes.get(name, axis))
    ranges = {size.name: size for size in sizes}
    return {name: nearest(ranges.get(name, SizeSpec(name, 0, None)), BATCH if axis == 0 else OTHER) for name, axis in axes.items()}


def nearest(size: SizeSpec, wished: int) -> int:
    """The size nearest to `wished` that the range allows; at least 1."""
    low = max(1, size.lo or 0)
    value = max(low, wished if size.hi is None else min(wished, size.hi))
    return max(value // size.multiple, -(-low // size.multiple)) * size.multiple


def draw_inputs(specs: Sequence[TensorSpec], sizes: Mapping[str, int], hints: Mapping[str, Example], seed: int) -> dict[str, Array]:
    """Random arrays for inputs, the same for the same seed. Without a hint floats are N(0, 1), integers and booleans 0 or 1. Raises
    MemoryLimitError for arrays past all bounds."""
    for spec in specs:
        needed = math.prod(spec.shape_at(sizes)) * spec.dtype.itemsize
        if needed > sys.maxsize:
            raise MemoryLimitError(f"the input '{spec.name}' would have {needed:,} bytes", hint="use smaller dims")
    generator = np.random.default_rng(seed)
    inputs: dict[str, Array] = {}
    for spec in specs:
        plain_integers = np.issubdtype(spec.dtype, np.integer) or spec.dtype.kind == "b"
        example = hints.get(spec.name) or Example("integers" if plain_integers else "normal")
        values: Any = draw(generator, tuple(dim(sizes) for dim in spec.shape), example)
        inputs[spec.name] = values.astype(spec.dtype)
    return inputs
