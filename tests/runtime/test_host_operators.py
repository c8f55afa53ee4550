"""Host operators one by one, against onnxruntime where it has them; the ONNX backend suite tests more of each."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from PIL import Image

from tilewright.runtime.host.calling import strings
from tilewright.runtime.host.table import OPERATORS
from tilewright.support.errors import InputError

ML = "ai.onnx.ml"
WORDS = strings(["b", "a", "c", "x"], (2, 2))
REALS = np.asarray([0.5, -3.25, 100.0, np.nan, np.inf, -np.inf], np.float32)
INTEGERS = np.asarray([[2, 1], [3, 9]])


def apply(domain: str, operator: str, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    return OPERATORS[domain, operator](inputs, attributes)


def by_onnxruntime(domain: str, operator: str, inputs: Sequence[np.ndarray], attributes: Mapping[str, Any], version: int) -> Any:
    names = [f"x{i}" for i in range(len(inputs))]
    node = helper.make_node(operator, names, ["y"], domain=domain, **attributes)
    codes = [onnx.TensorProto.STRING if x.dtype == object else helper.np_dtype_to_tensor_dtype(x.dtype) for x in inputs]
    infos = [helper.make_tensor_value_info(name, code, x.shape) for name, code, x in zip(names, codes, inputs, strict=True)]
    graph = helper.make_graph([node], "one", infos, [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", 18), *([helper.make_opsetid(domain, version)] if domain else [])]
    model = onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=opsets, ir_version=9))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, dict(zip(names, inputs, strict=True)))[0]


CASES: dict[str, tuple[str, str, Sequence[np.ndarray], dict[str, Any], int]] = {
    "classes to numbers": (ML, "LabelEncoder", [WORDS], {"classes_strings": ["a", "b", "c"], "default_int64": -7}, 1),
    "numbers to classes": (ML, "LabelEncoder", [INTEGERS], {"classes_strings": ["a", "b", "c", "d"], "default_string": "?"}, 1),
    "strings to numbers": (ML, "LabelEncoder", [WORDS], {"keys_strings": ["a", "b"], "values_int64s": [4, 5], "default_int64": -7}, 2),
    "strings to floats": (ML, "LabelEncoder", [WORDS], {"keys_strings": ["a", "b"], "values_floats": [0.5, 1.5], "default_float": 9.0}, 2),
    "numbers to strings": (ML, "LabelEncoder", [INTEGERS], {"keys_int64s": [1, 2], "values_strings": ["u", "v"]}, 2),
    "strings to strings": (ML, "LabelEncoder", [WORDS], {"keys_strings": ["a"], "values_strings": ["z"], "default_string": ""}, 2),
    "categories to numbers": (ML, "CategoryMapper", [WORDS], {"cats_strings": ["a", "b"], "cats_int64s": [4, 5]}, 1),
    "numbers to categories": (ML, "CategoryMapper", [INTEGERS], {"cats_strings": ["a", "b"], "cats_int64s": [1, 2]}, 1),
    "one hot": (ML, "OneHotEncoder", [WORDS], {"cats_strings": ["a", "b", "c"], "zeros": 1}, 1),
    "columns": (ML, "ArrayFeatureExtractor", [WORDS, np.asarray([1, 1, 0])], {}, 1),
    "strings to integers": ("", "Cast", [strings(["1", "-20"], (2,))], {"to": onnx.TensorProto.INT64}, 18),
    "strings to reals": ("", "Cast", [strings(["1.5", "-2e3", "nan", "inf"], (4,))], {"to": onnx.TensorProto.FLOAT}, 18),
    "integers to strings": ("", "Cast", [INTEGERS], {"to": onnx.TensorProto.STRING}, 18),
    "reals to strings": ("", "Cast", [REALS], {"to": onnx.TensorProto.STRING}, 18),
    "strings like reals": ("", "CastLike", [strings(["1.5", "-2e3", "nan"], (3,)), REALS], {}, 18),
    "reals like strings": ("", "CastLike", [REALS, WORDS], {}, 18),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_as_onnxruntime(case: str) -> None:
    domain, operator, inputs, attributes, version = CASES[case]
    theirs = by_onnxruntime(domain, operator, inputs, attributes, version)
    names = {onnx.TensorProto.INT64: "int64", onnx.TensorProto.FLOAT: "float32", onnx.TensorProto.STRING: "string"}
    given = {**attributes, **({"to": names[attributes["to"]]} if operator == "Cast" else {})}
    ours = apply(domain, operator, inputs, given)
    assert ours.shape == theirs.shape
    if theirs.dtype.kind in "OU":
        assert ours.reshape(-1).tolist() == [str(text) for text in theirs.reshape(-1)]
    else:
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("skip", [0, 1, 5])
@pytest.mark.parametrize("lengths", [(1, 1), (2, 2), (1, 2)])
@pytest.mark.parametrize("columns", [[0, 1, 2, 3, 4, 5, 6], [6, 2, 0, 5, 1, 4, 3], [9, 2, 0, 5, 1, 4, 7]])
def test_n_grams_as_onnxruntime(mode: str, skip: int, lengths: tuple[int, int], columns: list[int]) -> None:
    x = np.asarray([[1, 1, 3, 3, 3, 7], [8, 6, 7, 5, 6, 8]])
    attributes = {
        "mode": mode, "min_gram_length": lengths[0], "max_gram_length": lengths[1], "max_skip_count": skip, "ngram_counts": [0, 4],
        "ngram_indexes": columns, "pool_int64s": [2, 3, 5, 4, 5, 6, 7, 8, 6, 7],
        "weights": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
    }  # fmt: skip
    theirs = by_onnxruntime("", "TfIdfVectorizer", [x], attributes, 18)
    np.testing.assert_array_equal(apply("", "TfIdfVectorizer", [x], attributes), theirs)


def test_maps_become_rows() -> None:
    found = {"a": 1.5, "c": 2.5}
    row = apply(ML, "DictVectorizer", [found], {"string_vocabulary": ["c", "b", "a"]})
    np.testing.assert_array_equal(row, np.asarray([[2.5, 0.0, 1.5]], np.float32))
    assert apply(ML, "DictVectorizer", [{3: "x"}], {"int64_vocabulary": [1, 3]}).tolist() == [["", "x"]]
    assert apply(ML, "CastMap", [{2: 0.5, 0: 1.5}], {}).tolist() == [[1.5, 0.5]]
    assert apply(ML, "CastMap", [{2: 0.5, 0: 1.5}], {"map_form": "SPARSE", "max_map": 4}).tolist() == [[1.5, 0.0, 0.5, 0.0]]
    assert apply(ML, "CastMap", [{0: "7"}], {"cast_to": "TO_INT64"}).tolist() == [[7]]


def test_rows_become_maps() -> None:
    rows = np.asarray([[0.25, 0.75], [1.0, 0.0]], np.float32)
    assert apply(ML, "ZipMap", [rows], {"classlabels_int64s": [4, 9]}) == [{4: 0.25, 9: 0.75}, {4: 1.0, 9: 0.0}]
    with pytest.raises(InputError, match="2 numbers for 3 labels"):
        apply(ML, "ZipMap", [rows], {"classlabels_int64s": [4, 9, 1]})


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes", "wanted"),
    [
        ("Slice", [WORDS, [1], [-9], [1], [-1]], {}, [["a", "b"], ["x", "c"]]),
        ("Gather", [WORDS, np.asarray([1])], {"axis": 0}, [["c", "x"]]),
        ("GatherElements", [WORDS, np.asarray([[-1, 0]])], {"axis": 1}, [["a", "b"]]),
        ("Concat", [WORDS, WORDS], {"axis": 1}, [["b", "a", "b", "a"], ["c", "x", "c", "x"]]),
        ("Transpose", [WORDS], {}, [["b", "c"], ["a", "x"]]),
        ("Reshape", [WORDS, [0, -1, 1]], {}, [[["b"], ["a"]], [["c"], ["x"]]]),
        ("Unsqueeze", [WORDS, [0]], {}, [[["b", "a"], ["c", "x"]]]),
        ("Tile", [WORDS, [1, 2]], {}, [["b", "a", "b", "a"], ["c", "x", "c", "x"]]),
        ("Expand", [strings(["q"], (1,)), [2, 2]], {}, [["q", "q"], ["q", "q"]]),
        ("Where", [np.asarray([[True, False]] * 2), WORDS, strings(["-"], (1,))], {}, [["b", "-"], ["c", "-"]]),
        ("Equal", [WORDS, strings(["a"], (1,))], {}, [[False, True], [False, False]]),
        ("Shape", [WORDS], {"start": 1}, [2]),
        ("StringNormalizer", [WORDS.reshape(4)], {"stopwords": ["A"], "case_change_action": "UPPER"}, ["B", "C", "X"]),
        ("StringNormalizer", [WORDS.reshape(1, 4)], {"stopwords": ["A"], "is_case_sensitive": 1}, [["b", "a", "c", "x"]]),
        ("StringNormalizer", [strings(["a"], (1, 1))], {"stopwords": ["A"]}, [[""]]),
        ("Flatten", [WORDS], {"axis": 0}, [["b", "a", "c", "x"]]),
    ],
)
def test_strings_move(operator: str, inputs: Sequence[Any], attributes: Mapping[str, Any], wanted: Any) -> None:
    assert apply("", operator, inputs, attributes).tolist() == wanted


TEXTS = strings(["Hello World", "I love  computer science !", "don't", "", "ab1b22c abc"], (5,))


@pytest.mark.parametrize("mark", [0, 1])
@pytest.mark.parametrize(
    "how",
    [
        {"separators": [" "]}, {"separators": [" ", "'"], "mincharnum": 3}, {"separators": ["[0-9]+", r"\s"]}, {"separators": [""]},
        {"separators": ["o", "l+"]}, {"tokenexp": "."}, {"tokenexp": "[a-zA-Z0-9_]+", "mincharnum": 2}, {"tokenexp": "a|ab"},
        {"tokenexp": "[0-9]*"}, {"separators": ["b", "ab"]},
    ],
)  # fmt: skip
def test_tokens(how: dict[str, Any], mark: int) -> None:
    attributes = {"mark": mark, "pad_value": "#", "mincharnum": 1} | how
    for texts in (TEXTS, TEXTS[:4].reshape(2, 2), TEXTS[3:4], TEXTS[:0]):
        found = apply("com.microsoft", "Tokenizer", [texts], attributes)
        assert found.tolist() == by_onnxruntime("com.microsoft", "Tokenizer", [texts], attributes, 1).tolist()


def test_parts_of_strings() -> None:
    parts, counts = apply("", "StringSplit", [strings(["a,b", "", "c"], (3,))], {"delimiter": ","})
    assert parts.tolist() == [["a", "b"], ["", ""], ["c", ""]]
    assert counts.tolist() == [2, 1, 1]
    parts, counts = apply("", "StringSplit", [strings([" a  b c ", " d "], (2,))], {"maxsplit": 1})
    assert parts.tolist() == [["a", "b c"], ["d", ""]]
    assert counts.tolist() == [2, 1]
    assert apply("", "StringConcat", [WORDS, strings(["!"], ())], {}).tolist() == [["b!", "a!"], ["c!", "x!"]]
    assert apply("", "RegexFullMatch", [WORDS], {"pattern": "[ab]"}).tolist() == [[True, True], [False, False]]


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes", "said"),
    [
        ("RegexFullMatch", [WORDS], {"pattern": "("}, "not understood"),
        ("Cast", [strings(["one"], (1,))], {"to": "int64"}, "a string is no int64"),
        ("SequenceErase", [[], None], {}, "position -1 in a sequence of 0"),
        ("ConcatFromSequence", [[]], {"axis": 0}, "empty sequence"),
        ("OptionalGetElement", [None], {}, "without a value"),
        ("SplitToSequence", [np.zeros(4), np.asarray([1, 2])], {}, "make 3, axis 0 has 4"),
        ("SplitToSequence", [np.zeros(4), np.asarray(0)], {}, "parts of 0 elements"),
        ("ImageDecoder", [np.zeros(9, np.uint8)], {}, "no image"),
    ],
)
def test_what_values_do_not_allow(operator: str, inputs: Sequence[Any], attributes: Mapping[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        apply("", operator, inputs, attributes)


@pytest.mark.parametrize(("how", "said"), [({"tokenexp": "("}, "not understood"), ({}, "takes separators, or an expression")])
def test_tokens_of_no_known_kind(how: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        apply("com.microsoft", "Tokenizer", [WORDS], how)


def test_images_without_loss() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 4, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    coded = np.frombuffer(file.getvalue(), np.uint8)
    np.testing.assert_array_equal(apply("", "ImageDecoder", [coded], {}), pixels)
    np.testing.assert_array_equal(apply("", "ImageDecoder", [coded], {"pixel_format": "BGR"}), pixels[:, :, ::-1])
    assert apply("", "ImageDecoder", [coded], {"pixel_format": "Grayscale"}).shape == (5, 4, 1)
