"""Fused groups to object code: definition, schedule, lowering, LLVM; LLVM runs on other threads while Python goes on.

Groups of equal structure are compiled once. Object code is kept in the cache under the hash of the LLVM text, the target and the
options, so that nothing that can change it is left out of the key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from tilewright.graph.in_place import constant_operands
from tilewright.graph.node import Function, Node
from tilewright.graph.ops import Fused
from tilewright.ir.expr import Expr
from tilewright.kernel.lower.pipeline import lower
from tilewright.kernel.nodes import Kernel, with_fields
from tilewright.kernel.overwriting import overwriting
from tilewright.kernel.schedule.given import GivenSchedules, apply_given, kernel_hash
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.kernel.schedule.space import Space
from tilewright.kernel.verify import verify
from tilewright.kernel.work import Work, work_of
from tilewright.machine.description import Machine
from tilewright.plan.build import CompiledGroup, Layout, origins_of
from tilewright.support.cache import Cache
from tilewright.support.errors import InternalError, TilewrightError
from tilewright.support.hashing import content_hash
from tilewright.support.settings import Settings
from tilewright.target.cpu.codegen.kernel import generate, workspace_bytes
from tilewright.target.cpu.llvm import LlvmOptions, LlvmTarget, compile_to_object, llvm_target
from tilewright.target.cpu.math import expand_math, expand_math_in
from tilewright.target.cpu.rules.choose import schedule_kernel
from tilewright.transform.lower_groups import lower_group

PLACEHOLDER = "tilewright_kernel"


@dataclass(frozen=True, slots=True)
class GroupCode:
    """All forms of one compiled group: the kernel as defined, the numbers of its inputs that are constants of the model, its schedule and
    the decisions that led to it, the lowered kernel, LLVM text, the symbol of its function."""

    defined: Kernel
    constants: frozenset[int]
    schedule: Schedule
    space: Space
    lowered: Kernel
    ir: str
    symbol: str
    group: CompiledGroup


@dataclass(slots=True)
class GroupCompiler:
    """Compiles the fused groups of one model. Use as a context manager; `objects` waits for LLVM. `schedules`: those that somebody gives,
    in place of the rules' defaults."""

    machine: Machine
    settings: Settings
    cache: Cache | None = None
    schedules: GivenSchedules | None = None
    workers: int = 2
    codes: dict[tuple[Function, frozenset[int], Expr | None], GroupCode] = field(default_factory=dict)
    pending: dict[str, Future[bytes]] = field(default_factory=dict)
    executor: ThreadPoolExecutor | None = None

    def __enter__(self) -> GroupCompiler:
        self.executor = ThreadPoolExecutor(self.workers, thread_name_prefix="tilewright-llvm")
        return self

    def __exit__(self, *exc: object) -> None:
        if self.executor is not None:
            self.executor.shutdown(wait=True, cancel_futures=True)

    def __call__(self, node: Node) -> CompiledGroup | None:
        """What the planner asks of each node."""
        return self.code(node).group if isinstance(node.op, Fused) else None

    def code(self, node: Node) -> GroupCode:
        """The code of a fused node; the object code may still be in the making."""
        if not isinstance(node.op, Fused):
            raise TypeError(f"{node!r} is not a fused group")
        constants = constant_operands(node)
        body, turn = node.op.body, node.op.turn
        key = (body, constants, turn)
        found = self.codes.get(key)
        if found is None:
            found = self.located(node, lambda: make_code(body, constants, self.machine, self.settings, turn, self.schedules))
            self.codes[key] = found
            self.submit(found.symbol, found.ir)
        return found

    @staticmethod
    def located(node: Node, compile_group: Callable[[], GroupCode]) -> GroupCode:
        """What `compile_group` gives; errors say which nodes of the model the group computes, also those that are our own fault."""
        try:
            return compile_group()
        except TilewrightError as error:
            raise error.located(named(node)) from error.__cause__
        except Exception as error:
            raise InternalError("a kernel cannot be compiled", where=named(node), why=f"{type(error).__name__}: {error}") from error

    def submit(self, symbol: str, ir: str) -> None:
        """Have LLVM compile a module, unless that is under way or in the cache."""
        if symbol not in self.pending:
            if self.executor is None:
                raise RuntimeError("GroupCompiler is used outside of its `with` block")
            target, options = llvm_target(self.machine), LlvmOptions()
            self.pending[symbol] = self.executor.submit(cached_object, ir, target, options, self.cache)

    def check_schedules(self) -> None:
        """Raises ScheduleError for schedules that were given for kernels which the model does not have."""
        if self.schedules is not None:
            error = self.schedules.unused(frozenset(kernel_hash(code.defined, code.constants) for code in self.codes.values()))
            if error is not None:
                raise error

    def work(self) -> dict[Kernel, Work]:
        """What each kernel must do, in terms of its own sizes. Not by symbol: kernels of different sizes may have equal code."""
        memo: dict[Expr, Expr] = {}
        return {c.group.kernel: work_of(c.defined, c.constants, lambda e: expand_math(e, memo)) for c in self.codes.values()}

    def objects(self) -> dict[str, bytes]:
        """Object code by symbol, when all of it is there."""
        return {symbol: future.result() for symbol, future in sorted(self.pending.items())}


def named(node: Node) -> str:
    """The model's nodes that a fused group computes, as error messages name them: the first few."""
    names = [str(origin) for origin in origins_of(node)]
    more = [f"and {len(names) - 3} more"] if len(names) > 3 else []
    return ", ".join([*names[:3], *more]) or "a node that the compiler made"


def cached_object(ir: str, target: LlvmTarget, options: LlvmOptions, cache: Cache | None) -> bytes:
    """The object code of an LLVM module, from the cache if it is there."""
    if cache is None:
        return compile_to_object(ir, target, options)
    key = content_hash("object", ir, target, options, llvm_version())
    found = cache.get(key)
    if found is None:
        found = compile_to_object(ir, target, options)
        cache.put(key, found)
    return found


def llvm_version() -> str:
    import llvmlite
    import llvmlite.binding as llvm

    return f"{llvmlite.__version__}/{'.'.join(map(str, llvm.llvm_version_info))}"


def make_schedule(
    kernel: Kernel, constants: frozenset[int], machine: Machine, settings: Settings, schedules: GivenSchedules | None
) -> tuple[Schedule, Space]:
    """The schedule that is given for a kernel, else that of the rules, and the decisions that led to it. Raises ScheduleError for one that
    does not fit."""
    reassociate = settings.precision != "strict"
    packable = constants if settings.packing else frozenset[int]()

    def rules(space: Space) -> Schedule:
        return schedule_kernel(kernel, packable, machine, reassociate, space)

    given = None if schedules is None else schedules.kernels.get(kernel_hash(kernel, constants))
    if given is not None:
        return apply_given(given, kernel, rules)
    space = Space(declined=frozenset() if settings.prefetch else frozenset({"prefetch"}))
    return (rules(space) if settings.opt_level >= 3 else Schedule.of(kernel)), space


def make_code(
    body: Function,
    constants: frozenset[int],
    machine: Machine,
    settings: Settings,
    turn: Expr | None = None,
    schedules: GivenSchedules | None = None,
) -> GroupCode:
    """Everything up to LLVM text for the body of a fused group whose operands in `constants` are constants of the model. `turn`: the size
    whose odd values turn the order of its work around. `schedules`: given ones, by kernel."""
    strict = settings.precision == "strict"
    defined = lower_group(body)
    schedule, space = make_schedule(defined, constants, machine, settings, schedules)
    # math functions become polynomials before code generation, so that they are vectors like everything else
    lowered = lower(schedule.kernel)
    lowered = with_fields(lowered, body=expand_math_in(lowered.body))
    if turn is not None and turn not in lowered.sizes:
        lowered = with_fields(lowered, sizes=(*lowered.sizes, turn))
    if settings.verify:
        for kernel in (defined, schedule.kernel, lowered):
            verify(kernel)
    text = generate(with_fields(lowered, name=PLACEHOLDER), machine, contract=not strict, turn=turn)
    symbol = f"tw_{body.name[:40]}_{content_hash(text)[:16]}"
    ir = text.replace(PLACEHOLDER, symbol)
    index = {buffer.name: i for i, buffer in enumerate(defined.inputs)}
    packed: Mapping[int, Layout] = {index[layout.buffer]: layout for layout in schedule.layouts}
    group = CompiledGroup(with_fields(lowered, name=symbol), workspace_bytes(lowered, machine), packed, overwriting(lowered))
    return GroupCode(defined, constants, schedule, space, lowered, ir, symbol, group)
