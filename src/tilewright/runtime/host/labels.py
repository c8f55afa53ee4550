"""Encoders between strings and numbers, and maps (ai.onnx.ml)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.runtime.host.calling import STRINGS, Array, Attributes, Table, each, is_strings, strings
from tilewright.support.errors import InputError

KINDS = {"strings": STRINGS, "int64s": np.dtype(np.int64), "floats": np.dtype(np.float32)}  # how attributes' names end
DEFAULTS: Mapping[str, Any] = {"strings": "_Unused", "int64s": -1, "floats": -0.0}


def label_encoder(inputs: Sequence[Any], attributes: Attributes) -> Array:
    """Keys to values; what is no key becomes the default. All three ways in which versions of the operator give the pairs."""
    x = inputs[0]
    if "classes_strings" in attributes:  # version 1: to the place among the classes, or back
        classes = attributes["classes_strings"]
        if is_strings(x):
            places = {text: at for at, text in enumerate(classes)}
            return each(lambda text: places.get(text, attributes.get("default_int64", -1)), x, np.int64)
        unknown = attributes.get("default_string", "_Unused")
        return each(lambda at: classes[at] if 0 <= at < len(classes) else unknown, x)
    keys, _ = _table("keys", attributes)
    values, kind = _table("values", attributes)
    if "default_tensor" in attributes:
        default = attributes["default_tensor"].reshape(-1)[0]
    else:
        default = attributes.get(f"default_{kind.removesuffix('s')}", DEFAULTS.get(kind, 0))
    pairs = dict(zip(map(_key, keys), values, strict=True))
    dtype = KINDS.get(kind) or attributes["values_tensor"].dtype
    return each(lambda key: pairs.get(_key(key), default), x, STRINGS if dtype == STRINGS else dtype)


def _table(name: str, attributes: Attributes) -> tuple[list[Any], str]:
    for kind in KINDS:
        if f"{name}_{kind}" in attributes:
            return list(attributes[f"{name}_{kind}"]), kind
    return attributes[f"{name}_tensor"].reshape(-1).tolist(), "tensor"


def _key(value: Any) -> Any:
    """NaNs are one key."""
    return "nan" if isinstance(value, float) and value != value else value


def class_labels(inputs: Sequence[Any], attributes: Attributes) -> Array:
    """Numbers of classes to their names."""
    names = attributes["names"]
    return each(lambda number: names[number], inputs[0])


def category_mapper(inputs: Sequence[Any], attributes: Attributes) -> Array:
    texts, numbers = attributes["cats_strings"], attributes["cats_int64s"]
    if is_strings(inputs[0]):
        to_number = dict(zip(texts, numbers, strict=True))
        return each(lambda text: to_number.get(text, attributes.get("default_int64", -1)), inputs[0], np.int64)
    to_text = dict(zip(numbers, texts, strict=True))
    return each(lambda number: to_text.get(number, attributes.get("default_string", "_Unused")), inputs[0])


def one_hot(inputs: Sequence[Any], attributes: Attributes) -> Array:
    x, categories = inputs[0], attributes["cats_strings"]
    hot = np.asarray([[text == category for category in categories] for text in x.reshape(-1).tolist()], np.float32)
    if not attributes.get("zeros", 1) and not hot.any(axis=1).all():
        raise InputError("OneHotEncoder: an element is none of the categories, and zeros=0 does not allow that")
    return hot.reshape((*x.shape, len(categories)))


def zip_map(inputs: Sequence[Any], attributes: Attributes) -> list[dict[Any, float]]:
    """Rows [N, C], or one row [C], as maps from label to number."""
    labels = attributes.get("classlabels_strings") or attributes.get("classlabels_int64s") or []
    x = inputs[0]
    if x.shape[-1] != len(labels):
        raise InputError(f"ZipMap: rows of {x.shape[-1]} numbers for {len(labels)} labels")
    return [dict(zip(labels, row, strict=True)) for row in x.reshape(-1, len(labels)).tolist()]


def cast_map(inputs: Sequence[Any], attributes: Attributes) -> Array:
    """The values of a map from integers in the order of its keys, [1, N]; SPARSE: at their keys, with zeros between."""
    found = dict(sorted(inputs[0].items()))
    to = attributes.get("cast_to", "TO_FLOAT")
    dtype: Any = {"TO_FLOAT": np.float32, "TO_INT64": np.int64}.get(to, STRINGS)
    readers: dict[str, Callable[[Any], Any]] = {"TO_FLOAT": float, "TO_INT64": _integer}
    read = readers.get(to, str)
    if attributes.get("map_form", "DENSE") == "DENSE":
        row = [read(value) for value in found.values()]
    else:
        length = attributes.get("max_map", 1)
        row = [read(found[key]) if key in found else read(0) if dtype is not STRINGS else "" for key in range(length)]
    return strings(row, (1, len(row))) if dtype is STRINGS else np.asarray(row, dtype).reshape(1, -1)


def _integer(value: Any) -> int:
    return int(float(value))


def dict_vectorizer(inputs: Sequence[Any], attributes: Attributes) -> Array:
    """The values of a map in the order of a vocabulary, [1, N]; zeros, or empty strings, for keys that it lacks."""
    vocabulary = attributes.get("string_vocabulary") or attributes.get("int64_vocabulary") or []
    values = list(inputs[0].values())
    if any(isinstance(value, str) for value in values):
        return strings([inputs[0].get(key, "") for key in vocabulary], (1, len(vocabulary)))
    dtype: Any = np.int64 if values and all(isinstance(value, (int, np.integer)) for value in values) else np.float32
    if any(isinstance(value, np.float64) for value in values):
        dtype = np.float64
    return np.asarray([[inputs[0].get(key, 0) for key in vocabulary]], dtype)


OPERATORS: Table = {
    ("ai.onnx.ml", "LabelEncoder"): label_encoder,
    ("ai.onnx.ml", "CategoryMapper"): category_mapper,
    ("ai.onnx.ml", "OneHotEncoder"): one_hot,
    ("ai.onnx.ml", "ZipMap"): zip_map,
    ("ai.onnx.ml", "CastMap"): cast_map,
    ("ai.onnx.ml", "DictVectorizer"): dict_vectorizer,
    ("tilewright", "ClassLabels"): class_labels,
}
