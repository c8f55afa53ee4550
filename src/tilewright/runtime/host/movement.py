"""Operators that move or compare elements, for tensors of strings: NumPy's, since no arithmetic is done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.runtime.host.calling import Array, Attributes, Table
from tilewright.support.errors import InputError


def identity(inputs: Sequence[Any], attributes: Attributes) -> Any:
    return inputs[0]


def reshape(inputs: Sequence[Any], attributes: Attributes) -> Array:
    x = inputs[0]
    wanted = [int(dim) for dim in inputs[1]]
    if not attributes.get("allowzero", 0):
        wanted = [x.shape[i] if dim == 0 else dim for i, dim in enumerate(wanted)]
    return np.asarray(x.reshape(wanted))


def flatten(inputs: Sequence[Any], attributes: Attributes) -> Array:
    x, axis = inputs[0], attributes.get("axis", 1)
    axis += x.ndim if axis < 0 else 0
    return np.asarray(x.reshape(int(np.prod(x.shape[:axis], dtype=np.int64)), -1))


def _axes(inputs: Sequence[Any], attributes: Attributes) -> tuple[int, ...] | None:
    given = inputs[1] if len(inputs) > 1 and inputs[1] is not None else attributes.get("axes")
    return None if given is None else tuple(int(axis) for axis in given)


def squeeze(inputs: Sequence[Any], attributes: Attributes) -> Array:
    return np.asarray(np.squeeze(inputs[0], _axes(inputs, attributes)))


def unsqueeze(inputs: Sequence[Any], attributes: Attributes) -> Array:
    return np.expand_dims(inputs[0], _axes(inputs, attributes) or ())


def concat(inputs: Sequence[Any], attributes: Attributes) -> Array:
    return np.concatenate(list(inputs), axis=attributes["axis"])


def split(inputs: Sequence[Any], attributes: Attributes) -> tuple[Array, ...]:
    """Without sizes all parts but the last are equally large, and that is not larger."""
    x, axis = inputs[0], attributes.get("axis", 0)
    given = inputs[1] if len(inputs) > 1 and inputs[1] is not None else attributes.get("split")
    if given is None:
        count = attributes["num_outputs"]
        each = -(-x.shape[axis] // count)
        if each * (count - 1) > x.shape[axis]:
            raise InputError(f"Split: {count} parts of {each} elements each are more than the {x.shape[axis]} of axis {axis}")
        given = [*[each] * (count - 1), x.shape[axis] - each * (count - 1)]
    return tuple(np.split(x, np.cumsum([int(size) for size in given])[:-1], axis))


def transpose(inputs: Sequence[Any], attributes: Attributes) -> Array:
    return np.transpose(inputs[0], attributes.get("perm"))


def gather(inputs: Sequence[Any], attributes: Attributes) -> Array:
    return np.asarray(np.take(inputs[0], inputs[1], axis=attributes.get("axis", 0)))


def gather_elements(inputs: Sequence[Any], attributes: Attributes) -> Array:
    x, axis = inputs[0], attributes.get("axis", 0)
    places = np.where(inputs[1] < 0, inputs[1] + x.shape[axis], inputs[1])
    axis += x.ndim if axis < 0 else 0
    within = tuple(slice(None) if i == axis else slice(extent) for i, extent in enumerate(places.shape))
    return np.take_along_axis(x[within], places, axis)


def slice_(inputs: Sequence[Any], attributes: Attributes) -> Array:
    x, starts, ends = inputs[0], *(inputs[1:3] if len(inputs) > 1 else (attributes["starts"], attributes["ends"]))
    axes = inputs[3] if len(inputs) > 3 and inputs[3] is not None else attributes.get("axes", range(len(starts)))
    steps = inputs[4] if len(inputs) > 4 and inputs[4] is not None else [1] * len(starts)
    cut = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        begin, stop, by = int(start), int(end), int(step)
        cut[int(axis)] = slice(begin, None if by < 0 and stop < -x.shape[int(axis)] else stop, by)
    return np.asarray(x[tuple(cut)])


def expand(inputs: Sequence[Any], attributes: Attributes) -> Array:
    x, wanted = inputs[0], tuple(int(dim) for dim in inputs[1])
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, wanted)).copy()


def tile(inputs: Sequence[Any], attributes: Attributes) -> Array:
    return np.tile(inputs[0], [int(count) for count in inputs[1]])


def where(inputs: Sequence[Any], attributes: Attributes) -> Array:
    return np.asarray(np.where(inputs[0], inputs[1], inputs[2]))


def shape(inputs: Sequence[Any], attributes: Attributes) -> Array:
    dims = inputs[0].shape
    return np.asarray(dims[attributes.get("start", 0) : attributes.get("end", len(dims))], np.int64)


def size(inputs: Sequence[Any], attributes: Attributes) -> Array:
    return np.asarray(inputs[0].size, np.int64)


def equal(inputs: Sequence[Any], attributes: Attributes) -> Array:
    return np.asarray(inputs[0] == inputs[1], np.bool_)


def select_columns(inputs: Sequence[Any], attributes: Attributes) -> Array:
    """ArrayFeatureExtractor: columns of the last axis."""
    picked = np.take(inputs[0], np.asarray(inputs[1]).reshape(-1), axis=-1)
    return np.asarray(picked.reshape(1, -1) if inputs[0].ndim == 1 else picked)


OPERATORS: Table = {
    ("", "Identity"): identity,
    ("", "Reshape"): reshape,
    ("", "Flatten"): flatten,
    ("", "Squeeze"): squeeze,
    ("", "Unsqueeze"): unsqueeze,
    ("", "Concat"): concat,
    ("", "Split"): split,
    ("", "Transpose"): transpose,
    ("", "Gather"): gather,
    ("", "GatherElements"): gather_elements,
    ("", "Slice"): slice_,
    ("", "Expand"): expand,
    ("", "Tile"): tile,
    ("", "Where"): where,
    ("", "Shape"): shape,
    ("", "Size"): size,
    ("", "Equal"): equal,
    ("ai.onnx.ml", "ArrayFeatureExtractor"): select_columns,
}
