"""Profiles: what ran, how often, what it had to do, and the forms in which that is given away."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from math import exp
from typing import Any

import numpy as np
import pytest

from tests.compiled_graphs import boolean, compile_graph, f32, function, i64, module
from tilewright.graph.ops import Binary, Contract, Gather, If, Reduce, Unary, constant
from tilewright.ir import dtypes
from tilewright.ir.expr import size
from tilewright.runtime.executable import Executable
from tilewright.runtime.instrument import FIRST_CAPACITY
from tilewright.runtime.profile import layer_name
from tilewright.runtime.roofline import Cost, limit, resident, roofs
from tilewright.support.errors import ArtifactError, InputError

CACHES = {"l1": 1000, "l2": 10_000, "l3": 100_000}
ONE = {"f32": 100.0, "bf16": 200.0, "int8": 400.0, "l1": 50.0, "l2": 20.0, "l3": 10.0, "memory": 5.0}
ALL = {name: 3 * figure for name, figure in ONE.items()} | {"memory": 6.0}


def two_products() -> Executable:
    """y = relu-free (x @ w) summed over rows, and its negation: at least two kernels over a size n."""
    n = size("n", 1, 512)

    def main(g: Any, x: Any, w: Any) -> Any:
        product = g.one(Contract("ik,kj->ij", dtypes.float32), x, w)
        again = g.one(Contract("ij,jk->ik", dtypes.float32), product, w)
        return [again, g.one(Unary("neg"), g.one(Reduce("sum", (0,), False), product))]

    return Executable(compile_graph(module([f32(n, 32), f32(32, 32)], main)).artifact, 1)


@pytest.fixture(scope="module")
def inputs() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=(48, 32)).astype(np.float32), rng.normal(size=(32, 32)).astype(np.float32)]


def test_every_launch_has_its_time_and_its_work(inputs: list[np.ndarray]) -> None:
    exe = two_products()
    expected = exe(*inputs)
    profile = exe.profile(*inputs, repeat=3)
    assert [kernel.number for kernel in profile.kernels] == list(range(len(exe.manifest["kernels"])))
    assert profile.sizes["n"] == 48
    products = [kernel for kernel in profile.kernels if "contract" in kernel.symbol]
    assert len(products) == 2
    for kernel in products:
        assert kernel.cost.multiply_adds["f32"] >= 2 * 48 * 32 * 32
        assert kernel.cost.moved >= 4 * (2 * 48 * 32 + 32 * 32)
    for kernel in profile.kernels:
        assert 0 < kernel.minimum <= kernel.median
        assert kernel.calls == 1
        assert kernel.limit > 0
    ends = [end for _, _, end in profile.timeline]
    assert ends == sorted(ends)
    assert all(begin < end <= profile.total * 10 for _, begin, end in profile.timeline)
    assert profile.in_kernels <= profile.total * 1.5
    for got, want in zip(exe(*inputs), expected, strict=True):
        np.testing.assert_array_equal(got, want)


def test_launches_in_branches_are_told_apart_by_their_place() -> None:
    then = function("then", [f32(64)], lambda g, x: [g.one(Unary("exp"), x)])
    other = function("other", [f32(64)], lambda g, x: [g.one(Unary("exp"), g.one(Binary("add"), x, x))])
    m = module([boolean(), f32(64)], lambda g, c, x: [g.one(If(then, other), c, x)])
    exe = Executable(compile_graph(m).artifact, 1)
    x = np.ones(64, np.float32)
    taken = {flag: {k.number for k in exe.profile(np.array(flag), x, repeat=2).kernels} for flag in (True, False)}
    assert taken[True]
    assert taken[False]
    assert taken[True].isdisjoint(taken[False])
    assert taken[True] | taken[False] <= set(range(len(exe.manifest["kernels"])))


def test_more_launches_than_there_was_room_for_are_recorded_at_the_next_call(inputs: list[np.ndarray]) -> None:
    exe = two_products()
    recorder = exe.recorder()
    recorder._build(1)
    named = {"x0": inputs[0], "x1": inputs[1]}
    exe.record(named, recorder)
    assert recorder.last.launches == ()
    exe.record(named, recorder)
    assert recorder.last.launches == tuple(range(len(exe.manifest["kernels"])))
    assert len(recorder.last.launches) < FIRST_CAPACITY


def test_what_cannot_be_profiled_is_refused(inputs: list[np.ndarray]) -> None:
    exe = two_products()
    with pytest.raises(InputError, match="0 inferences"):
        exe.profile(*inputs, repeat=0)
    kernels = [{name: value for name, value in entry.items() if name != "work"} for entry in exe.manifest["kernels"]]
    old = Executable(replace(exe.artifact, manifest={**exe.manifest, "kernels": kernels}), 1)
    with pytest.raises(ArtifactError, match="does not say"):
        old.profile(*inputs)


def test_the_forms_of_a_profile_agree(inputs: list[np.ndarray]) -> None:
    profile = two_products().profile(*inputs, repeat=2)
    data = json.loads(json.dumps(profile.to_json()))
    assert data["kernel_seconds"] == pytest.approx(sum(kernel["median_seconds"] for kernel in data["kernels"]))
    assert sum(layer["kernels"] for layer in data["layers"]) == len(data["kernels"])
    trace = json.loads(json.dumps(profile.chrome_trace()))["traceEvents"]
    launched = [event for event in trace if event.get("cat") == "kernel"]
    assert len(launched) == len(profile.timeline)
    outer = next(event for event in trace if event.get("cat") == "inference")
    assert all(outer["ts"] <= event["ts"] and event["ts"] + event["dur"] <= outer["dur"] * 1.001 for event in launched)
    assert str(profile).count("\n") == len(profile.kernels)


class Page(HTMLParser):
    """Tags opened, references to other files, and whether all is closed in order."""

    VOID = ("meta", "br", "input", "link", "img")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_stands_alone(inputs: list[np.ndarray]) -> None:
    profile = two_products().profile(*inputs, repeat=2)
    strange = replace(profile, model="<b>&\"'", kernels=tuple(replace(k, origins=("Conv node '</script><i>'",)) for k in profile.kernels))
    for shown in (profile, strange):
        text = shown.html()
        page = Page()
        page.feed(text)
        assert page.open == []
        assert page.references == [], "nothing is loaded from elsewhere"
        assert not re.search(r"https?://(?!www\.w3\.org)", text)
        assert {"svg", "table", "circle", "rect", "script"} <= set(page.seen)
        assert "b" not in page.seen
        assert page.seen.count("circle") >= len(profile.kernels)


def test_layers_are_paths_of_names_or_operators() -> None:
    assert layer_name(["MatMul node '/encoder/layer.0/query/MatMul'", "Add node 'x'"]) == "/encoder/layer.0/query"
    assert layer_name(["Conv node 'conv1'"]) == "Conv"
    assert layer_name([]) == "made by the compiler"


def test_roofs_lie_between_one_core_and_all() -> None:
    assert roofs(CACHES, ONE, ALL, 3, 1, True).peaks["f32"] == 100
    two = roofs(CACHES, ONE, ALL, 3, 2, True)
    assert (two.peaks["f32"], two.peaks["f64"], two.bandwidth["memory"]) == (200, 100, 5.5)
    assert two.capacity == {"l1": 2000, "l2": 20_000, "l3": 100_000}
    assert roofs(CACHES, ONE, ALL, 3, 8, True).peaks["f32"] == 300
    assert roofs(CACHES, ONE, ONE, 1, 4, False).peaks["int8"] == 400


def test_the_limit_is_arithmetic_or_the_level_that_holds_the_data() -> None:
    one = roofs(CACHES, ONE, ALL, 3, 1, True)
    busy = Cost(10**6, {"f32": 10**6}, 0, 100, 0)
    assert limit(busy, one, 0).binding == "compute"
    assert limit(busy, one, 0).seconds == pytest.approx(1e-5)
    assert limit(Cost(10**6, {}, 10**6, 100, 0), one, 0).seconds == pytest.approx(2e-5), "no multiply-add: half the peak"
    for moved, level, rate in ((900, "l1", 50), (9000, "l2", 20), (90_000, "l3", 10), (900_000, "memory", 5)):
        found = limit(Cost(0, {}, 0, moved, 0), one, 0)
        assert found.binding == level
        assert found.seconds == pytest.approx(moved / (rate * 1e9), rel=1e-3)
    weights = limit(Cost(0, {}, 0, 900, 800), one, footprint=10**6)
    assert weights.binding == "memory", "weights come back from where the whole model lies"
    assert weights.seconds == pytest.approx(800 / 5e9 + 100 / 50e9, rel=1e-3)


def test_constants_of_a_kernel_in_a_loop_come_back_from_where_it_left_them() -> None:
    one = roofs(CACHES, ONE, ALL, 3, 1, True)
    found = limit(Cost(0, {}, 0, 900, 800), one, footprint=10**6, calls=3)
    assert found.seconds == pytest.approx(800 / 5e9 + (3 * 900 - 800) / 50e9, rel=1e-3)


def test_what_is_larger_than_a_cache_lies_there_in_part() -> None:
    parts = [resident(size, 1000) for size in (0, 999, 1000, 1001, 1100, 1500, 2000, 4000, 10**6)]
    assert parts == sorted(parts, reverse=True)
    assert parts[:3] == [1, 1, 1]
    assert parts[3:8] == pytest.approx([0.998, 0.82, 0.42, 0.2, 0.02], abs=0.005)
    assert resident(10, 0) == 0
    for ratio in (1.1, 2.0):
        assert resident(1000 * ratio, 1000) == pytest.approx(exp(-ratio * (1 - resident(1000 * ratio, 1000))))
    one = roofs(CACHES, ONE, ALL, 3, 1, True)
    assert one.shares(9) == {"l1": 1}
    assert sum(one.shares(15_000).values()) == pytest.approx(1)
    assert one.shares(15_000)["l2"] == pytest.approx(0.42, abs=0.005)
    just_fits, just_not = (limit(Cost(0, {}, 0, moved, 0), one, 0).seconds for moved in (10_000, 10_010))
    assert just_fits < just_not < 1.01 * just_fits


def test_kernels_of_equal_code_have_the_work_of_their_own_sizes() -> None:
    n, m = size("n"), size("m")
    rows = module([f32(n), f32(m)], lambda g, x, y: [g.one(Reduce("sum", (0,), False), x), g.one(Reduce("sum", (0,), False), y)])
    exe = Executable(compile_graph(rows).artifact, 1)
    assert len({entry["symbol"] for entry in exe.manifest["kernels"]}) == 1
    kernels = exe.profile(np.ones(10, np.float32), np.ones(3000, np.float32), repeat=1).kernels
    assert sorted(kernel.cost.moved for kernel in kernels) == [4 * 10 + 4, 4 * 3000 + 4]


def test_integers_are_inputs_too() -> None:
    exe = Executable(compile_graph(module([i64(8)], lambda g, x: [g.one(Binary("add"), x, x)])).artifact, 1)
    (kernel,) = exe.profile(np.arange(8), repeat=1).kernels
    assert kernel.cost.operations == 8
    assert kernel.cost.moved == 2 * 8 * 8


def test_an_index_of_a_slice_may_be_negative() -> None:
    weights = np.random.default_rng(0).normal(size=(5, 32, 32)).astype(np.float32)

    def main(g: Any, x: Any, i: Any) -> Any:
        return [g.one(Contract("ik,kj->ij", dtypes.float32), x, g.one(Gather(0), g.one(constant(weights)), i))]

    exe = Executable(compile_graph(module([f32(size("n", 1), 32), i64()], main)).artifact, 1)
    profile = exe.profile(np.ones((3, 32), np.float32), np.array(-2), repeat=1)
    assert [kernel.symbol for kernel in profile.kernels if "contract" in kernel.symbol]
    assert profile.sizes == {"n": 3, "slice": -2}
    with pytest.raises(InputError, match="size n cannot be -1"):
        exe.memory(n=-1)
