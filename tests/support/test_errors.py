import pickle
from pathlib import Path

import pytest

from tilewright.support.errors import (
    GraphError,
    InternalError,
    ModelError,
    ScheduleError,
    ShapeError,
    TilewrightError,
    UnsupportedDtypeError,
    error_classes,
)


def test_rendered_message_has_every_part_in_order() -> None:
    what = "Add: (2, 3) and (4, 3) do not broadcast"
    error = ShapeError(what, where="node 'add_7'", why="2 and 4 differ\nneither is 1", hint="look at axis 0")
    assert str(error).splitlines() == [
        what,
        "  where: node 'add_7'",
        "  why:   2 and 4 differ",
        "         neither is 1",
        "  try:   look at axis 0",
        "  docs:  docs/errors.md#shape-error",
    ]


def test_schedule_error_shows_its_loop_nest_with_indentation_kept() -> None:
    text = str(ScheduleError("split: factor 0", loop_nest="for i in 4:\n  for j in 8:", why="a factor is at least 1"))
    assert "  loops:\n         for i in 4:\n           for j in 8:\n" in text


def test_internal_error_names_its_bundle() -> None:
    assert "bundle:" in str(InternalError("fault", bundle=Path("repro")))


@pytest.mark.parametrize("cls", error_classes(), ids=lambda cls: cls.__name__)
def test_every_class_is_a_documented_tilewright_error_that_survives_pickling(cls: type[TilewrightError]) -> None:
    error = cls("what", where="w", why="y", hint="h")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert str(copy) == str(error)
    assert copy.to_json() == error.to_json()
    assert cls.__doc__
    assert cls.exit_code not in (0, 2)


def test_pickling_keeps_fields_of_subclasses() -> None:
    assert pickle.loads(pickle.dumps(ScheduleError("no", loop_nest="for i:"))).loop_nest == "for i:"


def test_located_keeps_the_closest_origin() -> None:
    assert GraphError("x").located("outer").where == "outer"
    assert GraphError("x", where="inner").located("outer").where == "inner"


def test_anchor_splits_words() -> None:
    assert UnsupportedDtypeError.anchor() == "unsupported-dtype-error"
    assert issubclass(GraphError, ModelError)
