"""The artifact file: code, weights and manifest in one file that can be memory-mapped.

    magic (8 bytes) | manifest length (8, little endian) | SHA-256 of the manifest (32) | manifest (JSON) | sections

Each section starts at a multiple of PAGE. The manifest names them with offset, length and hash; the code's hashes are checked before
anything is linked, that of the weights on request. A program's parts are sections that are such files themselves. An artifact is code:
load only files that you would run as a program.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.runtime.constants import FORMAT
from tilewright.support.atomic import atomic_write
from tilewright.support.errors import ArtifactError, TilewrightError

MAGIC = b"TILEWRT\x01"
HEADER = 48
PAGE = 4096
MAX_MANIFEST = 64 << 20

Bytes = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Artifact:
    """What a file holds. `manifest`: plain data, see `docs/artifact.md`. `objects`: relocatable code, by name. `pool`: the thread pool's
    object. `weights`: uint8 array, aligned to ALIGNMENT, a view of the mapped file when it was loaded from one. `parts`: the compiled parts
    of a program, which has no code and weights itself."""

    manifest: Mapping[str, Any]
    objects: Mapping[str, bytes]
    pool: bytes
    weights: np.ndarray[Any, np.dtype[np.uint8]]
    parts: tuple[Artifact, ...] = ()


def _sections(artifact: Artifact) -> list[tuple[str, Bytes]]:
    code: list[tuple[str, Bytes]] = [(f"object:{name}", content) for name, content in artifact.objects.items()]
    parts: list[tuple[str, Bytes]] = [(f"part:{number}", b"".join(content(part))) for number, part in enumerate(artifact.parts)]
    return [*code, *parts, ("pool", artifact.pool), ("weights", artifact.weights.data)]


def save(artifact: Artifact, path: str | Path) -> None:
    """Write an artifact; the file appears complete or not at all. Raises TilewrightError when the system refuses."""
    try:
        with atomic_write(Path(path), durable=False) as file:
            for piece in content(artifact):
                file.write(piece)
    except OSError as error:
        hint = "check path, permissions and free space"
        raise TilewrightError(f"'{path}' cannot be written: {error.strerror}", hint=hint) from None


def content(artifact: Artifact) -> Iterator[Bytes]:
    """The bytes of the file, piece by piece."""
    sections = _sections(artifact)
    table: dict[str, list[Any]] = {}
    offset = 0
    for name, piece in sections:
        table[name] = [offset, len(piece), hashlib.sha256(piece).hexdigest()]
        offset += -(-len(piece) // PAGE) * PAGE
    manifest = json.dumps({**artifact.manifest, "format": FORMAT, "sections": table}, sort_keys=True, separators=(",", ":")).encode()
    yield MAGIC + len(manifest).to_bytes(8, "little") + hashlib.sha256(manifest).digest() + manifest
    yield bytes(-(HEADER + len(manifest)) % PAGE)
    for _, piece in sections:
        yield piece
        yield bytes(-len(piece) % PAGE)


def load(path: str | Path, verify: bool = False) -> Artifact:
    """Map an artifact. Raises ArtifactError when the file is none, is damaged or has another format; `verify` also hashes the weights."""
    source = Path(path)
    try:
        with source.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ArtifactError(f"'{source}' cannot be opened: {error.strerror}") from None
    except ValueError:
        raise ArtifactError(f"'{source}' is empty, not an artifact") from None
    return _read(memoryview(data), source, verify)


def _read(data: memoryview, source: Path, verify: bool) -> Artifact:
    """The artifact in `data`."""
    manifest, start = _manifest(data, source)
    sections = manifest.get("sections")
    if not isinstance(sections, dict):
        raise _damaged(source, "the manifest lists no sections")
    objects: dict[str, bytes] = {}
    found: dict[str, tuple[int, int]] = {}
    for name, entry in sections.items():
        offset, length, digest = _entry(entry, source)
        begin = start + offset
        if begin + length > len(data):
            raise _damaged(source, f"section '{name}' reaches past the end of the file")
        found[name] = (begin, length)
        if (name != "weights" and not name.startswith("part:")) or verify:  # a part has hashes of its own
            with data[begin : begin + length] as view:
                if hashlib.sha256(view).hexdigest() != digest:
                    raise _damaged(source, f"the content of section '{name}' does not match its hash")
        if name.startswith("object:"):
            objects[name.removeprefix("object:")] = bytes(data[begin : begin + length])
    if "pool" not in found or "weights" not in found:
        raise _damaged(source, "a section is missing")
    begin, length = found["weights"]
    weights = np.frombuffer(data, np.uint8, length, begin) if length else np.zeros(0, np.uint8)
    begin, length = found["pool"]
    pool = bytes(data[begin : begin + length])
    spans = [found[f"part:{number}"] for number in range(sum(name.startswith("part:") for name in found)) if f"part:{number}" in found]
    parts = tuple(_read(data[begin : begin + length], source, verify) for begin, length in spans)
    return Artifact(manifest, objects, pool, weights, parts)


def _manifest(data: memoryview, source: Path) -> tuple[dict[str, Any], int]:
    header = bytes(data[:HEADER])
    if len(header) < HEADER or header[:7] != MAGIC[:7]:
        raise ArtifactError(f"'{source}' is not a Tilewright artifact", hint="compile a model with `tilewright compile`, or give its path")
    if header[7] != MAGIC[7]:
        raise ArtifactError(
            f"'{source}' has a header of version {header[7]}, this version reads {MAGIC[7]}", hint="compile the model again"
        )
    length = int.from_bytes(header[8:16], "little")
    if length > MAX_MANIFEST or HEADER + length > len(data):
        raise _damaged(source, "the manifest reaches past the end of the file")
    text = bytes(data[HEADER : HEADER + length])
    if hashlib.sha256(text).digest() != header[16:48]:
        raise _damaged(source, "the manifest does not match its hash")
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError):
        raise _damaged(source, "the manifest is not JSON") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        have = manifest.get("format") if isinstance(manifest, dict) else None
        raise ArtifactError(f"'{source}' has format {have}, this version reads format {FORMAT}", hint="compile the model again")
    return manifest, -(-(HEADER + length) // PAGE) * PAGE


def _entry(entry: object, source: Path) -> tuple[int, int, str]:
    if isinstance(entry, Sequence) and len(entry) == 3:
        offset, length, digest = entry
        if isinstance(offset, int) and isinstance(length, int) and isinstance(digest, str) and offset >= 0 and length >= 0:
            return offset, length, digest
    raise _damaged(source, "the table of sections is malformed")


@contextmanager
def manifest_faults() -> Iterator[None]:
    """Turn what reading a manifest of wrong form raises into an ArtifactError."""
    try:
        yield
    except (AttributeError, KeyError, IndexError, TypeError, ValueError, ArithmeticError, RecursionError, MemoryError) as error:
        what = "the artifact's manifest is malformed or incomplete"
        raise ArtifactError(what, why=f"{type(error).__name__}: {error}", hint="compile the model again") from None


def _damaged(source: Path, why: str) -> ArtifactError:
    return ArtifactError(f"'{source}' is damaged", why=why, hint="copy or compile it again")
