"""A process that opens hostile inputs one after another and watches what happens: see `python -m tests.hostile`.

It reads one JSON request a line (`{"seed": 1}`) and answers with one line: an `Outcome`.
"""

from __future__ import annotations

import faulthandler
import json
import math
import os
import resource
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import tilewright as tw
from tests.hostile.cases import SECRET, Hostile, hostile
from tests.hostile.seeds import seed_artifacts, seed_models
from tilewright.runtime.examples import draw_inputs, typical_sizes
from tilewright.support.errors import InternalError, TilewrightError

MEMORY = 1 << 30  # what compilation and inference are told they may need
ALLOWED = 2 * MEMORY  # and what the process may grow by: what the compiler needs comes on top
GUARD = 12 * MEMORY  # of the whole process: past it the system refuses
HARMLESS = ("/dev/null", "/proc/self/", "/proc/meminfo", "/sys/", "/dev/shm/")


@dataclass(frozen=True, slots=True)
class Outcome:
    """kind: that of the case. result: `refused`, `ran`, `opened`, or a fault's name. detail: the message."""

    kind: str
    result: str
    detail: str = ""

    @property
    def faulty(self) -> bool:
        return self.result not in ("refused", "ran", "opened")


@dataclass(slots=True)
class Watch:
    """Files that are written outside of `folder`, and secrets that are read, while it is open."""

    folder: str = ""
    seen: list[str] = field(default_factory=list)

    def __call__(self, event: str, args: Sequence[Any]) -> None:
        if not self.folder:
            return
        if event == "open" and isinstance(args[0], (str, bytes)):
            path, mode, flags = os.path.abspath(os.fsdecode(args[0])), args[1] or "", args[2] or 0
            writes = any(letter in mode for letter in "wax+") or flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if os.path.realpath(path).endswith(SECRET) and not path.startswith(HARMLESS):
                self.seen.append(f"{path} was opened")
            elif writes and not path.startswith((self.folder, *HARMLESS)):
                self.seen.append(f"{path} was written")
        elif event in ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "shutil.rmtree"):
            path = os.path.abspath(os.fsdecode(args[0]))
            if not path.startswith(self.folder):
                self.seen.append(f"{event} of {path}")
        elif event in ("subprocess.Popen", "os.system", "os.exec", "socket.connect"):
            self.seen.append(event)


WATCH = Watch()


def outcome(seed: int, models: Sequence[bytes], artifacts: Sequence[bytes]) -> Outcome:
    """Make the case of a seed in a folder of its own, open it, and run what opens."""
    outer = Path(tempfile.mkdtemp(prefix="hostile-"))
    try:
        (outer / SECRET).write_bytes(bytes(range(256)) * 16)
        folder = outer / "model"
        folder.mkdir()
        case = hostile(seed, models, artifacts, folder)
        os.chdir(folder)
        return watched(case, seed)
    finally:
        os.chdir("/")
        shutil.rmtree(outer)


def watched(case: Hostile, seed: int) -> Outcome:
    before, started = peak_memory(reset=True), time.monotonic()
    WATCH.folder, WATCH.seen = str(case.path.parent), []
    try:
        result, detail = attempt(case, seed)
    finally:
        WATCH.folder = ""
    grown, took = peak_memory() - before, time.monotonic() - started
    if WATCH.seen:
        return Outcome(case.kind, "file", WATCH.seen[0])
    if grown > ALLOWED and result in ("refused", "ran", "opened"):
        return Outcome(case.kind, "memory", f"{grown:,} bytes; {result} {detail}")
    return Outcome(case.kind, result, f"{detail} ({took:.1f} s)" if took > 5 else detail)


def attempt(case: Hostile, seed: int) -> tuple[str, str]:
    """What came of it: refused is as good as run; anything but a TilewrightError, or an internal one, is a fault."""
    try:
        if case.artifact:
            executable = tw.load(case.path, max_memory=MEMORY)
        else:
            executable = tw.compile(case.path, cache=False, progress="none", max_memory=MEMORY, threads=1, opt_level=(0, 3, 3, 3)[seed % 4])
        if not case.runs or not isinstance(executable, tw.Executable):
            return "opened", ""
        sizes = typical_sizes(executable.inputs, executable.sizes)
        if sum(math.prod(dim(sizes) for dim in spec.shape) * spec.dtype.itemsize for spec in executable.inputs) > MEMORY // 8:
            return "opened", "its inputs are too large to be made here"
        executable.run(draw_inputs(executable.inputs, sizes, {}, seed))
    except InternalError as error:
        return "internal", str(error)
    except TilewrightError as error:
        return "refused", f"{type(error).__name__}: {error}"
    except Exception as error:
        return "exception", f"{type(error).__name__}: {error}"
    return "ran", ""


def peak_memory(reset: bool = False) -> int:
    """Most bytes that were resident since the last reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def main() -> None:
    faulthandler.enable()
    warnings.simplefilter("ignore")
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever prints goes to standard error
    resource.setrlimit(resource.RLIMIT_DATA, (GUARD, GUARD))
    models = seed_models()
    artifacts = seed_artifacts()
    sys.addaudithook(WATCH)
    for line in sys.stdin:
        out.write(json.dumps(asdict(outcome(json.loads(line)["seed"], models, artifacts))) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
