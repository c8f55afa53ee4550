import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tilewright.support.atomic import TEMPORARY_SUFFIX
from tilewright.support.cache import Cache, default_cache_dir, open_cache
from tilewright.support.hashing import content_hash
from tilewright.support.settings import Settings


def _key(number: int) -> str:
    return content_hash("entry", number)


def test_bytes_and_files_come_back(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", 1_000_000)
    assert cache.get(_key(0)) is None
    assert cache.get_file(_key(0)) is None
    cache.put(_key(0), b"")
    cache.put(_key(1), b"content")
    source = tmp_path / "source"
    source.write_bytes(b"from a file")
    cache.put_file(_key(1), source)
    assert cache.get(_key(0)) == b""
    assert cache.get(_key(1)) == b"content"
    path = cache.get_file(_key(1))
    assert path is not None
    assert path.read_bytes() == b"from a file"
    assert Cache(tmp_path / "cache", 1_000_000).get(_key(1)) == b"content"
    assert cache.stats().entries == 3
    cache.remove(_key(1))
    assert (cache.get(_key(1)), cache.get_file(_key(1))) == (None, None)
    cache.clear()
    assert cache.stats().entries == 0


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:10], lambda b: b"", lambda b: b[:3] + b"?" + b[4:], lambda b: b + b"x"])
def test_a_damaged_entry_counts_as_absent_and_is_removed(tmp_path: Path, damage: object) -> None:
    cache = Cache(tmp_path, 1_000_000)
    cache.put(_key(0), b"some content")
    (entry,) = tmp_path.glob("??/*")
    entry.write_bytes(damage(entry.read_bytes()))  # type: ignore[operator]
    assert cache.get(_key(0)) is None
    assert not entry.exists()
    cache.put(_key(0), b"some content")
    assert cache.get(_key(0)) == b"some content"


def test_entries_used_longest_ago_are_removed_past_the_limit(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 10_000)
    now = time.time()
    for number in range(8):
        cache.put(_key(number), bytes(1000))
        (path,) = tmp_path.glob(f"??/{_key(number)}.bin")
        os.utime(path, (now - 1000 + number, now - 1000 + number))
    assert cache.get(_key(0)) is not None  # the oldest is used again
    for number in range(8, 12):
        cache.put(_key(number), bytes(1000))
    assert cache.stats().size <= 10_000
    assert cache.get(_key(0)) is not None
    assert cache.get(_key(11)) is not None
    assert cache.get(_key(1)) is None
    assert cache.get(_key(2)) is None


def test_temporary_files_of_crashed_processes_are_removed_when_stale(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 10_000)
    cache.put(_key(0), b"x")
    folder = next(tmp_path.glob("??"))
    stale, fresh = folder / f".a{TEMPORARY_SUFFIX}", folder / f".b{TEMPORARY_SUFFIX}"
    stale.write_bytes(b"")
    fresh.write_bytes(b"")
    os.utime(stale, (0, 0))
    cache.trim()
    assert (stale.exists(), fresh.exists()) == (False, True)


def test_a_cache_that_cannot_write_warns_once_and_goes_on(tmp_path: Path) -> None:
    obstacle = tmp_path / "file"
    obstacle.write_bytes(b"")
    cache = Cache(obstacle, 10_000)
    with pytest.warns(RuntimeWarning, match="nothing is kept in the cache") as warned:
        cache.put(_key(0), b"x")
        cache.put(_key(1), b"x")
    assert len(warned) == 1
    assert cache.get(_key(0)) is None


def test_a_key_is_never_a_path(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="hexadecimal"):
        Cache(tmp_path, 1).get("../../etc/passwd")


def test_settings_choose_the_cache(tmp_path: Path) -> None:
    assert open_cache(Settings().changed(cache=False)) is None
    cache = open_cache(Settings().changed(cache_dir=tmp_path, cache_limit_mb=2))
    assert cache is not None
    assert (cache.root, cache.limit) == (tmp_path, 2_000_000)
    assert "tilewright" in str(default_cache_dir())


_WORKER = """
import sys
from pathlib import Path
from tilewright.support.cache import Cache
from tilewright.support.hashing import content_hash
cache = Cache(Path(sys.argv[1]), 30_000)
for turn in range(150):
    key = content_hash("shared", turn % 40)
    content = key.encode() * 20
    found = cache.get(key)
    if found is not None and found != content:
        sys.exit("wrong content")
    cache.put(key, content)
"""


def test_processes_share_one_cache_while_it_evicts(tmp_path: Path) -> None:
    workers = [subprocess.Popen([sys.executable, "-c", _WORKER, str(tmp_path)], stderr=subprocess.PIPE) for _ in range(3)]
    for worker in workers:
        _, errors = worker.communicate(timeout=120)
        assert worker.returncode == 0, errors.decode()
    cache = Cache(tmp_path, 30_000)
    cache.trim()
    assert 0 < cache.stats().size <= 30_000
    assert not list(tmp_path.glob(f"*/.*{TEMPORARY_SUFFIX}"))
