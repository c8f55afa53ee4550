"""Weights are pages of the artifact's file: processes that load one artifact have them in memory once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tilewright as tw
from tilewright.zoo import build

HOLD = """
import sys
import numpy as np
import tilewright as tw
exe = tw.load(sys.argv[1], threads=1)
exe(np.ones((1, 1024), np.float32))
print("ready", flush=True)
sys.stdin.read()
"""


def mapped(pid: int, path: Path) -> dict[str, int]:
    """Sums of the fields of /proc/PID/smaps, in KiB, over the mappings of a file."""
    sums: dict[str, int] = {}
    inside = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            inside = bool(rest) and rest[-1] == str(path)
        elif inside and rest[-1:] == ["kB"]:
            sums[first[:-1]] = sums.get(first[:-1], 0) + int(rest[0])
    return sums


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the system does not say which pages are shared")
def test_processes_share_the_pages_of_weights(tmp_path: Path) -> None:
    path = (tmp_path / "net.tw").resolve()
    tw.compile(build("mlp", sizes=(1024, 1024, 10)), cache=False, progress="none").save(path)
    weights = 1024 * 1024 * 4 // 1024
    command = [sys.executable, "-c", HOLD, str(path)]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            found = mapped(process.pid, path)
            assert found["Rss"] >= weights
            assert found["Private_Dirty"] == found["Private_Clean"] == 0
            assert found["Pss"] <= 0.6 * found["Rss"]
    finally:
        for process in processes:
            process.communicate()
