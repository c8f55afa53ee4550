"""A plan as one native function: the steps in order, each kernel a call, sizes computed on the way.

    i64 ENTRY(ptr pool, ptr inputs, ptr outputs, ptr sizes, ptr constants, ptr arena, ptr failure)

`inputs` and `outputs` are arrays of pointers; outputs of sizes known only while running are allocated here and their pointers stored
(free them with `ENTRY_release`). `sizes` is an int64 array in the plan's order, the inputs' sizes filled in by the caller, the rest
written here. `constants` is the base of the weights, `arena` of arena 0. Answers 0, OUT_OF_MEMORY, or the number (from 1) of the
check that failed, with the values that its message quotes in `failure` (int64, at most SHOWN of them). The first of these says on entry
how many bytes may be allocated here; plans that allocate none do not read it. Kernels are called with `args`
as `codegen.kernel` says; the slot before its first holds the number of the launch in program order, from 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tilewright.ir import dtypes
from tilewright.ir.expr import Expr, all_of, cast, const, less_equal, maximum, select
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import free_vars
from tilewright.machine.description import Machine
from tilewright.plan.steps import (
    Allocate,
    Bind,
    Branch,
    Check,
    Copy,
    Grow,
    Launch,
    Loop,
    Place,
    Plan,
    Region,
    SetSize,
    Step,
    literal,
    walk_steps,
)
from tilewright.runtime.constants import ALIGNMENT, OUT_OF_MEMORY, SHOWN
from tilewright.target.cpu.codegen.expressions import ExprEmitter
from tilewright.target.cpu.codegen.facts import Facts
from tilewright.target.cpu.codegen.style import style_of
from tilewright.target.cpu.codegen.text import Function, Module, Operand, symbol
from tilewright.target.cpu.llvm import function_attributes

MOST_BYTES = 2.0**48  # of one allocation: past this it is not tried, and its formula may have overflowed
EXACT = 2.0**62  # integers up to here, as far as float64 can tell, have not overflowed
_ARITHMETIC = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.FLOORDIV, Op.MIN, Op.MAX, Op.SELECT})


@dataclass(frozen=True, slots=True)
class RuntimeCheck:
    """A check's message with {0}, {1} ... for the values shown."""

    message: str
    shown: int


@dataclass(slots=True)
class EntryEmitter:
    """State while one entry function is emitted."""

    plan: Plan
    module: Module
    fn: Function
    emitter: ExprEmitter
    offsets: Sequence[int]
    index: dict[Expr, int]
    regions: dict[Region, str] = field(default_factory=dict)
    slots: dict[Region, tuple[str, str]] = field(default_factory=dict)
    checks: list[RuntimeCheck] = field(default_factory=list)
    args: str = ""
    code: str = ""
    room: str = ""
    launches: int = 0

    # ---- pieces

    def expr(self, e: Expr) -> Operand:
        """The value of an int64 or bool expression at this point; sizes that steps bind are read from memory."""
        for used in free_vars(e):
            if self.emitter.value_of(used) is None:
                self.emitter.bind(used, self.fn.op(f"load i64, ptr {self.size_slot(used)}"))
        return self.emitter.scalar(e)

    def size_slot(self, bound: Expr) -> str:
        return self.fn.op(f"getelementptr inbounds i64, ptr %sizes, i64 {self.index[bound]}")

    def base(self, region: Region) -> str:
        if region.kind == "constant":
            return self.fn.op(f"getelementptr inbounds i8, ptr %constants, i64 {self.offsets[region.index]}")
        if region in self.slots:
            return self.fn.op(f"load ptr, ptr {self.slots[region][0]}")
        return self.regions[region]

    def address(self, place: Place) -> str:
        base = self.base(place.region)
        if place.offset.is_const and place.offset.value == 0:
            return base
        return self.fn.op(f"getelementptr inbounds i8, ptr {base}, i64 {self.expr(place.offset)}")

    def fail_unless(self, condition: Operand, message: str, shown: Sequence[Expr]) -> None:
        self.checks.append(RuntimeCheck(message, len(shown)))
        fine, bad = self.fn.label("fine"), self.fn.label("bad")
        self.fn.branch(condition, fine, bad)
        mark = self.emitter.mark()
        self.fn.start(bad)
        for i, e in enumerate(shown[:SHOWN]):
            slot = self.fn.op(f"getelementptr inbounds i64, ptr %failure, i64 {i}")
            self.fn.do(f"store i64 {self.expr(e)}, ptr {slot}")
        self.fn.do(f"store i64 {len(self.checks)}, ptr {self.code}")
        self.fn.jump("exit")
        self.emitter.leave(mark)
        self.fn.start(fine)

    # ---- steps

    def steps(self, steps: Sequence[Step]) -> None:
        for step in steps:
            mark = self.emitter.mark()
            self.step(step)
            self.emitter.leave(mark)

    def step(self, step: Step) -> None:
        match step:
            case Launch():
                self.launch(step)
            case Copy(target, source):
                size = self.expr(source.type.bytes)
                to, start = self.address(target), self.address(source)
                self.fn.do(f"call void @llvm.memmove.p0.p0.i64(ptr {to}, ptr {start}, i64 {size}, i1 false)")
            case Bind(bound, source, origin):
                bits = source.type.dtype.bits
                value = self.fn.op(f"load i{bits}, ptr {self.address(source)}, align 1")
                value = value if bits == 64 else self.fn.op(f"sext i{bits} {value} to i64")
                self.fn.do(f"store i64 {value}, ptr {self.size_slot(bound)}")
                self.range_check(bound, origin)
            case SetSize(bound, value):
                self.fn.do(f"store i64 {self.expr(value)}, ptr {self.size_slot(bound)}")
            case Allocate(arena, bytes_):
                self.allocate(arena, bytes_, keep=False)
            case Grow(arena, bytes_):
                self.allocate(arena, bytes_, keep=True)
            case Check(condition, message, show):
                exact = [magnitude(e) <= EXACT for e in show if e.op in _ARITHMETIC and not self.given.issuperset(free_vars(e))]
                self.fail_unless(self.expr(all_of(condition, *exact)), message, show)
            case Branch(condition, then, otherwise):
                self.branch(condition, then, otherwise)
            case Loop():
                self.loop(step)

    @property
    def given(self) -> frozenset[Expr]:
        """The sizes of the inputs. What is computed from these is no larger than memory; sizes found while running are any number, and
        the product of two may overflow."""
        return frozenset(self.plan.sizes[: self.plan.input_sizes])

    def launch(self, step: Launch) -> None:
        # a profiler that stands between this call and the kernel reads there which step of the plan this is
        before = self.fn.op(f"getelementptr inbounds i64, ptr {self.args}, i64 -1")
        self.fn.do(f"store i64 {self.launches}, ptr {before}")
        self.launches += 1
        values = [f"ptr {self.address(place)}" for place in step.args] + [f"i64 {self.expr(size)}" for size in step.sizes]
        for i, value in enumerate(values):
            self.fn.do(f"store {value}, ptr {self.arg(i)}")
        self.module.declare(f"declare void {symbol(step.kernel.name)}(ptr, ptr) nounwind")
        self.fn.do(f"call void {symbol(step.kernel.name)}(ptr %pool, ptr {self.args})")

    def arg(self, index: int) -> str:
        return self.args if index == 0 else self.fn.op(f"getelementptr inbounds i64, ptr {self.args}, i64 {index}")

    def range_check(self, bound: Expr, origin: object) -> None:
        info = bound.attr
        limits = []
        if info.lo is not None:
            limits.append(less_equal(info.lo, bound))
        if info.hi is not None:
            limits.append(less_equal(bound, info.hi))
        if limits:
            where = f" at {literal(str(origin))}" if origin is not None else ""
            top = "" if info.hi is None else f" and at most {info.hi}"
            message = f"the size {bound.name}{where} is {{0}}; it must be at least {info.lo or 0}{top}"
            self.fail_unless(self.expr(all_of(*limits)), message, (bound,))

    def allocate(self, arena: Region, bytes_: Expr, keep: bool) -> None:
        pointer, capacity = self.slots[arena]
        fn = self.fn
        none = fn.label("none")
        if not bytes_.is_const:
            fits = fn.label("fits")
            fn.branch(self.expr(magnitude(bytes_) <= MOST_BYTES), fits, none)
            fn.start(fits)
        needed = self.expr(bytes_)
        padded = fn.op(f"add i64 {needed}, {2 * ALIGNMENT - 1}")
        rounded = fn.op(f"and i64 {padded}, {-ALIGNMENT}")
        have = fn.op(f"load i64, ptr {capacity}")
        enough = fn.op(f"icmp uge i64 {have}, {rounded}")
        grow, got, done = fn.label("grow"), fn.label("got"), fn.label("ready")
        fn.branch(enough, done, grow)
        fn.start(grow)
        # a result that grows in a loop doubles its room, so that appending stays linear in its size
        doubled = fn.op(f"shl i64 {have}, 1")
        wanted = fn.op(f"call i64 @llvm.umax.i64(i64 {doubled}, i64 {rounded})") if keep else rounded
        left = fn.op(f"sub i64 {fn.op(f'load i64, ptr {self.room}')}, {fn.op(f'sub i64 {wanted}, {have}')}")
        allowed = fn.label("allowed")
        fn.branch(fn.op(f"icmp sge i64 {left}, 0"), allowed, none)
        fn.start(allowed)
        fresh = fn.op(f"call ptr @aligned_alloc(i64 {ALIGNMENT}, i64 {wanted})")
        missing = fn.op(f"icmp eq ptr {fresh}, null")
        fn.branch(missing, none, got)
        fn.start(none)
        fn.do(f"store i64 {OUT_OF_MEMORY}, ptr {self.code}")
        fn.jump("exit")
        fn.start(got)
        old = fn.op(f"load ptr, ptr {pointer}")
        if keep:
            fn.do(f"call void @llvm.memcpy.p0.p0.i64(ptr {fresh}, ptr {old}, i64 {have}, i1 false)")
        fn.do(f"call void @free(ptr {old})")
        fn.do(f"store ptr {fresh}, ptr {pointer}")
        fn.do(f"store i64 {wanted}, ptr {capacity}")
        fn.do(f"store i64 {left}, ptr {self.room}")
        fn.jump(done)
        fn.start(done)

    def branch(self, condition: Place, then: tuple[Step, ...], otherwise: tuple[Step, ...]) -> None:
        fn = self.fn
        byte = fn.op(f"load i8, ptr {self.address(condition)}")
        truth = fn.op(f"icmp ne i8 {byte}, 0")
        yes, no, after = fn.label("then"), fn.label("else"), fn.label("after")
        fn.branch(truth, yes, no)
        for label, steps in ((yes, then), (no, otherwise)):
            fn.start(label)
            mark = self.emitter.mark()
            self.steps(steps)
            self.emitter.leave(mark)
            fn.jump(after)
        fn.start(after)

    def loop(self, step: Loop) -> None:
        fn = self.fn
        counter = self.size_slot(step.counter)
        fn.do(f"store i64 0, ptr {counter}")
        trip = None if step.trip is None else self.expr(step.trip)
        head, body, after = fn.label("loop"), fn.label("body"), fn.label("done")
        fn.jump(head)
        fn.start(head)
        now = fn.op(f"load i64, ptr {counter}")
        going: Operand = "true"
        if trip is not None:
            going = fn.op(f"icmp slt i64 {now}, {trip}")
        if step.condition is not None:
            byte = fn.op(f"load i8, ptr {self.address(step.condition)}")
            truth = fn.op(f"icmp ne i8 {byte}, 0")
            going = truth if trip is None else fn.op(f"and i1 {going}, {truth}")
        fn.branch(going, body, after)
        fn.start(body)
        mark = self.emitter.mark()
        self.steps(step.body)
        self.emitter.leave(mark)
        last = fn.op(f"load i64, ptr {counter}")
        fn.do(f"store i64 {fn.op(f'add i64 {last}, 1')}, ptr {counter}")
        fn.jump(head)
        fn.start(after)


def magnitude(e: Expr) -> Expr:
    """A float64 that is no less, by far, than the absolute value of the integer `e`, and beyond EXACT where a value met on the way may have
    overflowed. What a minimum cuts off does not count: an end of a slice may be the largest there is."""
    if e.is_const:
        return const(float(abs(e.value)), dtypes.float64)
    parts = [magnitude(part) for part in e.args[1 if e.op is Op.SELECT else 0 :]] if e.op in _ARITHMETIC else []
    match e.op:
        case Op.ADD | Op.SUB:
            return parts[0] + parts[1]
        case Op.MUL:
            return parts[0] * parts[1]
        case Op.FLOORDIV if e.args[1].is_const and e.args[1].value:
            return parts[0] / parts[1]
        case Op.FLOORDIV:
            return maximum(parts[0], parts[1])
        case Op.MIN | Op.MAX:
            largest = maximum(parts[0], parts[1])
            return select(largest <= EXACT, _absolute(e), largest)
        case Op.SELECT:
            return select(e.args[0], parts[0], parts[1])
        case _:
            return _absolute(e)


def _absolute(e: Expr) -> Expr:
    value = cast(dtypes.float64, e)
    return value if e.op is Op.VAR and e.attr.lo is not None and e.attr.lo >= 0 else maximum(value, -value)


def emit_entry(plan: Plan, machine: Machine, name: str, offsets: Sequence[int]) -> tuple[str, tuple[RuntimeCheck, ...]]:
    """LLVM IR of the entry function `name` of a plan, and its checks in the order of their numbers. `offsets` are those of the constants
    in the weights."""
    module = Module(function_attributes(machine.vector_bits))
    for line in (
        "declare ptr @aligned_alloc(i64, i64)",
        "declare void @free(ptr)",
        "declare void @tw_pool_begin(ptr)",
        "declare void @tw_pool_end(ptr)",
        "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",
        "declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)",
        "declare i64 @llvm.umax.i64(i64, i64)",
    ):
        module.declare(line)
    pointers = ["%pool", "%inputs", "%outputs", "%sizes", "%constants", "%arena", "%failure"]
    fn = Function(module, name, [f"ptr {p}" for p in pointers], "i64")
    emitter = ExprEmitter(fn, style_of(machine), Facts())
    entry = EntryEmitter(plan, module, fn, emitter, offsets, {size: i for i, size in enumerate(plan.sizes)})
    _prologue(entry)
    entry.steps(plan.steps)
    fn.jump("exit")
    _epilogue(entry)
    module.add(fn)
    release = Function(module, f"{name}_release", ["ptr %memory"])
    release.do("call void @free(ptr %memory)")
    release.do("ret void")
    module.add(release)
    return module.text(), tuple(entry.checks)


def _prologue(entry: EntryEmitter) -> None:
    fn, plan = entry.fn, entry.plan
    most = max((len(step.args) + len(step.sizes) for step in walk_steps(plan.steps) if isinstance(step, Launch)), default=1)
    slots = fn.alloca(f"[{max(most, 1) + 1} x i64], align 16")
    entry.args = fn.op(f"getelementptr inbounds i64, ptr {slots}, i64 1")
    entry.code = fn.alloca("i64, align 8")
    fn.do(f"store i64 0, ptr {entry.code}")
    entry.regions[Region("arena", 0)] = "%arena"
    if plan.arenas > 1 or plan.late_outputs:
        entry.room = fn.alloca("i64, align 8")
        fn.do(f"store i64 {fn.op('load i64, ptr %failure')}, ptr {entry.room}")
    for i in range(1, plan.arenas):
        pointer, capacity = fn.alloca("ptr, align 8"), fn.alloca("i64, align 8")
        fn.do(f"store ptr null, ptr {pointer}")
        fn.do(f"store i64 0, ptr {capacity}")
        entry.slots[Region("arena", i)] = (pointer, capacity)
    for i in range(len(plan.inputs)):
        slot = fn.op(f"getelementptr inbounds ptr, ptr %inputs, i64 {i}")
        entry.regions[Region("input", i)] = fn.op(f"load ptr, ptr {slot}")
    for i in range(len(plan.outputs)):
        slot = fn.op(f"getelementptr inbounds ptr, ptr %outputs, i64 {i}")
        if i in plan.late_outputs:
            capacity = fn.alloca("i64, align 8")
            fn.do(f"store ptr null, ptr {slot}")
            fn.do(f"store i64 0, ptr {capacity}")
            entry.slots[Region("output", i)] = (slot, capacity)
        else:
            entry.regions[Region("output", i)] = fn.op(f"load ptr, ptr {slot}")
    for size in plan.sizes[: plan.input_sizes]:
        entry.emitter.bind(size, fn.op(f"load i64, ptr {entry.size_slot(size)}"))
    fn.do("call void @tw_pool_begin(ptr %pool)")


def _epilogue(entry: EntryEmitter) -> None:
    fn = entry.fn
    fn.start("exit")
    fn.do("call void @tw_pool_end(ptr %pool)")
    for region, (pointer, _) in entry.slots.items():
        if region.kind == "arena":
            fn.do(f"call void @free(ptr {fn.op(f'load ptr, ptr {pointer}')})")
    fn.do(f"ret i64 {fn.op(f'load i64, ptr {entry.code}')}")
