"""A copy of the product in which faults are planted, and commands that run there."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutation.faults import Fault
from tilewright.fuzzing.process import PATIENCE, processor_time

ROOT = Path(__file__).parents[2]
LOOK = 0.5  # seconds between looks at how much processor time was used
IDLE = 400.0  # seconds without any of it after which a command hangs: longer than others may have the machine to themselves
SIMPLE = """
import numpy as np, onnx, tilewright as tw
model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> m (float[2, 3] x) => (float[2, 3] y) { y = Exp(x) }')
np.testing.assert_allclose(tw.compile(model, progress="none")(np.ones((2, 3), np.float32)), np.e, rtol=1e-5)
"""


@dataclass(slots=True)
class Product:
    """A copy of the product. used: seconds of processor time that commands in it took."""

    root: Path
    used: float = 0.0
    texts: dict[str, str] = field(default_factory=dict)

    def plant(self, faults: Sequence[Fault]) -> None:
        """Have these faults in the copy, and no others."""
        for fault in faults:
            if fault.hunks:
                self.texts.setdefault(fault.path, (self.root / fault.path).read_text(encoding="utf-8"))
        for path, text in self.texts.items():
            for fault in faults:
                text = fault.planted(text) if fault.path == path else text
            file = self.root / path
            if file.read_text(encoding="utf-8") != text:
                file.write_text(text, encoding="utf-8")
                for stale in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
                    stale.unlink()  # Python tells by size and second whether it is

    def run(self, command: Sequence[str], limit: float, env: Mapping[str, str] | None = None) -> tuple[int | None, str]:
        """Exit code and output of `python COMMAND` in the copy, which sees no cache but its own. None: it was ended, after `limit` seconds
        of processor time, or because it did nothing."""
        own = {name: str(self.root.parent / name.lower()) for name in ("TILEWRIGHT_CACHE_DIR", "TILEWRIGHT_CONFIG_DIR")}
        given = os.environ | own | {"PYTHONPATH": str(self.root / "src"), "CI": "1"} | dict(env or {})
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            process = subprocess.Popen(
                [sys.executable, *command], cwd=self.root, env=given, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                code, used = waited(process, limit)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            self.used += used
            output.seek(0)
            return code, output.read()

    def compiles(self) -> tuple[bool, str]:
        """Whether a simple model is compiled right, and what was said."""
        code, output = self.run(["-c", SIMPLE], 120.0)
        return code == 0, output


def waited(
    process: subprocess.Popen[bytes], limit: float, time_of: Callable[[int], float | None] = processor_time, idle: float = IDLE
) -> tuple[int | None, float]:
    """Exit code of a process, None where it is still running after `limit` seconds of processor time or `idle` seconds without any, and how
    much it took."""
    begun = moved = time.monotonic()
    used = 0.0
    while True:
        try:
            return process.wait(LOOK), used
        except subprocess.TimeoutExpired:
            now = time.monotonic()
            told = time_of(process.pid)
            current = now - begun if told is None else told
            if current > used:
                moved, used = now, max(used, current)
            if used >= limit or now - moved >= idle or now - begun >= PATIENCE * max(limit, 60.0):
                return None, used


@contextmanager
def copied() -> Iterator[Product]:
    """A copy of the product, without faults."""
    with tempfile.TemporaryDirectory(prefix="tilewright-fault-") as folder:
        root = Path(folder) / "product"
        shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(".*", "__pycache__", "fuzz-findings", "site", "dist", "build"))
        yield Product(root)
