"""Schedules that somebody gives: they are taken as they are or refused, never passed over."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.kernel.schedule.kernels import elementwise, matmul
from tilewright.kernel.nodes import Kernel, with_fields
from tilewright.kernel.schedule.given import GivenSchedule, apply_given, given_text, kernel_hash, parse_given
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.kernel.schedule.space import Space
from tilewright.support.errors import ScheduleError

KERNEL = elementwise(32, 24)


def rules(space: Space, kernel: Kernel = KERNEL) -> Schedule:
    """Splits the last loop by what the space says, twice."""
    s = Schedule.of(kernel)
    last = s.loops_of(s.blocks()[-1])[-1]
    width = space.choose("width", (8, 4, 2), lambda w: -w, "wide is cheap")
    s, (outer, _) = s.split(last, width)
    again = space.choose("width", (3, 1), float, "the outer loop too")
    return s.split(outer, again)[0]


def exported(given: dict[str, Any] | None = None) -> dict[str, Any]:
    space = Space(given or {})
    schedule = rules(space)
    return json.loads(given_text({kernel_hash(KERNEL, frozenset()): ("elementwise", ("Add node 'a'",), space, schedule)}))


def entry(**changes: Any) -> GivenSchedule:
    data = exported()
    (stored,) = data["kernels"].values()
    stored.update(changes)
    for name in [name for name, value in stored.items() if value is None]:
        del stored[name]
    (parsed,) = parse_given(data).kernels.values()
    return parsed


def test_a_file_gives_back_what_was_exported() -> None:
    data = exported({"width": 4})
    (stored,) = data["kernels"].values()
    assert stored["point"] == {"width": 4, "width (2)": 1}
    (given,) = parse_given(data).kernels.values()
    schedule, space = apply_given(given, KERNEL, rules)
    assert space.point() == stored["point"]
    assert schedule.kernel is rules(Space({"width": 4})).kernel


def test_a_trace_alone_is_replayed_without_the_rules() -> None:
    def never(space: Space) -> Schedule:
        raise AssertionError

    schedule, space = apply_given(entry(point=None), KERNEL, never)
    assert schedule.kernel is rules(Space()).kernel
    assert space.decisions == []


def test_a_point_alone_is_taken() -> None:
    schedule, _ = apply_given(entry(point={"width": 2, "width (2)": 3}, trace=None), KERNEL, rules)
    assert schedule.kernel is rules(Space({"width": 2, "width (2)": 3})).kernel


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"point": {"width": 5}}, "'width' cannot be 5"),
        ({"point": {"width": 8, "depth": 1}, "trace": None}, "no decision 'depth'"),
        ({"point": {"width": 2}}, "point and trace say different things"),
        ({"point": None, "trace": [["split", ["nowhere"], {"factors": 2}, ["a", "b"]]]}, "cannot split"),
        ({"point": None, "trace": [["conjure", [], {}, []]]}, "no primitive 'conjure'"),
    ],
)
def test_what_does_not_fit_is_an_error_that_names_the_kernel(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ScheduleError, match="kernel elementwise does not fit") as caught:
        apply_given(entry(**changes), KERNEL, rules)
    assert why in str(caught.value)


def test_a_value_that_an_attempt_swallows_is_an_error_all_the_same() -> None:
    def trying(space: Space) -> Schedule:
        try:
            with space.attempt("a rule"):
                return rules(space)
        except ScheduleError:
            return Schedule.of(KERNEL)

    with pytest.raises(ScheduleError, match="'width' cannot be 5"):
        apply_given(entry(point={"width": 5}, trace=None), KERNEL, trying)


def test_kernels_that_the_model_does_not_have_are_an_error() -> None:
    given = parse_given(exported(), "file.json")
    (key,) = given.kernels
    assert given.unused(frozenset({key, "other"})) is None
    error = given.unused(frozenset())
    assert error is not None
    assert "no kernel elementwise" in str(error)
    assert "file.json" in str(error)


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"format": 1},
        {"format": 2, "kernels": {}},
        {"format": 1, "kernels": {}, "more": 1},
        {"format": 1, "kernels": {"a": 1}},
        {"format": 1, "kernels": {"a": {}}},
        {"format": 1, "kernels": {"a": {"point": 3}}},
        {"format": 1, "kernels": {"a": {"trace": [3]}}},
        {"format": 1, "kernels": {"a": {"point": {}, "tracee": []}}},
    ],
)
def test_data_of_another_form_is_refused(data: Any) -> None:
    with pytest.raises(ScheduleError, match="no schedules"):
        parse_given(data)


def test_a_kernel_is_known_by_its_definition() -> None:
    none = frozenset[int]()
    assert kernel_hash(KERNEL, none) == kernel_hash(with_fields(KERNEL, name="other"), none)
    others = [kernel_hash(elementwise(32, 25), none), kernel_hash(matmul(4, 5, 6), none), kernel_hash(KERNEL, frozenset({0}))]
    assert len({kernel_hash(KERNEL, none), *others}) == 4
