"""All commands by name."""

from __future__ import annotations

from typing import Annotated

import typer

import tilewright
from tilewright.cli import bench, check, compare, compile, demo, doctor, fuzz, inspect, profile, run, zoo  # noqa: A004 (named after the commands)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tilewright {tilewright.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    """A deep-learning compiler: ONNX models to native code.

    Exit codes: 0 success, 1 an output cannot be written, 2 wrong usage, 3 and up as docs/errors.md says, 130 interrupted.
    """


app.command("check")(check.check)
app.command("compare")(compare.compare)
app.command("compile")(compile.compile_model)
app.command("run")(run.run)
app.command("bench")(bench.bench)
app.command("profile")(profile.profile)
app.command("fuzz")(fuzz.fuzz)
app.command("inspect")(inspect.inspect)
app.command("zoo")(zoo.zoo)
app.command("doctor")(doctor.doctor)
app.command("demo")(demo.demo)
