"""Target strings: which machine to compile for.

    cpu                                      the machine at hand
    cpu:x86-64-v3                            a level of the x86-64 psABI
    cpu:znver5,cores=8                       a CPU by LLVM's name, with changes
    cpu:x86-64-v4,vector_bits=256,-avx512cd  options and features after the name, in any order
    cpu,vector_bits=128                      the machine at hand, with changes

A target is a value: one that names a CPU means the same on every computer. Only a bare `cpu` looks at the one at hand.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from tilewright.machine.cpus import (
    CPUS,
    FEATURE_NEEDS,
    TRIPLES,
    CpuRow,
    vector_register_count,
    widest_vector_bits,
    with_feature,
    without_feature,
)
from tilewright.machine.description import CacheLevel, Machine
from tilewright.support.errors import TargetError

KINDS = ("cpu",)
# Cores to schedule for where the target does not say: enough to make loops parallel, few enough for most machines.
DEFAULT_CORES = 4

_SIZE = re.compile(r"(\d+)(?:([kmg])i?b?)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed target string. name: of the CPU, empty for the machine at hand. options: sorted (name, value), value as written;
    features are options too, with the value `+` or `-`. `str` gives the canonical text, which parses to an equal target."""

    kind: str
    name: str = ""
    options: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        words = [value + name if value in ("+", "-") else f"{name}={value}" for name, value in self.options]
        return ",".join([f"{self.kind}:{self.name}" if self.name else self.kind, *words])


@dataclass(frozen=True, slots=True)
class TargetOption:
    """An option of CPU targets: what its value is, for messages, and how it changes a machine. `apply` raises ValueError."""

    wanted: str
    apply: Callable[[Machine, str], Machine]


def parse_target(text: str) -> Target:
    """Parse a target string and check every name and value in it. Raises TargetError."""
    head, *words = (word.strip() for word in text.split(","))
    kind, _, name = head.partition(":")
    if kind not in KINDS:
        hint = f"did you mean cpu:{kind}?" if kind in CPUS else _suggest(kind, KINDS)
        raise _refuse(text, f"{kind!r} is no kind of target; there is {', '.join(KINDS)}", hint)
    if name and name not in CPUS:
        raise _refuse(text, f"no CPU is called {name!r}; there are {', '.join(CPUS)}", _suggest(name, CPUS))
    options: dict[str, str] = {}
    for word in words:
        option, value = _parse_option(text, word)
        if options.setdefault(option, value) != value:
            raise _refuse(text, f"{option} is given twice, with different values", None)
    target = Target(kind, name, tuple(sorted(options.items())))
    if name:
        resolve_target(target, _no_host)
    return target


def resolve_target(target: Target, host: Callable[[], Machine]) -> Machine:
    """The machine that a target means. `host` describes the machine at hand; it is called only if the target names no CPU.

    Raises TargetError where options do not fit together.
    """
    machine = named_machine(target.name) if target.name else host()
    for name, value in sorted(target.options, key=_order_of_application):
        try:
            machine = _change_feature(machine, name, value) if value in ("+", "-") else OPTIONS[name].apply(machine, value)
        except ValueError as error:
            raise _refuse(str(target), str(error), None) from None
    return machine


def named_machine(name: str) -> Machine:
    """The machine that `cpu:<name>` means."""
    row = CPUS[name]
    return Machine(
        name=name,
        arch=row.arch,
        isa=row.isa,
        triple=TRIPLES[row.arch, row.system],
        llvm_cpu=name,
        llvm_features="",
        vector_bits=row.vector_bits or widest_vector_bits(row.isa),
        vector_registers=vector_register_count(row.arch, row.isa),
        fma_units=row.fma_units,
        fma_latency=row.fma_latency,
        l1d=CacheLevel(row.l1d, row.line),
        l2=CacheLevel(row.l2, row.line),
        l3=_shared_cache(row),
        cores=DEFAULT_CORES,
        peaks=row.peaks,
    )


def _shared_cache(row: CpuRow) -> CacheLevel | None:
    return CacheLevel(row.l3, row.line, row.l3_shared_by) if row.l3 else None


def _parse_option(text: str, word: str) -> tuple[str, str]:
    if word[:1] in ("+", "-"):
        if word[1:] not in KNOWN_FEATURES:
            raise _refuse(text, f"no feature is called {word[1:]!r}; there are {', '.join(sorted(KNOWN_FEATURES))}", None)
        return word[1:], word[0]
    option, equals, value = (part.strip() for part in word.partition("="))
    if option not in OPTIONS:
        why = f"{option!r} is no option; there are {', '.join(OPTIONS)}, and +feature and -feature"
        raise _refuse(text, why, _suggest(option, OPTIONS))
    if not equals or not value:
        raise _refuse(text, f"{option} needs a value: {OPTIONS[option].wanted}", None)
    return option, value


def _order_of_application(option: tuple[str, str]) -> tuple[int, str]:
    # Features decide which vector widths there are; removals come last, so that `+avx512vnni,-avx512f` ends without both.
    return ({"+": 0, "-": 1}.get(option[1], 2), option[0])


def _change_feature(machine: Machine, feature: str, sign: str) -> Machine:
    family = "aarch64" if feature in _ARM_FEATURES else "x86_64"
    if family != machine.arch:
        raise ValueError(f"{feature} is a feature of {family}, and {machine.name} is {machine.arch}")
    isa = with_feature(machine.isa, feature) if sign == "+" else without_feature(machine.isa, feature)
    difference = {f"+{name}" for name in isa - machine.isa} | {f"-{name}" for name in machine.isa - isa}
    changed = {word[1:]: word for word in filter(None, machine.llvm_features.split(","))} | {word[1:]: word for word in difference}
    widest = widest_vector_bits(isa)
    grew = widest > widest_vector_bits(machine.isa)
    return replace(
        machine,
        isa=isa,
        llvm_features=",".join(changed[name] for name in sorted(changed)),
        vector_bits=widest if grew else min(machine.vector_bits, widest),
        vector_registers=vector_register_count(machine.arch, isa),
        peaks=None if widest != widest_vector_bits(machine.isa) else machine.peaks,
        together=None if widest != widest_vector_bits(machine.isa) else machine.together,
    )


def _set_vector_bits(machine: Machine, value: str) -> Machine:
    widest = widest_vector_bits(machine.isa)
    widths = [bits for bits in (128, 256, 512) if bits <= widest]
    if not value.isdigit() or int(value) not in widths:
        raise ValueError(f"vector_bits of {machine.name} must be one of {', '.join(map(str, widths))}, not {value}")
    bits = int(value)
    # what was measured with vectors of one width says nothing about another
    same = bits == machine.vector_bits
    return replace(machine, vector_bits=bits, peaks=machine.peaks if same else None, together=machine.together if same else None)


def _set_cores(machine: Machine, value: str) -> Machine:
    if not value.isdigit() or int(value) < 1:
        raise ValueError(f"cores must be at least 1, not {value}")
    cores = int(value)
    same = cores == machine.cores
    return replace(machine, cores=cores, together=machine.together if same else None, fork_us=machine.fork_us if same else None)


def _set_cache(level: str) -> Callable[[Machine, str], Machine]:
    def apply(machine: Machine, value: str) -> Machine:
        match = _SIZE.fullmatch(value)
        size = 0 if match is None else int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[(match[2] or "").lower()]
        if match is None or (size < 4096 and not (level == "l3" and size == 0)):
            raise ValueError(f"{level} must be a size of at least 4 KiB, such as 48KiB or 1MiB, not {value}")
        old: CacheLevel | None = getattr(machine, level)
        if size == 0:
            return replace(machine, l3=None)
        new = CacheLevel(size, machine.l1d.line, machine.cores) if old is None else replace(old, size=size)
        changes: dict[str, CacheLevel] = {level: new}
        return replace(machine, **changes)  # type: ignore[arg-type]  # mypy does not relate `level` to the fields of type CacheLevel

    return apply


def _set_system(machine: Machine, value: str) -> Machine:
    if (machine.arch, value) not in TRIPLES:
        raise ValueError(f"os must be one of linux, macos, windows, not {value}")
    return replace(machine, triple=TRIPLES[machine.arch, value])


OPTIONS: Mapping[str, TargetOption] = {
    "vector_bits": TargetOption("128, 256 or 512", _set_vector_bits),
    "cores": TargetOption("a number of physical cores", _set_cores),
    "l1d": TargetOption("a size, such as 48KiB", _set_cache("l1d")),
    "l2": TargetOption("a size, such as 1MiB", _set_cache("l2")),
    "l3": TargetOption("a size, such as 32MiB, or 0 for none", _set_cache("l3")),
    "os": TargetOption("linux, macos or windows", _set_system),
}

KNOWN_FEATURES = frozenset().union(*(row.isa for row in CPUS.values())) | frozenset(FEATURE_NEEDS)
_ARM_FEATURES = frozenset().union(*(row.isa for row in CPUS.values() if row.arch == "aarch64"))


def _no_host() -> Machine:
    raise AssertionError("a target that names a CPU never asks for the host")


def _suggest(word: str, known: Iterable[str]) -> str | None:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {close[0]}?" if close else None


def _refuse(text: str, why: str, hint: str | None) -> TargetError:
    hint = hint or "write cpu for the machine at hand, or cpu:x86-64-v3,cores=4 for another"
    return TargetError(f"the target {text!r} cannot be understood", why=why, hint=hint)
