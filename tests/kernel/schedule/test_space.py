"""Spaces: decisions with defaults, given values, and attempts that leave no record."""

import pytest

from tilewright.kernel.schedule.space import Space
from tilewright.support.errors import ScheduleError


def rule(space: Space) -> tuple[int, str]:
    tile = space.choose("tile", [4, 8, 16], lambda t: abs(t - 8), "distance from eight")
    return tile, space.choose("order", ["ij", "ji"], lambda _: 1.0, "nothing")


def test_the_default_is_the_cheapest_and_of_equals_the_first() -> None:
    space = Space()
    assert rule(space) == (8, "ij")
    assert [(d.name, d.options, d.costs, d.taken, d.default) for d in space.decisions] == [
        ("tile", (4, 8, 16), (4.0, 0.0, 8.0), 1, 1),
        ("order", ("ij", "ji"), (1.0, 1.0), 0, 0),
    ]


def test_a_point_taken_is_a_point_that_can_be_given() -> None:
    space = Space({"tile": 16})
    assert rule(space) == (16, "ij")
    assert space.decisions[0].default == 1
    assert rule(Space(space.point())) == (16, "ij")


def test_tuples_may_come_back_from_json_as_lists() -> None:
    space = Space({"tile": [2, [3]]})
    assert space.choose("tile", [(1, (1,)), (2, (3,))], lambda _: 0.0, "") == (2, (3,))


def test_a_value_that_is_no_option_is_refused() -> None:
    with pytest.raises(ScheduleError, match="'tile' cannot be 5"):
        rule(Space({"tile": 5}))


def test_an_attempt_that_fails_leaves_no_decision() -> None:
    space = Space()
    with pytest.raises(ScheduleError), space.attempt("a rule"):
        rule(space)
        raise ScheduleError("no")
    assert not space.decisions
    assert [(name, error.what) for name, error in space.given_up] == [("a rule", "no")]
