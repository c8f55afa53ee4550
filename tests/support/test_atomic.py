import errno
import os
import stat
from pathlib import Path

import pytest

from tilewright.support.atomic import atomic_write, write_bytes_atomic, write_text_atomic


def test_content_appears_whole_and_parents_are_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "deep" / "file"
    with atomic_write(path) as file:
        file.write(b"one")
        assert not path.exists()
    assert path.read_bytes() == b"one"
    write_text_atomic(path, "zwei\r\nüñ")
    assert path.read_bytes() == "zwei\r\nüñ".encode()
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("exception", [ValueError, KeyboardInterrupt])
def test_an_exception_or_interrupt_leaves_the_old_file_alone(tmp_path: Path, exception: type[BaseException]) -> None:
    path = tmp_path / "file"
    write_bytes_atomic(path, b"old")
    with pytest.raises(exception), atomic_write(path) as file:
        file.write(b"half of the n")
        raise exception
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_long_names_fit(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 250)
    write_bytes_atomic(path, b"x", durable=False)
    assert path.read_bytes() == b"x"


@pytest.mark.skipif(os.name != "posix", reason="file modes are a POSIX matter")
def test_mode_follows_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        write_bytes_atomic(tmp_path / "file", b"x")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644


@pytest.mark.skipif(os.name != "posix", reason="named pipes are a POSIX matter")
def test_what_is_no_regular_file_is_written_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_bytes_atomic(pipe, b"through", durable=False)
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert list(tmp_path.iterdir()) == [pipe]


@pytest.mark.skipif(os.name != "posix", reason="links need rights elsewhere")
def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_bytes(b"old")
    link.symlink_to("real")
    write_bytes_atomic(link, b"new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"


def test_an_error_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        write_bytes_atomic(folder, b"x")
    assert caught.value.filename == str(folder)
    assert list(tmp_path.iterdir()) == [folder]


def test_a_full_disk_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(OSError, match="No space left") as caught, atomic_write(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert caught.value.filename == str(path)
    assert not list(tmp_path.iterdir())
    full = Path("/dev/full")
    if full.exists():
        with pytest.raises(OSError, match="No space left") as caught:
            write_bytes_atomic(full, b"x" * 100_000)
        assert caught.value.filename == str(full)
