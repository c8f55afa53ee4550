"""Operators whose form changed between operator sets, and forms that ONNX's own tests do not have, against onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.frontend.onnx.models import Array, assert_like_onnxruntime, assert_same, parse, run, single
from tilewright.support.errors import ShapeError, TypeRuleError


def floats(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


@dataclass(frozen=True)
class Case:
    """One node: its inputs, the initializers among them by position, and attributes. `symbolic` declares all dims of input 0 open."""

    op: str
    opset: int
    inputs: Sequence[Array | None]
    constants: dict[int, Array] = field(default_factory=dict)
    outputs: int = 1
    symbolic: bool = False
    attributes: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        described = ",".join(f"{name}={value}" for name, value in self.attributes.items())
        return f"{self.op}-{self.opset}({described}){'?' if self.symbolic else ''}"


def case(
    op: str, opset: int, *inputs: Any, consts: dict[int, Any] | None = None, outputs: int = 1, symbolic: bool = False, **attributes: Any
) -> Case:
    arrays = [None if array is None else np.asarray(array) for array in inputs]
    return Case(op, opset, arrays, {index: np.asarray(array) for index, array in (consts or {}).items()}, outputs, symbolic, attributes)


X = floats(2, 3, 4)
IMAGE = floats(1, 2, 7, 9)
REDUCTIONS = [f"Reduce{name}" for name in ("Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")]
C = [np.abs(floats(2)) + k for k in range(4)]

CASES = [
    *(case("Clip", 7, X, **a) for a in ({}, {"min": -0.5}, {"max": 0.5}, {"min": 0.0, "max": 0.25})),
    case("Clip", 11, X, None, np.float32(0.5)),
    case("Clip", 13, X, np.float32(-0.5)),
    case("Clip", 13, X, np.float32(0.5), np.float32(-0.5)),
    *(case(op, opset, X) for op in ("Softmax", "LogSoftmax", "Hardmax") for opset in (7, 11, 13)),
    *(case(op, opset, X, axis=k) for op in ("Softmax", "LogSoftmax", "Hardmax") for opset in (7, 11, 13) for k in (0, 1, 2)),
    *(case("Softmax", opset, X, axis=axis, symbolic=True) for opset in (11, 13) for axis in (0, 1, -1)),
    case("Squeeze", 9, floats(1, 3, 1, 2)),
    case("Squeeze", 11, floats(1, 3, 1, 2), axes=[0, -2]),
    case("Squeeze", 13, floats(1, 3, 1, 2), consts={1: ints(2)}),
    case("Squeeze", 13, floats(1, 3, 1, 2), consts={1: ints(-2, 0)}, symbolic=True),
    case("Unsqueeze", 11, X, axes=[0, 3]),
    case("Unsqueeze", 13, X, consts={1: ints(-1, 0)}),
    case("Dropout", 7, X, ratio=0.5),
    case("Dropout", 12, X, np.float32(0.5), outputs=2),
    case("Dropout", 13, X, np.float32(0.5), consts={2: np.array(False)}, outputs=2),
    case("Slice", 9, X, starts=[0, 1], ends=[1, 1000], axes=[0, 2]),
    case("Slice", 9, X, starts=[0, -2], ends=[-1, 3]),
    *(
        case("Slice", 13, floats(7, 5), consts={1: ints(start), 2: ints(stop), 3: ints(0), 4: ints(step)}, symbolic=symbolic)
        for symbolic in (False, True)
        for start, stop, step in (
            (0, 2**63 - 1, 1), (1, 4, 2), (-3, 100, 1), (5, 2, 1), (-100, -2, 3),
            (-1, -(2**63), -1), (100, -100, -2), (4, 1, -1), (1, 4, -1), (6, -8, -3), (-2, 0, -1),
        )
    ),
    case("Slice", 13, X, consts={1: ints(0, 1), 2: ints(2, 3)}),
    case("Slice", 13, X, ints(1), ints(3), consts={3: ints(1)}),
    case("Slice", 13, X, ints(-2), ints(2**31 - 1), consts={3: ints(-1)}, symbolic=True),
    case("Pad", 7, X, pads=[0, 1, 2, 1, 0, 3], value=1.5),
    case("Pad", 10, X, pads=[0, 1, 2, 1, 0, 3], mode="edge"),
    case("Pad", 10, X, pads=[0, -1, 1, 0, 1, -2]),
    case("Pad", 13, X, ints(0, 1, 2, 1, 0, 3), np.float32(2.0)),
    *(case("Pad", 13, X, consts={1: ints(0, 1, 2, 1, 0, 3)}, mode=mode, symbolic=True) for mode in ("constant", "edge", "reflect")),
    case("Pad", 18, X, consts={1: ints(1, 2), 2: np.float32(3), 3: ints(-1)}),
    case("Pad", 19, X, consts={1: ints(0, 2, 3, 1, 0, 5)}, mode="wrap"),
    case("Split", 7, X, axis=2, outputs=2),
    case("Split", 11, X, axis=-1, split=[1, 3], outputs=2),
    case("Split", 13, X, axis=1, outputs=3),
    case("Split", 13, X, consts={1: ints(3, 1)}, axis=2, outputs=2),
    case("Split", 18, X, axis=2, num_outputs=3, outputs=3),
    case("Split", 13, X, axis=2, outputs=2, symbolic=True),
    *(case("ReduceSum", 11, X, **a) for a in ({}, {"axes": [1]}, {"axes": [0, -1], "keepdims": 0})),
    *(
        case(op, opset, np.abs(X) + 0.5, **({"axes": [1]} if opset < 18 else {"consts": {1: ints(1)}}))
        for op in REDUCTIONS
        for opset in (8, 12, 13, 18)
    ),
    case("ReduceSum", 13, X, consts={1: ints()}, noop_with_empty_axes=1),
    case("ReduceSum", 13, X, consts={1: ints()}),
    case("ReduceSum", 13, X, noop_with_empty_axes=1),
    case("ReduceMean", 18, X, consts={1: ints(-1, 0)}, keepdims=0, symbolic=True),
    case("ReduceSum", 13, np.arange(24, dtype=np.int64).reshape(2, 3, 4), consts={1: ints(2)}),
    case("ReduceMax", 13, np.arange(24, dtype=np.int8).reshape(2, 3, 4), consts={}, axes=[0]),
    case("ReduceMean", 13, np.arange(24, dtype=np.int32).reshape(2, 3, 4), axes=[2]),
    *(case(op, opset, X, axis=axis, keepdims=k) for op in ("ArgMax", "ArgMin") for opset in (7, 11, 13) for axis, k in ((0, 1), (2, 0))),
    case("ArgMax", 12, np.ones((2, 3), np.float32), axis=1, select_last_index=1),
    *(case("BatchNormalization", opset, floats(3, 2, 4), *C) for opset in (7, 9, 14, 15)),
    case("BatchNormalization", 15, floats(3, 2, 4), *C, epsilon=0.1, symbolic=True),
    case("BatchNormalization", 14, floats(3, 2, 4), *C, training_mode=1, outputs=3, momentum=0.7),
    case("Gemm", 7, floats(3, 4), floats(4, 5), floats(5)),
    case("Gemm", 9, floats(4, 3), floats(5, 4), floats(3, 1), transA=1, transB=1, alpha=0.5, beta=2.0),
    case("Gemm", 11, floats(3, 4), floats(4, 5)),
    case("Gemm", 13, floats(3, 4), floats(4, 5), np.float32(2), symbolic=True),
    case("Flatten", 9, X, axis=0),
    *(case("Flatten", 13, X, axis=axis, symbolic=True) for axis in (0, 1, -1, 3)),
    case("Cast", 9, X, to=7),
    case("Pow", 7, np.abs(X), floats(4)),
    *(case("Pow", 13, np.abs(X) + 0.1, consts={1: np.array(p, np.float32)}) for p in (-1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 5)),
    case("Pow", 13, X, ints(2)),
    case("Pow", 13, np.arange(5), np.array(2.5, np.float32)),
    case("Pow", 15, np.arange(5), ints(3)),
    case("Div", 14, np.array([7, -7, 7, -7], np.int32), np.array([2, 2, -2, -2], np.int32)),
    case("Mod", 13, np.array([7, -7, 7, -7]), ints(3, 3, -3, -3)),
    case("Mod", 13, np.array([7, -7, 7, -7]), ints(3, 3, -3, -3), fmod=1),
    case("Mod", 13, X * 5, floats(4), fmod=1),
    *(case(op, 13, X, floats(3, 1), floats(4)) for op in ("Sum", "Max", "Min", "Mean")),
    case("Max", 8, X),
    case("Where", 16, X > 0, X, floats(3, 1)),
    case("Range", 11, np.float32(0.5), np.float32(3.2), np.float32(0.4)),
    case("Range", 11, consts={0: np.int64(3), 1: np.int64(-4), 2: np.int64(-2)}),
    case("EyeLike", 9, floats(3, 5), k=1, dtype=7),
    case("Trilu", 14, floats(2, 4, 5), consts={1: np.array(-1)}, upper=0, symbolic=True),
    case("Tile", 13, X, consts={1: ints(1, 2, 3)}, symbolic=True),
    case("Tile", 13, floats(1, 3, 1), consts={1: ints(2, 1, 4)}),
    case("Tile", 13, X, ints(1, 0, 2)),
    case("Expand", 13, floats(3, 4), consts={1: ints(2, 1, 4)}, symbolic=True),
    case("Expand", 13, floats(3, 1), ints(2, 1, 4)),
    case("DepthToSpace", 11, floats(1, 8, 2, 3), blocksize=2, mode="CRD"),
    case("DepthToSpace", 7, floats(1, 8, 2, 3), blocksize=2, symbolic=True),
    case("SpaceToDepth", 13, floats(1, 2, 4, 6), blocksize=2),
    case("LpNormalization", 7, X, p=1, axis=1),
    case("LpNormalization", 7, X),
    case("MeanVarianceNormalization", 13, floats(2, 3, 4, 5)),
    case("InstanceNormalization", 7, floats(2, 2, 5), *C[:2]),
    case("LRN", 13, floats(1, 6, 3, 3), size=3, alpha=0.1, beta=0.6, bias=1.5),
    case("LayerNormalization", 17, X, floats(4), floats(4)),
    case("LayerNormalization", 17, X, floats(3, 4), axis=1, outputs=3),
    case("Selu", 7, X),
    case("Elu", 7, X, alpha=2.0),
    case("Celu", 12, X, alpha=2.0),
    case("ThresholdedRelu", 10, X, alpha=0.3),
    case("HardSigmoid", 7, X, alpha=0.3, beta=0.4),
    case("PRelu", 7, X, floats(3, 1)),
    case("Shrink", 9, X, lambd=0.3, bias=0.1),
    *(
        case("Shrink", 9, np.arange(-4 if np.dtype(dtype).kind == "i" else 0, 7).astype(dtype), lambd=limit, bias=bias)
        for dtype in (np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int16, np.int32, np.int64)
        for limit, bias in ((1.5, 1.0), (2.0, 0.0), (1.5, 0.5), (2.0, -0.75))
    ),
    *(
        case("Trilu", 14, floats(3, 4), *([k] if at_run_time else []), consts={} if at_run_time else {1: k}, upper=upper, symbolic=symbolic)
        for k in (np.array(2**63 - 1), np.array(2**63 - 2), np.array(-(2**63)), np.array(5), np.array(-5))
        for at_run_time in (False, True)
        for upper in (0, 1)
        for symbolic in (False, True)
    ),
    case("MatMul", 13, floats(4), floats(4)),
    case("MatMul", 13, floats(4), floats(2, 4, 3)),
    case("MatMul", 13, floats(2, 3, 4), floats(4)),
    case("MatMul", 13, floats(2, 1, 3, 4), floats(5, 4, 2)),
    case("MatMul", 13, floats(5, 3, 4), floats(5, 4, 2), symbolic=True),
    case("MatMul", 13, floats(5, 3, 4), floats(1, 4, 2), symbolic=True),
]  # fmt: skip

POOLS = [
    case("MaxPool", opset, IMAGE, kernel_shape=[3, 2], **a)
    for opset, a in (
        (7, {"strides": [2, 2]}),
        (8, {"strides": [2, 2], "pads": [1, 0, 1, 1], "outputs": 2}),
        (10, {"strides": [3, 2], "ceil_mode": 1}),
        (11, {"dilations": [2, 3], "pads": [1, 1, 1, 1]}),
        (12, {"auto_pad": "SAME_UPPER", "strides": [2, 2], "symbolic": True}),
        (12, {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
        (12, {"auto_pad": "VALID", "strides": [2, 2]}),
        (12, {"strides": [2, 2], "ceil_mode": 1, "pads": [1, 1, 1, 1], "symbolic": True}),
    )
]
POOLS += [
    case("AveragePool", opset, IMAGE, kernel_shape=[3, 2], **a)
    for opset, a in (
        (7, {"strides": [2, 2], "pads": [1, 0, 1, 1]}),
        (10, {"strides": [2, 2], "pads": [1, 0, 1, 1], "count_include_pad": 1}),
        (11, {"strides": [2, 2], "pads": [1, 0, 1, 1], "symbolic": True}),
        (19, {"strides": [2, 3], "ceil_mode": 1}),
        (19, {"strides": [2, 3], "ceil_mode": 1, "pads": [1, 1, 1, 1], "count_include_pad": 1}),
        *((19, {"strides": [2, 3], "ceil_mode": 1, "pads": [1, 1, 0, 0], "count_include_pad": 1, "symbolic": s}) for s in (False, True)),
        (19, {"dilations": [2, 1]}),
        (11, {"auto_pad": "SAME_UPPER", "strides": [2, 2], "symbolic": True}),
    )
]
POOLS += [
    case("LpPool", 11, IMAGE, kernel_shape=[2, 2], p=p, **a) for p in (1, 2, 3) for a in ({}, {"strides": [2, 2], "pads": [1, 1, 1, 1]})
]
POOLS += [case(op, 7, IMAGE, symbolic=s) for op in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool") for s in (False, True)]

CONVOLUTIONS = [
    case("Conv", 11, floats(1, 4, 7), floats(6, 4, 3), floats(6)),
    case("Conv", 11, floats(1, 4, 7), floats(6, 2, 3), group=2, symbolic=True),
    case("Conv", 11, IMAGE, floats(3, 2, 3, 2), strides=[2, 1], pads=[1, 0, 0, 2], dilations=[1, 3]),
    case("Conv", 11, floats(1, 1, 4, 5, 6), floats(2, 1, 2, 3, 2), floats(2)),
    *(
        case("Conv", 11, IMAGE, floats(3, 2, 3, 4), auto_pad=p, strides=[2, 2], symbolic=True)
        for p in ("SAME_UPPER", "SAME_LOWER", "VALID")
    ),
    case("ConvTranspose", 11, IMAGE, floats(2, 3, 3, 2), floats(3)),
    case("ConvTranspose", 11, IMAGE, floats(2, 3, 3, 2), strides=[2, 3], pads=[1, 0, 0, 1], output_padding=[1, 0]),
    case("ConvTranspose", 11, IMAGE, floats(2, 3, 3, 2), strides=[2, 3], output_shape=[15, 27]),
    case("ConvTranspose", 11, IMAGE, floats(2, 1, 3, 2), strides=[2, 2], group=2, dilations=[2, 1], symbolic=True),
    *(case("ConvTranspose", 11, IMAGE, floats(2, 3, 3, 3), auto_pad=p, strides=[2, 2]) for p in ("SAME_UPPER", "SAME_LOWER")),
]

EQUATIONS = {
    "ij,jk->ik": [(3, 4), (4, 5)],
    "ij,jk": [(3, 4), (4, 5)],
    "bij,bjk->bki": [(2, 3, 4), (2, 4, 5)],
    "...ij,...jk->...ik": [(2, 3, 4), (2, 4, 5)],
    "...ij,jk": [(2, 3, 4), (4, 5)],
    "ii->i": [(4, 4)],
    "ii": [(4, 4)],
    "bii->b": [(2, 4, 4)],
    "ij->ji": [(3, 4)],
    "ij->": [(3, 4)],
    "i,j->ij": [(3,), (4,)],
    "ij,ij->ij": [(3, 4), (3, 4)],
    "ij,ij->i": [(3, 4), (3, 4)],
    "ij,k->j": [(3, 4), (5,)],
    "ij,jk,kl->il": [(3, 4), (4, 5), (5, 6)],
    "bhld,bhmd,bhm->bhl": [(2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6)],
    "ij,ij,ij->j": [(3, 4), (3, 4), (3, 4)],
    "b...c->...bc": [(2, 3, 4, 5)],
}


def check(given: Case) -> None:
    dims = {0: [f"d{axis}" for axis in range(given.inputs[0].ndim)]} if given.symbolic else None
    model = single(given.op, given.inputs, given.opset, given.outputs, given.constants, dims, **given.attributes)
    assert_like_onnxruntime(model, given.inputs, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("op", ["LeakyRelu", "ThresholdedRelu", "HardSigmoid"])
def test_fractions_are_not_truncated_to_integers(op: str) -> None:
    """ONNX has these for floats alone."""
    x = np.arange(-4, 4, dtype=np.int32)
    with pytest.raises(TypeRuleError, match=f"{op} of int32 by 0.3, which is no integer"):
        run(single(op, [x], 16, alpha=0.3), {"x0": x})


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize(
    ("opset", "axis", "shape"), [(13, 0, (0, 3)), (13, 1, (3, 0)), (13, -1, (0, 0)), (11, 0, (0, 3)), (11, 1, (3, 0, 2))]
)
def test_a_softmax_of_nothing_is_empty(op: str, opset: int, axis: int, shape: tuple[int, ...], symbolic: bool) -> None:
    check(case(op, opset, np.zeros(shape, np.float32), axis=axis, symbolic=symbolic))


@pytest.mark.parametrize(("op", "each"), [("Softmax", 1.0), ("LogSoftmax", 0.0), ("Hardmax", 1.0)])
def test_a_vector_before_opset_13_is_of_rows_of_one_element(op: str, each: float) -> None:
    """Where the axis is left out it is 1, as of matrices. ONNX's shape inference and onnxruntime refuse that."""
    x = floats(4)
    (y,) = run(parse(f'<ir_version: 8, opset_import: ["": 11]> g (float[4] x) => (float[4] y) {{ y = {op}(x) }}'), {"x": x})
    np.testing.assert_array_equal(y, np.full(4, each, np.float32))


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_an_axis_without_elements_has_no_greatest(op: str, keepdims: int) -> None:
    inputs = {"x0": np.zeros((0, 3), np.float32)}
    model = single(op, list(inputs.values()), 13, dims={0: ["n", 3]}, axis=0, keepdims=keepdims)
    with pytest.raises(TypeRuleError, match="the model needs"):
        run(model, inputs)
    with pytest.raises(ShapeError, match="ArgM"):
        tw.compile(model).run(inputs)


@pytest.mark.parametrize("constant", [False, True])
def test_channels_of_integer_convolutions_are_those_of_the_weights(constant: bool) -> None:
    """Where the input declares none."""
    x, w = (np.random.default_rng(k).integers(0, 99, shape, np.uint8) for k, shape in enumerate([(1, 2, 5, 5), (3, 2, 3, 3)]))
    scale, zero = np.array(0.5, np.float32), np.array(3, np.uint8)
    check(case("ConvInteger", 10, x, *([] if constant else [w]), consts={1: w} if constant else {}, symbolic=True))
    check(case("QLinearConv", 10, x, scale, zero, w, scale, zero, scale, zero, symbolic=True))


@pytest.mark.parametrize(("opset", "kind"), [(7, "float"), (9, "float"), (10, "bool"), (12, "bool"), (13, "bool")])
def test_the_mask_of_a_dropout_has_the_type_of_its_version(opset: int, kind: str) -> None:
    """That of the input before opset 10. Its value when nothing is dropped is ones (onnxruntime gives zeros before opset 10)."""
    x = floats(2, 3)
    header = f'<ir_version: 3, opset_import: ["": {opset}]>'
    y, mask = run(parse(f"{header} g (float[2, 3] x) => (float[2, 3] y, {kind}[2, 3] mask) {{ y, mask = Dropout(x) }}"), {"x": x})
    np.testing.assert_array_equal(y, x)
    assert_same([mask], [np.ones_like(x, np.bool_ if kind == "bool" else np.float32)])


@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 1.0), (1.0, 0.5), (1.5, -0.5), (2.0, 3.0), (-1.0, 1.0)])
@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
def test_gemm_of_integers_by_floats(dtype: Any, alpha: float, beta: float) -> None:
    """onnxruntime has no such kernel: as ONNX's reference, the sum is a float's before it is truncated. uint32 and uint64 wrap only where
    everything is whole."""
    a, b, c = (np.arange(n, n + 6, dtype=dtype).reshape(shape) for n, shape in ((0, (2, 3)), (3, (3, 2)), (9, (6,))))
    inputs = [a, b, c[:2]]
    whole = float(alpha).is_integer() and float(beta).is_integer()
    exact = alpha * (a.astype(np.float64) @ b.astype(np.float64)) + beta * c[:2]
    expected = exact.astype(np.int64).astype(dtype) if whole else exact.astype(dtype)
    feeds = {f"x{index}": array for index, array in enumerate(inputs)}
    np.testing.assert_array_equal(run(single("Gemm", inputs, 13, alpha=alpha, beta=beta), feeds)[0], expected)


@pytest.mark.parametrize("given", CASES, ids=str)
def test_operator(given: Case) -> None:
    check(given)


OF_ROWS: dict[str, Callable[[Array], Array]] = {
    "Sum": lambda x: x.sum(1),
    "Mean": lambda x: x.mean(1),
    "Max": lambda x: x.max(1),
    "Min": lambda x: x.min(1),
    "Prod": lambda x: x.prod(1),
    "L1": lambda x: np.abs(x).sum(1),
    "L2": lambda x: np.sqrt((x * x).sum(1)),
    "LogSum": lambda x: np.log(x.sum(1)),
    "LogSumExp": lambda x: np.logaddexp.reduce(x, 1),
    "SumSquare": lambda x: (x * x).sum(1),
}


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("name", OF_ROWS)
def test_reductions_of_infinities_and_far_numbers(name: str, dtype: Any) -> None:
    """Rows of every three of these: of one number only, of numbers that cancel, and of some whose exponentials are 0 or inf."""
    far = 1000 if dtype is np.float64 else 200  # whose square is less than the greatest half, and two of which are more
    rows = np.array(list(product((-np.inf, -far, 0, 1, far, np.inf, np.nan), repeat=3)), dtype)
    (found,) = run(single(f"Reduce{name}", [rows], 13 if name == "Sum" else 18, 1, {1: ints(1)}, keepdims=0), {"x0": rows})
    assert found.dtype == dtype
    wanted = OF_ROWS[name](rows.astype(np.float64)).astype(dtype)
    eps = float(np.finfo(dtype).eps)
    np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), 4 * eps, eps)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(("opset", "groups"), list(product((18, 21), (1, 2, 3, 6))))
def test_groups_have_their_own_scales(opset: int, groups: int, symbolic: bool) -> None:
    """As many as groups before opset 21, as many as channels since then: all different."""
    x, count = floats(2, 6, 4, 3), groups if opset < 21 else 6
    parameters = np.arange(1, count + 1, dtype=np.float32), np.arange(count, dtype=np.float32) ** 2
    n, c, h, w = ("n", "c", "h", "w") if symbolic else x.shape
    model = parse(f"""<ir_version: 8, opset_import: ["": {opset}]>
        g (float[{n}, {c}, {h}, {w}] x0, float[{count}] x1, float[{count}] x2) => (float[{n}, {c}, {h}, {w}] y) {{
            y = GroupNormalization<num_groups = {groups}>(x0, x1, x2)
        }}
    """)
    assert_like_onnxruntime(model, [x, *parameters], rtol=2e-5, atol=2e-5)


# ONNX's shape inference counts windows that begin in the padding at the end, which ceil_mode leaves out; onnxruntime leaves them out too.
@pytest.mark.filterwarnings("ignore:the output 'y0' is declared")
@pytest.mark.parametrize("given", POOLS, ids=str)
def test_pooling(given: Case) -> None:
    check(given)


@pytest.mark.parametrize("given", CONVOLUTIONS, ids=str)
def test_convolution(given: Case) -> None:
    check(given)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("target", [(8, 5), (9, 4), (5, 9), (7, 1), (6, 0), (1, 12)])
def test_center_crop_pad(target: tuple[int, int], symbolic: bool) -> None:
    """The odd element is cut or added after: ONNX's definition, since onnxruntime has none on its own."""
    x, expected = floats(2, 7, 6), np.zeros((2, *target), np.float32)
    ours, theirs = [slice(None)], [slice(None)]
    for have, want in zip(x.shape[1:], target, strict=True):
        cut, added = max(have - want, 0) // 2, max(want - have, 0) // 2
        ours.append(slice(added, added + min(have, want)))
        theirs.append(slice(cut, cut + min(have, want)))
    expected[tuple(ours)] = x[tuple(theirs)]
    dims = {0: ("a", "b", "c")} if symbolic else None
    model = single("CenterCropPad", [x], 18, 1, {1: ints(*target)}, dims, axes=[1, -1])
    np.testing.assert_array_equal(run(model, {"x0": x})[0], expected)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum(equation: str, symbolic: bool) -> None:
    inputs = [floats(*shape) for shape in EQUATIONS[equation]]
    check(Case("Einsum", 12, inputs, symbolic=symbolic, attributes={"equation": equation}))


@pytest.mark.parametrize(("shape", "block"), [((3,), 0), ((2, 2), 2)], ids=["axis", "blocks"])
def test_scales_of_open_dims_fit_the_tensor(shape: tuple[int, ...], block: int) -> None:
    x, scale = floats(2, 3) * 4, np.abs(floats(*shape)) + np.float32(0.5)
    inputs = [x, scale, np.zeros(shape, np.int8)]
    dims = {0: ["a", "b"], 1: ["c", "d"][: len(shape)], 2: ["e", "f"][: len(shape)]}
    model = single("QuantizeLinear", inputs, 21, dims=dims, axis=1, block_size=block)
    assert_like_onnxruntime(model, inputs)


def test_dims_of_parameters_fit_the_tensor() -> None:
    inputs = [floats(2, 3, 4), floats(3, 4), floats(3, 4) + 1]
    model = single("LayerNormalization", inputs, 17, dims={0: ["a", "b", "c"], 1: ["d", "e"], 2: ["f", "g"]}, axis=1)
    assert_like_onnxruntime(model, inputs)
    inputs = [floats(1, 2, 4, 5), floats(1, 3, 3, 2) / 4]
    assert_like_onnxruntime(single("GridSample", inputs, 20, dims={1: ["a", "b", "c", "d"]}), inputs)


ONES: dict[str, tuple[Sequence[Any], dict[str, Any], int]] = {
    "QuantizeLinear-21": ([floats(3, 2), np.abs(floats(3, 1)), np.zeros((3, 1), np.uint8)], {"axis": 1, "block_size": 2}, 1),
    "QLinearConv-10": (
        [np.ones((1, 1, 3, 3), np.uint8), np.float32(0.1), np.uint8(0), np.ones((1, 1, 2, 2), np.uint8), np.float32(0.2), np.uint8(0)]
        + [np.float32(0.3), np.uint8(4)],
        {},
        1,
    ),
    "ScatterElements-16": ([floats(1, 4), ints([2]), floats(1, 1)], {"axis": 1}, 2),
    "ScatterND-16": ([floats(4, 1), ints([2]), floats(1, 1)], {}, 1),
    "RoiAlign-16": ([floats(1, 2, 5, 5), np.array([[0, 0, 3, 3]], np.float32), ints(0)], {"output_height": 2, "output_width": 2}, 2),
    "GridSample-16": ([floats(1, 2, 5, 5), floats(1, 2, 2, 2)], {}, 1),
    "GatherND-12": ([floats(1, 4), ints([2])], {"batch_dims": 1}, 1),
    "RNN-14": ([floats(3, 1, 1), floats(1, 2, 1), floats(1, 2, 2), None, np.array([2], np.int32)], {"hidden_size": 2}, 1),
    "GRU-14": ([floats(3, 1, 1), floats(1, 6, 1), floats(1, 6, 2), None, np.array([2], np.int32)], {"hidden_size": 2}, 1),
    "LSTM-14": ([floats(3, 1, 1), floats(1, 8, 1), floats(1, 8, 2), None, np.array([2], np.int32)], {"hidden_size": 2}, 1),
}


@pytest.mark.parametrize("name", ONES)
def test_a_dim_of_1_says_what_an_open_dim_is(name: str) -> None:
    """The first inputs, as many as the case says, have open dims, which another operand's dim of 1 determines as well as any other."""
    given, attributes, count = ONES[name]
    inputs = [None if array is None else np.asarray(array) for array in given]
    op, opset = name.split("-")
    dims = {i: [f"d{i}_{k}" for k in range(np.asarray(inputs[i]).ndim)] for i in range(count)}
    assert_like_onnxruntime(single(op, inputs, int(opset), dims=dims, **attributes), inputs)


@pytest.mark.parametrize("training", [False, True])
def test_dropout_whose_mode_is_an_input(training: bool) -> None:
    x = floats(50, 40)
    model = single("Dropout", [x, np.array(0.25, np.float32), np.array(training)], 13, outputs=2, seed=3)
    y, mask = run(model, {"x0": x, "x1": np.array(0.25, np.float32), "x2": np.array(training)})
    share = mask.mean()
    assert 0.7 < share < 0.8 if training else share == 1
    np.testing.assert_allclose(y, np.where(mask, x / np.float32(0.75 if training else 1), 0), rtol=1e-6)


@pytest.mark.parametrize("op", ["BatchNormalization", "InstanceNormalization", "RMSNormalization"])
def test_channels_of_parameters_fit_the_tensor(op: str) -> None:
    x, parameters = floats(2, 3, 4), [np.abs(floats(3)) + np.float32(k) for k in range({"B": 4, "I": 2, "R": 1}[op[0]])]
    x = x.transpose(0, 2, 1).copy() if op[0] == "R" else x
    dims = {0: ["a", "b", "c"], **{i + 1: [f"d{i}"] for i in range(len(parameters))}}
    model = single(op, [x, *parameters], 23 if op[0] == "R" else 15, dims=dims)
    found = run(model, {f"x{i}": array for i, array in enumerate([x, *parameters])})
    fixed = single(op, [x, *parameters], 23 if op[0] == "R" else 15)
    assert_same(found, run(fixed, {f"x{i}": array for i, array in enumerate([x, *parameters])}))


@pytest.mark.parametrize(("op", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_recurrent_weights_of_open_dims(op: str, gates: int) -> None:
    inputs = [floats(5, 2, 3), floats(1, gates * 4, 3), floats(1, gates * 4, 4), floats(1, 2 * gates * 4) / 2]
    dims = {i: [f"{name}{k}" for k in range(array.ndim)] for i, (name, array) in enumerate(zip("xwrb", inputs))}
    assert_like_onnxruntime(single(op, inputs, 14, outputs=2, dims=dims, hidden_size=4), inputs)
