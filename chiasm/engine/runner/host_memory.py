"""What of the host's memory a process could still take, by the system and by the control groups that it is in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class _Names(NamedTuple):
    """Files of a version of control groups, and the line of ``memory.stat`` with the pages of files."""

    limit: str
    used: str
    cached: str


_V1 = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Names("memory.max", "memory.current", "inactive_file")


def free_host_memory(root: Path = Path("/")) -> int:
    """Bytes that this process could still take: the system's, or less if one of its control groups allows less.

    What a group has used includes the pages of files that it has read, such as a checkpoint's. Those that nobody
    needs are given back when memory is asked for; they count as free, as in what Kubernetes calls the working set.

    Args:
        root: where ``proc`` and ``sys`` are.
    """
    free = _line(root / "proc/meminfo", "MemAvailable:")
    frees = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if free is None else 1024 * free]
    for line in _read_lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            frees += _free_in_groups(root / "sys/fs/cgroup/memory", path, _V1)
        elif not controllers:
            frees += _free_in_groups(root / "sys/fs/cgroup", path, _V2)
    return max(0, min(frees))


def _free_in_groups(mount: Path, path: str, names: _Names) -> Iterator[int]:
    """In a group and those above it, where there are limits.

    Within a container a group's path may be that of the host, of which only the group itself is to be seen, in the
    mount's place, or lead out of the mount.
    """
    group = Path(path.strip("/"))
    for folder in (group, *group.parents) if ".." not in group.parts else (Path(),):
        limit, used = (_read_lines(mount / folder / name) for name in (names.limit, names.used))
        if limit and used and limit[0].isdigit():
            cached = _line(mount / folder / "memory.stat", names.cached) or 0
            yield int(limit[0]) - max(0, int(used[0]) - cached)


def _line(path: Path, name: str) -> int | None:
    """The number in the line that begins with ``name``."""
    for line in _read_lines(path):
        words = line.split()
        if words[:1] == [name]:
            return int(words[1])
    return None


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
