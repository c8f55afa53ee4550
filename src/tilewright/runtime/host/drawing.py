"""Random inputs of programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.runtime.examples import Example, draw_inputs, typical_sizes
from tilewright.runtime.formula import Formula, size_name
from tilewright.runtime.host.kinds import ValueSpec
from tilewright.runtime.program import Program
from tilewright.runtime.specs import Array, SizeSpec, TensorSpec, numpy_dtype
from tilewright.support.errors import InputError


def draw_values(
    program: Program, given: Mapping[str, Any], dims: Mapping[str, int], hints: Mapping[str, Example], seed: int
) -> dict[str, Array]:
    """Random values of the inputs that are not given, tensors of numbers. dims: sizes of symbolic dims by name; others are those of the
    inputs that are given, or typical of their ranges. Raises InputError for values that nobody can draw, and where a given input has
    another size than `dims`."""
    implied = implied_sizes(program.inputs, given)
    for name, value in dims.items():
        if implied.get(name, value) != value:
            raise InputError(f"dim '{name}' is to be {value}, but the inputs given say {implied[name]}")
    specs: list[TensorSpec] = []
    for spec in program.inputs:
        if spec.name in given:
            continue
        if spec.tensor in (None, "string") or spec.shape is None:
            hint = f"--input {spec.name}=FILE.npy with an array, or FILE.json"
            raise InputError(f"input '{spec.name}' cannot be drawn at random, it must be given", where=repr(spec), hint=hint)
        shape = tuple(Formula(dim if dim.isdecimal() else size_name(dim)) for dim in spec.shape)
        specs.append(TensorSpec(spec.name, numpy_dtype(spec.tensor or ""), shape))
    names = dict.fromkeys(name for spec in specs for dim in spec.shape for name in dim.names)
    ranges = {size_name(size.name): size for size in program.ranges}
    sizes = [replace(ranges[name], name=name) if name in ranges else SizeSpec(name, 0, None) for name in names]
    typical = typical_sizes(specs, sizes)
    return draw_inputs(specs, {**typical, **{size_name(name): value for name, value in {**implied, **dims}.items()}}, hints, seed)


def implied_sizes(specs: Sequence[ValueSpec], given: Mapping[str, Any]) -> dict[str, int]:
    """Sizes of symbolic dims by name, as given tensors have them. What disagrees or is no tensor is left to the call, which says so."""
    found: dict[str, int] = {}
    for spec in specs:
        if spec.name not in given or spec.tensor is None:
            continue
        value = given[spec.name]
        try:
            shape = np.shape(value if hasattr(value, "shape") else np.asarray(value, object))
        except ValueError:  # arrays that are no rows of one
            continue
        if len(shape) == len(spec.shape or ()):
            found |= {dim: extent for dim, extent in zip(spec.shape or (), shape, strict=True) if not dim.isdecimal() and dim not in found}
    return found
