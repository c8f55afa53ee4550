"""Programs: models with strings, sequences, optionals and maps, through the public interface; onnxruntime is the oracle where it can be."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tilewright.runtime.host.drawing import draw_values
from tilewright.runtime.host.steps import KINDS, from_data, to_data
from tilewright.runtime.program import Program
from tilewright.support.errors import ArtifactError, InputError, ModelError, ScheduleError, SettingsError, UnsupportedOperatorError

ML = "ai.onnx.ml"
STRING, FLOAT, INT64, BOOL = TensorProto.STRING, TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def model_of(
    nodes: Sequence[onnx.NodeProto], inputs: Sequence[Any], outputs: Sequence[Any], constants: Mapping[str, Any] | None = None
) -> onnx.ModelProto:
    initializers = [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(nodes, "values", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(ML, 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def tensor(name: str, code: int, *dims: int | str | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, code, dims)


def sequence(name: str, code: int, *dims: int | str | None) -> onnx.ValueInfoProto:
    return helper.make_value_info(name, helper.make_sequence_type_proto(helper.make_tensor_type_proto(code, dims)))


def strings(*texts: str) -> np.ndarray:
    return np.asarray(texts, dtype=object)


def compiled(model: onnx.ModelProto) -> Program:
    exe = tw.compile(model, cache=False, progress="none", threads=1)
    assert isinstance(exe, Program)
    return exe


def as_onnxruntime(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return list(
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, dict(inputs))
    )


def assert_same(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, (list, tuple)):
        assert isinstance(ours, list)
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert_same(a, b)
    elif isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            assert_same(ours[key], value)
    elif isinstance(theirs, np.ndarray) and theirs.dtype.kind in "OU":
        assert ours.shape == theirs.shape
        assert ours.reshape(-1).tolist() == theirs.reshape(-1).tolist()
    else:
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def text_classifier() -> onnx.ModelProto:
    """Names of cities to one-hot features, a linear classifier with string labels, and its scores as maps."""
    nodes = [
        helper.make_node("OneHotEncoder", ["city"], ["hot"], domain=ML, cats_strings=["rome", "oslo", "lima"], zeros=1),
        helper.make_node("Reshape", ["hot", "rows"], ["features"]),
        helper.make_node(
            "LinearClassifier", ["features"], ["label", "scores"], "classify", domain=ML, classlabels_strings=["warm", "cold"],
            coefficients=[1.0, -1.0, 0.5, -1.0, 1.0, -0.5], intercepts=[0.1, -0.1], post_transform="SOFTMAX", multi_class=0,
        ),
        helper.make_node("ZipMap", ["scores"], ["maps"], domain=ML, classlabels_strings=["warm", "cold"]),
    ]  # fmt: skip
    maps = helper.make_sequence_type_proto(
        onnx.TypeProto(map_type=onnx.TypeProto.Map(key_type=STRING, value_type=helper.make_tensor_type_proto(FLOAT, [])))
    )
    outputs = [tensor("label", STRING, "n"), helper.make_value_info("maps", maps)]
    return model_of(nodes, [tensor("city", STRING, "n", 1)], outputs, {"rows": np.asarray([-1, 3])})


def test_a_pipeline_from_strings_to_labels_and_maps() -> None:
    model = text_classifier()
    city = strings("lima", "oslo", "nowhere", "rome").reshape(4, 1)
    exe = compiled(model)
    assert len(exe.parts) == 1
    for ours, theirs in zip(exe(city), as_onnxruntime(model, {"city": city}), strict=True):
        assert_same(ours, theirs)
    assert repr(exe) == "<Program (city: string[n, 1]) -> (label: string[n], maps: seq(map(string, tensor(float32))))>"


def test_arguments_in_every_form_of_strings() -> None:
    exe = compiled(text_classifier())
    wanted = ["warm", "cold"]
    for city in (np.asarray([["lima"], ["oslo"]]), strings("lima", "oslo").reshape(2, 1), [["lima"], ["oslo"]]):
        assert exe(city)[0].tolist() == wanted
    assert exe(city=np.empty((0, 1), object))[0].shape == (0,)


@pytest.mark.parametrize(
    ("city", "said"),
    [
        (np.zeros((2, 1), np.float32), "dtype float32, the model needs strings"),
        (np.asarray([["a"], [3]], object), "holds 3, the model needs strings"),
        (np.asarray([["a"], [None]], object), "holds None, the model needs strings"),
        ([["a"], ["b", "c"]], "a list whose rows differ in length"),
        (strings("a", "b"), "shape [2], the model needs 2 dims"),
        ([["a", "b"]], "shape [1, 2]: dim 1 must be 1"),
    ],
)
def test_arguments_that_are_no_strings(city: Any, said: str) -> None:
    with pytest.raises(InputError, match="input 'city'") as caught:
        compiled(text_classifier())(city)
    assert said in str(caught.value)


def test_names_of_arguments() -> None:
    exe = compiled(text_classifier())
    for call, said in (
        (lambda: exe(), "input 'city' is missing"),
        (lambda: exe.run({"city": strings("a").reshape(1, 1), "town": 1}), "no input 'town'"),
        (lambda: exe([["a"]], [["b"]]), "2 arguments are passed"),
        (lambda: exe([["a"]], city=[["b"]]), "passed twice"),
        (lambda: exe.run([["a"]]), "takes a mapping"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InputError, match=said):
            call()
    with pytest.raises(TypeError, match="save"):
        pickle.dumps(exe)


def test_an_artifact_holds_the_whole_program(tmp_path: Path) -> None:
    exe = compiled(text_classifier())
    exe.save(tmp_path / "text.tw")
    again = tw.load(tmp_path / "text.tw", verify=True)
    city = [["oslo"], ["rome"]]
    assert isinstance(again, Program)
    assert_same(list(again(city)), list(exe(city)))
    for wrong in ({"max_memory": -1}, {"threads": 0}):
        with pytest.raises(SettingsError):
            tw.load(tmp_path / "text.tw", **wrong)
    assert again.memory()["weights"] == sum(part.artifact.weights.nbytes for part in again.parts)
    damaged = bytearray((tmp_path / "text.tw").read_bytes())
    at = damaged.index(b"\x7fELF") + 200
    damaged[at] ^= 0xFF
    (tmp_path / "bad.tw").write_bytes(damaged)
    with pytest.raises(ArtifactError, match="does not match its hash"):
        tw.load(tmp_path / "bad.tw")


def test_two_builds_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        compiled(text_classifier()).save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_cache_holds_programs(tmp_path: Path) -> None:
    onnx.save(text_classifier(), tmp_path / "m.onnx")
    first = tw.compile(tmp_path / "m.onnx", cache_dir=str(tmp_path / "cache"), progress="none")
    second = tw.compile(tmp_path / "m.onnx", cache_dir=str(tmp_path / "cache"), progress="none")
    assert isinstance(second, Program)
    assert_same(list(first([["oslo"]])), list(second([["oslo"]])))


def test_dims_of_one_name_are_one_size() -> None:
    text = """<ir_version: 9, opset_import: ["" : 20]>
        g (string[n] a, string[n] b, float[n] x) => (string[n] c, float[n] y) { c = StringConcat(a, b) y = Neg(x) }"""
    exe = compiled(onnx.parser.parse_model(text))
    assert exe(["a", "b"], ["c", "d"], [1.0, 2.0])[0].tolist() == ["ac", "bd"]
    for b, x, name in ((["c"], [1.0, 2.0], "b"), (["c", "d"], [1.0], "x")):
        with pytest.raises(InputError, match=f"dim 0 of input '{name}' is 1, but dim 0 of input 'a' says that n is 2"):
            exe(["a", "b"], b, x)


@pytest.mark.parametrize(("declared", "said"), [(2, "from 2 to 2"), ((1, 2), "from 1 to 2"), ("2..8:2", "from 2 to 8, a multiple of 2")])
def test_declared_ranges_hold_for_strings_too(declared: Any, said: str, tmp_path: Path) -> None:
    text = '<ir_version: 9, opset_import: ["" : 20]> g (string[n] a, string[m] b) => (string[n] c) { c = StringConcat(a, b) }'
    exe = tw.compile(onnx.parser.parse_model(text), dims={"n": declared}, cache=False, progress="none")
    exe.save(tmp_path / "strings.tw")
    for program in (exe, tw.load(tmp_path / "strings.tw")):
        assert program(["a", "b"], ["c"]).tolist() == ["ac", "bc"]
        with pytest.raises(InputError) as caught:
            program(["a", "b", "c"], ["d"])
        assert f"n is 3 (dim 0 of input 'a'), the model was compiled for {said}" in str(caught.value)


def test_words_of_texts_are_counted_and_weighed() -> None:
    """What converters make of text vectorisers: tokens on the host, of which ONNX does not know the shape, then products."""
    pool = ["good", "bad", "day", "good", "day"]
    grams = {
        "mode": "TF",
        "min_gram_length": 1,
        "max_gram_length": 2,
        "max_skip_count": 0,
        "ngram_counts": [0, 3],
        "ngram_indexes": [0, 1, 2, 3],
    }
    tokens = {"mark": 0, "pad_value": "#", "mincharnum": 2, "tokenexp": "[a-zA-Z0-9_]+"}
    weights = np.arange(8, dtype=np.float32).reshape(4, 2)
    graph = helper.make_graph(
        [
            helper.make_node("Tokenizer", ["x"], ["t"], domain="com.microsoft", **tokens),
            helper.make_node("TfIdfVectorizer", ["t"], ["v"], pool_strings=pool, **grams),
            helper.make_node("MatMul", ["v", "w"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.STRING, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    texts = np.array(["a good day, good day", "bad", "nothing here"], object)
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": texts})
    np.testing.assert_allclose(tw.compile(model, cache=False, progress="none")(texts), wanted)


def test_random_inputs_and_comparison_keep_to_declared_ranges() -> None:
    text = """<ir_version: 9, opset_import: ["" : 20]> g (string[2] a, float[n] x) => (string[2] b, float[n] y) {
        b = StringConcat(a, a) y = Exp(x) }"""
    model = onnx.parser.parse_model(text)
    given = {"a": np.array(["s", "t"], object)}
    assert tw.compare(model, given, dims={"n": "40..48:8"}).ok
    program = tw.compile(model, dims={"n": "40..48:8"}, cache=False, progress="none")
    drawn = draw_values(program, given, {}, {}, 0)["x"]
    assert len(drawn) in (40, 48)
    with pytest.raises(InputError, match="from 40 to 48"):
        tw.compare(model, given | {"x": np.zeros(7, np.float32)}, dims={"n": "40..48:8"})


def test_elements_of_sequences_are_taken_as_other_arguments() -> None:
    model = model_of(
        [helper.make_node("SequenceAt", ["s", "which"], ["y"])],
        [sequence("s", FLOAT, None), tensor("which", INT64)],
        [tensor("y", FLOAT, None)],
    )
    exe = compiled(model)
    np.testing.assert_array_equal(exe([[1.0, 2.0], [3.0]], 1), np.array([3], np.float32))
    with pytest.raises(InputError, match=r"input 's\[1\]' has dtype float64"):
        exe([np.zeros(1, np.float32), np.zeros(1)], 0)


def test_maps_are_taken_by_the_types_that_the_model_says() -> None:
    counts = helper.make_value_info("counts", helper.make_map_type_proto(STRING, helper.make_tensor_type_proto(FLOAT, [])))
    node = helper.make_node("DictVectorizer", ["counts"], ["y"], domain=ML, string_vocabulary=["a", "b"])
    exe = compiled(model_of([node], [counts], [tensor("y", FLOAT, 1, 2)]))
    for given in ({"a": 1}, {"a": 1.0}, {"a": np.float32(1)}, {"a": np.asarray(1, np.float32), "z": 2.0}):
        found = exe(given)
        assert (found.dtype, found.tolist()) == (np.float32, [[1, 0]])
    for wrong, said in (
        ({1: 1.0}, "has the key 1, the model needs keys of string"),
        ({"a": "x"}, "input 'counts['a']' is a str"),
        ({"a": None}, "input 'counts['a']' is a NoneType"),
        ({"a": [1.0, 2.0]}, "input 'counts['a']' has shape [2], the model needs 0 dims"),
        ({"a": np.float64(1)}, "input 'counts['a']' has dtype float64"),
    ):
        with pytest.raises(InputError) as caught:
            exe(wrong)
        assert said in str(caught.value)


def test_sequences_with_positions_known_only_while_running() -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x", "size"], ["parts"], axis=0),
        helper.make_node("SequenceAt", ["parts", "which"], ["part"]),
        helper.make_node("Mul", ["part", "part"], ["y"]),
    ]
    inputs = [tensor("x", FLOAT, "n", 3), tensor("size", INT64), tensor("which", INT64)]
    model = model_of(nodes, inputs, [tensor("y", FLOAT, None, 3)])
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    exe = compiled(model)
    for size, which in ((2, 0), (2, -1), (1, 3)):
        given = {"x": x, "size": np.asarray(size), "which": np.asarray(which)}
        assert_same(exe.run(given)["y"], as_onnxruntime(model, given)[0])
    assert tw.check(model).ok
    with pytest.raises(InputError, match="position 7 in a sequence of 3") as caught:
        exe(x, np.asarray(2), np.asarray(7))
    assert "SequenceAt" in str(caught.value.where)


def test_a_loop_that_grows_a_sequence_and_stacks_rows() -> None:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["on"]),
            helper.make_node("Cast", ["i"], ["f"], to=FLOAT),
            helper.make_node("Mul", ["f", "x"], ["row"]),
            helper.make_node("SequenceInsert", ["grown", "row"], ["longer"]),
        ],
        "body",
        [tensor("i", INT64), tensor("going", BOOL), sequence("grown", FLOAT, 2)],
        [tensor("on", BOOL), sequence("longer", FLOAT, 2), tensor("row", FLOAT, 2)],
    )
    nodes = [
        helper.make_node("SequenceEmpty", [], ["none"], dtype=FLOAT),
        helper.make_node("Loop", ["trips", "", "none"], ["all", "rows"], body=body),
        helper.make_node("SequenceLength", ["all"], ["count"]),
    ]
    outputs = [sequence("all", FLOAT, 2), tensor("rows", FLOAT, None, 2), tensor("count", INT64)]
    model = model_of(nodes, [tensor("trips", INT64), tensor("x", FLOAT, 2)], outputs)
    exe = compiled(model)
    x = np.asarray([1.0, -2.0], np.float32)
    for trips in (3, 1, 0):
        found = exe.run({"trips": np.asarray(trips), "x": x})
        assert found["rows"].shape == (trips, 2)
        assert int(found["count"]) == trips == len(found["all"])
        np.testing.assert_array_equal(found["rows"], np.arange(trips, dtype=np.float32)[:, None] * x)
        assert_same(found["all"], list(found["rows"]))


def test_a_branch_between_sequences() -> None:
    def branch(name: str, *operands: str) -> onnx.GraphProto:
        return helper.make_graph([helper.make_node("SequenceConstruct", list(operands), [name])], name, [], [sequence(name, FLOAT, None)])

    nodes = [helper.make_node("If", ["c"], ["s"], then_branch=branch("one", "x"), else_branch=branch("two", "x", "x"))]
    model = model_of(nodes, [tensor("c", BOOL), tensor("x", FLOAT, "n")], [sequence("s", FLOAT, None)])
    exe = compiled(model)
    x = np.ones(3, np.float32)
    assert [len(exe(np.asarray(c), x)) for c in (True, False)] == [1, 2]


@pytest.mark.parametrize("rank", ["known", "unknown"])
@pytest.mark.parametrize("swapped", [False, True])
def test_branches_of_which_one_leaves_a_size_open(swapped: bool, rank: str) -> None:
    """What follows takes the sizes of either."""
    fixed = helper.make_graph([helper.make_node("Constant", [], ["a"], value_floats=[1.0, 2.0])], "fixed", [], [tensor("a", FLOAT, 2)])
    zero = helper.make_node("Constant", [], ["zero"], value_int=0)
    open_ = helper.make_graph([zero, helper.make_node("SequenceAt", ["s", "zero"], ["b"])], "open", [], [tensor("b", FLOAT, None)])
    sides = (open_, fixed) if swapped else (fixed, open_)
    nodes = [
        helper.make_node("If", ["c"], ["y"], then_branch=sides[0], else_branch=sides[1]),
        helper.make_node("Exp", ["y"], ["z"]),
    ]
    given = sequence("s", FLOAT, None) if rank == "known" else helper.make_tensor_sequence_value_info("s", FLOAT, None)
    exe = compiled(model_of(nodes, [tensor("c", BOOL), given], [tensor("z", FLOAT, None)]))
    for n in (1, 2, 3):
        x = np.arange(n, dtype=np.float32)
        for taken in (False, True):
            wanted = x if taken == swapped else np.array([1, 2], np.float32)
            np.testing.assert_allclose(exe(np.asarray(taken), [x]), np.exp(wanted), rtol=1e-6)


@pytest.mark.parametrize(
    ("given", "taken", "said"),
    [
        ('""', "seq(float[N]) a", "input 2 of Loop is left out"),
        ("", "seq(float[N]) a", "'body' of Loop takes 3 values"),
        ("s, s", "seq(float[N]) a", "'body' of Loop takes 3 values"),
        ("s, s", "seq(float[N]) a, seq(float[N]) b", "'body' of Loop gives 2 values"),
    ],
)
def test_a_loop_over_sequences_whose_body_does_not_fit_is_refused(given: str, taken: str, said: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["": 17]> m (seq(float[N]) s, int64 n, bool c) => (seq(float[N]) t) {{
        t = Loop (n, c{", " if given else ""}{given}) <body = b (int64 i, bool g, {taken}) => (bool h, seq(float[N]) o) {{
            h = Identity (g)
            x = SequenceAt (a, i)
            o = SequenceInsert (a, x)
        }}>
    }}"""
    with pytest.raises(ModelError, match=said):
        tw.compile(onnx.parser.parse_model(text), progress="none")


def test_optionals_are_none_or_a_value() -> None:
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, [2]))
    model = model_of(
        [helper.make_node("OptionalHasElement", ["o"], ["there"])], [helper.make_value_info("o", kind)], [tensor("there", BOOL)]
    )
    exe = compiled(model)
    assert bool(exe(np.zeros(2, np.float32)))
    assert not bool(exe(None))


def test_dims_hold_for_the_parts() -> None:
    exe = tw.compile(text_classifier(), dims={"n": 2}, cache=False, progress="none")
    assert exe([["lima"], ["oslo"]])[0].tolist() == ["warm", "cold"]
    with pytest.raises(ModelError, match="no input has a dim named 'batch'"):
        tw.compile(text_classifier(), dims={"batch": 2}, cache=False, progress="none")


def test_what_neither_host_nor_compiler_takes() -> None:
    nodes = [helper.make_node("Unique", ["s"], ["u"], "unique")]
    model = model_of(nodes, [tensor("s", STRING, "n")], [tensor("u", STRING, None)])
    with pytest.raises(UnsupportedOperatorError, match=r"Unique of tensor\(string\)") as caught:
        tw.compile(model, cache=False)
    assert "unique" in str(caught.value.where)
    report = tw.check(model)
    assert not report.ok
    assert report.missing[0].operator == "Unique"
    assert tw.check(text_classifier()).ok
    with pytest.raises(ScheduleError, match="strings, sequences"):
        tw.compile(text_classifier(), schedule={"kernels": {}}, cache=False)


def test_check_collects_what_is_refused_on_both_sides() -> None:
    nodes = [
        helper.make_node("Unique", ["s"], ["u"], "unique"),
        helper.make_node("StringConcat", ["s", "s"], ["twice"], "concat"),
        helper.make_node("Unheard", ["x"], ["y"], "unheard", domain="custom"),
    ]
    outputs = [tensor("u", STRING, None), tensor("twice", STRING, "n"), tensor("y", FLOAT, "n")]
    model = model_of(nodes, [tensor("s", STRING, "n"), tensor("x", FLOAT, "n")], outputs)
    model.opset_import.append(helper.make_opsetid("custom", 1))
    assert {refusal.operator for refusal in tw.check(model).missing} == {"Unique", "Unheard"}


def test_steps_are_plain_data_and_come_back() -> None:
    body = from_data(json.loads(json.dumps(compiled(text_classifier()).manifest["program"])))
    assert to_data(body) == compiled(text_classifier()).manifest["program"]
    assert isinstance(body, KINDS["Body"])
    for wrong in ({"": "Nothing"}, {"": "Part", "number": 0}, {"": "array", "shape": [2]}):
        with pytest.raises(ArtifactError, match="malformed"):
            from_data(wrong)
