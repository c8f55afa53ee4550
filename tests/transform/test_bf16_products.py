"""Products with bfloat16 factors: which they are, what they become, and how far results are from those in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from tests.compiled_graphs import Array, f32, function, host, module
from tests.target.cpu.rules.test_bf16_dot import emulated
from tilewright.compiler import Compiled, compile_module
from tilewright.frontend.onnx.importer import import_model
from tilewright.frontend.onnx.loader import load_model
from tilewright.graph.interpreter import interpret
from tilewright.graph.node import Function, GraphBuilder, Module, Node, Value, walk_nodes
from tilewright.graph.ops import BlockedConvolution, Cast, Constant, ConstantData, Contract, Convolution, Unary
from tilewright.graph.text import format_function
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, const, size
from tilewright.kernel.nodes import Kernel
from tilewright.machine.description import Machine, estimated_peaks
from tilewright.runtime import executable
from tilewright.runtime.executable import Executable
from tilewright.support.settings import Settings
from tilewright.target.cpu import groups
from tilewright.target.cpu.bf16_cost import CpuProductCost
from tilewright.target.cpu.codegen import generate
from tilewright.transform.bf16_products import Form, bf16_products
from tilewright.zoo import build, example_inputs

F32, BF16 = dtypes.float32, dtypes.bfloat16
ROUNDING = 2.0**-9  # of a bfloat16, to nearest
N = size("N")
Body = Callable[..., Sequence[Value]]


def held(g: GraphBuilder, *shape: int, seed: int = 3) -> Value:
    return g.one(Constant(ConstantData(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))))


def product(g: GraphBuilder, x: Value, w: Value, spec: str = "mk,kn->mn") -> Value:
    return g.one(Contract(spec, F32), x, w)


def convolution(pad: int = 1, stride: int = 1, groups: int = 1) -> Convolution:
    return Convolution((stride, stride), (1, 1), (const(pad),) * 2, (const(pad),) * 2, groups, F32)


@dataclass(frozen=True)
class Always:
    """A target to which one form is cheap."""

    form: Form

    def product(self, node: Node, weights: int, form: Form, resident: int) -> float:
        return 0.0 if form == self.form else 1.0


def without_caches() -> Machine:
    """This machine without instructions for bfloat16, with a memory so slow that all products wait for their weights."""
    plain = host().isa - {"avx512bf16", "bf16", "amx-bf16"}
    return replace(host(), isa=plain, l2=replace(host().l2, size=4096), l3=None, peaks=replace(estimated_peaks(host()), memory=1e-3))


def compiled(m: Module, machine: Machine | None = None, precision: str = "bf16") -> Compiled:
    return compile_module(m, machine or without_caches(), Settings().changed(cache=False, precision=precision, verify=True))


def run(m: Module, inputs: Sequence[Array], of: Compiled) -> list[Array]:
    found = Executable(of.artifact, 2).run(dict(zip(m.input_names, inputs, strict=True)))
    return [found[name] for name in m.output_names]


def factors(of: Compiled) -> list[str]:
    return [pair for kernel in of.artifact.manifest["kernels"] for pair in kernel["factors"]]


def layer(g: GraphBuilder, x: Value) -> Sequence[Value]:
    return (g.one(Unary("exp"), product(g, x, g.one(Constant(ConstantData(np.float32([[1.0, 1.00390625], [-3.5, 1e-3]])))))),)


def test_weights_are_rounded_to_the_nearest_with_ties_to_even() -> None:
    assert format_function(bf16_products(function("main", [f32(N, 2)], layer), Always("weights"))) == (
        "def main(main0: float32[N, 2]):\n"
        "    v0 = constant([1, 1, -3.5, 0.000999451], bfloat16[2, 2])  # bfloat16[2, 2]\n"
        '    v1 = contract(main0, v0, spec="mk,kn->mn", dtype=float32)  # float32[N, 2]\n'
        '    v2 = unary(v1, fn="exp")  # float32[N, 2]\n'
        "    return v2\n"
    )


def test_with_instructions_the_other_operand_is_rounded_too() -> None:
    assert format_function(bf16_products(function("main", [f32(N, 2)], layer), Always("operands"))) == (
        "def main(main0: float32[N, 2]):\n"
        "    v0 = cast(main0, dtype=bfloat16, may_flush=True)  # bfloat16[N, 2]\n"
        "    v1 = constant([1, 1, -3.5, 0.000999451], bfloat16[2, 2])  # bfloat16[2, 2]\n"
        '    v2 = contract(v0, v1, spec="mk,kn->mn", dtype=float32)  # float32[N, 2]\n'
        '    v3 = unary(v2, fn="exp")  # float32[N, 2]\n'
        "    return v3\n"
    )


def test_special_values_stay() -> None:
    special = np.float32([[np.inf, -np.inf, np.nan, -0.0, 3.4e38]])
    changed = bf16_products(
        function("main", [f32(2, 1)], lambda g, x: (product(g, x, g.one(Constant(ConstantData(special)))),)), Always("weights")
    )
    (kept,) = [node.op.data.array for node in walk_nodes(changed.results) if isinstance(node.op, Constant)]
    np.testing.assert_array_equal(kept.astype(np.float32), np.float32([[np.inf, -np.inf, np.nan, -0.0, np.inf]]))


DENSE: dict[str, tuple[tuple[int | Expr, ...], Callable[[GraphBuilder, Value], Value]]] = {
    "matrix": ((3, 20), lambda g, x: product(g, x, held(g, 20, 30))),
    "weights on the left": ((3, 20), lambda g, x: product(g, held(g, 20, 30), x, "kn,mk->mn")),
    "stack": ((2, 3, 20), lambda g, x: product(g, x, held(g, 2, 20, 30), "bmk,bkn->bmn")),
    "convolution": ((1, 5, 6, 6), lambda g, x: g.one(convolution(), x, held(g, 7, 5, 3, 3))),
}
LEFT: dict[str, tuple[tuple[int | Expr, ...], Callable[[GraphBuilder, Value], Value]]] = {
    "two computed operands": ((4, 4), lambda g, x: product(g, x, g.one(Unary("neg"), x))),
    "depthwise": ((1, 6, 6, 6), lambda g, x: g.one(convolution(groups=6), x, held(g, 6, 1, 3, 3))),
    "groups": ((1, 8, 6, 6), lambda g, x: g.one(convolution(groups=2), x, held(g, 4, 4, 3, 3))),
    "outer product": ((4,), lambda g, x: product(g, x, held(g, 5), "m,n->mn")),
    "sum of one operand": ((4, 3), lambda g, x: product(g, x, held(g, 5), "mk,n->mn")),
}


@pytest.mark.parametrize("case", DENSE)
def test_dense_products_by_constants_change(case: str) -> None:
    shape, body = DENSE[case]
    before = function("main", [f32(*shape)], lambda g, x: (body(g, x),))
    assert before.results[0].type is bf16_products(before, Always("weights")).results[0].type
    assert dtypes_of(bf16_products(before, Always("weights"))) == {BF16}
    assert bf16_products(before, Always("float32")).results == before.results


@pytest.mark.parametrize("case", LEFT)
def test_everything_else_stays(case: str) -> None:
    shape, body = LEFT[case]
    before = function("main", [f32(*shape)], lambda g, x: (body(g, x),))
    assert bf16_products(before, Always("weights")).results == before.results


def dtypes_of(f: Function) -> set[dtypes.DType]:
    return {node.op.data.dtype for node in walk_nodes(f.results) if isinstance(node.op, Constant)}


def test_blocked_convolutions_take_bfloat16() -> None:
    pads = (const(0),) * 2

    def body(g: GraphBuilder, x: Value) -> Sequence[Value]:
        return (g.one(BlockedConvolution((1, 1), (1, 1), pads, pads, False, 8), x, held(g, 16, 8, 3, 3)),)

    before = function("main", [f32(1, 1, 6, 6, 8)], body)
    x = np.random.default_rng(0).standard_normal((1, 1, 6, 6, 8)).astype(np.float32)
    (want,), (got,) = interpret(before, [x]), interpret(bf16_products(before, Always("weights")), [x])
    np.testing.assert_allclose(got, want, atol=ROUNDING * 100)


def dense(rows: int | Expr) -> Module:
    return module([f32(rows, 200)], lambda g, x: (product(g, x, held(g, 200, 300)),))


@pytest.mark.parametrize("rows", [1, 3, 8, N], ids=repr)
def test_the_error_of_a_product_is_bounded(rows: int | Expr) -> None:
    m = dense(rows)
    of = compiled(m)
    assert factors(of) == ["float32 * bfloat16"]
    (weights,) = [node.op.data.array for node in walk_nodes(m.main.results) if isinstance(node.op, Constant)]
    for seed, count in enumerate((5, 1) if rows is N else (rows, rows)):
        x = np.random.default_rng(seed).standard_normal((count, 200)).astype(np.float32)
        (got,) = run(m, [x], of)
        bound = (ROUNDING + 200 * 2.0**-24) * (np.abs(x).astype(np.float64) @ np.abs(weights).astype(np.float64))
        error = np.abs(got - x.astype(np.float64) @ weights.astype(np.float64))
        assert (error <= bound).all()
        assert error.max() > 0.01 * bound.max()  # bfloat16 it is


def test_other_precisions_keep_their_bits() -> None:
    for precision in ("default", "strict"):
        assert factors(compiled(dense(3), precision=precision)) == ["float32 * float32"]


def test_products_with_many_rows_stay_where_widening_costs_more_than_it_saves() -> None:
    plain = replace(host(), isa=frozenset({"avx2", "fma"}), peaks=None)
    few, many = (node_of(dense(rows)) for rows in (1, 512))
    cost = CpuProductCost(plain)
    assert cost.product(few, 1, "weights", 1 << 30) < 0.7 * cost.product(few, 1, "float32", 1 << 30)
    assert cost.product(many, 1, "weights", 1 << 30) > cost.product(many, 1, "float32", 1 << 30)
    near, far = (cost.product(few, 1, "float32", resident) for resident in (1 << 10, 1 << 30))
    assert near < far  # weights that stay in a cache are not waited for


def node_of(m: Module) -> Node:
    return m.main.results[0].node


def test_weights_count_once_and_by_function() -> None:
    """What a function reads in turn decides which cache it comes from."""
    seen: list[int] = []

    class Spy:
        def product(self, node: Node, weights: int, form: Form, resident: int) -> float:
            seen.append(resident)
            return 0.0

    def body(g: GraphBuilder, x: Value) -> Sequence[Value]:
        square = held(g, 20, 20)
        return (product(g, product(g, product(g, x, square), square), held(g, 20, 5)),)

    bf16_products(function("main", [f32(3, 20)], body), Spy())
    assert set(seen) == {4 * (20 * 20 + 20 * 5)}


ZOO = {
    "mlp": {"sizes": (64, 48, 10), "batch": 2},
    "resnet18": {"width": 8, "image": 32},
    "mobilenet_v2": {"image": 32},
    "bert": {"layers": 1, "hidden": 32, "heads": 2, "intermediate": 64, "vocab": 50},
    "gpt2_decode": {"layers": 1, "hidden": 32, "heads": 2, "vocab": 50},
    "lstm_lm": {"layers": 1, "hidden": 24, "vocab": 50},
}


@cache
def family(name: str) -> tuple[Module, tuple[Array, ...]]:
    model = build(name, 0, **ZOO[name])
    sizes = {dim.dim_param: 3 for info in model.graph.input for dim in info.type.tensor_type.shape.dim if dim.dim_param}
    m = import_model(load_model(model)).module
    given = example_inputs(model, sizes, 0)
    return m, tuple(np.ascontiguousarray(given[name]) for name in m.input_names)


@pytest.mark.parametrize("name", ZOO)
def test_models_stay_near_to_float32(name: str) -> None:
    m, inputs = family(name)
    of = compiled(m)
    assert any("bfloat16" in pair for pair in factors(of))
    for got, want in zip(run(m, inputs, of), interpret(m, inputs), strict=True):
        assert np.abs(got.astype(np.float64) - want).max() <= 0.02 * np.abs(want).max()


@pytest.mark.skipif("avx512vl" not in host().isa, reason="vectors of the machines with instructions for bfloat16")
@pytest.mark.parametrize("name", ZOO)
def test_models_with_pairs_stay_near_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with instructions that take pairs of bfloat16, which are written out here."""
    texts: list[str] = []

    def written_out(kernel: Kernel, machine: Machine, **options: object) -> str:
        texts.append(emulated(generate(kernel, machine, **options)))
        return texts[-1]

    monkeypatch.setattr(groups, "generate", written_out)
    monkeypatch.setattr(executable, "_require_features", lambda manifest: None)
    m, inputs = family(name)
    peaks = replace(estimated_peaks(host()), bf16=2 * estimated_peaks(host()).f32, memory=1e-3)
    machine = replace(without_caches(), isa=without_caches().isa | {"avx512bf16"}, peaks=peaks)
    of = compiled(m, machine)
    assert "bfloat16 * bfloat16" in factors(of)
    assert any("@pairs" in text for text in texts)
    for got, want in zip(run(m, inputs, of), interpret(m, inputs), strict=True):
        assert np.abs(got.astype(np.float64) - want).max() <= 0.03 * np.abs(want).max()


@pytest.mark.parametrize("precision", ["default", "bf16"])
def test_casts_of_the_model_keep_subnormal_numbers(precision: str) -> None:
    """Under a precision that rounds by an instruction which does not, too."""
    m = module([f32(64)], lambda g, x: (g.one(Cast(BF16), x),))
    x = np.resize(np.float32([2.0**-127, -(2.0**-130), 2.0**-133, 1.5 * 2.0**-133, 1.0]), 64)
    (got,) = run(m, [x], compiled(m, host(), precision))
    np.testing.assert_array_equal(got.view(np.uint16), x.astype(BF16.numpy).view(np.uint16))
