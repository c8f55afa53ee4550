"""The folder that somebody else needs to see a wrong result again."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import tilewright
from tilewright.accuracy.bisect import Culprit
from tilewright.runtime.arrays import write_arrays

README = """{what}

inputs.npz      the inputs of the model
operands.npz    what the kernel at fault is given, and what it should give (where a kernel is at fault)
*.txt, *.py     graphs before and after, the kernel as defined, its schedule: whole, as far as right, one step further

To see it again:

    {again}
"""


def write_bundle(folder: Path, culprit: Culprit, inputs: Mapping[str, Any], model: str, again: str = "") -> Path:
    """Write the folder; its path. `again`: the command that shows it again, if it is not `compare`. OSError when it cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    write_arrays(folder / "inputs.npz", {name: value for name, value in inputs.items() if isinstance(value, np.ndarray)})
    others = {name: value for name, value in inputs.items() if not isinstance(value, np.ndarray)}
    for name, value in others.items():  # sequences, optionals, maps
        (folder / f"{name}.json").write_text(json.dumps(value, default=lambda array: array.tolist()), encoding="utf-8")
    given = " ".join(["--input inputs.npz", *(f"--input {name}={name}.json" for name in others)])
    if culprit.arrays:
        write_arrays(folder / "operands.npz", dict(culprit.arrays))
    for name, text in culprit.texts:
        (folder / name).write_text(text, encoding="utf-8")
    facts = {"culprit": culprit.to_json(), "model": model, "tilewright": tilewright.__version__, "command": sys.argv}
    (folder / "report.json").write_text(json.dumps(facts, indent=2), encoding="utf-8")
    (folder / "README.txt").write_text(
        README.format(what=culprit, again=again or f"tilewright compare {model} {given} --bisect"), encoding="utf-8"
    )
    return folder
