"""Recognition of composites in the ways in which exporters write them out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tilewright.graph.interpreter import interpret
from tilewright.graph.node import Function, walk_nodes
from tilewright.graph.text_parser import parse_function
from tilewright.transform.recognise import recognise_composites
from tilewright.transform.simplify import simplify_graph


def recognised(body: str, params: str = "x: float32[N, 6]") -> tuple[Function, Function]:
    """The function as written, and after simplification and recognition."""
    lines = "\n".join(f"    {line.strip()}" for line in body.strip().splitlines())
    before = parse_function(f"def main({params}):\n{lines}\n    return y\n")
    return before, recognise_composites(simplify_graph(before))


def operators(function: Function) -> list[str]:
    return [node.op.name for node in walk_nodes(function.results) if node.op.name not in ("parameter", "constant")]


def check_same(before: Function, after: Function) -> None:
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal([3 if not d.is_const else d.value for d in p.shape]).astype(np.float32) for p in before.params]
    for a, b in zip(interpret(before, inputs), interpret(after, inputs), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


def c(name: str, value: float) -> str:
    return f"{name} = constant({value!r}, float32[()])\n"


SQRT2, HALF = c("r", math.sqrt(2)), c("h", 0.5) + c("one", 1.0)
GATE = 'e = unary(a, fn="erf")\ng = binary(e, one, fn="add")\n'
GELU = {
    "x * 0.5 * (1 + erf(x / r))": SQRT2 + HALF + 'a = binary(x, r, fn="div")\n' + GATE
    + 'v = binary(x, h, fn="mul")\ny = binary(v, g, fn="mul")',
    "x * (0.5 * (1 + erf(x * s)))": c("s", math.sqrt(0.5)) + HALF + 'a = binary(x, s, fn="mul")\n' + GATE
    + 'v = binary(h, g, fn="mul")\ny = binary(x, v, fn="mul")',
    "(x * (1 + erf(x / r))) / 2": SQRT2 + HALF + c("two", 2.0) + 'a = binary(x, r, fn="div")\n' + GATE
    + 'v = binary(g, x, fn="mul")\ny = binary(v, two, fn="div")',
    "x * (0.5 * erf(x / r) + 0.5)": SQRT2 + HALF + 'a = binary(x, r, fn="div")\ne = unary(a, fn="erf")\n'
    + 'm = binary(e, h, fn="mul")\nv = binary(m, h, fn="add")\ny = binary(x, v, fn="mul")',
}  # fmt: skip
TANH_GATE = 't = unary(a, fn="tanh")\ng = binary(t, one, fn="add")\nv = binary(x, h, fn="mul")\ny = binary(v, g, fn="mul")'
TANH_GELU = {
    "s * (x + k x**3)": HALF + c("k", 0.044715) + c("s", math.sqrt(2 / math.pi)) + c("three", 3.0)
    + 'p = binary(x, three, fn="pow")\nq = binary(p, k, fn="mul")\nu = binary(x, q, fn="add")\na = binary(u, s, fn="mul")\n' + TANH_GATE,
    "s * x * (1 + k x * x)": HALF + c("k", 0.044715) + c("s", math.sqrt(2 / math.pi))
    + 'p = binary(x, x, fn="mul")\nq = binary(p, k, fn="mul")\nu = binary(q, one, fn="add")\nw = binary(x, s, fn="mul")\n'
    + 'a = binary(u, w, fn="mul")\n' + TANH_GATE,
}  # fmt: skip


@pytest.mark.parametrize("body", GELU.values(), ids=GELU.keys())
def test_gelu(body: str) -> None:
    before, after = recognised(body)
    assert operators(after) == ["gelu"]
    assert after.results[0].op.approximate is False  # type: ignore[attr-defined]
    check_same(before, after)


@pytest.mark.parametrize("body", TANH_GELU.values(), ids=TANH_GELU.keys())
def test_gelu_by_tanh(body: str) -> None:
    before, after = recognised(body)
    assert operators(after) == ["gelu"]
    assert after.results[0].op.approximate is True  # type: ignore[attr-defined]
    check_same(before, after)


def test_a_sigmoid_approximation_is_not_the_gelu() -> None:
    body = c("k", 1.702) + 'a = binary(x, k, fn="mul")\ns = unary(a, fn="sigmoid")\ny = binary(x, s, fn="mul")'
    assert "gelu" not in operators(recognised(body)[1])


def test_a_gelu_with_another_scale_is_not_the_gelu() -> None:
    body = c("r", 1.5) + HALF + 'a = binary(x, r, fn="div")\n' + GATE + 'v = binary(x, h, fn="mul")\ny = binary(v, g, fn="mul")'
    assert "gelu" not in operators(recognised(body)[1])


@pytest.mark.parametrize(
    "body",
    [
        c("t", 3.0) + c("z", 0.0) + c("s", 6.0)
        + 'a = binary(x, t, fn="add")\nb = binary(a, z, fn="max")\ng = binary(b, s, fn="min")\nv = binary(x, g, fn="mul")\n'
        + 'y = binary(v, s, fn="div")',
        c("t", 1 / 6) + c("h", 0.5) + c("z", 0.0) + c("s", 1.0)
        + 'm = binary(x, t, fn="mul")\na = binary(m, h, fn="add")\nb = binary(a, s, fn="min")\ng = binary(b, z, fn="max")\n'
        + 'y = binary(x, g, fn="mul")',
    ],
    ids=["relu6(x + 3) / 6", "clamp(x / 6 + 1/2)"],
)  # fmt: skip
def test_hard_swish(body: str) -> None:
    before, after = recognised(body)
    assert operators(after) == ["hard_swish"]
    check_same(before, after)


@pytest.mark.parametrize(
    "body",
    [
        c("one", 1.0) + 'e = unary(x, fn="exp")\na = binary(e, one, fn="add")\ny = unary(a, fn="log")',
        'e = unary(x, fn="exp")\ny = unary(e, fn="log1p")',
    ],
)
def test_softplus(body: str) -> None:
    before, after = recognised(body)
    assert operators(after) == ["softplus"]
    check_same(before, after)


MAXIMUM = 'm = reduce(x, fn="max", axes=(-1,), keepdims=True)\ns = binary(x, m, fn="sub")\n'
POWERS = 'e = unary(s, fn="exp")\nt = reduce(e, fn="sum", axes=(1,), keepdims=True)\n'


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("softmax", MAXIMUM + POWERS + 'y = binary(e, t, fn="div")'),
        ("softmax", MAXIMUM + POWERS + 'i = unary(t, fn="reciprocal")\ny = binary(e, i, fn="mul")'),
        ("softmax", 'e = unary(x, fn="exp")\nt = reduce(e, fn="sum", axes=(1,), keepdims=True)\ny = binary(e, t, fn="div")'),
        ("log_softmax", MAXIMUM + POWERS + 'l = unary(t, fn="log")\ny = binary(s, l, fn="sub")'),
        ("log_softmax", MAXIMUM + POWERS + 'p = binary(e, t, fn="div")\ny = unary(p, fn="log")'),
    ],
)
def test_softmax(name: str, body: str) -> None:
    before, after = recognised(body)
    assert operators(after) == [name]
    check_same(before, after)


MEAN = c("n", 6.0) + 'a = reduce(x, fn="sum", axes=(1,), keepdims=True)\nm = binary(a, n, fn="div")\nd = binary(x, m, fn="sub")\n'
SQUARE = 'q = binary(d, d, fn="mul")\n'
POWER = c("two", 2.0) + 'q = binary(d, two, fn="pow")\n'
SUMMED = 'b = reduce(q, fn="sum", axes=(1,), keepdims=True)\nv = binary(b, n, fn="div")\n'
VARIANCE = SUMMED + c("eps", 1e-5) + 'w = binary(v, eps, fn="add")\n'
AFFINE = 'p = binary(z, scale, fn="mul")\ny = binary(p, bias, fn="add")'
ROOTS = {
    "d / sqrt": 'r = unary(w, fn="sqrt")\nz = binary(d, r, fn="div")\n',
    "d * rsqrt": 'r = unary(w, fn="rsqrt")\nz = binary(d, r, fn="mul")\n',
    "d * (1 / sqrt)": c("one", 1.0) + 's = unary(w, fn="sqrt")\nr = binary(one, s, fn="div")\nz = binary(d, r, fn="mul")\n',
    "d * w ** -0.5": c("k", -0.5) + 'r = binary(w, k, fn="pow")\nz = binary(d, r, fn="mul")\n',
}
NORM_PARAMS = "x: float32[N, 6], scale: float32[6], bias: float32[6]"


@pytest.mark.parametrize("square", [SQUARE, POWER], ids=["product", "power"])
@pytest.mark.parametrize("root", ROOTS.values(), ids=ROOTS.keys())
def test_layer_norm(square: str, root: str) -> None:
    before, after = recognised(MEAN + square + VARIANCE + root + AFFINE, NORM_PARAMS)
    assert operators(after) == ["layer_norm"]
    assert after.results[0].op.epsilon == pytest.approx(1e-5)  # type: ignore[attr-defined]
    check_same(before, after)


def test_layer_norm_with_the_scale_in_the_factor() -> None:
    scaled = 'r = unary(w, fn="rsqrt")\nf = binary(r, scale, fn="mul")\nz = binary(d, f, fn="mul")\n'
    body = MEAN + SQUARE + VARIANCE + scaled + 'y = binary(z, bias, fn="add")'
    before, after = recognised(body, NORM_PARAMS)
    assert operators(after) == ["layer_norm"]
    check_same(before, after)


def test_layer_norm_without_parameters() -> None:
    before, after = recognised(MEAN + SQUARE + VARIANCE + ROOTS["d / sqrt"] + 'y = binary(z, z, fn="add")')
    assert operators(after) == ["layer_norm", "binary"]
    check_same(before, after)


def test_layer_norm_over_a_named_size() -> None:
    body = (
        's = size_value(size=N)\nn = cast(s, dtype=float32)\n'
        + MEAN.split("\n", 1)[1] + SQUARE + VARIANCE + ROOTS["d / sqrt"] + 'y = binary(z, z, fn="add")'
    )  # fmt: skip
    before, after = recognised(body, "x: float32[3, N]")
    assert "layer_norm" in operators(after)
    check_same(before, after)


def test_rms_norm() -> None:
    body = (
        c("n", 6.0) + 'q = binary(x, x, fn="mul")\n' + VARIANCE
        + 'r = unary(w, fn="rsqrt")\nz = binary(x, r, fn="mul")\ny = binary(scale, z, fn="mul")'
    )  # fmt: skip
    before, after = recognised(body, "x: float32[N, 6], scale: float32[6]")
    assert operators(after) == ["rms_norm"]
    check_same(before, after)


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("centred", [True, False])
def test_norms_are_over_the_last_axes(axes: tuple[int, ...], centred: bool) -> None:
    """Over others, such as the channels of an image, nothing is recognised."""
    count, last = math.prod((4, 3, 5)[axis] for axis in axes), axes == tuple(range(3 - len(axes), 3))
    along = f"axes={axes}"
    centre = MEAN if centred else c("n", 1.0) + c("zero", 0.0) + 'd = binary(x, zero, fn="add")\n'
    body = (centre + SQUARE + VARIANCE).replace("axes=(1,)", along).replace(c("n", 6.0), c("n", count)).replace(c("n", 1.0), c("n", count))
    before, after = recognised(body + ROOTS["d / sqrt"] + 'y = binary(z, z, fn="add")', "x: float32[4, 3, 5]")
    assert (("layer_norm" if centred else "rms_norm") in operators(after)) == last
    check_same(before, after)


def test_a_variance_over_other_axes_is_no_layer_norm() -> None:
    body = MEAN + SQUARE + VARIANCE.replace("axes=(1,)", "axes=(0,)") + ROOTS["d / sqrt"] + 'y = binary(z, z, fn="add")'
    assert "layer_norm" not in operators(recognised(body, "x: float32[6, 6]")[1])
