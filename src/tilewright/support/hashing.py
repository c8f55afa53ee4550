"""Stable content hashes of nested plain data.

The same value hashes the same in every process, on every machine and in every Python version. SHA-256, because processors have
instructions for it: 1.3 GB/s here, three times blake2b.

Each value is encoded as a tag, a length and its content, so that different structures never give the same bytes. Lists and tuples count
as the same thing (JSON does not tell them apart); 1, 1.0 and True do not.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

_CHUNK = 1 << 20


def content_hash(*values: object) -> str:
    """64 hexadecimal digits that identify `values`.

    Accepts None, bool, int, float, str, bytes-like objects, paths, enum members, NumPy arrays, dtypes and scalars, dataclass instances
    (the fields that take part in comparison), and tuples, lists, dicts (in any order) and sets of these. Raises TypeError for
    anything else.
    """
    digest = hashlib.sha256()
    _feed(digest, values)
    return digest.hexdigest()


def hash_file(path: Path) -> str:
    """64 hexadecimal digits that identify a file's content. Reads it in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_tree(folder: Path, suffix: str = ".py") -> str:
    """Hash of all files below `folder` whose name ends in `suffix`: relative names and contents.

    A cache key that holds the hash of the compiler's own sources cannot outlive a change to them.
    """
    digest = hashlib.sha256()
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*" + suffix)}
    for name in sorted(paths):
        _feed(digest, (name, paths[name].read_bytes()))
    return digest.hexdigest()


def _feed(digest: Any, value: object) -> None:
    # Any: hashlib's digest objects have no public type.
    match value:
        case None:
            digest.update(b"N;")
        case Enum():
            _tagged(digest, b"E", f"{type(value).__qualname__}.{value.name}".encode())
        case bool():
            digest.update(b"T;" if value else b"F;")
        case int():
            _tagged(digest, b"i", str(int(value)).encode())
        case float():
            digest.update(b"f" + struct.pack("<d", value))
        case str():
            _tagged(digest, b"s", value.encode("utf-8", "surrogatepass"))
        case bytes() | bytearray() | memoryview():
            _tagged(digest, b"b", value)
        case Path():
            _tagged(digest, b"p", value.as_posix().encode())
        case tuple() | list():
            digest.update(b"(%d;" % len(value))
            for item in value:
                _feed(digest, item)
        case dict():
            digest.update(b"{%d;" % len(value))
            for line in sorted(_alone(item) for item in value.items()):
                digest.update(line)
        case set() | frozenset():
            digest.update(b"<%d;" % len(value))
            for line in sorted(map(_alone, value)):
                digest.update(line)
        case _ if is_dataclass(value) and not isinstance(value, type):
            _tagged(digest, b"d", type(value).__qualname__.encode())
            _feed(digest, tuple((field.name, getattr(value, field.name)) for field in fields(value) if field.compare))
        case _:
            _feed_numpy(digest, value)


def _feed_numpy(digest: Any, value: object) -> None:
    numpy = sys.modules.get("numpy")  # a value that is NumPy's exists only where NumPy has been imported
    if numpy is None:
        raise TypeError(f"cannot hash a {type(value).__qualname__}")
    if isinstance(value, numpy.dtype):
        return _tagged(digest, b"t", value.name.encode())
    if not isinstance(value, (numpy.ndarray, numpy.generic)) or value.dtype.hasobject:
        raise TypeError(f"cannot hash a {type(value).__qualname__}")
    array = numpy.ascontiguousarray(value)
    if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and sys.byteorder == "big"):
        array = array.astype(array.dtype.newbyteorder("<"))
    # The name and not the format string: NumPy writes the dtypes of ml_dtypes as raw bytes ("V2").
    _tagged(digest, b"a", f"{array.dtype.name}{value.shape}".encode())
    flat = array.reshape(-1).view(numpy.uint8)
    digest.update(b"%d;" % flat.nbytes)
    for start in range(0, flat.nbytes, _CHUNK):
        digest.update(flat[start : start + _CHUNK])
    return None


def _alone(value: object) -> bytes:
    """Digest of one member of an unordered collection, to sort by."""
    digest = hashlib.sha256()
    _feed(digest, value)
    return digest.digest()


def _tagged(digest: Any, tag: bytes, content: bytes | bytearray | memoryview) -> None:
    size = content.nbytes if isinstance(content, memoryview) else len(content)
    digest.update(tag + b"%d;" % size)
    digest.update(content)
