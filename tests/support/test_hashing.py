import subprocess
import sys
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.support.hashing import content_hash, hash_file, hash_tree

_leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4) | st.binary(max_size=4)
_values = st.recursive(
    _leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3), max_leaves=8
)


def _canonical(value: object) -> str:
    """Text that tells apart what the hash must tell apart."""
    if isinstance(value, list):
        return "[" + ",".join(map(_canonical, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(sorted(f"{key!r}:{_canonical(item)}" for key, item in value.items())) + "}"
    return f"{type(value).__name__} {value!r}"


@given(_values, _values)
@settings(max_examples=200, deadline=None)
def test_hashes_are_equal_exactly_where_values_are(left: object, right: object) -> None:
    assert (content_hash(left) == content_hash(right)) == (_canonical(left) == _canonical(right))


class Color(Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True)
class Point:
    x: int
    y: int
    note: str = field(default="", compare=False)


def test_structures_are_told_apart() -> None:
    values: list[object] = [
        (), ((),), ("ab",), ("a", "b"), b"ab", 1, 1.0, True, "1", None, -0.0, 0.0, {}, {"a": 1}, {"a": "1"}, {1, 2}, [1, 2],
        Color.RED, Color.BLUE, Point(1, 2), Point(2, 1), Path("ab"), np.zeros(2), np.zeros(2, np.float32), np.zeros((2, 1)),
        np.zeros(()), np.float32(0), np.zeros(2, ml_dtypes.bfloat16), np.zeros(2, np.float16), np.dtype("int8"), np.zeros(0),
    ]  # fmt: skip
    assert len({content_hash(value) for value in values}) == len(values)
    assert len({content_hash("a", "b"), content_hash(("a", "b")), content_hash("ab")}) == 3
    assert content_hash(np.float32(3)) == content_hash(np.full((), 3, np.float32))


def test_order_matters_only_where_it_should() -> None:
    assert content_hash({"a": 1, "b": [2]}) == content_hash({"b": (2,), "a": 1})
    assert content_hash({3, 1, 2}) == content_hash(frozenset([2, 3, 1]))
    assert content_hash([1, 2]) != content_hash([2, 1])
    assert content_hash(Point(1, 2, "here")) == content_hash(Point(1, 2, "there"))


def test_arrays_hash_by_content_not_by_memory_layout() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert content_hash(array) == content_hash(np.asfortranarray(array))
    assert content_hash(array[:, ::2]) == content_hash(array[:, ::2].copy())
    assert content_hash(array) == content_hash(array.astype(">f4"))
    assert content_hash(array) != content_hash(array.T)


@pytest.mark.parametrize("value", [object(), np.array([None]), lambda: 0, 1j, type])
def test_what_has_no_stable_content_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="cannot hash"):
        content_hash(value)


def test_hash_is_the_same_in_another_process() -> None:
    program = "from tilewright.support.hashing import content_hash; print(content_hash({'a', 'b', 'c'}, {'x': 1, 'y': (2.5, b'z')}))"
    here = content_hash({"a", "b", "c"}, {"x": 1, "y": (2.5, b"z")})
    for seed in ("1", "2"):
        run = subprocess.run([sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True)
        assert run.stdout.strip() == here


def test_files_and_trees(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.py").write_text("two")
    before = hash_tree(tmp_path)
    (tmp_path / "notes.txt").write_text("other")
    assert hash_tree(tmp_path) == before
    (tmp_path / "sub" / "b.py").rename(tmp_path / "sub" / "c.py")
    assert hash_tree(tmp_path) != before
    import hashlib

    assert hash_file(tmp_path / "a.py") == hashlib.sha256(b"one").hexdigest()
