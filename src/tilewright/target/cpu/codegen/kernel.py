"""One lowered kernel as LLVM IR text.

ABI: `void @NAME(ptr pool, ptr args)`. `args` points to 8-byte slots: a pointer for each of `kernel.inputs`, then of `kernel.outputs`, then,
if `workspace_bytes` is not 0, the pointer to the workspace (64-byte aligned), then each of `kernel.sizes` as int64. Buffers must not
overlap, except that inputs may overlap each other, and that an output may be the very input that it may be stored over
(`kernel.overwriting`). With a null `pool` everything runs on the calling thread.

Scratch of a parallel loop's iterations has a part for each iteration, but no more than PARTS for each core: a loop with more iterations
is cut into as many tasks as there are cores at most, and the part of a task is that of its first iteration in proportion. Tasks take at
least extent // cores iterations in a row, so no two of them get the same part.

A kernel becomes: the entry, which unpacks the slots; a serial function around everything that is not parallel; and for each parallel
loop a task, which unpacks a frame of captured values, and the loop over a range of iterations. Functions that touch memory take each
buffer as a `noalias` parameter and are not inlined, which is what lets LLVM hoist loads and keep local buffers in registers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tilewright.ir.expr import Expr, ceildiv, const, maximum, minimum, mul
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import marked
from tilewright.ir.types import product, static_shape
from tilewright.kernel.nodes import Buffer, For, Kernel, Let, Prefetch, Stmt, Store, children, loads, own_exprs, walk_stmts
from tilewright.kernel.overwriting import overwriting
from tilewright.machine.description import Machine
from tilewright.support.errors import InternalError
from tilewright.target.cpu.codegen.counters import counters_of, divided_once
from tilewright.target.cpu.codegen.expressions import ExprEmitter
from tilewright.target.cpu.codegen.facts import Facts, ranges_of
from tilewright.target.cpu.codegen.llvm_types import memory_type, value_type
from tilewright.target.cpu.codegen.matrix import forget_shapes, release
from tilewright.target.cpu.codegen.statements import Context, emit, emit_loop
from tilewright.target.cpu.codegen.style import style_of
from tilewright.target.cpu.codegen.text import Function, Module, Operand, symbol
from tilewright.target.cpu.codegen.work import grain
from tilewright.target.cpu.llvm import function_attributes

ALIGNMENT = 64
PARALLEL_FOR = "tw_parallel_for"
PARTS = 2  # of the scratch of tasks, for each core


def generate(kernel: Kernel, machine: Machine, contract: bool = True, turn: Expr | None = None) -> str:
    """The LLVM IR text of a lowered kernel (no blocks); see the module's docstring for its ABI. `contract`: products and sums of floats may
    become multiply-adds. `turn`: one of the kernel's sizes; when it is odd, each task of a parallel loop goes through its iterations
    from the last to the first.

    Raises UnsupportedDtypeError for complex numbers and strings, InternalError for a kernel that was not lowered.
    """
    module = Module(function_attributes(machine.vector_bits), contract)
    _KernelEmitter(kernel, module, turn, machine).run()
    return module.text()


def workspace_bytes(kernel: Kernel, machine: Machine) -> Expr:
    """Bytes of the workspace that a lowered kernel wants for its global scratch, in terms of its sizes; 0 when it wants none."""
    owners = _owners(kernel, _regions(kernel))
    total = const(0)
    for buffer in _workspace_buffers(kernel):
        total = total + _aligned_bytes(buffer, owners.get(buffer), machine.cores)
    return total


def _workspace_buffers(kernel: Kernel) -> tuple[Buffer, ...]:
    return tuple(buffer for buffer in kernel.scratch if buffer.scope == "global")


def _aligned_bytes(buffer: Buffer, owner: For | None, cores: int) -> Expr:
    shape = buffer.shape if owner is None else (_parts(owner, cores), *buffer.shape[1:])
    return mul(ceildiv(mul(product(shape), buffer.dtype.bytes), ALIGNMENT), ALIGNMENT)


def _parts(loop: For, cores: int) -> Expr:
    """Parts of scratch that the tasks of a parallel loop need."""
    return minimum(loop.extent, const(PARTS * cores))


def _owners(kernel: Kernel, regions: dict[Buffer, For | None]) -> dict[Buffer, For]:
    """The global scratch of which each iteration of a parallel loop has its own, with that loop."""
    scratch = frozenset(_workspace_buffers(kernel))
    loops = dict.fromkeys(loop for buffer in scratch if (loop := regions.get(buffer)) is not None)
    return {buffer: loop for loop in loops for buffer in _indexed_by(loop) if buffer in scratch and regions[buffer] is loop}


@dataclass(slots=True)
class _Uses:
    """What a statement takes from outside: buffers and variables, in order of first use."""

    buffers: dict[Buffer, None] = field(default_factory=dict)
    variables: dict[Expr, None] = field(default_factory=dict)


def _uses(stmt: Stmt) -> _Uses:
    uses = _Uses()
    bound: set[Expr] = set()
    exprs: list[Expr] = []
    for s in walk_stmts(stmt):
        exprs.extend(own_exprs(s))
        if isinstance(s, (Store, Prefetch)):
            uses.buffers[s.buffer] = None
        elif isinstance(s, (For, Let)):
            bound.add(s.var)
    for e in marked(*exprs):
        if e.op is Op.LOAD:
            uses.buffers[e.attr] = None
        elif e.op is Op.VAR and e not in bound:
            uses.variables[e] = None
    for buffer in uses.buffers:
        uses.variables.update({v: None for dim in buffer.shape for v in marked(dim) if v.op is Op.VAR})
    return uses


class _KernelEmitter:
    """The functions of one kernel."""

    def __init__(self, kernel: Kernel, module: Module, turn: Expr | None, machine: Machine) -> None:
        self.kernel, self.module, self.facts, self.turn = kernel, module, Facts(ranges_of(kernel.body)), turn
        tiles = any(isinstance(stmt, For) and stmt.kind == "matrix" for stmt in walk_stmts(kernel.body))
        self.style = style_of(machine) if tiles else replace(style_of(machine), tiles=())
        self.machine, self.cores = machine, machine.cores
        self.read_only = frozenset(kernel.inputs)
        self.shared = frozenset(buffer for pair in overwriting(kernel) for buffer in (kernel.inputs[pair[0]], kernel.outputs[pair[1]]))
        self.regions = _regions(kernel)
        self.owners = _owners(kernel, self.regions)
        self.count = 0

    def run(self) -> None:
        kernel = self.kernel
        workspace = _workspace_buffers(kernel)
        name = kernel.name
        entry = Function(self.module, name, ("ptr %pool", "ptr noalias readonly %args"))
        em = ExprEmitter(entry, self.style, self.facts)
        slot = 0
        for buffer in kernel.params:
            em.pointers[buffer] = _slot(entry, "%args", slot, "ptr")
            slot += 1
        base = ""
        if workspace:
            base = _slot(entry, "%args", slot, "ptr")
            slot += 1
        for size in kernel.sizes:
            em.bind(size, _slot(entry, "%args", slot, "i64"))
            slot += 1
        offset = const(0)
        for buffer in workspace:
            place = em.scalar(offset)
            em.pointers[buffer] = base if place == 0 else entry.op(f"getelementptr i8, ptr {base}, i64 {place}")
            offset = offset + _aligned_bytes(buffer, self.owners.get(buffer), self.cores)
        buffers = [buffer for buffer in (*kernel.params, *workspace) if buffer in self.regions]
        body = self.function(f"{name}.serial", buffers, kernel.sizes, "ptr %pool", em)
        arguments = self.arguments(em, buffers, kernel.sizes, "ptr %pool")
        self.allocate(body, None)
        emit(Context(body, lambda loop: self.parallel(body, loop)), kernel.body)
        release(body.fn)
        body.fn.do("ret void")
        self.module.add(body.fn)
        entry.do(f"call void {symbol(f'{name}.serial')}({arguments})")
        entry.do("ret void")
        self.module.add(entry)

    def function(self, name: str, buffers: list[Buffer], variables: tuple[Expr, ...], first: str, outer: ExprEmitter) -> ExprEmitter:
        """An emitter into a new function that takes `first`, the buffers and the variables that are not constants."""
        params = [first]
        pointers: dict[Buffer, str] = {}
        values: dict[Expr, Operand] = {}
        for index, buffer in enumerate(buffers):
            pointers[buffer] = f"%b{index}"
            aligned = "" if buffer in self.kernel.params else f"align {ALIGNMENT} "
            alone = "" if buffer in self.shared else "noalias "
            params.append(f"ptr {alone}{'readonly ' if buffer in self.read_only else ''}{aligned}%b{index}")
        for index, variable in enumerate(variables):
            known = outer.scalar(variable)
            values[variable] = known if type(known) is int else f"%s{index}"
            if type(known) is not int:
                params.append(f"{value_type(variable.dtype)} %s{index}")
        fn = Function(self.module, name, params, linkage="internal", extra="noinline")
        fn.values = {}
        em = ExprEmitter(fn, self.style, self.facts)
        em.pointers.update(pointers)
        for variable, value in values.items():
            em.bind(variable, value, nonnegative=variable in outer.nonnegative_vars)
        return em

    def arguments(self, em: ExprEmitter, buffers: list[Buffer], variables: tuple[Expr, ...], first: str) -> str:
        given = [first, *(f"ptr {em.pointers[buffer]}" for buffer in buffers)]
        for variable in variables:
            value = em.scalar(variable)
            if type(value) is not int:
                given.append(f"{value_type(variable.dtype)} {value}")
        return ", ".join(given)

    def allocate(self, em: ExprEmitter, region: For | None) -> None:
        """Stack slots for the local buffers that only `region` uses (None: those of the serial part)."""
        for buffer, home in self.regions.items():
            if buffer.scope == "local" and home is region:
                shape = static_shape(buffer.shape)
                if shape is None:
                    raise InternalError(f"the local buffer {buffer!r} has no constant size")
                count = 1
                for dim in shape:
                    count *= dim
                em.pointers[buffer] = em.fn.alloca(f"[{max(count, 1)} x {memory_type(buffer.dtype)}], align {ALIGNMENT}")

    def parallel(self, em: ExprEmitter, loop: For) -> None:
        """Outlines `loop` and calls it, through the thread pool where there is enough work for two tasks."""
        fn, number = em.fn, self.count
        self.count += 1
        uses = _uses(loop.body)
        buffers = [buffer for buffer in uses.buffers if self.regions.get(buffer) is not loop or buffer.scope == "global"]
        taken = uses.variables if self.turn is None else {**uses.variables, self.turn: None}
        variables = tuple(variable for variable in taken if variable is not loop.var)
        iterations = f"{self.kernel.name}.loop{number}"
        task = f"{self.kernel.name}.task{number}"
        captured = [v for v in variables if type(em.scalar(v)) is not int]
        frame = fn.alloca(f"[{max(1, len(buffers) + len(captured))} x i64], align 8")
        for index, buffer in enumerate(buffers):
            fn.do(f"store ptr {em.pointers[buffer]}, ptr {_place(fn, frame, index)}, align 8")
        for index, variable in enumerate(captured, len(buffers)):
            fn.do(f"store {value_type(variable.dtype)} {em.scalar(variable)}, ptr {_place(fn, frame, index)}, align 8")
        self.loop_function(em, loop, iterations, buffers, variables)
        self.task_function(em, task, iterations, buffers, captured)
        iterations_each = grain(loop, self.facts, self.machine)
        if loop in self.owners.values() and not (loop.extent.is_const and loop.extent.value <= PARTS * self.cores):
            iterations_each = maximum(iterations_each, ceildiv(loop.extent, self.cores))
        extent, least = em.scalar(loop.extent), em.scalar(iterations_each)
        direct, shared, join = fn.label("direct"), fn.label("shared"), fn.label("join")
        small = fn.op(f"icmp sle i64 {extent}, {least}")
        alone = fn.op("icmp eq ptr %pool, null")
        fn.branch(fn.op(f"or i1 {small}, {alone}"), direct, shared)
        fn.start(direct)
        fn.do(f"call void {symbol(task)}(ptr {frame}, i64 0, i64 {extent})")
        fn.jump(join)
        fn.start(shared)
        self.module.declare(f"declare void @{PARALLEL_FOR}(ptr, ptr, ptr, i64, i64)")
        fn.do(f"call void @{PARALLEL_FOR}(ptr %pool, ptr {symbol(task)}, ptr {frame}, i64 {extent}, i64 {least})")
        fn.jump(join)
        fn.start(join)
        forget_shapes(em)
        em.forget(self.facts.written(loop.body))

    def loop_function(self, outer: ExprEmitter, loop: For, name: str, buffers: list[Buffer], variables: tuple[Expr, ...]) -> None:
        em = self.function(name, buffers, variables, "i64 %begin, i64 %end", outer)
        em.per_task = frozenset(buffer for buffer, owner in self.owners.items() if owner is loop)
        part = self.part(em, loop) if em.per_task else ""
        for buffer in buffers:
            if buffer in em.per_task:
                elements = em.fn.op(f"mul nsw i64 {part}, {em.scalar(self.facts.strides(buffer)[0])}")
                em.pointers[buffer] = em.fn.op(f"getelementptr {memory_type(buffer.dtype)}, ptr {em.pointers[buffer]}, i64 {elements}")
        self.allocate(em, loop)
        odd = None if self.turn is None else em.fn.op(f"trunc i64 {em.scalar(self.turn)} to i1")
        for e in divided_once(loop, em):
            em.scalar(e)
        counters = counters_of(loop, em) if odd is None else ()
        emit_loop(em, loop, "%begin", "%end", lambda: emit(Context(em), loop.body), odd, counters)
        release(em.fn)
        em.fn.do("ret void")
        self.module.add(em.fn)

    def part(self, em: ExprEmitter, loop: For) -> str:
        """The number of the part of scratch that the task from %begin on has."""
        parts = _parts(loop, self.cores)
        if parts is loop.extent:
            return "%begin"
        scaled = em.fn.op(f"mul nsw i64 %begin, {em.scalar(parts)}")
        return em.fn.op(f"udiv i64 {scaled}, {em.scalar(maximum(loop.extent, 1))}")  # the loop may be empty

    def task_function(self, outer: ExprEmitter, name: str, iterations: str, buffers: list[Buffer], captured: list[Expr]) -> None:
        fn = Function(self.module, name, ("ptr %frame", "i64 %begin", "i64 %end"), linkage="internal")
        given = ["i64 %begin", "i64 %end"]
        given += [f"ptr {_slot(fn, '%frame', index, 'ptr')}" for index in range(len(buffers))]
        for index, variable in enumerate(captured, len(buffers)):
            type_ = value_type(variable.dtype)
            given.append(f"{type_} {_slot(fn, '%frame', index, type_)}")
        fn.do(f"call void {symbol(iterations)}({', '.join(given)})")
        fn.do("ret void")
        self.module.add(fn)


def _place(fn: Function, base: str, index: int) -> str:
    return fn.op(f"getelementptr i64, ptr {base}, i64 {index}") if index else base


def _slot(fn: Function, base: str, index: int, type_: str) -> str:
    return fn.op(f"load {type_}, ptr {_place(fn, base, index)}, align 8")


def _indexed_by(loop: For) -> set[Buffer]:
    """The buffers whose every access in the loop has the loop's variable as first index."""
    accesses: dict[Buffer, bool] = {}
    exprs: list[Expr] = []
    for stmt in walk_stmts(loop.body):
        exprs.extend(own_exprs(stmt))
        if isinstance(stmt, Store):
            accesses[stmt.buffer] = accesses.get(stmt.buffer, True) and stmt.indices[:1] == (loop.var,)
    for e in marked(*exprs):
        if e.op is Op.LOAD:
            accesses[e.attr] = accesses.get(e.attr, True) and e.args[:1] == (loop.var,)
    return {buffer for buffer, always in accesses.items() if always}


def _regions(kernel: Kernel) -> dict[Buffer, For | None]:
    """For each buffer used: the outermost parallel loop that alone uses it, or None."""
    regions: dict[Buffer, For | None] = {}

    def visit(stmt: Stmt, region: For | None) -> None:
        if region is None and isinstance(stmt, For) and stmt.kind == "parallel":
            region = stmt
        used = [load.attr for e in own_exprs(stmt) for load in loads(e)]
        if isinstance(stmt, Store):
            used.append(stmt.buffer)
        for buffer in used:
            regions[buffer] = region if regions.get(buffer, region) is region else None
        for child in children(stmt):
            visit(child, region)

    visit(kernel.body, None)
    return regions


__all__ = ["ALIGNMENT", "PARALLEL_FOR", "generate", "workspace_bytes"]
