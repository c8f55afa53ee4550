"""Remembered hashes of files: never an old answer for a new content."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tilewright.support import file_hashes
from tilewright.support.cache import Cache
from tilewright.support.file_hashes import file_hash
from tilewright.support.hashing import hash_file


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that are read."""
    seen: list[Path] = []

    def reading(path: Path) -> str:
        seen.append(path)
        return hash_file(path)

    monkeypatch.setattr(file_hashes, "hash_file", reading)
    return seen


def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stands an hour later, so that nothing is new."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600)


def test_a_file_that_stays_is_read_once(tmp_path: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    settled(monkeypatch)
    path, cache = tmp_path / "m.onnx", Cache(tmp_path / "cache", 10**6)
    path.write_bytes(b"one")
    assert file_hash(path, cache) == file_hash(path, cache) == hash_file(path)
    assert len(reads) == 1


def test_a_file_just_written_is_not_remembered(tmp_path: Path, reads: list[Path]) -> None:
    path, cache = tmp_path / "m.onnx", Cache(tmp_path / "cache", 10**6)
    path.write_bytes(b"one")
    file_hash(path, cache)
    file_hash(path, cache)
    assert len(reads) == 2


def test_a_change_is_seen_though_size_and_time_are_put_back(tmp_path: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    settled(monkeypatch)
    path, cache = tmp_path / "m.onnx", Cache(tmp_path / "cache", 10**6)
    path.write_bytes(b"one")
    before = path.stat()
    first = file_hash(path, cache)
    time.sleep(0.02)  # more than a tick of the file system's clock
    path.write_bytes(b"two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file_hash(path, cache) == hash_file(path) != first
    path.unlink()
    with pytest.raises(OSError):
        file_hash(path, cache)
