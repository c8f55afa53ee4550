"""Hashes of files, remembered: a file that has not changed since it was hashed is not read again.

A file counts as unchanged while device, inode, size, time of modification and time of change of status are the same. The last of these no
program can set. One that was written within the last GUARD_S seconds is hashed but not remembered, since a file system's clock may tick
too slowly to tell two writes apart (git calls such entries racy).
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from tilewright.support.cache import Cache
from tilewright.support.hashing import content_hash, hash_file

GUARD_S = 2.0


def file_hash(path: Path, cache: Cache) -> str:
    """64 hexadecimal digits that identify a file's content, from the cache where it is known. Raises OSError."""
    status = path.stat()
    key = content_hash("file", os.path.realpath(path), *_identity(status))
    found = cache.get(key)
    if found is not None:
        return found.decode()
    digest = hash_file(path)
    settled = max(status.st_mtime, status.st_ctime) < time.time() - GUARD_S
    if settled and _identity(path.stat()) == _identity(status):
        cache.put(key, digest.encode())
    return digest


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
