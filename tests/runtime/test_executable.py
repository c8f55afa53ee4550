"""Executables: arguments, sizes, errors, threads, saving and loading."""

from __future__ import annotations

import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tilewright as tw
from tests.compiled_graphs import compile_graph, f32, i64, module
from tilewright.graph.ops import Binary, BindSize, Concat, Contract, Iota, Reduce, Slice, Unary
from tilewright.ir import dtypes
from tilewright.ir.expr import const, size
from tilewright.ir.types import as_shape
from tilewright.runtime import executable as executable_module
from tilewright.runtime.artifact import HEADER, Artifact
from tilewright.runtime.executable import KEPT_ARENAS, Executable
from tilewright.runtime.host_features import host_platform, platform_of
from tilewright.runtime.opening import load
from tilewright.support.errors import ArtifactError, InputError, MemoryLimitError, SettingsError, ShapeError, TilewrightError

rng = np.random.default_rng(1)


def floats(*shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


@pytest.fixture(scope="module")
def two_inputs() -> Executable:
    """y0 = x0 @ x1, y1 = -x0 for x0 [n, k], x1 [k, 8] with n up to 64 and k a multiple of 4."""
    n, k = size("n", 1, 64), size("k", 4, None, 4)

    def main(g: Any, a: Any, b: Any) -> Any:
        return [g.one(Contract("ik,kj->ij", dtypes.float32), a, b), g.one(Unary("neg"), a)]

    return Executable(compile_graph(module([f32(n, k), f32(k, 8)], main)).artifact, 2)


@pytest.fixture(scope="module")
def one_input() -> Executable:
    n = size("n", 0)
    return Executable(compile_graph(module([f32(n, 4)], lambda g, x: [g.one(Binary("mul"), x, x)])).artifact, 2)


@pytest.fixture(scope="module")
def late() -> Executable:
    """The first x1 elements of x0, twice, and their number as a range."""
    n, k = size("n", 0), size("k", 0)

    def main(g: Any, x: Any, count: Any) -> Any:
        g.one(BindSize(k), count)
        part = g.one(Slice((const(0),), as_shape((k,)), (1,)), x)
        return [g.one(Concat(0), part, part), g.one(Reduce("sum", (0,), False), part), g.one(Iota(k, dtypes.int64))]

    return Executable(compile_graph(module([f32(n), i64()], main)).artifact, 2)


# ---- calling


def test_positional_named_and_by_mapping(two_inputs: Executable) -> None:
    a, b = floats(3, 8), floats(8, 8)
    for results in (two_inputs(a, b), two_inputs(a, x1=b), two_inputs(x1=b, x0=a), tuple(two_inputs.run({"x1": b, "x0": a}).values())):
        np.testing.assert_allclose(results[0], a @ b, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(results[1], -a)
    assert list(two_inputs.run({"x0": a, "x1": b})) == ["y0", "y1"]


def test_one_result_comes_without_a_tuple(one_input: Executable) -> None:
    x = floats(5, 4)
    np.testing.assert_array_equal(one_input(x), x * x)


def test_results_are_not_overwritten_by_the_next_call(one_input: Executable) -> None:
    x, y = floats(5, 4), floats(5, 4)
    first = one_input(x)
    kept = first.copy()
    one_input(y)
    np.testing.assert_array_equal(first, kept)


def test_inputs_stay_as_they_are_and_may_be_read_only(two_inputs: Executable) -> None:
    a, b = floats(3, 8), floats(8, 8)
    before = a.copy(), b.copy()
    a.flags.writeable = b.flags.writeable = False
    two_inputs(a, b)
    np.testing.assert_array_equal(a, before[0])
    np.testing.assert_array_equal(b, before[1])


@pytest.mark.parametrize(
    "view",
    [
        lambda x: np.asfortranarray(x),
        lambda x: np.repeat(x, 2, 1)[:, ::2],
        lambda x: x[::-1][::-1],
        lambda x: x.astype(">f4"),
        lambda x: np.frombuffer(b"." + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape),
        lambda x: x.tolist(),
    ],
    ids=["fortran", "strided", "reversed", "byte order", "unaligned", "list"],
)
def test_any_memory_layout_is_taken(one_input: Executable, view: Any) -> None:
    x = floats(6, 4)
    np.testing.assert_array_equal(one_input(view(x)), x * x)


def test_dlpack(one_input: Executable) -> None:
    class Foreign:
        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        def __dlpack__(self, **options: Any) -> Any:
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return self.array.__dlpack_device__()

    x = floats(6, 4)
    np.testing.assert_array_equal(one_input(Foreign(x)), x * x)
    with pytest.raises(InputError, match="has dtype float64, the model needs float32"):
        one_input(Foreign(x.astype(np.float64)))


def test_zero_sized_inputs(one_input: Executable) -> None:
    assert one_input(np.zeros((0, 4), np.float32)).shape == (0, 4)


# ---- wrong arguments


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((1, 2, 3), {}, "3 arguments are passed, the model takes 2"),
        ((floats(2, 4),), {}, "input 'x1' is missing"),
        ((floats(2, 4),), {"x0": floats(2, 4)}, "input 'x0' is passed twice"),
        ((floats(2, 4), floats(4, 8)), {"z": floats(1)}, "the model has no input 'z'"),
        ((floats(2, 4).astype(np.float64), floats(4, 8)), {}, r"input 'x0' has dtype float64.*x\.astype\('float32'\)"),
        ((floats(2, 4)[0], floats(4, 8)), {}, r"input 'x0' has shape \[4\], the model needs 2 dims"),
        ((floats(2, 4), floats(4, 9)), {}, r"input 'x1' has shape \[4, 9\]: dim 1 must be 8"),
        ((floats(2, 4), floats(8, 8)), {}, "dim 0 of input 'x1' is 8, but dim 1 of input 'x0' says that k is 4"),
        ((floats(65, 4), floats(4, 8)), {}, r"n is 65 \(dim 0 of input 'x0'\), the model was compiled for from 1 to 64"),
        ((floats(0, 4), floats(4, 8)), {}, "n is 0"),
        ((floats(2, 6), floats(6, 8)), {}, "k is 6.*a multiple of 4"),
        (("text", floats(4, 8)), {}, "input 'x0' is a str"),
        ((None, floats(4, 8)), {}, "input 'x0' is a NoneType"),
        (([[1.0], [2.0, 3.0]], floats(4, 8)), {}, "input 'x0' is a list whose rows differ in length"),
        (([["a", "b"]], floats(4, 8)), {}, "input 'x0' holds strings; the model needs float32"),
        (([[1.0, None]], floats(4, 8)), {}, "input 'x0' holds values that are no numbers, or too large; the model needs float32"),
        (([[{"a": 1.0}]], floats(4, 8)), {}, "input 'x0' holds values that are no numbers"),
        (([[10**30]], floats(4, 8)), {}, "input 'x0' holds values that are no numbers, or too large"),
        ((np.ma.masked_less(floats(2, 4), 9), floats(4, 8)), {}, "input 'x0' has masked elements"),
    ],
)
def test_wrong_arguments_are_explained(two_inputs: Executable, args: Any, kwargs: Any, text: str) -> None:
    with pytest.raises(InputError, match=f"(?s){text}"):
        two_inputs(*args, **kwargs)
    a, b = floats(2, 4), floats(4, 8)
    np.testing.assert_allclose(two_inputs(a, b)[0], a @ b, rtol=1e-5, atol=1e-5)


def test_inputs_may_be_called_as_anything() -> None:
    vector = f32(3)
    artifact = compile_graph(module([vector, vector], lambda g, a, b: [g.one(Binary("sub"), a, b)])).artifact
    names = [{**entry, "name": name} for entry, name in zip(artifact.manifest["inputs"], ("self", "args"), strict=True)]
    exe = Executable(Artifact({**artifact.manifest, "inputs": names}, artifact.objects, artifact.pool, artifact.weights), 1)
    np.testing.assert_array_equal(exe(self=np.full(3, 3, np.float32), args=np.ones(3, np.float32)), [2, 2, 2])


def test_lists_that_lose_value_are_refused(late: Executable) -> None:
    assert late(floats(4), 2)[0].shape == (4,)
    with pytest.raises(InputError, match="does not fit into int64"):
        late(floats(4), 1.5)


def test_inputs_that_are_too_small_for_the_model() -> None:
    n = size("n", 0)
    short = module([f32(n)], lambda g, x: [g.one(Slice((const(3),), as_shape((n - 3,)), (1,)), x)])
    executable = Executable(compile_graph(short).artifact, 1)
    assert executable(floats(5)).shape == (2,)
    with pytest.raises(InputError, match=r"(?s)would have shape \[-1\].*n = 2"):
        executable(floats(2))


# ---- sizes that depend on data


def test_late_outputs(late: Executable) -> None:
    for n, k in [(7, 3), (7, 7), (7, 0), (0, 0), (3000, 2999)]:
        x = floats(n)
        doubled, total, numbers = late(x, np.array(k))
        np.testing.assert_array_equal(doubled, np.concatenate([x[:k], x[:k]]))
        np.testing.assert_allclose(total, x[:k].sum(), rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(numbers, np.arange(k))


def test_a_failed_check_leaves_the_executable_usable(late: Executable) -> None:
    for _ in range(50):
        with pytest.raises(ShapeError, match="the size k is -1"):
            late(floats(4), np.array(-1))
    assert late(floats(4), np.array(1))[2].tolist() == [0]


def test_shapes_of_the_latest_call_are_no_excuse(two_inputs: Executable) -> None:
    for n, k in ((3, 8), (3, 8), (5, 4), (3, 8)):
        a, b = floats(n, k), floats(k, 8)
        np.testing.assert_allclose(two_inputs(a, b)[0], a @ b, rtol=1e-5, atol=1e-5)
        with pytest.raises(InputError, match="dim 0 of input 'x1' is 12, but dim 1 of input 'x0' says that"):
            two_inputs(a, floats(12, 8))
        np.testing.assert_allclose(two_inputs(a, b)[0], a @ b, rtol=1e-5, atol=1e-5)


def test_shapes_of_as_many_elements_are_other_shapes() -> None:
    n, k = size("n", 0), size("k", 0)
    exe = Executable(compile_graph(module([f32(n, k)], lambda g, x: [g.one(Reduce("sum", (1,), False), x)])).artifact, 1)
    for shape in ((2, 6), (3, 4), (12, 1), (1, 12), (2, 6)):
        x = floats(*shape)
        np.testing.assert_allclose(exe(x), x.sum(1), rtol=1e-5, atol=1e-5)


def test_inputs_without_elements(one_input: Executable) -> None:
    assert one_input(floats(0, 4)).shape == (0, 4)
    assert one_input(np.broadcast_to(np.float32(2), (3, 4))).tolist() == [[4] * 4] * 3


# ---- threads and memory


def test_many_calls_at_once(two_inputs: Executable, late: Executable) -> None:
    def work(seed: int) -> bool:
        mine = np.random.default_rng(seed)
        a, b = (mine.normal(size=s).astype(np.float32) for s in ((seed % 60 + 1, 64), (64, 8)))
        k = seed % 5
        doubled = late(a[0], np.array(k))[0]
        return np.allclose(two_inputs(a, b)[0], a @ b, rtol=1e-4, atol=1e-4) and np.array_equal(doubled, np.tile(a[0, :k], 2))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(200)))


def test_idle_arenas_are_bounded() -> None:
    n = size("n", 1)

    def main(g: Any, x: Any) -> Any:
        total = g.one(Reduce("sum", (0,), True), x)
        return [g.one(Reduce("sum", (1,), False), g.one(Unary("exp"), total))]

    executable = Executable(compile_graph(module([f32(4, n)], main)).artifact, 1)
    arenas = [executable._take_memory(1000 * i) for i in range(1, KEPT_ARENAS + 4)]
    for arena in arenas:
        executable._give_memory(arena)
    assert len(executable._idle) == KEPT_ARENAS
    assert executable._take_memory(5500).bytes >= 5500
    assert executable._take_memory(9000).bytes >= 9000
    assert not executable._idle, "those that were too small are gone"
    executable(floats(4, 8))


def test_memory_is_a_formula_of_the_sizes(two_inputs: Executable) -> None:
    assert two_inputs.memory(n=2, k=4)["arena"] >= 0
    assert two_inputs.memory(n=2, k=4)["weights"] == 0


@pytest.mark.parametrize("sizes", [{}, {"n": 2}, {"n": 2, "k": 4, "m": 3}, {"n": -1, "k": 4}, {"n": "2", "k": 4}])
def test_sizes_of_memory_are_checked(two_inputs: Executable, sizes: dict[str, Any]) -> None:
    artifact = two_inputs.artifact
    manifest = {**artifact.manifest, "memory": {**artifact.manifest["memory"], "arena": "n * k * 4"}}
    executable = Executable(Artifact(manifest, artifact.objects, artifact.pool, artifact.weights), 1)
    assert executable.memory(n=2, k=4)["arena"] == 32
    with pytest.raises(InputError, match="size") as caught:
        executable.memory(**sizes)
    if sizes == {"n": 2}:
        assert caught.value.hint == "memory(n=2, k=8)"


@pytest.mark.parametrize("inputs", [[floats(2, 4)], floats(2, 4), None])
def test_run_takes_a_mapping_only(one_input: Executable, inputs: Any) -> None:
    with pytest.raises(InputError, match="run takes a mapping"):
        one_input.run(inputs)


def test_pickling_says_what_to_do_instead(one_input: Executable) -> None:
    with pytest.raises(TypeError, match=r"save\(\) it"):
        pickle.dumps(one_input)


NO_LIMITS = [{"max_memory": value} for value in (-1, 0, 1.5, True, "lots", np.float64(2e9))]
NO_LIMITS += [{"threads": value} for value in (0, -2, 1.5, True, "many")]


@pytest.mark.parametrize("given", NO_LIMITS, ids=str)
def test_threads_and_limits_that_are_none_are_refused(one_input: Executable, tmp_path: Path, given: dict[str, Any]) -> None:
    ((name, value),) = given.items()
    one_input.save(tmp_path / "one.tw")
    for opened in (lambda: tw.load(tmp_path / "one.tw", **given), lambda: Executable(one_input.artifact, **given)):
        with pytest.raises(SettingsError, match=f"the setting {name} cannot be") as caught:
            opened()
        assert repr(value) in str(caught.value)


def test_threads_and_limits_may_be_of_numpy_or_text(one_input: Executable) -> None:
    exe = Executable(one_input.artifact, np.int64(1), np.int64(1 << 20))
    assert exe.threads == 1
    assert Executable(one_input.artifact, max_memory="1.5GiB")._limit == exe._limit * 1536


# ---- files


def test_saved_and_loaded(two_inputs: Executable, tmp_path: Path) -> None:
    two_inputs.save(tmp_path / "model.tw")
    again = load(tmp_path / "model.tw", 1, verify=True)
    a, b = floats(3, 8), floats(8, 8)
    np.testing.assert_allclose(again(a, b)[0], a @ b, rtol=1e-5, atol=1e-5)
    assert (
        repr(again) == repr(two_inputs) == "<Executable (x0: float32[n, k], x1: float32[k, 8]) -> (y0: float32[n, 8], y1: float32[n, k])>"
    )
    again.save(tmp_path / "again.tw")
    assert (tmp_path / "again.tw").read_bytes() == (tmp_path / "model.tw").read_bytes()


def test_loading_needs_no_compiler(one_input: Executable, tmp_path: Path) -> None:
    one_input.save(tmp_path / "model.tw")
    script = (
        "import sys, numpy as np\n"
        "from tilewright.runtime.opening import load\n"
        "x = np.full((2, 4), 3, np.float32)\n"
        "assert (load(sys.argv[1])(x) == 9).all()\n"
        "floors = ('ir', 'graph', 'kernel', 'plan', 'transform', 'target', 'frontend', 'compiler')\n"
        "print([m for m in sys.modules if m.startswith(tuple(f'tilewright.{f}' for f in floors)) or m == 'onnx'])\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "model.tw")], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_file_that_cannot_be_written_is_an_error_of_ours(one_input: Executable, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "model.tw"):
        with pytest.raises(TilewrightError, match="cannot be written"):
            one_input.save(path)


def test_a_header_of_another_version_is_refused(one_input: Executable, tmp_path: Path) -> None:
    path = tmp_path / "model.tw"
    one_input.save(path)
    good = path.read_bytes()
    path.write_bytes(good[:7] + b"\x02" + good[8:])
    with pytest.raises(ArtifactError, match="header of version 2"):
        load(path)


def test_damaged_files_are_refused(one_input: Executable, tmp_path: Path) -> None:
    path = tmp_path / "model.tw"
    one_input.save(path)
    good = path.read_bytes()
    for damage in (good[: HEADER // 2], good[: HEADER + 10], good[:-4096], b"", b"PK" + good[2:]):
        path.write_bytes(damage)
        with pytest.raises(ArtifactError):
            load(path)
    for position in np.linspace(0, len(good) - 1, 40).astype(int):
        changed = bytearray(good)
        changed[position] ^= 0x40
        path.write_bytes(changed)
        try:
            result = load(path, verify=True)(np.full((2, 4), 3, np.float32))
        except ArtifactError:
            continue
        assert (result == 9).all(), "only padding may change without notice"
    with pytest.raises(ArtifactError, match="cannot be opened"):
        load(tmp_path / "missing.tw")


@pytest.mark.parametrize("missing", ["inputs", "outputs", "sizes", "entry", "memory", "checks", "late_outputs"])
def test_incomplete_manifests_are_refused(one_input: Executable, missing: str) -> None:
    artifact = one_input.artifact
    manifest = {name: value for name, value in artifact.manifest.items() if name != missing}
    with pytest.raises(ArtifactError, match="manifest is malformed or incomplete"):
        Executable(Artifact(manifest, artifact.objects, artifact.pool, artifact.weights))


@pytest.mark.parametrize(
    "changed", [{"name": [1]}, {"triple": {}}, {"isa": [["avx2"]]}, {"isa": 3}, {"name": ["x"], "triple": "riscv64-linux"}]
)
def test_targets_that_are_no_texts_are_refused(one_input: Executable, changed: dict[str, Any]) -> None:
    artifact = one_input.artifact
    target = {**artifact.manifest["target"], **changed}
    with pytest.raises(ArtifactError, match="manifest is malformed or incomplete"):
        Executable(Artifact({**artifact.manifest, "target": target}, artifact.objects, artifact.pool, artifact.weights))


def test_code_for_another_processor_is_refused(one_input: Executable, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = one_input.artifact
    target = {**artifact.manifest["target"], "isa": ["a-feature-of-the-future"]}
    with pytest.raises(ArtifactError, match="a-feature-of-the-future"):
        Executable(Artifact({**artifact.manifest, "target": target}, artifact.objects, artifact.pool, artifact.weights))


@pytest.mark.parametrize(
    "triple", ["riscv64-unknown-linux-gnu", "x86_64-pc-windows-msvc", "arm64-apple-macosx", "aarch64-unknown-linux-musl"]
)
def test_code_for_another_platform_is_refused(one_input: Executable, triple: str) -> None:
    artifact = one_input.artifact
    if platform_of(triple) == host_platform():
        triple = "x86_64-unknown-linux-gnu"
    target = {**artifact.manifest["target"], "triple": triple}
    with pytest.raises(ArtifactError, match="the artifact was compiled for"):
        Executable(Artifact({**artifact.manifest, "target": target}, artifact.objects, artifact.pool, artifact.weights))


def test_memory_that_the_system_refuses_is_an_error(one_input: Executable, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(size: int) -> np.ndarray:
        raise MemoryError

    fresh = Executable(one_input.artifact, 1)
    monkeypatch.setattr(executable_module, "aligned_empty", refuse)
    with pytest.raises(Exception, match="which the system refuses"):
        fresh(floats(2, 4))


def test_the_memory_limit_holds_at_sizes_known_only_when_called() -> None:
    """Working memory and outputs at symbolic dims, and tensors whose size depends on data: over the limit each is refused before it is
    there, and just below it runs."""
    text = """(float[n] x, int64[1] count) => (float[n] y, float[m] z) {
        y = Exp(x) one = Constant <value_floats = [1.0]> () z = Expand(one, count) }"""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> m {text}')
    limited = tw.compile(model, cache=False, progress="none", max_memory=1_000_000)
    few, one = np.zeros(10, np.float32), np.array([1])
    limited.run({"x": few, "count": one})
    with pytest.raises(MemoryLimitError, match="the limit is 1,000,000") as caught:
        limited.run({"x": np.zeros(300_000, np.float32), "count": one})
    assert "n = 300000" in str(caught.value)
    with pytest.raises(MemoryLimitError, match="ran out of memory"):
        limited.run({"x": few, "count": np.array([300_000])})
    assert limited.run({"x": few, "count": np.array([200_000])})["z"].shape == (200_000,)
    assert tw.Executable(limited.artifact).run({"x": few, "count": np.array([300_000])})["z"].shape == (300_000,)


def test_a_loop_that_grows_its_results_stops_at_the_memory_limit() -> None:
    text = """(float[1000] x, int64 turns) => (float[1000] last, float[k, 1000] all) {
        last, all = Loop <body = turn (int64 i, bool go, float[1000] v) => (bool on, float[1000] w, float[1000] each)
            { on = Identity(go) w = Add(v, v) each = Identity(w) }> (turns, , x) }"""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> m {text}')
    limited = tw.compile(model, cache=False, progress="none", max_memory=10_000_000)
    x = np.ones(1000, np.float32)
    assert limited.run({"x": x, "turns": np.array(100)})["all"].shape == (100, 1000)
    with pytest.raises(MemoryLimitError):
        limited.run({"x": x, "turns": np.array(1 << 40)})
