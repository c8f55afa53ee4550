"""Options that several commands share, and what their texts mean."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tilewright.support.settings import Settings

Model = Annotated[str, typer.Argument(metavar="MODEL", help="An ONNX file.")]
ModelOrArtifact = Annotated[str, typer.Argument(metavar="MODEL", help="An ONNX file, or an artifact that `compile` made.")]
Target = Annotated[str, typer.Option("--target", metavar="TARGET", help="Machine to compile for; cpu is this one.")]
DimRanges = Annotated[
    list[str] | None,
    typer.Option(
        "--dim", metavar="NAME=SIZE", help="A symbolic dim: batch=8 fixes it, batch=1..32 bounds it, 8..64:8 says what divides it."
    ),
]
DimSizes = Annotated[list[str] | None, typer.Option("--dim", metavar="NAME=N", help="Size of a symbolic dim for the random inputs.")]
InputFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        "-i",
        metavar="NAME=FILE",
        help="An input: FILE.npy, or FILE.json where it is no array of numbers; or a FILE.npz with several. Others are random.",
    ),
]
SetOptions = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting, such as opt_level=1.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of the random inputs.")]
Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON, and nothing else.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def pairs(texts: Sequence[str] | None, option: str) -> dict[str, str]:
    """`name=value` texts as a mapping. Usage error for a text of another form, or a name given twice."""
    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(f"'{text}' is not of the form name=value", param_hint=option)
        if name.strip() in found:
            raise typer.BadParameter(f"'{name.strip()}' is given twice", param_hint=option)
        found[name.strip()] = value.strip()
    return found


def dim_sizes(texts: Sequence[str] | None) -> dict[str, int]:
    """`--dim` options that give one size each."""
    sizes: dict[str, int] = {}
    for name, value in pairs(texts, "--dim").items():
        if not value.isdecimal():
            raise typer.BadParameter(f"'{name}={value}': the size must be a number", param_hint="--dim")
        sizes[name] = int(value)
    return sizes


def output_path(output: str, model: str, hint: str = "--output") -> Path:
    """The file to write. Usage error for a folder, and for the model itself."""
    path = Path(output)
    if path.is_dir():
        raise typer.BadParameter(f"'{output}' is a folder", param_hint=hint)
    if path.exists() and Path(model).exists() and path.samefile(model):
        raise typer.BadParameter("it would replace the model", param_hint=hint)
    return path


def settings_for(texts: Sequence[str] | None) -> Settings:
    """The settings in force, changed by `--set` options."""
    from tilewright.support.settings import current_settings

    return current_settings().changed(**pairs(texts, "--set"))
