"""The same kernels for other instruction sets: x86-64-v2 and -v3 run here, aarch64 is compiled and its objects are looked at."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest

from tests.model_families import FAMILIES
from tilewright.compiler import compile_module
from tilewright.frontend.onnx.importer import import_model
from tilewright.frontend.onnx.loader import load_model
from tilewright.graph.interpreter import interpret
from tilewright.graph.node import Module
from tilewright.machine.targets import parse_target, resolve_target
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.executable import Executable
from tilewright.runtime.formula import Formula
from tilewright.runtime.host_features import host_platform, missing_features
from tilewright.runtime.linker import PROCESS_SYMBOLS
from tilewright.runtime.object_symbols import read_symbols
from tilewright.runtime.pool import POOL_IMPORTS
from tilewright.support.errors import ArtifactError
from tilewright.support.settings import Settings
from tilewright.target.cpu.groups import GroupCode, GroupCompiler
from tilewright.target.cpu.llvm import compile_to_assembly, llvm_target

LEVELS = ("cpu:x86-64", "cpu:x86-64-v2", "cpu:x86-64-v3")
ARM = ("cpu:generic", "cpu:neoverse-v2")
here_x86 = pytest.mark.skipif(host_platform() != "x86_64 linux", reason="the levels are those of x86-64")


@cache
def module_of(name: str) -> Module:
    return import_model(load_model(FAMILIES[name]().model())).module


def compiled(name: str, target: str) -> Artifact:
    machine = resolve_target(parse_target(target), lambda: pytest.fail("the target names a CPU"))
    return compile_module(module_of(name), machine, Settings().changed(cache=False)).artifact


@here_x86
@pytest.mark.parametrize("target", LEVELS)
@pytest.mark.parametrize("name", FAMILIES)
def test_levels_below_this_machines_give_the_same_results(name: str, target: str) -> None:
    artifact = compiled(name, target)
    lacking = missing_features(artifact.manifest["target"]["isa"])
    if lacking:
        pytest.skip(f"this processor has no {', '.join(lacking)}")
    family = FAMILIES[name]()
    got = Executable(artifact, 2).run(dict(family.inputs))
    want = interpret(module_of(name), list(family.inputs.values()))
    tolerance = 2e-2 if any(array.dtype == np.float16 for array in family.inputs.values()) else 1e-4
    for (output, mine), expected in zip(got.items(), want, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=tolerance, atol=tolerance, err_msg=output)


@pytest.mark.parametrize(("target", "absent", "present"), [("cpu:x86-64-v2", "[yz]mm", "xmm"), ("cpu:x86-64-v3", "zmm", "vfmadd")])
def test_levels_use_their_own_registers_and_no_others(target: str, absent: str, present: str) -> None:
    machine = resolve_target(parse_target(target), lambda: pytest.fail("the target names a CPU"))
    codes: list[GroupCode] = []
    for name in ("product", "convolution", "rows"):
        with GroupCompiler(machine, Settings()) as groups:
            from tilewright.compiler import optimise
            from tilewright.plan.build import build_plan

            build_plan(optimise(module_of(name), machine, Settings()), groups)
            codes += groups.codes.values()
    text = "".join(compile_to_assembly(code.ir, llvm_target(machine)) for code in codes)
    assert not re.search(rf"%{absent}", text)
    assert present in text


@pytest.mark.parametrize("target", ARM)
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_compiles_for_aarch64(name: str, target: str) -> None:
    artifact = compiled(name, target)
    tables = [read_symbols(data) for data in (*artifact.objects.values(), artifact.pool)]
    assert {table.machine for table in tables} == {"aarch64"}
    for data in (*artifact.objects.values(), artifact.pool):
        assert data[:4] == b"\x7fELF"
        assert int.from_bytes(data[18:20], "little") == 183
    defined = frozenset[str]().union(*(table.defined for table in tables))
    undefined = frozenset[str]().union(*(table.undefined for table in tables)) - defined
    assert undefined <= PROCESS_SYMBOLS | set(POOL_IMPORTS), "what the linker would have to find on the device"
    assert artifact.manifest["entry"] in defined
    sizes = {entry["name"] for entry in artifact.manifest["sizes"]}
    for kernel in artifact.manifest["kernels"]:
        work = dict(kernel["work"])
        for text in (*work.pop("multiply_adds").values(), *work.values()):
            assert set(Formula(text).names) <= sizes, "the work of a kernel follows from the sizes alone"


@here_x86
def test_code_for_another_processor_is_refused_before_it_is_linked() -> None:
    with pytest.raises(ArtifactError, match="aarch64 linux"):
        Executable(compiled("product", "cpu:generic"), 1)
