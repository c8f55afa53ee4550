"""The same artifact gives the same bits: in every run, with any number of threads, whatever else runs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tilewright as tw
from tests.end_to_end.small_models import assert_identical
from tests.model_families import FAMILIES, Family, family, floats

SUMS = {  # many tasks for one result, of which each thread takes its share
    "sum_of_all": family("g (float[n,333] x) => (float y) { y = ReduceSum <keepdims = 0> (x) }", {"x": floats(1234, 333)}),
    "sums_of_columns": family("g (float[n,77] x, int64[1] axis) => (float[77] y) { y = ReduceSum <keepdims = 0> (x, axis) }",
        {"x": floats(4097, 77)}, {"axis": np.array([0])}),
    "normalized_image": family("g (float[2,4,h,91] x, float[4] s) => (float[2,4,h,91] y) { y = InstanceNormalization (x, s, s) }",
        {"x": floats(2, 4, 133, 91)}, {"s": floats(4)}),
    "long_product": family("g (float[m,9001] x, float[9001,3] w) => (float[m,3] y) { y = MatMul(x, w) }",
        {"x": floats(2, 9001)}, {"w": floats(9001, 3)}),
    "images": family(
        "g (float[n,32,h,28] x, float[32,32,3,3] w) => (float[n,32,h,28] y) { y = Conv <pads = [1,1,1,1]> (x, w) }",
        {"x": floats(3, 32, 28, 28)}, {"w": floats(32, 32, 3, 3)}),
}  # fmt: skip


@pytest.mark.parametrize("name", [*FAMILIES, *SUMS])
def test_bits_do_not_depend_on_threads_or_runs(name: str) -> None:
    make: Callable[[], Family] = {**FAMILIES, **SUMS}[name]
    case = make()
    artifact = tw.compile(case.model(), cache=False, progress="none").artifact
    want = tw.Executable(artifact, threads=1).run(case.inputs)
    for threads in (1, 2, 3, 7):
        executable = tw.Executable(artifact, threads=threads)
        for _ in range(3):
            assert_identical(executable.run(case.inputs), want)
