"""Running hand-built graphs as compiled code, and comparing with the graph interpreter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

import numpy as np

from tilewright.compiler import Compiled, compile_module, constant_offsets
from tilewright.graph.interpreter import bind_inputs, interpret
from tilewright.graph.node import Function, GraphBuilder, Module, Parameter, Value
from tilewright.ir import dtypes
from tilewright.ir.expr import Expr
from tilewright.ir.types import TensorType, tensor
from tilewright.machine.description import Machine
from tilewright.machine.detect import detect_host
from tilewright.runtime.executable import Executable
from tilewright.support.settings import Settings
from tilewright.target.cpu.stepper import Stepper

Array = np.ndarray
host: Callable[[], Machine] = cache(detect_host)


def f32(*shape: Expr | int) -> TensorType:
    return tensor(dtypes.float32, shape)


def i64(*shape: Expr | int) -> TensorType:
    return tensor(dtypes.int64, shape)


def boolean() -> TensorType:
    return tensor(dtypes.bool_, ())


def function(name: str, types: Sequence[TensorType], body: Callable[..., Sequence[Value]]) -> Function:
    """A function whose parameters have `types` and whose results are `body(g, *params)`."""
    g = GraphBuilder()
    params = tuple(g.one(Parameter(f"{name}{i}", type_)) for i, type_ in enumerate(types))
    return Function(name, params, tuple(body(g, *params)))


def module(types: Sequence[TensorType], body: Callable[..., Sequence[Value]], functions: Mapping[str, Function] | None = None) -> Module:
    """A module whose `main` is `function("main", types, body)`, with inputs x0, x1 ... and outputs y0, y1 ..."""
    main = function("main", types, body)
    inputs, outputs = (tuple(f"{letter}{i}" for i in range(n)) for letter, n in (("x", len(types)), ("y", len(main.results))))
    return Module({"main": main, **(functions or {})}, "main", inputs, outputs)


def compile_graph(m: Module, **settings: object) -> Compiled:
    return compile_module(m, host(), Settings().changed(cache=False, **settings))


def step(compiled: Compiled, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of a compiled graph's plan, run step by step from Python."""
    offsets, _ = constant_offsets([constant.type for constant in compiled.constants])
    sizes: dict[Expr, int] = {}
    bind_inputs(list(compiled.plan.inputs), inputs, sizes)
    stepper = Stepper(compiled.plan, compiled.artifact, offsets)
    return stepper.run([np.ascontiguousarray(x) for x in inputs], sizes, lambda step, results, seconds: None)


def check(m: Module, *cases: Sequence[Array], rtol: float = 1e-5, **settings: object) -> Compiled:
    """Compile once, and compare with the interpreter for the inputs of every case: the native entry, a second time the same executable
    (so that memory left by one inference does not help or harm the next), and the stepper."""
    compiled = compile_graph(m, **settings)
    executable = Executable(compiled.artifact, 2)
    for inputs in (*cases, *cases):
        expected = interpret(m, inputs)
        got = executable.run(dict(zip(m.input_names, inputs, strict=True)))
        for name, want in zip(m.output_names, expected, strict=True):
            same(got[name], want, rtol)
    for inputs in cases:
        for got_step, want in zip(step(compiled, inputs), interpret(m, inputs), strict=True):
            same(got_step, want, rtol)
    return compiled


def same(got: Array, want: Array, rtol: float) -> None:
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol)
