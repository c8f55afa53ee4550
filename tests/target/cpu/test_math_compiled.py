"""The expansions as machine code: the bounds hold there too, and the values are those of the expressions, which a code generator that
fuses products and sums must not disturb."""

from __future__ import annotations

import numpy as np
import pytest

from tests.target.cpu.expression_values import evaluate
from tests.target.cpu.kernel_runner import run
from tests.target.cpu.math_references import ARGUMENTS, IN_FLOAT64, arguments, errors_in_float32
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.expr import call, const, load, var
from tilewright.kernel.nodes import Buffer, For, Kernel, Store, seq
from tilewright.machine.targets import named_machine
from tilewright.target.cpu.codegen import generate
from tilewright.target.cpu.math import expand_math, expand_math_in
from tilewright.target.cpu.math.accuracy import MAX_ULP, PERIODIC_LIMITS

LANES = 16
COUNT = 4096


def kernel_of(name: str, dtype: DType, vectorized: bool) -> Kernel:
    inputs = tuple(Buffer(f"x{i}", dtype, (const(COUNT),)) for i in range(ARGUMENTS.get(name, 1)))
    output = Buffer("y", dtype, (const(COUNT),))
    outer, lane = var("i"), var("l")
    index = outer * LANES + lane
    value = call(name, *(load(buffer, (index,)) for buffer in inputs))
    inner = For(lane, const(LANES), Store(output, (index,), value), "vectorized" if vectorized else "serial")
    return Kernel(f"compiled_{name}", inputs, (output,), expand_math_in(seq(For(outer, const(COUNT // LANES), inner))))


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
@pytest.mark.parametrize("name", MAX_ULP)
def test_compiled_vectors_give_the_values_of_the_expressions(name: str, dtype: DType) -> None:
    rng = np.random.default_rng(5)
    args = tuple(rng.permutation(a)[:COUNT] for a in arguments(name, dtype.numpy, COUNT, seed=2))
    (values,) = run(kernel_of(name, dtype, vectorized=True), args)
    variables = [var(f"x{i}", dtype) for i in range(len(args))]
    expected = evaluate(expand_math(call(name, *variables)), dict(zip(variables, args)))
    if name in ("sin", "cos", "tan"):
        # Far out, where the reduced argument means nothing, it hangs on how the test emulates fused operations.
        keep = np.abs(args[0]) <= PERIODIC_LIMITS[0]
        values, expected = values[keep], expected[keep]
    np.testing.assert_allclose(
        values, expected, rtol=4 * np.finfo(dtype.numpy).eps, atol=4 * float(np.finfo(dtype.numpy).smallest_subnormal)
    )


@pytest.mark.parametrize("vectorized", [True, False])
@pytest.mark.parametrize("name", MAX_ULP)
def test_compiled_float32_is_within_its_bound(name: str, vectorized: bool) -> None:
    rng = np.random.default_rng(6)
    args = tuple(rng.permutation(a)[:COUNT] for a in arguments(name, np.float32, COUNT, seed=3))
    if name in ("sin", "cos", "tan"):
        args = tuple(np.where(np.abs(a) > PERIODIC_LIMITS[0], np.float32(0.5), a) for a in args)
    (values,) = run(kernel_of(name, dtypes.float32, vectorized), args)
    with np.errstate(all="ignore"):
        exact = IN_FLOAT64[name](*(a.astype(np.float64) for a in args))
    error = errors_in_float32(values, exact)
    if name == "sigmoid":
        error = np.where(exact < 2.0**-126, 0.0, error)
    assert error.max() <= MAX_ULP[name][0]


@pytest.mark.parametrize("lanes", [4, 8, 16, 3])
def test_reciprocals_of_normal_numbers_are_within_one_unit(lanes: int) -> None:
    """Of all magnitudes whose reciprocal is normal; NaN stays NaN."""
    rng = np.random.default_rng(9)
    count = lanes * 4096
    x = (rng.uniform(1.0, 2.0, count) * np.exp2(rng.integers(-125, 125, count)) * rng.choice([-1.0, 1.0], count)).astype(np.float32)
    x[7] = np.nan
    source, result = Buffer("x0", dtypes.float32, (const(count),)), Buffer("y", dtypes.float32, (const(count),))
    outer, lane = var("i"), var("l")
    index = outer * lanes + lane
    inner = For(lane, const(lanes), Store(result, (index,), call("reciprocal_normal", load(source, (index,)))), "vectorized")
    (values,) = run(Kernel("reciprocals", (source,), (result,), seq(For(outer, const(count // lanes), inner))), (x,))
    assert np.isnan(values[7])
    error = errors_in_float32(values, 1.0 / x.astype(np.float64))
    assert np.delete(error, 7).max() <= 1.0


def test_reciprocals_are_estimated_only_where_an_instruction_does() -> None:
    kernel = kernel_of("sigmoid", dtypes.float32, vectorized=True)
    texts = [generate(kernel, named_machine(f"x86-64-v{level}")) for level in (2, 3, 4)]
    assert ["rcp14" in text for text in texts] == [False, False, True]
    assert ["fdiv" in text for text in texts] == [True, True, False]
