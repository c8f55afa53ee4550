"""Traces: the primitives applied so far, as data. JSON and Python source both carry all of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.support.errors import ParseError

# Attributes that a search may choose anew: they change speed, and the names of the loops made stay as many.
DECISIONS: Mapping[str, tuple[str, ...]] = {
    "split": ("factors",),
    "pack": ("tiles",),
    "cache_read": ("scope",),
    "cache_write": ("scope",),
    "rfactor": ("axis",),
    "pad": ("multiple",),
}
_SINGLE = frozenset({"fuse"})


@dataclass(frozen=True, slots=True)
class Instruction:
    """One application: the primitive's name, names of blocks, loops and buffers, decisions (sorted by name), and names it made."""

    name: str
    args: tuple[str, ...]
    attrs: tuple[tuple[str, Any], ...] = ()
    results: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """Instructions in the order of application."""

    instructions: tuple[Instruction, ...] = ()

    def then(self, step: Instruction) -> Trace:
        return Trace((*self.instructions, step))

    def decisions(self) -> tuple[tuple[int, str, Any], ...]:
        """(position, attribute, value) of everything that `replay` may be told to choose otherwise."""
        return tuple(
            (position, key, value)
            for position, step in enumerate(self.instructions)
            for key, value in step.attrs
            if key in DECISIONS.get(step.name, ())
        )

    def to_json(self) -> str:
        """A JSON list of [name, args, attrs, results]."""
        return json.dumps([[s.name, s.args, dict(s.attrs), s.results] for s in self.instructions], separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Trace:
        """The trace that `to_json` wrote. Raises ParseError for anything else."""
        try:
            rows = json.loads(text)
            return Trace(tuple(Instruction(name, tuple(args), freeze(attrs), tuple(results)) for name, args, attrs, results in rows))
        except (ValueError, TypeError, AttributeError) as error:
            raise ParseError("this is no schedule trace", why=str(error)) from None

    def to_python(self, function: str = "schedule") -> str:
        """Source of a function from a Schedule to a Schedule that applies the trace."""
        variables: dict[str, str] = {}
        lines = [f"def {function}(s):"]
        for step in self.instructions:
            args = [variables.get(arg, repr(arg)) for arg in step.args]
            args += [f"{key}={value!r}" for key, value in step.attrs]
            call = f"s.{step.name}({', '.join(args)})"
            made = [_variable(name, variables) for name in step.results]
            if not made:
                target = "s, _" if step.name in UNPACKED else "s"
            elif step.name in _SINGLE:
                target = f"s, {made[0]}"
            else:
                target = f"s, ({', '.join(made)}{',' if len(made) == 1 else ''})"
            lines.append(f"    {target} = {call}")
        return "\n".join([*lines, "    return s"]) + "\n"


# Primitives whose methods give names even when there are none (a block without iters has no loops).
UNPACKED = frozenset({"split", "compute_at", "reverse_compute_at", "cache_read", "cache_write", "decompose_reduction", "rfactor"})


def _variable(name: str, variables: dict[str, str]) -> str:
    """A Python variable that stands for a name made by the trace."""
    text = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
    text = text if text.isidentifier() and text != "s" else f"_{text}"
    while text in variables.values():
        text += "_"
    variables[name] = text
    return text


def freeze(attrs: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Attributes as hashable data: sorted by name, sequences as tuples."""
    return tuple((key, _frozen(attrs[key])) for key in sorted(attrs))


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, Sequence) and not isinstance(value, str) else value
