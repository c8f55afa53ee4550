"""What a model declares where its operators leave the rank open."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import tilewright as tw
from tests.frontend.onnx.models import imported, parse
from tilewright.cli.app import app
from tilewright.graph.interpreter import interpret
from tilewright.ir.expr import size


def squeezed(output: str) -> tuple:
    body = "a = Squeeze(x) b = Sigmoid(a) two = Constant<value_float = 2.0>() y = Mul(b, two)"
    graph = f"m (float[n, 1, m] x) => (float[{output}] y) {{ {body} }}"
    graph = graph.replace("float[]", "float")
    return imported(parse(graph)).module


@pytest.mark.parametrize(("declared", "shape"), [("a, b", (size("n", 0), size("m", 0))), ("m", (size("m", 0),)), ("", ())])
def test_squeeze_without_axes_takes_the_declared_rank(declared: str, shape: tuple) -> None:
    assert squeezed(declared).main.results[0].shape == shape


def test_dims_taken_for_one_are_checked() -> None:
    main = squeezed("m").main
    (y,) = interpret(main, [np.zeros((1, 1, 3), np.float32)])
    assert y.tolist() == [1, 1, 1]
    with pytest.raises(Exception, match="refine_shape"):
        interpret(main, [np.zeros((2, 1, 3), np.float32)])


def test_dims_of_different_names_are_different_sizes() -> None:
    """Also where a name has to be changed to be an identifier, and is then that of another dim."""
    model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["" : 21]> m (float[a, b, c] x) => (float[a, b, c] y) { y = Neg(x) }')
    for value in (model.graph.input[0], model.graph.output[0]):
        for dim, name in zip(value.type.tensor_type.shape.dim, ("p.q", "p q", "p_q_1"), strict=True):
            dim.dim_param = name
    shape = imported(model).module.main.params[0].shape
    assert len(set(shape)) == 3


CONTRADICTIONS = {
    "a fixed dim": ("float[2, 3] x", "float[2, 4] y", r"'y' is declared to have the shape \[2, 4\], and is computed with \[2, 3\], by Exp"),
    "the rank": ("float[2, 3] x", "float[6] y", r"\[6\], and is computed with \[2, 3\]"),
    "a scalar": ("float[n] x", "float y", r"\[\], and is computed with \[n\]"),
    "beside a name": ("float[2, 3] x", "float[n, 1] y", r"\[n, 1\], and is computed with \[2, 3\]"),
    "beside a symbolic dim": ("float[n, 3] x", "float[2, 4] y", r"\[2, 4\], and is computed with \[n, 3\]"),
}


def exponential(x: str, y: str) -> onnx.ModelProto:
    return parse(f"m ({x}) => ({y}) {{ y = Exp(x) }}")


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_an_output_that_is_declared_in_another_shape_is_warned_of(case: str) -> None:
    x, y, said = CONTRADICTIONS[case]
    with pytest.warns(UserWarning, match=said):
        found = imported(exponential(x, y))
    assert found.module.main.results[0].shape == found.module.main.params[0].shape


@pytest.mark.parametrize(
    ("x", "y"), [("float[2, 3] x", "float[2, 3] y"), ("float[n, 3] x", "float[2, 3] y"), ("float[2, 3] x", "float[n, m] y")]
)
def test_what_may_fit_is_not(x: str, y: str) -> None:
    imported(exponential(x, y))  # warnings are errors here


def test_compilation_warns_and_goes_on() -> None:
    with pytest.warns(UserWarning, match="the output 'y' is declared"):
        exe = tw.compile(exponential("float[2, 3] x", "float[2, 4] y"), cache=False, progress="none")
    assert exe(np.zeros((2, 3), np.float32)).tolist() == [[1, 1, 1]] * 2


@pytest.mark.filterwarnings("default")
def test_the_command_warns_in_one_line(tmp_path: Path) -> None:
    onnx.save(exponential("float[2, 3] x", "float[2, 4] y"), tmp_path / "m.onnx")
    done = CliRunner().invoke(app, ["check", str(tmp_path / "m.onnx")])
    assert done.exit_code == 0
    assert done.stderr.count("warning: the output 'y' is declared to have the shape [2, 4]") == 1


@pytest.mark.parametrize(
    ("x", "y", "body", "shown", "said"),
    [
        ("string[4] x", "string[3] y", "y = Identity(x)", "y: string[4]", r"\[3\], and is computed with \[4\], by Identity node 'y'"),
        ("string[4] x", "string[2, 2] y", "y = Identity(x)", "y: string[4]", r"\[2, 2\], and is computed with \[4\]"),
        ("string[n, 4] x", "string[2, 3] y", "y = Identity(x)", "y: string[n, 4]", r"\[2, 3\], and is computed with \[n, 4\]"),
        ("string[4] x", "float[3] y", "a = Cast<to = 1>(x) y = Exp(a)", "y: float32[4]", r"\[3\], and is computed with \[4\], by Exp"),
        ("string[4] x", "string[m] y", "y = Identity(x)", "y: string[4]", None),
        ("string[n] x", "string[3] y", "y = Identity(x)", "y: string[n]", None),
        ("string[n] x", "string[m] y", "y = Identity(x)", "y: string[m]", None),
    ],
)
def test_outputs_of_host_programs_are_what_is_computed(x: str, y: str, body: str, shown: str, said: str | None) -> None:
    with pytest.warns(UserWarning, match=said) if said else nullcontext():
        exe = tw.compile(parse(f"m ({x}) => ({y}) {{ {body} }}"), cache=False, progress="none")
    assert [repr(output) for output in exe.outputs] == [shown]
