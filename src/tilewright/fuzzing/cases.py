"""One case of the fuzzer: a function, inputs and how to compile it; running it; writing it to a file and reading it back."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np

from tilewright.compiler import compile_module
from tilewright.fuzzing.graphs import grow
from tilewright.fuzzing.guarded import guarded_copy, guarded_runtime
from tilewright.fuzzing.noise import Expected, disagreement, expectations
from tilewright.graph.node import Function, Module
from tilewright.graph.text import constants_of, format_module
from tilewright.graph.text_parser import parse_module
from tilewright.ir import dtypes
from tilewright.machine.description import Machine
from tilewright.machine.detect import detect_host
from tilewright.machine.targets import parse_target, resolve_target
from tilewright.runtime.executable import Executable
from tilewright.runtime.host_features import missing_features
from tilewright.support.settings import Settings

Array = np.ndarray
host: Callable[[], Machine] = cache(detect_host)


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
    """How a case is compiled and run."""

    target: str = "cpu"
    opt_level: int = 3
    threads: int = 2
    precision: str = "default"


@dataclass(frozen=True, slots=True)
class Case:
    function: Function
    inputs: tuple[tuple[Array, ...], ...]
    how: How
    seed: int


@dataclass(frozen=True, slots=True)
class Finding:
    """What went wrong: `kind` is `wrong`, `error` (an exception in the compiler), `crash` or `hang`; `result` is the number of the wrong
    result."""

    kind: str
    text: str
    result: int | None = None


def case_of(seed: int, like: tuple[str, ...] = ()) -> Case:
    grown = grow(seed, like)
    rng = np.random.default_rng([seed, 77])
    target, level = str(rng.choice(targets(), p=_shares())), int(rng.choice((0, 1, 2, 3, 3, 3, 3)))
    how = How(target, level, int(rng.integers(1, 3)), str(rng.choice(("default", "strict"), p=(0.85, 0.15))))
    return Case(grown.function, grown.inputs, how, seed)


def _shares() -> list[float]:
    others = len(targets()) - 1
    return [1.0] if not others else [0.6, *([0.4 / others] * others)]


def module_of(function: Function) -> Module:
    names = (tuple(f"{letter}{i}" for i in range(n)) for letter, n in (("x", len(function.params)), ("y", len(function.results))))
    return Module({"main": function}, "main", *names)


def run_case(case: Case) -> Finding | None:
    """Compile the case and compare; None when everything is right."""
    wanted: list[list[Expected | None]] = [expectations(case.function, inputs, case.seed) for inputs in case.inputs]
    module = module_of(case.function)
    try:
        settings = Settings().changed(cache=False, opt_level=case.how.opt_level, precision=case.how.precision, verify=True)
        compiled = compile_module(module, machine_of(case.how.target), settings)
        executable = Executable(compiled.artifact, case.how.threads)
    except Exception as error:
        return Finding("error", f"{type(error).__name__} while compiling: {error}", None)
    for turn in (*range(len(wanted)), 0):  # the first again at the end: memory left by others must not matter
        at_end = bool((case.seed + turn) % 2)
        inputs = [guarded_copy(array, at_end) for array in case.inputs[turn]]
        try:
            with guarded_runtime(executable, at_end):
                results = executable.run(dict(zip(module.input_names, inputs, strict=True)))
        except Exception as error:
            return Finding("error", f"{type(error).__name__} while running: {error}", None)
        for i, (mine, given) in enumerate(zip(inputs, case.inputs[turn], strict=True)):
            if mine.tobytes() != given.tobytes():
                return Finding("wrong", f"input {i} was overwritten")
        for i, (name, expected) in enumerate(zip(module.output_names, wanted[turn], strict=True)):
            wrong = None if expected is None else disagreement(results[name], expected)
            if wrong is not None:
                return Finding("wrong", f"result {i} {wrong} (inputs {turn})", i)
    return None


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
    return Case(module.main, inputs, How(**about["how"]), about["seed"])
