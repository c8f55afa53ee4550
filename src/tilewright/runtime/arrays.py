"""Files of arrays."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.support.atomic import atomic_write
from tilewright.support.errors import InputError


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """An .npz file of arrays whose names may be anything; complete or not there. Raises InputError for values that are no arrays."""
    other = next((name for name, array in arrays.items() if not isinstance(array, np.ndarray)), None)
    if other is not None:
        raise InputError(f"output '{other}' is no array, which a file.npz cannot hold", hint="--json prints values of every kind")
    with atomic_write(path, durable=False) as file, zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array.astype(str) if array.dtype.kind == "O" else array, allow_pickle=False)
