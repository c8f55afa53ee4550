"""How a command ends: its answer as text or JSON, its error as the person who asked can use it, its exit code."""

from __future__ import annotations

import functools
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ParamSpec, TextIO

import typer

from tilewright.cli import INTERRUPTED
from tilewright.support.errors import InternalError, MemoryLimitError, TilewrightError

if TYPE_CHECKING:
    from rich.console import Console

P = ParamSpec("P")
BROKEN_PIPE = 141  # 128 + SIGPIPE, as of programs that the signal ends
PIPE_WIDTH = 160  # columns where nobody's terminal says how many there are


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command found.

    data: plain data for `--json`. show: writes the same for people. exit_code: 0 unless the finding is bad news.
    """

    data: Mapping[str, Any]
    show: Callable[[Console], None] = field(repr=False)
    exit_code: int = 0


def command(run: Callable[P, Answer]) -> Callable[P, None]:
    """Make a function that gives an Answer a command: prints the answer, turns what goes wrong into a message and an exit code.

    The function has the parameters `json` and `debug`.
    """

    @functools.wraps(run)
    def ended(*args: P.args, **kwargs: P.kwargs) -> None:
        code = conclude(lambda: run(*args, **kwargs), kwargs)
        if code:
            raise typer.Exit(code)

    return ended


def conclude(run: Callable[[], Answer], options: Mapping[str, Any]) -> int:
    """Run a command and print what comes of it; the exit code."""
    as_json, debug = bool(options.get("json")), bool(options.get("debug"))
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            answer = run()
        write(to_text(answer.data) if as_json else rendered(answer.show))
        return answer.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED  # `main` says so
    except BrokenPipeError:
        # whoever read the output has gone; what Python still holds of it would fail again when the process ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except Exception as error:
        if debug:
            traceback.print_exc()
        return refuse(as_asked(error, options), as_json)


def as_asked(error: Exception, options: Mapping[str, Any]) -> TilewrightError:
    """Any exception as an error for the person who asked; a fault of ours leaves a bundle from which it can be reproduced."""
    from tilewright.cli.reproduction import write_bundle

    if isinstance(error, InternalError):
        error.bundle = error.bundle or write_bundle(error, options)
        return error
    if isinstance(error, TilewrightError):
        return error
    if isinstance(error, MemoryError):
        return MemoryLimitError("memory ran out", why=str(error) or None, hint="use smaller dims, or a machine with more memory")
    if isinstance(error, OSError) and error.strerror is not None:
        file = "" if error.filename is None else f"'{error.filename}': "
        return TilewrightError(f"{file}{error.strerror}", hint="check path, permissions and free space")
    return InternalError(
        "something went wrong inside Tilewright",
        why=f"{type(error).__name__}: {error}",
        hint="report it with the bundle; --debug shows the traceback",
        bundle=write_bundle(error, options),
    )


def _warn(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None, line: str | None = None
) -> None:
    """A warning without the line of ours that gave it."""
    sys.stderr.write(f"warning: {message}\n")


def refuse(error: TilewrightError, as_json: bool) -> int:
    """Print an error; its exit code."""
    if as_json:
        write(to_text({**error.to_json(), "exit_code": error.exit_code, **_bundle(error)}))
    else:
        sys.stderr.write(f"error: {error}\n")
    return error.exit_code


def _bundle(error: TilewrightError) -> dict[str, str]:
    return {"bundle": str(error.bundle)} if isinstance(error, InternalError) and error.bundle is not None else {}


def write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def to_text(data: Mapping[str, Any]) -> str:
    return json.dumps(plain(data), indent=2, ensure_ascii=False) + "\n"


def plain(value: Any) -> Any:
    """Data that JSON has words for: no NumPy scalars, no paths; infinities and NaNs become null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in (sorted(value) if isinstance(value, (set, frozenset)) else value)]
    if isinstance(value, bool) or value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    return plain(value.item()) if hasattr(value, "item") else str(value)


def rendered(show: Callable[[Console], None]) -> str:
    """What `show` writes, coloured where the terminal takes colour. Text first, since Rich ends the process on a broken pipe by itself."""
    from rich.console import Console

    known_width = sys.stdout.isatty() or "COLUMNS" in os.environ
    console = Console(highlight=False, emoji=False, markup=False, width=None if known_width else PIPE_WIDTH)
    with console.capture() as captured:
        show(console)
    return "".join(line.rstrip() + "\n" for line in captured.get().splitlines())
