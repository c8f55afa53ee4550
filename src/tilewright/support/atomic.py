"""Files that are either wholly there or not there at all.

The content goes to a temporary file beside the destination, which then takes its name; a reader sees the old file or the new one. An
exception or an interrupt leaves the old one and no temporary file. What is no regular file, a device or a pipe, cannot be replaced so:
it is written to as it is.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

TEMPORARY_SUFFIX = ".tilewright-tmp"


@contextmanager
def atomic_write(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Open `path` for writing bytes; it appears under its name when the block ends without an exception.

    Creates missing parent folders; a symbolic link stays, the file that it names is written. `durable`: also survive a loss of power right
    afterwards (waits for the disk). Raises OSError as `open` does.
    """
    asked = path
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file() and not path.is_dir():
        try:
            with path.open("wb") as file:
                yield file
        except OSError as error:
            raise _of(error, asked) from None
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name[:80]}.{os.getpid()}-{secrets.token_hex(6)}{TEMPORARY_SUFFIX}")
    # Not tempfile: its files are readable by their owner only, whatever the umask says.
    try:
        with temporary.open("xb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            raise _of(error, asked) from None  # nobody has asked for the temporary file
        raise


def _of(error: OSError, asked: Path) -> OSError:
    """The error, of the file that was asked for: a full disk names none."""
    return error if error.errno is None else OSError(error.errno, error.strerror, str(asked))


def write_bytes_atomic(path: Path, content: bytes | bytearray | memoryview, *, durable: bool = True) -> None:
    """Write a whole file of bytes atomically."""
    with atomic_write(path, durable=durable) as file:
        file.write(content)


def write_text_atomic(path: Path, text: str, *, durable: bool = True) -> None:
    """Write a whole UTF-8 file atomically, with the line ends as they are in `text`."""
    write_bytes_atomic(path, text.encode("utf-8"), durable=durable)
