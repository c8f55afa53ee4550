"""Arithmetic and traffic of kernels, read off their definitions."""

from __future__ import annotations

from collections.abc import Sequence

from tests.kernel.schedule.kernels import convolution, elementwise, matmul
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import Expr, call, cast, const, less, minimum, select, size
from tilewright.ir.traverse import evaluate_int
from tilewright.ir.types import tensor
from tilewright.kernel.builder import KernelBuilder, StmtBuilder, Tensor
from tilewright.kernel.nodes import Kernel
from tilewright.kernel.operations import ASSUMED_TRIPS, operations
from tilewright.kernel.work import work_of
from tilewright.target.cpu.math import expand_math


def value(e: Expr, **sizes: int) -> int:
    return evaluate_int(e, {v: sizes[v.name] for v in (size(name) for name in sizes)})


def product_kernel(left: DType, right: DType, accumulator: DType) -> Kernel:
    k = KernelBuilder("product")
    n = size("n")
    a, b = k.input("a", left, (n, 8)), k.input("b", right, (8, 16))
    total = k.reduce("c", (n, 16), (8,), lambda i, j, r: cast(accumulator, a[i, r]) * cast(accumulator, b[r, j]), "sum")
    return k.finish([total])


def test_a_product_is_multiply_adds_and_reads_each_operand_once() -> None:
    work = work_of(product_kernel(dtypes.float32, dtypes.float32, dtypes.float32), frozenset({1}))
    assert {kind: value(e, n=3) for kind, e in work.multiply_adds.items()} == {"f32": 2 * 3 * 16 * 8}
    assert value(work.operations, n=3) == 2 * 3 * 16 * 8
    assert value(work.other, n=3) == 0
    assert value(work.read, n=3) == 4 * (3 * 8 + 8 * 16)
    assert value(work.constant, n=3) == 4 * 8 * 16
    assert value(work.written, n=3) == 4 * 3 * 16


def test_products_at_taps_that_lie_inside_are_multiply_adds() -> None:
    k = KernelBuilder("window")
    x, w = k.input("x", dtypes.float32, (10,)), k.input("w", dtypes.float32, (3,))
    zero = const(0.0, dtypes.float32)
    kernel = k.finish([k.reduce("y", (10,), (3,), lambda i, r: select(less(i + r, 10), x[i + r] * w[r], zero), "sum")])
    assert {kind: value(e) for kind, e in work_of(kernel).multiply_adds.items()} == {"f32": 60}


def test_the_peak_that_bounds_a_product_follows_from_its_data() -> None:
    cases = {
        "int8": (dtypes.uint8, dtypes.int8, dtypes.int32),
        "bf16": (dtypes.bfloat16, dtypes.bfloat16, dtypes.float32),
        "f32": (dtypes.bfloat16, dtypes.float32, dtypes.float32),
        "f64": (dtypes.float64, dtypes.float64, dtypes.float64),
    }
    for kind, (left, right, accumulator) in cases.items():
        assert set(work_of(product_kernel(left, right, accumulator)).multiply_adds) == {kind}
    assert not work_of(product_kernel(dtypes.int32, dtypes.int32, dtypes.int32)).multiply_adds, "no instruction does that in one"


def test_operations_are_split_into_multiply_adds_and_the_rest() -> None:
    for kernel in (matmul(6, 5, 10), elementwise(7, 9), convolution(side=7, window=3, stride=2)):
        work = work_of(kernel)
        assert value(work.operations) == value(operations(kernel))
        assert value(work.operations) == sum(value(e) for e in (*work.multiply_adds.values(), work.other))


def test_functions_count_as_what_the_target_computes() -> None:
    k = KernelBuilder("function")
    x = k.input("x", dtypes.float32, (10,))
    kernel = k.finish([k.compute("y", (10,), lambda i: call("exp", x[i]))])
    plain, expanded = work_of(kernel), work_of(kernel, expand=expand_math)
    assert (value(plain.operations), value(plain.other)) == (10, 10)
    assert value(expanded.operations) == 10
    assert sum(value(e) for e in (*expanded.multiply_adds.values(), expanded.other)) > 10 * 5


def test_reading_at_an_index_that_is_data_reads_what_is_asked_for() -> None:
    k = KernelBuilder("gather")
    table, index = k.input("table", dtypes.float32, (1000, 16)), k.input("index", dtypes.int64, (5,))
    kernel = k.finish([k.compute("y", (5, 16), lambda i, j: table[index[i], j])])
    assert value(work_of(kernel).read) == 4 * 5 * 16 + 8 * 5
    assert value(work_of(kernel).other) == 0


def test_loops_that_depend_on_the_point_count_as_those_of_the_middle_point() -> None:
    k = KernelBuilder("ragged")
    n = size("n")
    table, index = k.input("table", dtypes.float32, (100_000,)), k.input("index", dtypes.int64, (n,))

    def body(s: StmtBuilder, outs: Sequence[Tensor], i: Expr) -> None:
        total = s.local("total", dtypes.float32, init=0.0)
        with s.loop("j", i + 1) as j:
            s.store(total, (), total[()] + table[index[j]])
        s.store(outs[0], (i,), total[()])

    (y,) = k.opaque("y", (tensor(dtypes.float32, (n,)),), (n,), body)
    work = work_of(k.finish([y]))
    assert value(work.operations, n=10) == 10 * 6
    assert value(work.read, n=10) == 4 * 10 * 6 + 8 * 10, "in terms of sizes alone"


def test_a_length_computed_from_what_is_read_counts_as_assumed() -> None:
    """Whatever it is computed from on the way: a float, another variable."""
    k = KernelBuilder("adaptive")
    x, corners = k.input("x", dtypes.float32, (8,)), k.input("corners", dtypes.float32, (8,))

    def body(s: StmtBuilder, outs: Sequence[Tensor], i: Expr) -> None:
        corner = s.let("corner", corners[i] * const(0.5, dtypes.float32))
        step = s.let("step", corner / const(3.0, dtypes.float32))
        count = s.let("count", cast(dtypes.int64, call("ceil", step)))
        total = s.local("total", dtypes.float32, init=0.0)
        with s.loop("j", count) as j:
            s.store(total, (), total[()] + x[minimum(j, const(7))])
        s.store(outs[0], (i,), total[()])

    (y,) = k.opaque("y", (tensor(dtypes.float32, (8,)),), (8,), body)
    work = work_of(k.finish([y]))
    assert value(work.operations) == 8 * (1 + 1 + 1 + ASSUMED_TRIPS)
    assert value(work.read) == 4 * (8 + 8)


def test_a_part_of_an_operand_is_read_as_that_part() -> None:
    k = KernelBuilder("part")
    x = k.input("x", dtypes.float32, (100,))
    y = k.input("unread", dtypes.float32, (100,))
    kernel = k.finish([k.compute("y", (10,), lambda i: x[i + 5] * const(2.0, dtypes.float32))])
    assert value(work_of(kernel).read) == 40
    assert y.buffer in kernel.inputs
