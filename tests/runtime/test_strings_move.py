"""Operators that move elements do with strings, on the host, what compiled code does with numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tilewright as tw
from tilewright.runtime.host.calling import strings
from tilewright.support.errors import InputError

Array = np.ndarray[Any, np.dtype[Any]]
X = np.arange(24).reshape(2, 3, 4)
ROW = np.arange(7)


def moved(
    operator: str, tensors: Sequence[Array], constants: Sequence[Any], attributes: Mapping[str, Any], results: int, text: bool
) -> Any:
    """The results of a model of one node, with each number as it is or as its text."""
    code = onnx.TensorProto.STRING if text else onnx.TensorProto.INT64
    names = [f"x{i}" for i in range(len(tensors))]
    given = [f"c{i}" for i in range(len(constants))]
    outputs = [f"y{i}" for i in range(results)]
    order = [*given[:1], *names] if operator == "Where" else [*names, *given]
    node = helper.make_node(operator, order, outputs, **attributes)
    infos = [helper.make_tensor_value_info(name, code, x.shape) for name, x in zip(names, tensors, strict=True)]
    result = onnx.TensorProto.INT64 if operator in ("Shape", "Size") else code
    graph = helper.make_graph(
        [node],
        "g",
        infos,
        [helper.make_tensor_value_info(name, result, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in zip(given, constants, strict=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    feeds = [strings([str(n) for n in x.reshape(-1)], x.shape) if text else x for x in tensors]
    found = tw.compile(model, progress="none", cache=False)(*feeds)
    return [found] if results == 1 else list(found)


@pytest.mark.parametrize(
    ("operator", "tensors", "constants", "attributes", "results"),
    [
        *(("Split", [ROW], [], {"num_outputs": n}, n) for n in (1, 2, 3, 7)),
        *(("Split", [X], [], {"num_outputs": n, "axis": axis}, n) for n, axis in ((2, 1), (3, -1), (2, 0))),
        ("Split", [ROW], [[1, 0, 6]], {}, 3),
        ("Split", [X], [[3, 1]], {"axis": -1}, 2),
        *(("Concat", [X, X[::-1]], [], {"axis": axis}, 1) for axis in (0, 1, -1)),
        *(("Transpose", [X], [], {"perm": perm}, 1) for perm in ([1, 2, 0], [2, 0, 1], [0, 2, 1])),
        ("Transpose", [X], [], {}, 1),
        *(("Gather", [X], [indices], {"axis": axis}, 1) for indices in (1, [-1, 0], [[0, 1], [1, -2]]) for axis in (0, 1, -1)),
        *(("GatherElements", [X], [np.array([[[-1, 0]], [[1, -2]]])], {"axis": axis}, 1) for axis in (0, 1, -1)),
        ("Slice", [X], [[1], [100], [-1], [2]], {}, 1),
        ("Slice", [X], [[-1, 2], [-100, -100], [0, 2], [-1, -2]], {}, 1),
        ("Slice", [X], [[0, -3], [2, -1]], {}, 1),
        ("Slice", [X], [[3], [1], [1]], {}, 1),
        ("Slice", [X], [[5], [-9], [2], [-3]], {}, 1),
        ("Reshape", [X], [[0, -1]], {}, 1),
        ("Reshape", [X], [[4, 0, -1]], {}, 1),
        ("Reshape", [X[:0]], [[0, 5]], {"allowzero": 1}, 1),
        *(("Flatten", [X], [], {"axis": axis}, 1) for axis in (0, 1, 2, 3, -1, -3)),
        ("Squeeze", [X[:1, :, :1]], [], {}, 1),
        ("Squeeze", [X[:1, :, :1]], [[-1]], {}, 1),
        ("Unsqueeze", [X], [[0, -1]], {}, 1),
        ("Unsqueeze", [X], [[1, 3]], {}, 1),
        ("Expand", [X[:, :1]], [[5, 1, 3, 1]], {}, 1),
        ("Expand", [X], [[3, 1]], {}, 1),
        ("Tile", [X], [[2, 1, 3]], {}, 1),
        ("Where", [X[:, :1], X[0]], [np.arange(4) % 2 == 0], {}, 1),
        ("Shape", [X], [], {"start": -2}, 1),
        ("Shape", [X], [], {"start": 1, "end": -1}, 1),
        ("Shape", [X], [], {"start": -9, "end": 9}, 1),
        ("Size", [X], [], {}, 1),
        ("Identity", [X], [], {}, 1),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_as_numbers(operator: str, tensors: list[Array], constants: list[Any], attributes: dict[str, Any], results: int) -> None:
    numbers, texts = (moved(operator, tensors, constants, attributes, results, text) for text in (False, True))
    for number, text in zip(numbers, texts, strict=True):
        assert np.shape(text) == np.shape(number)
        assert [str(n) for n in np.reshape(text, -1)] == [str(n) for n in np.reshape(number, -1)]


def test_more_parts_than_elements_are_refused():
    with pytest.raises(InputError, match="4 parts of 2 elements each are more than the 5 of axis 0"):
        moved("Split", [ROW[:5]], [], {"num_outputs": 4}, 4, True)
