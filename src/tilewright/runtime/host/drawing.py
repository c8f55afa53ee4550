"""Random inputs of programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tilewright.runtime.examples import Example, draw_inputs, typical_sizes
from tilewright.runtime.formula import Formula, size_name
from tilewright.runtime.program import Program
from tilewright.runtime.specs import Array, SizeSpec, TensorSpec, numpy_dtype
from tilewright.support.errors import InputError


def draw_values(
    program: Program, given: Mapping[str, Any], dims: Mapping[str, int], hints: Mapping[str, Example], seed: int
) -> dict[str, Array]:
    """Random values of the inputs that are not given, tensors of numbers. dims: sizes of symbolic dims by name, others are typical of their
    ranges. Raises InputError for values that nobody can draw."""
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
    return draw_inputs(specs, {**typical, **{size_name(name): value for name, value in dims.items()}}, hints, seed)
