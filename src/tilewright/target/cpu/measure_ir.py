"""The kernels by which a machine is measured, as LLVM IR text. `measure.py` says what they are for.

All have the form of a part of a parallel loop, `void NAME(ptr args, i64 begin, i64 end)`, where each of [begin, end) is one thread's share.
`args` points to four words: repetitions, bytes of one share, where the shares lie, and where a result may go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.ir import dtypes
from tilewright.machine.description import Machine
from tilewright.target.cpu.codegen.text import Function, Module
from tilewright.target.cpu.dots import MatrixInstruction, matrix_instructions
from tilewright.target.cpu.llvm import function_attributes

ARITHMETIC = ("f32", "bf16", "int8")
TILES = 4  # independent sums of tiles, of which each takes two of the four registers of factors
READS = 8  # vectors read per iteration, each into an accumulator of its own
READ, RUN = "tw_measure_read", "tw_measure_run"


def arithmetic_name(kind: str) -> str:
    return f"tw_measure_{kind}"


def accumulators(machine: Machine) -> int:
    """Independent sums, enough to hide the latency of multiply-adds, and few enough for the registers."""
    return min(machine.vector_registers - 4, max(8, machine.fma_units * machine.fma_latency + 4))


def available(machine: Machine) -> tuple[str, ...]:
    """The kinds of multiply-add that the machine has instructions for."""
    return tuple(kind for kind in ARITHMETIC if _tiles(machine, kind) is not None or _instruction(machine, kind) is not None)


def operations(machine: Machine, kind: str) -> int:
    """Operations in one repetition of the kernel of a kind; a multiply-add counts as two."""
    factors = {"f32": 1, "bf16": 2, "int8": 4}[kind]
    if _tiles(machine, kind) is not None:
        return 2 * TILES * 16 * 16 * 16 * factors
    return 2 * accumulators(machine) * machine.lanes(32) * factors


def measuring_module(machine: Machine) -> str:
    """All kernels, and `RUN(ptr pool, ptr kernel, ptr args, i64 parts, i64 times)`, which starts one as a parallel loop so many
    times within one bracket of the pool."""
    module = Module(function_attributes(machine.vector_bits))
    module.declare("declare void @tw_parallel_for(ptr, ptr, ptr, i64, i64)")
    module.declare("declare void @tw_pool_begin(ptr)")
    module.declare("declare void @tw_pool_end(ptr)")
    for kind in available(machine):
        tiles = _tiles(machine, kind)
        if tiles is not None:
            _tile_arithmetic(module, kind, tiles)
        else:
            _arithmetic(module, machine, kind)
    _read(module, machine)
    _run(module)
    return module.text()


def _run(module: Module) -> None:
    fn = Function(module, RUN, ("ptr %pool", "ptr %kernel", "ptr %args", "i64 %parts", "i64 %times"))

    def body(_: str, carried: Sequence[str]) -> Sequence[str]:
        fn.do("call void @tw_parallel_for(ptr %pool, ptr %kernel, ptr %args, i64 %parts, i64 1)")
        return carried

    fn.do("call void @tw_pool_begin(ptr %pool)")
    _loop(fn, "%times", [], body)
    fn.do("call void @tw_pool_end(ptr %pool)")
    fn.do("ret void")
    module.add(fn)


def _arithmetic(module: Module, machine: Machine, kind: str) -> None:
    """Multiply-adds into independent sums; factors come from memory, so that nothing is known of them."""
    found = _instruction(machine, kind)
    if found is None:
        return
    sums, factors, call = found
    module.declare(call[0])
    fn, share, repetitions, data = _kernel(module, arithmetic_name(kind))
    first = fn.op(f"load {factors}, ptr {data}, align 64")
    second = fn.op(f"load {factors}, ptr {_after(fn, data, 1)}, align 64")
    # sums that began equal would stay equal, and be computed once
    start = [(sums, fn.op(f"load {sums}, ptr {_after(fn, data, 2 + i)}, align 64")) for i in range(accumulators(machine))]

    def body(_: str, carried: Sequence[str]) -> list[str]:
        return [fn.op(call[1].format(sum=value, a=first, b=second)) for value in carried]

    last = _loop(fn, repetitions, start, body)
    _sink(fn, sums, last, share)
    _close(module, fn)


def _tile_arithmetic(module: Module, kind: str, instruction: MatrixInstruction) -> None:
    """Products of tiles into independent sums, all in registers."""
    moved, tile = "i8 immarg, ptr, i64", "i8 immarg"
    used = {"ldtilecfg": "ptr", "tilezero": tile, "tileloadd64": moved, "tilestored64": moved, "tilerelease": ""}
    for name, args in used.items():
        module.declare(f"declare void @llvm.x86.{name}({args})")
    module.declare(f"declare void @llvm.x86.{instruction.name}(i8 immarg, i8 immarg, i8 immarg)")
    shapes = ", ".join(["i8 1", *["i8 0"] * 15, *["i8 64", "i8 0"] * 8, *["i8 0"] * 16, *["i8 16"] * 8, *["i8 0"] * 8])
    table = module.constant("tw.measure.shapes", f"private unnamed_addr constant [64 x i8] [{shapes}], align 64")
    fn, share, repetitions, data = _kernel(module, arithmetic_name(kind))
    fn.do(f"call void @llvm.x86.ldtilecfg(ptr {table})")
    for number in range(TILES):
        fn.do(f"call void @llvm.x86.tilezero(i8 {number})")
    for number in range(TILES, 2 * TILES):
        fn.do(f"call void @llvm.x86.tileloadd64(i8 {number}, ptr {data}, i64 64)")

    def body(_: str, carried: Sequence[str]) -> Sequence[str]:
        for number in range(TILES):
            fn.do(f"call void @llvm.x86.{instruction.name}(i8 {number}, i8 {TILES + number // 2}, i8 {TILES + 2 + number % 2})")
        return carried

    _loop(fn, repetitions, [], body)
    for number in range(TILES):
        fn.do(f"call void @llvm.x86.tilestored64(i8 {number}, ptr {share}, i64 0)")  # one row over the other, as nobody looks
    fn.do("call void @llvm.x86.tilerelease()")
    _close(module, fn)


def _read(module: Module, machine: Machine) -> None:
    """Reads a share from end to end, as often as asked."""
    vector = f"<{machine.lanes(32)} x i32>"
    step = machine.vector_bits // 8
    fn, share, repetitions, data = _kernel(module, READ)
    size = fn.op(f"load i64, ptr {fn.op('getelementptr i64, ptr %args, i64 1')}")
    rounds = fn.op(f"udiv i64 {size}, {READS * step}")

    def body(index: str, carried: Sequence[str]) -> list[str]:
        base = fn.op(f"getelementptr i8, ptr {data}, i64 {fn.op(f'mul i64 {index}, {READS * step}')}")
        summed = []
        for i, value in enumerate(carried):
            place = fn.op(f"getelementptr i8, ptr {base}, i64 {i * step}")
            summed.append(fn.op(f"add {vector} {value}, {fn.op(f'load {vector}, ptr {place}, align {step}')}"))
        return summed

    start = [(vector, "zeroinitializer")] * READS
    last = _loop(fn, repetitions, start, lambda _, carried: _loop(fn, rounds, list(zip([vector] * READS, carried, strict=True)), body))
    _sink(fn, vector, last, share)
    _close(module, fn)


# ---- pieces


def _kernel(module: Module, name: str) -> tuple[Function, str, str, str]:
    """A function with its loop over shares open: (function, where the share's result goes, repetitions, the share's data)."""
    fn = Function(module, name, ("ptr %args", "i64 %begin", "i64 %end"))
    repetitions = fn.op("load i64, ptr %args")
    size = fn.op(f"load i64, ptr {fn.op('getelementptr i64, ptr %args, i64 1')}")
    data = fn.op(f"load ptr, ptr {fn.op('getelementptr i64, ptr %args, i64 2')}")
    results = fn.op(f"load ptr, ptr {fn.op('getelementptr i64, ptr %args, i64 3')}")
    fn.jump("shares")
    fn.start("shares")
    fn.do("%share = phi i64 [ %begin, %entry ], [ %share.next, %share.done ]")
    more = fn.op("icmp slt i64 %share, %end")
    fn.branch(more, "share.work", "finish")
    fn.start("share.work")
    own = fn.op(f"getelementptr i8, ptr {data}, i64 {fn.op(f'mul i64 %share, {size}')}")
    place = fn.op(f"getelementptr i8, ptr {results}, i64 {fn.op('mul i64 %share, 64')}")
    return fn, place, repetitions, own


def _close(module: Module, fn: Function) -> None:
    fn.jump("share.done")
    fn.start("share.done")
    fn.do("%share.next = add i64 %share, 1")
    fn.jump("shares")
    fn.start("finish")
    fn.do("ret void")
    module.add(fn)


def _loop(fn: Function, count: str, start: Sequence[tuple[str, str]], body: Callable[[str, Sequence[str]], Sequence[str]]) -> list[str]:
    """`count` iterations, at least one, that carry values; `body` gives their next ones. The values after the last."""
    head, before = fn.label("loop"), fn.block
    fn.jump(head)
    fn.start(head)
    index = fn.phi_later()
    carried = [fn.phi_later() for _ in start]
    after = body(index[0], [name for name, _ in carried])
    following = fn.op(f"add i64 {index[0]}, 1")
    fn.set_phi(index, "i64", [("0", before), (following, fn.block)])
    for phi, (type_, first), value in zip(carried, start, after, strict=True):
        fn.set_phi(phi, type_, [(first, before), (value, fn.block)])
    more = fn.op(f"icmp ult i64 {following}, {count}")
    done = fn.label("done")
    fn.branch(more, head, done)
    fn.start(done)
    return list(after)


def _after(fn: Function, pointer: str, lines: int) -> str:
    return fn.op(f"getelementptr i8, ptr {pointer}, i64 {64 * lines}")


def _sink(fn: Function, type_: str, values: Sequence[str], place: str) -> None:
    """Writes all values, so that they are needed."""
    for value in values:
        fn.do(f"store volatile {type_} {value}, ptr {place}, align 4")


def _tiles(machine: Machine, kind: str) -> MatrixInstruction | None:
    """The instruction on tiles for factors of a kind, where there is one."""
    wanted = {"bf16": dtypes.bfloat16, "int8": dtypes.uint8}.get(kind)
    return next((found for found in matrix_instructions(machine) if found.left is wanted), None)


def _instruction(machine: Machine, kind: str) -> tuple[str, str, tuple[str, str]] | None:
    """(type of sums, type of factors, (declaration, call)) of the multiply-add of a kind; None where there is no instruction."""
    bits, lanes = machine.vector_bits, machine.lanes(32)
    floats, words = f"<{lanes} x float>", f"<{lanes} x i32>"
    if kind == "f32":
        name = f"@llvm.fmuladd.v{lanes}f32"
        return floats, floats, _call(name, floats, floats)
    if kind == "bf16":
        halves = f"<{2 * lanes} x bfloat>"
        if machine.arch == "x86_64" and machine.has("avx512bf16") and (bits == 512 or machine.has("avx512vl")):
            return floats, halves, _call(f"@llvm.x86.avx512bf16.dpbf16ps.{bits}", floats, halves)
        if machine.arch == "aarch64" and machine.has("bf16"):
            return floats, halves, _call("@llvm.aarch64.neon.bfdot.v4f32.v8bf16", floats, halves)
        return None
    octets = f"<{4 * lanes} x i8>"
    vnni = machine.has("avx512vnni") if bits == 512 else machine.has("avxvnni") or machine.has("avx512vnni", "avx512vl")
    if machine.arch == "x86_64" and vnni:
        return words, octets, _call(f"@llvm.x86.avx512.vpdpbusd.{bits}", words, octets)
    if machine.arch == "aarch64" and machine.has("dotprod"):
        return words, octets, _call("@llvm.aarch64.neon.sdot.v4i32.v16i8", words, octets)
    return None


def _call(name: str, sums: str, factors: str) -> tuple[str, str]:
    if "fmuladd" in name:
        return f"declare {sums} {name}({sums}, {sums}, {sums})", f"call {sums} {name}({sums} {{a}}, {sums} {{b}}, {sums} {{sum}})"
    return (
        f"declare {sums} {name}({sums}, {factors}, {factors})",
        f"call {sums} {name}({sums} {{sum}}, {factors} {{a}}, {factors} {{b}})",
    )
