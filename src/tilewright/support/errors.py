"""Every error that Tilewright raises on purpose.

An error is for the person who asked. It says what was asked or found wrong (`what`), where in *their* model (`where`), why it cannot be
done (`why`) and what to try (`hint`), and it ends with the anchor of its own section in `docs/errors.md`:

    raise ShapeError(
        "Add: the shapes (2, 3) and (4, 3) do not broadcast",
        where="node 'encoder/add_7' (Add)",
        why="axis 0 has sizes 2 and 4, and neither is 1",
        hint="check the exporter's dynamic axes: both inputs come from 'tokens'",
    )

Only `what` is required. `exit_code` is what the command line returns for the class; 2 is left to wrong command-line usage.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Self

DOCS_PAGE = "docs/errors.md"


class TilewrightError(Exception):
    """Base of all errors that Tilewright raises on purpose.

    what: one sentence, what was asked or found. where: the model node, file or argument it concerns. why: the reason.
    hint: what to try next. All are plain text; `str(error)` renders them together.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, where: str | None = None, why: str | None = None, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.why = why
        self.hint = hint

    @classmethod
    def anchor(cls) -> str:
        """The heading of this class in the errors page: `UnsupportedDtypeError` -> `unsupported-dtype-error`."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", cls.__name__).lower()

    @classmethod
    def docs(cls) -> str:
        """Path and anchor of this error's section in the documentation."""
        return f"{DOCS_PAGE}#{cls.anchor()}"

    def located(self, where: str) -> Self:
        """This error with `where` filled in if nothing closer to the fault did so before; for `raise error.located(origin)`."""
        if self.where is None:
            self.where = where
        return self

    def sections(self) -> tuple[tuple[str, str], ...]:
        """Labelled parts after the first line, in order, without the empty ones. Subclasses with more fields extend this."""
        parts = (("where", self.where), ("why", self.why), ("try", self.hint))
        return tuple((label, text) for label, text in parts if text)

    def to_json(self) -> dict[str, Any]:
        """Plain data for `--json` output."""
        return {
            "error": type(self).__name__,
            "what": self.what,
            "where": self.where,
            "why": self.why,
            "hint": self.hint,
            "docs": self.docs(),
        }

    def __str__(self) -> str:
        lines = [self.what]
        for label, text in (*self.sections(), ("docs", self.docs())):
            first, *rest = text.splitlines()
            lines.append(f"  {label + ':':<6} {first}".rstrip())
            lines.extend(" " * 9 + line for line in rest)
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        # The default rebuilds from `args` alone; fields travel as state, so that worker processes lose nothing.
        return (_rebuild, (type(self), self.what, dict(self.__dict__)))


def _rebuild(cls: type[TilewrightError], what: str, fields: dict[str, Any]) -> TilewrightError:
    error = cls.__new__(cls, what)
    Exception.__init__(error, what)
    error.__dict__.update(fields)
    return error


class ModelError(TilewrightError):
    """A model file cannot be read: malformed, truncated, or its external data is missing or too short."""

    exit_code = 3


class GraphError(ModelError):
    """The file reads well, but the graph in it is cyclic, refers to values that nothing produces, or is otherwise invalid."""


class ShapeError(ModelError):
    """Shapes of an operator's inputs contradict each other or the operator."""


class TypeRuleError(ModelError):
    """An operator's inputs, attributes or dtypes break its type rule in another way than by shape."""


class UnsupportedOperatorError(TilewrightError):
    """The model uses an operator, an operator version or an attribute value that is not implemented for this target."""

    exit_code = 4


class UnsupportedDtypeError(TilewrightError):
    """An operator is implemented, but not for this dtype, or the target cannot compute in it."""

    exit_code = 4


class MemoryLimitError(TilewrightError):
    """The memory that a model needs, as planned, is over the limit set by `max_memory` or over what the machine has."""

    exit_code = 5


class ScheduleError(TilewrightError):
    """A schedule primitive would change the result, or does not apply. Shows the loop nest it was applied to; given as a function, it
    is rendered only when somebody looks, since a search discards most of these errors."""

    exit_code = 6

    def __init__(
        self,
        what: str,
        *,
        loop_nest: str | Callable[[], str] | None = None,
        where: str | None = None,
        why: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(what, where=where, why=why, hint=hint)
        self._loop_nest = loop_nest

    @property
    def loop_nest(self) -> str | None:
        if callable(self._loop_nest):
            self._loop_nest = self._loop_nest()
        return self._loop_nest

    def __reduce__(self) -> tuple[Any, ...]:
        self._loop_nest = self.loop_nest  # a function does not travel between processes, its text does
        return super().__reduce__()

    def sections(self) -> tuple[tuple[str, str], ...]:
        nest = (("loops", "\n" + self.loop_nest),) if self.loop_nest else ()
        return super().sections() + nest


class VerifyError(TilewrightError):
    """A kernel, graph or result fails a check: out of bounds, read before write, a race, or a difference past the tolerance."""

    exit_code = 7


class ParseError(TilewrightError):
    """Text in Tilewright's own syntax (IR text, kernel script) cannot be parsed."""

    exit_code = 3


class ArtifactError(TilewrightError):
    """A saved artifact cannot be loaded: damaged, of an incompatible version, or made for a machine with other features."""

    exit_code = 8


class InputError(TilewrightError):
    """At run time: an input has a wrong name, rank, dim, dtype or device, or one is missing."""

    exit_code = 9


class SettingsError(TilewrightError):
    """A setting does not exist or has a value that its type does not allow."""

    exit_code = 10


class TargetError(TilewrightError):
    """A target string cannot be understood, or names a machine or feature that does not exist."""

    exit_code = 11


class InternalError(TilewrightError):
    """A fault in Tilewright itself. `bundle` is the folder that holds what is needed to reproduce it."""

    exit_code = 70

    def __init__(
        self,
        what: str,
        *,
        bundle: Path | None = None,
        where: str | None = None,
        why: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(what, where=where, why=why, hint=hint)
        self.bundle = bundle

    def sections(self) -> tuple[tuple[str, str], ...]:
        bundle = (("bundle", str(self.bundle)),) if self.bundle is not None else ()
        return super().sections() + bundle


def error_classes() -> tuple[type[TilewrightError], ...]:
    """The base class and every class of this module, in the order of the errors page."""
    return tuple(
        value
        for value in globals().values()
        if isinstance(value, type) and issubclass(value, TilewrightError) and value.__module__ == __name__
    )
