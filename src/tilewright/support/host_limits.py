"""How much of this computer the process may use: affinity mask, control groups (versions 1 and 2), memory.

Reads `/proc` and `/sys` where they exist and otherwise asks the operating system through `os`. Every function takes the `root` below which
these files lie, so that a recorded system can stand in for the one at hand.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_SYSTEM = Path("/")
_UNLIMITED_V1 = 1 << 60  # version 1 writes "no limit" as the largest number of whole pages


def usable_cores(root: Path = _SYSTEM, affinity: frozenset[int] | None = None) -> int:
    """Physical cores on which this process may run all the time; at least 1.

    The logical processors of the affinity mask, counting those of one core once, capped by the cgroup's quota rounded down: one thread more
    than the quota would be stopped in the middle of each period and make the others wait.
    """
    allowed = allowed_processors() if affinity is None else affinity
    cores = len({_siblings(root, processor) for processor in allowed})
    quota = cpu_quota(root)
    return max(1, cores if quota is None else min(cores, int(quota)))


def allowed_processors() -> frozenset[int]:
    """Numbers of the logical processors in the affinity mask; on systems without masks, of all."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def cpu_quota(root: Path = _SYSTEM) -> float | None:
    """Processors' worth of time that the control group and its ancestors grant; None where there is no limit."""
    limits: list[float] = []
    for version, folder in _cgroup_folders(root, "cpu"):
        if version == 2:
            words = (_read(folder / "cpu.max") or "max").split()
        else:
            words = [_read(folder / "cpu.cfs_quota_us") or "-1", _read(folder / "cpu.cfs_period_us") or "100000"]
        quota, period = _integer(words[0]), _integer(words[1]) if len(words) > 1 else 100_000
        if quota is not None and period and quota > 0:
            limits.append(quota / period)
    return min(limits, default=None)


def usable_memory(root: Path = _SYSTEM) -> int | None:
    """Bytes of memory that this process could have at most: the machine's, or the control group's limit. None where unknown."""
    limits: list[int] = []
    for line in (_read(root / "proc/meminfo") or "").splitlines():
        if line.startswith("MemTotal:"):
            limits.append(int(line.split()[1]) * 1024)
    if not limits and root == _SYSTEM and hasattr(os, "sysconf") and {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= set(os.sysconf_names):
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for version, folder in _cgroup_folders(root, "memory"):
        limit = _integer(_read(folder / ("memory.max" if version == 2 else "memory.limit_in_bytes")) or "max")
        if limit is not None and 0 < limit < _UNLIMITED_V1:
            limits.append(limit)
    return min(limits, default=None)


def _cgroup_folders(root: Path, controller: str) -> Iterator[tuple[int, Path]]:
    """(version, folder) of this process's control groups for one controller: its own and all ancestors up to the mount point."""
    own: dict[str, str] = {}  # controller, or "" for version 2 -> path of this process's group
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        fields = line.split(":", 2)
        if len(fields) == 3:
            own.update(dict.fromkeys(fields[1].split(","), fields[2]))
    for line in (_read(root / "proc/self/mountinfo") or "").splitlines():
        before, separator, after = line.partition(" - ")
        mount, kind = before.split(), after.split()
        if not separator or len(mount) < 5 or len(kind) < 3:
            continue
        if kind[0] == "cgroup2" and "" in own:
            version, path = 2, own[""]
        elif kind[0] == "cgroup" and controller in kind[2].split(",") and controller in own:
            version, path = 1, own[controller]
        else:
            continue
        top = root / mount[4].lstrip("/")
        # Inside a container the mount shows a part of the hierarchy only, whose place in the whole is the mount's root (field 4).
        inside = path.removeprefix(mount[3]) if mount[3] != "/" else path
        folder = top / inside.strip("/")
        if ".." in folder.parts:
            folder = top
        while True:
            if folder.is_dir():
                yield version, folder
            if folder in (top, root):
                break
            folder = folder.parent


def _siblings(root: Path, processor: int) -> str:
    """The logical processors on the same core as `processor`, as the system writes them; the processor itself where it says nothing."""
    return _read(root / f"sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list") or str(processor)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _integer(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
