"""A content-addressed cache on disk, safe for many processes at once.

An entry is a file named by its key, a hexadecimal hash of everything that its content depends on. Entries appear by rename and are never
changed, so readers need no lock; two writers of one key write the same content. A byte entry ends in a digest of itself: one that the
disk has damaged is removed and counts as absent. When the total passes the limit, the entries used longest ago go first; the time of use
is the file's modification time.

A cache that cannot write (full or read-only disk) warns once and goes on without keeping anything.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tilewright.support.atomic import TEMPORARY_SUFFIX, atomic_write
from tilewright.support.settings import Settings

_DIGEST_BYTES = 32
_BYTES_SUFFIX = ".bin"
_FILE_SUFFIX = ".file"
_STALE_TEMPORARY_S = 3600.0


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One file of the cache: its path, size in bytes, and time of last use in seconds since the epoch."""

    path: Path
    size: int
    used: float


@dataclass(frozen=True, slots=True)
class CacheStats:
    """What is in a cache now: number of entries and their total size in bytes."""

    entries: int
    size: int


class Cache:
    """The cache in the folder `root`, kept below about `limit` bytes."""

    def __init__(self, root: Path, limit: int) -> None:
        self.root = root
        self.limit = limit
        self._written_since_trim: int | None = None  # None: this process has not looked yet
        self._warned = False

    def get(self, key: str) -> bytes | None:
        """The bytes kept under `key`, or None."""
        path = self._path(key, _BYTES_SUFFIX)
        try:
            stored = path.read_bytes()
        except OSError:
            return None
        content, digest = stored[:-_DIGEST_BYTES], stored[-_DIGEST_BYTES:]
        if hashlib.sha256(content).digest() != digest:
            with suppress(OSError):
                path.unlink()
            return None
        _touch(path)
        return content

    def put(self, key: str, content: bytes) -> None:
        """Keep `content` under `key`."""
        try:
            with atomic_write(self._path(key, _BYTES_SUFFIX), durable=False) as file:
                file.write(content)
                file.write(hashlib.sha256(content).digest())
        except OSError as error:
            return self._cannot_write(error)
        return self._wrote(len(content) + _DIGEST_BYTES)

    def get_file(self, key: str) -> Path | None:
        """Path of the file kept under `key`, or None. It can be mapped; another process may remove its name at any time."""
        path = self._path(key, _FILE_SUFFIX)
        if not path.is_file():
            return None
        _touch(path)
        return path

    def put_file(self, key: str, source: Path) -> None:
        """Keep a copy of the file `source` under `key`. Waits for the disk, since file entries carry no digest."""
        try:
            with source.open("rb") as content, atomic_write(self._path(key, _FILE_SUFFIX), durable=True) as file:
                shutil.copyfileobj(content, file, 1 << 20)
                size = file.tell()
        except OSError as error:
            return self._cannot_write(error)
        return self._wrote(size)

    def remove(self, key: str) -> None:
        """Forget what is kept under `key`, if anything."""
        for suffix in (_BYTES_SUFFIX, _FILE_SUFFIX):
            with suppress(OSError):
                self._path(key, suffix).unlink()

    def stats(self) -> CacheStats:
        """Count what is there. Reads the whole folder."""
        entries = tuple(self._entries())
        return CacheStats(len(entries), sum(entry.size for entry in entries))

    def clear(self) -> None:
        """Remove every entry. The folder stays, and so does anything in it that is not an entry."""
        for entry in self._entries():
            with suppress(OSError):
                entry.path.unlink()

    def trim(self) -> None:
        """Remove the entries used longest ago until nine tenths of the limit remain, and temporary files that a crash has left."""
        self._written_since_trim = 0
        entries = sorted(self._entries(), key=lambda entry: entry.used)
        size = sum(entry.size for entry in entries)
        if size > self.limit:
            for entry in entries:
                if size <= self.limit * 9 // 10:
                    break
                with suppress(OSError):  # another process was faster, or still reads it on a system that forbids removal
                    entry.path.unlink()
                    size -= entry.size
        oldest = time.time() - _STALE_TEMPORARY_S
        for path in self.root.glob(f"*/.*{TEMPORARY_SUFFIX}"):
            with suppress(OSError):
                if path.stat().st_mtime < oldest:
                    path.unlink()

    def _path(self, key: str, suffix: str) -> Path:
        if not key.isalnum():
            raise ValueError(f"a cache key is a hexadecimal hash, not {key!r}")
        return self.root / key[:2] / (key + suffix)

    def _entries(self) -> Iterator[CacheEntry]:
        for path in self.root.glob("??/*"):
            if path.suffix not in (_BYTES_SUFFIX, _FILE_SUFFIX):
                continue
            with suppress(OSError):
                status = path.stat()
                yield CacheEntry(path, status.st_size, status.st_mtime)

    def _wrote(self, size: int) -> None:
        # Looking at every entry after every write would be quadratic; a twentieth of the limit may slip by in between.
        if self._written_since_trim is None or self._written_since_trim + size > self.limit // 20:
            return self.trim()
        self._written_since_trim += size
        return None

    def _cannot_write(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(f"nothing is kept in the cache {self.root}: {error}", RuntimeWarning, stacklevel=3)


def default_cache_dir() -> Path:
    """The folder for caches of this system's user, such as `~/.cache/tilewright`."""
    from platformdirs import user_cache_path

    return user_cache_path("tilewright", appauthor=False)


def open_cache(settings: Settings) -> Cache | None:
    """The cache that the settings ask for; None where they turn it off. Touches no disk."""
    if not settings.cache:
        return None
    return Cache(settings.cache_dir or default_cache_dir(), settings.cache_limit_mb * 1_000_000)


def _touch(path: Path) -> None:
    with suppress(OSError):  # read-only cache: its order of removal is then the order of writing
        os.utime(path)
