"""One case of the fuzzer: a function, inputs and how to compile it; running it; writing it to a file and reading it back."""

from __future__ import annotations

import contextlib
import json
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.accuracy.rounding_noise import Expected, disagreement, expectations
from tilewright.compiler import Compiled, compile_module
from tilewright.fuzzing.calls import PASSED, Calls
from tilewright.fuzzing.graphs import grow
from tilewright.fuzzing.lines import Lines
from tilewright.fuzzing.mutated import Unlike, compile_mutated
from tilewright.fuzzing.outlined import outlined
from tilewright.graph.node import Function, Module, walk_nodes
from tilewright.graph.text import constants_of, format_module
from tilewright.graph.text_parser import parse_module
from tilewright.ir import dtypes
from tilewright.machine.description import Machine
from tilewright.machine.detect import detect_host
from tilewright.machine.targets import parse_target, resolve_target
from tilewright.runtime.host_features import missing_features
from tilewright.support.errors import InputError, MemoryLimitError, ParseError, ScheduleError
from tilewright.support.settings import Settings

Array = np.ndarray[Any, np.dtype[Any]]
host: Callable[[], Machine] = cache(detect_host)
PRECISIONS = ("default", "strict", "bf16")
KINDS = ("fn", "mode", "reduction", "direction")  # attributes that make an operator another one
REFUSALS = (ScheduleError, MemoryLimitError)


@cache
def targets() -> tuple[str, ...]:
    """The host, and levels of x86-64 whose code it runs."""
    levels = ("cpu:x86-64-v2", "cpu:x86-64-v3")
    return ("cpu", *(t for t in levels if host().arch == "x86_64" and not missing_features(sorted(machine_of(t).isa))))


@cache
def machine_of(target: str) -> Machine:
    return resolve_target(parse_target(target), host)


@dataclass(frozen=True, slots=True)
class How:
    """How a case is compiled and run. passes: names of graph passes to run instead of the compiler's own sequence; genes: seeds of changes
    of kernels' schedules; see `mutated.py`. passed: one of `calls.PASSED`, the way in which inputs lie in memory; saved: the artifact is
    written to a file and read back; limited: it runs within the memory that it announces; callers: threads that call it at once;
    outlined: seed of which parts of the graph are functions that are called, 0 for none."""

    target: str = "cpu"
    opt_level: int = 3
    threads: int = 2
    precision: str = "default"
    passes: tuple[str, ...] = ()
    genes: tuple[int, ...] = ()
    passed: str = "plain"
    saved: bool = False
    limited: bool = False
    callers: int = 1
    outlined: int = 0

    @property
    def mutated(self) -> bool:
        """Whether it is compiled in another way than the compiler would."""
        return bool(self.passes or self.genes)


@dataclass(frozen=True, slots=True)
class Case:
    """A function, its inputs at one or more values of its named sizes, and how it is compiled."""

    function: Function
    inputs: tuple[tuple[Array, ...], ...]
    how: How
    seed: int


@dataclass(frozen=True, slots=True)
class Recipe:
    """What cases are made of. steps: parts of the names of `graphs.STEPS`, of which cases then mostly consist; target: of all cases;
    levels: `opt_level`s at each of which every case is compiled. Where there are none, each case draws its own. model: path of an ONNX
    file, whose parts are grown into cases; small: few operators."""

    steps: tuple[str, ...] = ()
    target: str | None = None
    levels: tuple[int, ...] = ()
    model: str | None = None
    small: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """What went wrong: `kind` is `wrong`, `error` (an exception in the compiler), `crash`, `hang` or `memory`; `result` is the number of
    the wrong result, `level` the `opt_level`."""

    kind: str
    text: str
    result: int | None = None
    level: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a case. compared: the share of results' elements that could be compared, those that rounding errors do not decide and
    that are numbers; operators: how often each occurs; reached: what ran for the first time, of lines, passes, decisions, primitives."""

    finding: Finding | None
    compared: float = 1.0
    operators: Mapping[str, int] = field(default_factory=dict)
    reached: Sequence[str] = ()


def case_of(seed: int, recipe: Recipe | None = None) -> Case:
    """The case of a seed, always the same one."""
    recipe = recipe or Recipe()
    grown = grow(seed, recipe.steps, recipe.model, 8 if recipe.small else 24)
    rng = np.random.default_rng([seed, 77])
    target, level = str(rng.choice(targets(), p=_shares())), int(rng.choice((0, 1, 2, 3, 3, 3, 3)))
    how = How(recipe.target or target, level, int(rng.choice((1, 2, 2, 3, 5))), str(rng.choice(PRECISIONS, p=(0.75, 0.15, 0.1))))
    passed, callers = str(rng.choice(PASSED, p=(0.7, 0.1, 0.2))), int(rng.choice((1, 3), p=(0.8, 0.2)))
    how = replace(how, passed=passed, saved=bool(rng.random() < 0.25), limited=bool(rng.random() < 0.25), callers=callers)
    return Case(grown.function, grown.inputs, replace(how, outlined=int(rng.integers(1, 1 << 30)) if rng.random() < 0.2 else 0), seed)


def _shares() -> list[float]:
    others = len(targets()) - 1
    return [1.0] if not others else [0.6, *([0.4 / others] * others)]


def module_of(function: Function, parts: int = 0) -> Module:
    """The function as a module; parts: `How.outlined`."""
    names = (tuple(f"{letter}{i}" for i in range(n)) for letter, n in (("x", len(function.params)), ("y", len(function.results))))
    module = Module({"main": function}, "main", *names)
    return outlined(module, parts) if parts else module


def run_case(case: Case) -> Finding | None:
    """Compile the case and compare; None when everything is right."""
    return judge(case).finding


def judge(case: Case, levels: Sequence[int] = (), lines: Lines | None = None) -> Outcome:
    """Compile the case, at each of the levels where there are any, and compare. The reference runs once. `lines` notes what is reached."""
    wanted: list[list[Expected | None]] = [
        expectations(case.function, inputs, case.seed, case.how.precision == "bf16") for inputs in case.inputs
    ]
    compared = compared_share(wanted)
    finding, reached = None, set[str]()
    for level in levels or (case.how.opt_level,):
        finding = run_compiled(replace(case, how=replace(case.how, opt_level=level)), wanted, reached, lines)
        if finding is not None:
            break
    given = module_of(case.function, case.how.outlined).functions.values()
    operators = sum((Counter(operators_of(function)) for function in given), Counter[str]())
    return Outcome(finding, compared, dict(operators), sorted(reached))


def compared_share(wanted: Sequence[Sequence[Expected | None]]) -> float:
    """The share of all elements that are compared."""
    results = [expected for turn in wanted for expected in turn if expected is not None]
    elements = sum(expected.value.size for expected in results)
    return sum(int(np.count_nonzero(expected.compared & expected.finite)) for expected in results) / elements if elements else 1.0


def operators_of(function: Function) -> dict[str, int]:
    """How often each operator occurs, in the bodies of loops and branches as well; those with a function or mode of their own by that
    too."""
    counts: Counter[str] = Counter()
    for node in walk_nodes(function.results):
        kinds = [str(getattr(node.op, name)) for name in KINDS if hasattr(node.op, name)]
        counts[".".join([node.op.name, *kinds[:1]])] += 1
        for name in (entry.name for entry in fields(node.op)):
            inner = getattr(node.op, name)
            if isinstance(inner, Function):
                counts.update(operators_of(inner))
    return dict(counts)


def compiled_case(case: Case, wanted: Sequence[Expected | None], reached: set[str], lines: Lines | None) -> Compiled:
    """The case compiled as it says. Raises Unlike where a pass or a schedule changed what it computes, and as the compiler does."""
    module, machine = module_of(case.function, case.how.outlined), machine_of(case.how.target)
    settings = Settings().changed(cache=False, opt_level=case.how.opt_level, precision=case.how.precision, verify=True)
    with contextlib.nullcontext(set[str]()) if lines is None else lines.watching() as fresh:
        if case.how.mutated:
            made = compile_mutated(module, machine, settings, case.how, case.inputs[0], lambda results: first_wrong(results, wanted))
            reached |= made.reached
            compiled = made.compiled
        else:
            compiled = compile_module(module, machine, settings)
    reached |= fresh
    return compiled


def first_wrong(results: Sequence[Array], wanted: Sequence[Expected | None]) -> str | None:
    """What is wrong with the first result that is."""
    for i, (result, expected) in enumerate(zip(results, wanted, strict=True)):
        wrong = None if expected is None else disagreement(result, expected)
        if wrong is not None:
            return f"result {i} {wrong}"
    return None


def run_compiled(case: Case, wanted: Sequence[Sequence[Expected | None]], reached: set[str], lines: Lines | None = None) -> Finding | None:
    """Compile the case and compare with what is expected of each of its inputs."""
    how, level = case.how, case.how.opt_level
    try:
        artifact = compiled_case(case, wanted[0], reached, lines).artifact
        at_end = bool(case.seed % 2)
        calls = Calls(case.function, case.inputs, wanted, how.threads, at_end, how.passed, how.saved, how.limited, how.callers)
        wrong = next(calls.faults(artifact), None)
    except MemoryError:
        return Finding("memory", "memory ran out while compiling", None, level)
    except Unlike as error:
        return Finding("wrong", str(error), None, level)
    except Exception as error:
        if how.mutated and isinstance(error, REFUSALS):
            return None  # a schedule that no code can be made of is none that a rule would give
        return Finding("error", f"{type(error).__name__} while compiling: {error}", None, level)
    return None if wrong is None else Finding(wrong.kind, wrong.text, wrong.result, level)


def write_case(case: Case, path: Path) -> None:
    """Everything that a case needs, in one file: the graph's text, constants, inputs."""
    arrays = {f"constant/{name}": array for name, array in constants_of([case.function]).items()}
    arrays |= {f"input/{turn}/{i}": array for turn, inputs in enumerate(case.inputs) for i, array in enumerate(inputs)}
    table = {name: {"dtype": dtypes.from_numpy(array.dtype).name, "shape": array.shape} for name, array in arrays.items()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("graph.txt", format_module(module_of(case.function)))
        archive.writestr("case.json", json.dumps({"how": asdict(case.how), "seed": case.seed, "turns": len(case.inputs), "arrays": table}))
        for name, array in arrays.items():
            archive.writestr(name, np.ascontiguousarray(array).tobytes())


def read_case(path: Path) -> Case:
    """What `write_case` wrote. Raises InputError for a file that is no case, or a damaged one."""
    try:
        return _case_in(path)
    except OSError as error:
        raise InputError(f"'{path}' cannot be opened: {error.strerror or error}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, KeyError, TypeError, ValueError, AttributeError, ParseError) as error:
        hint = "give a case.zip that fuzzing has written"
        raise InputError(f"'{path}' is no case of fuzzing", why=f"{type(error).__name__}: {error}", hint=hint) from error


def _case_in(path: Path) -> Case:
    with zipfile.ZipFile(path) as archive:
        about = json.loads(archive.read("case.json"))
        arrays = {
            name: np.frombuffer(archive.read(name), dtypes.BY_NAME[entry["dtype"]].numpy).reshape(entry["shape"])
            for name, entry in about["arrays"].items()
        }
        constants = {name.removeprefix("constant/"): array for name, array in arrays.items() if name.startswith("constant/")}
        module = parse_module(archive.read("graph.txt").decode(), constants)
    count = len(module.main.params)
    inputs = tuple(tuple(arrays[f"input/{turn}/{i}"] for i in range(count)) for turn in range(about["turns"]))
    how: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in about["how"].items()}
    return Case(module.main, inputs, How(**how), about["seed"])
