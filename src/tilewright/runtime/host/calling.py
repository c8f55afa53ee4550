"""What all host operators share: how they are called, and what a tensor of strings is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Attributes: TypeAlias = Mapping[str, Any]  # ONNX attributes as plain data; tensors are arrays
Operator: TypeAlias = Callable[[Sequence[Any], Attributes], Any]  # inputs (None where left out), attributes -> result, or a tuple of them
Table: TypeAlias = dict[tuple[str, str], Operator]  # (domain, operator)

STRINGS = np.dtype(object)  # a tensor of strings is an array of `str` objects


def strings(texts: Iterable[str], shape: Sequence[int]) -> Array:
    """A tensor of strings."""
    flat = list(texts)
    result = np.empty(len(flat), STRINGS)
    result[:] = flat
    return result.reshape(tuple(shape))


def each(function: Callable[[Any], Any], x: Array, dtype: Any = STRINGS) -> Array:
    """`function` of every element."""
    flat = [function(item) for item in x.reshape(-1).tolist()]
    return strings(flat, x.shape) if dtype is STRINGS else np.asarray(flat, dtype).reshape(x.shape)


def is_strings(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype == STRINGS
