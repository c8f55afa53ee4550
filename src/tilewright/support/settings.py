"""The settings: one typed, documented table.

Each field of `Settings` carries what the table says about it; `settings_table()` gives the table to documentation, the command line and
cache keys. A setting changes generated code unless it is declared otherwise, so that a forgotten declaration costs a cache miss and never
a wrong hit.

    with override(threads=1, precision="strict"):
        exe = tilewright.compile("model.onnx")

Order of precedence: `override`, then environment variables `TILEWRIGHT_<NAME>`, then the defaults.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from numbers import Integral
from pathlib import Path
from typing import Any

from tilewright.support.errors import SettingsError

ENVIRONMENT_PREFIX = "TILEWRIGHT_"

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})
_UNSET = frozenset({"", "auto", "none"})
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Kind:
    """A setting's type: its name in the documentation and how a Python value or a text becomes a checked value.

    `check` returns the value or raises ValueError with a message that completes "must be ...".
    """

    name: str
    check: Callable[[object], object]


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One row of the table."""

    name: str
    kind: Kind
    default: object
    doc: str
    changes_code: bool

    @property
    def environment(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper()


def _check_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError("a boolean: 1/0, true/false, yes/no or on/off")


def _number(value: object) -> int | None:
    """`value` as an int where it is one, of Python's or NumPy's; bool is none."""
    if isinstance(value, bool):
        return None
    return int(value) if isinstance(value, Integral) else None


def _whole(value: object, wanted: str) -> int:
    """`value` as an int: an int itself, or text that is one."""
    number = _number(value)
    if number is not None:
        return number
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d+", value.strip()):
        return int(value)
    raise ValueError(wanted)


def _integer(minimum: int, maximum: int | None = None) -> Kind:
    wanted = f"an integer of at least {minimum}" if maximum is None else f"an integer from {minimum} to {maximum}"

    def check(value: object) -> int:
        number = _whole(value, wanted)
        if number < minimum or (maximum is not None and number > maximum):
            raise ValueError(wanted)
        return number

    return Kind(f"int >= {minimum}" if maximum is None else f"int, {minimum} to {maximum}", check)


def _choice(*choices: str) -> Kind:
    def check(value: object) -> str:
        if isinstance(value, str) and value.strip().lower() in choices:
            return value.strip().lower()
        raise ValueError("one of " + ", ".join(choices))

    return Kind(" or ".join(f"`{choice}`" for choice in choices), check)


def _check_bytes(value: object) -> int:
    wanted = "a size in bytes, such as 2000000000, 2GB or 1.5GiB"
    given = _number(value)
    if given is not None and given > 0:
        return given
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(wanted)
    number, unit, binary = match.groups()
    size = round(float(number) * float(1024 if binary else 1000) ** " kmgt".index(unit.lower() or " "))
    if size <= 0:
        raise ValueError(wanted)
    return size


def _check_path(value: object) -> Path:
    if isinstance(value, (str, Path)) and str(value).strip():
        return Path(value).expanduser()
    raise ValueError("a path")


def _optional(kind: Kind, meaning: str) -> Kind:
    """`kind`, or None; as text `auto`, `none` or nothing at all."""

    def check(value: object) -> object:
        if value is None or (isinstance(value, str) and value.strip().lower() in _UNSET):
            return None
        try:
            return kind.check(value)
        except ValueError as error:
            raise ValueError(f"{error}, or auto ({meaning})") from None

    return Kind(f"{kind.name}, or `auto`: {meaning}", check)


def _setting(default: Any, kind: Kind, doc: str, *, changes_code: bool = True) -> Any:
    # Any: a dataclass field stands for the value of its annotated type.
    return field(default=default, metadata={"kind": kind, "doc": doc, "changes_code": changes_code})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The value of every setting. Immutable; `changed` makes another, checked."""

    threads: int | None = _setting(
        None,
        _optional(_integer(1), "the cores that this process may use"),
        "Threads that run one inference. The default respects the affinity mask and the cgroup quota.",
        changes_code=False,
    )
    cache: bool = _setting(
        True,
        Kind("bool", _check_bool),
        "Keep compiled code on disk and reuse it when the same kernel is compiled again.",
        changes_code=False,
    )
    cache_dir: Path | None = _setting(
        None,
        _optional(Kind("path", _check_path), "the system's folder for caches"),
        "Folder of the cache.",
        changes_code=False,
    )
    cache_limit_mb: int = _setting(
        4096, _integer(1), "Size of the cache in MB (10^6 bytes) past which the entries used longest ago are removed.", changes_code=False
    )
    config_dir: Path | None = _setting(
        None,
        _optional(Kind("path", _check_path), "the system's folder for configuration"),
        "Folder of what `tilewright doctor --measure` has measured on this machine, which the target `cpu` takes into account.",
        changes_code=False,
    )
    precision: str = _setting(
        "default",
        _choice("default", "strict", "bf16"),
        "Arithmetic of floating-point kernels. `default`: products and sums may contract to fused multiply-add, and reductions may be "
        "reassociated. `strict`: neither; each operation rounds once, in the order of the operator's definition. "
        "`bf16`: as the default, and products by constant weights may take bfloat16 factors, and images be stored in bfloat16 between "
        "kernels of convolutional networks, where that is faster; arithmetic on them stays float32.",
    )
    winograd: bool = _setting(
        True,
        Kind("bool", _check_bool),
        "Compute convolutions by Winograd's algorithm where that is faster: rounding errors up to a few times those of direct sums, and an "
        "infinity makes NaN of its whole tile. Off also under `precision=strict`.",
    )
    fusion: bool = _setting(
        True,
        Kind("bool", _check_bool),
        "Compute a product, convolution or reduction and the elementwise operators around it in one kernel. Off: a kernel for each "
        "operator.",
    )
    layouts: bool = _setting(
        True,
        Kind("bool", _check_bool),
        "Store images with their channels in blocks as long as a vector where that is cheaper over the whole graph. Off: as the model "
        "stores them; Winograd's algorithm, which works on such blocks, is off with it.",
    )
    packing: bool = _setting(
        True,
        Kind("bool", _check_bool),
        "Store constants at compile time in the order in which kernels read them. Off: as the model stores them; kernels read them where "
        "they lie, or copy parts of them while they run.",
    )
    prefetch: bool = _setting(
        True,
        Kind("bool", _check_bool),
        "Let kernels ask ahead for memory that they read next. Off: only the processor itself does.",
    )
    pair_convolutions: bool = _setting(
        True,
        Kind("bool", _check_bool),
        "Compute a depthwise convolution in one kernel with the dense ones before and after it, strip by strip, where moving what is "
        "between them costs more than computing the borders of strips twice.",
    )
    opt_level: int = _setting(
        3,
        _integer(0, 3),
        "How much the compiler optimises. 0: as the model says, operator by operator, for debugging; 1: graph rewrites; 2: fusion too; "
        "3: schedules too (below that, kernels are plain serial loops).",
    )
    verify: bool = _setting(
        False,
        Kind("bool", _check_bool),
        "Check the graph, each kernel and the plan after every pass, and then run each kernel on random inputs beside the reference, as "
        "[`compile`](commands/compile.md#verifying) says. Slower compilation; the code does not change.",
        changes_code=False,
    )
    max_memory: int | None = _setting(
        None,
        _optional(Kind("bytes, `2GB` or `1.5GiB`", _check_bytes), "what the machine has"),
        "Memory that one inference may need, weights and outputs included. Past it, compilation stops with a MemoryLimitError; where sizes "
        "are known only when running, the call does.",
        changes_code=False,
    )
    progress: str = _setting(
        "auto",
        _choice("auto", "rich", "plain", "none"),
        "How long work shows its progress. `auto`: `rich` on a terminal, `plain` elsewhere.",
        changes_code=False,
    )

    def changed(self, **values: object) -> Settings:
        """These settings with some replaced. Raises SettingsError for an unknown name or a value of the wrong type."""
        checked: dict[str, Any] = {name: _checked(_row(name), value, name) for name, value in values.items()}
        return replace(self, **checked)

    def code_key(self) -> tuple[tuple[str, object], ...]:
        """Name and value of every setting that can change generated code: the settings' part of each cache key."""
        return tuple((row.name, getattr(self, row.name)) for row in settings_table() if row.changes_code)


@lru_cache(maxsize=1)
def settings_table() -> tuple[SettingRow, ...]:
    """All settings in the order of their declaration."""
    return tuple(SettingRow(f.name, f.metadata["kind"], f.default, f.metadata["doc"], f.metadata["changes_code"]) for f in fields(Settings))


def settings_from_env(environment: Mapping[str, str] | None = None) -> Settings:
    """The defaults, changed by environment variables `TILEWRIGHT_<NAME>`.

    Raises SettingsError for a value of the wrong type and for a variable with the prefix that names no setting.
    """
    source = os.environ if environment is None else environment
    rows = {row.environment: row for row in settings_table()}
    values: dict[str, Any] = {}
    for variable, text in source.items():
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        if variable not in rows:
            raise _unknown(variable, list(rows), "the environment variable")
        row = rows[variable]
        values[row.name] = _checked(row, text, variable)
    return Settings(**values)


_overridden: ContextVar[Settings | None] = ContextVar("tilewright_settings", default=None)


def current_settings() -> Settings:
    """The settings in force: those of the innermost `override` of this thread or task, otherwise those of the environment."""
    return _overridden.get() or settings_from_env()


@contextmanager
def override(**values: object) -> Iterator[Settings]:
    """Change settings inside a `with` block, for this thread or task only. Raises SettingsError before the block is entered."""
    settings = current_settings().changed(**values)
    token = _overridden.set(settings)
    try:
        yield settings
    finally:
        _overridden.reset(token)


def _row(name: str) -> SettingRow:
    rows = {row.name: row for row in settings_table()}
    if name not in rows:
        raise _unknown(name, list(rows), "the setting")
    return rows[name]


def _checked(row: SettingRow, value: object, where: str) -> object:
    try:
        return row.kind.check(value)
    except ValueError as error:
        raise SettingsError(f"the setting {row.name} cannot be {value!r}", where=where, why=f"it must be {error}") from None


def _unknown(name: str, known: list[str], noun: str) -> SettingsError:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"did you mean {close[0]}?" if close else "docs/settings.md lists all settings"
    return SettingsError(f"{noun} {name} does not exist", why=f"the settings are {', '.join(known)}", hint=hint)
