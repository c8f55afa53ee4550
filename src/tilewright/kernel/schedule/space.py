"""The space of schedules that a rule declares, and the point of it that was taken.

A rule asks a `Space` at each of its decisions: `space.choose("tile", options, cost, why)`. The space answers with what it was given for
that name, or else with the cheapest option, and keeps a record. So the space is declared by the code that uses it, decisions may depend
on earlier ones, and a search runs the rule again with other values.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tilewright.support.errors import ScheduleError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision. options: all values that the rule can take, plain data (int, str, bool, None, tuples of them). costs: what the rule's
    model of the machine says of each; their unit is the rule's own. taken, default: positions in `options`. why: what the cost counts."""

    name: str
    options: tuple[Any, ...]
    costs: tuple[float, ...]
    taken: int
    default: int
    why: str


@dataclass(slots=True)
class Space:
    """Decisions of one kernel's schedule, recorded as a rule makes them. `given`: values to take instead of the defaults, by name;
    `refused`: what was raised for those that are no options. A name that is asked for again is recorded as `name (2)`, and so on.
    `declined`: what schedules shall not do; a decision whose name has one of these words in it can only be False. `given_up`: rules that
    began and met a primitive that refused, so that a slower rule took over, and what it said."""

    given: Mapping[str, Any] = field(default_factory=dict)
    declined: frozenset[str] = frozenset()
    decisions: list[Decision] = field(default_factory=list)
    refused: list[ScheduleError] = field(default_factory=list)
    given_up: list[tuple[str, ScheduleError]] = field(default_factory=list)

    def choose(self, name: str, options: Sequence[T], cost: Callable[[T], float], why: str) -> T:
        """The given value for `name`, or the option with the least cost (of equal ones the first).

        Raises ScheduleError where the given value is no option: it was found for another kernel or machine.
        """
        if any(word in name for word in self.declined):
            options = [option for option in options if option is False] or options
        name = self._next(name)
        costs = tuple(float(cost(option)) for option in options)
        default = min(range(len(costs)), key=costs.__getitem__)
        taken = default
        if name in self.given:
            wanted = _plain(self.given[name])
            found = [i for i, option in enumerate(options) if _plain(option) == wanted]
            if not found:
                what = f"the decision '{name}' cannot be {wanted!r}"
                error = ScheduleError(what, why=f"the options are {', '.join(map(repr, options))}", hint="search this kernel again")
                self.refused.append(error)
                raise error
            taken = found[0]
        self.decisions.append(Decision(name, tuple(options), costs, taken, default, why))
        return options[taken]

    def _next(self, name: str) -> str:
        known = {decision.name for decision in self.decisions}
        names = itertools.chain([name], (f"{name} ({number})" for number in itertools.count(2)))
        return next(candidate for candidate in names if candidate not in known)

    @contextmanager
    def attempt(self, rule: str) -> Iterator[None]:
        """Forget the decisions made inside when it ends in a ScheduleError, and note that `rule` gave up: another way is taken."""
        kept = len(self.decisions)
        try:
            yield
        except ScheduleError as error:
            del self.decisions[kept:]
            self.given_up.append((rule, error))
            raise

    def point(self) -> dict[str, Any]:
        """The values taken, by name: `Space(point)` takes them again."""
        return {decision.name: decision.options[decision.taken] for decision in self.decisions}

    def unused(self) -> list[str]:
        """Names in `given` that nobody asked for."""
        asked = {decision.name for decision in self.decisions}
        return [name for name in self.given if name not in asked]


def _plain(value: Any) -> Any:
    """Lists as tuples, as they come back from JSON."""
    return tuple(map(_plain, value)) if isinstance(value, (list, tuple)) else value
