"""Free memory of a host, told by made-up files of the system."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chiasm.engine.runner.host_memory import free_host_memory

MIB = 2**20
AVAILABLE = 8000 * MIB
V1_UNLIMITED = 2**63 - 4096


def v2(folder: str, limit: int | str, used: int, inactive: int) -> dict[str, str]:
    """A group of version 2, in MiB."""
    return {
        f"sys/fs/cgroup/{folder}/memory.max": f"{limit if isinstance(limit, str) else limit * MIB}\n",
        f"sys/fs/cgroup/{folder}/memory.current": f"{used * MIB}\n",
        f"sys/fs/cgroup/{folder}/memory.stat": f"anon 1\nfile 2\ninactive_file {inactive * MIB}\nactive_file 3\n",
    }


def v1(folder: str, limit: int, used: int, inactive: int) -> dict[str, str]:
    """A group of version 1, in MiB; its groups below have pages too."""
    stat = f"inactive_file 4096\ntotal_cache 1\ntotal_inactive_file {inactive * MIB}\n"
    return {
        f"sys/fs/cgroup/memory/{folder}/memory.limit_in_bytes": f"{min(limit * MIB, V1_UNLIMITED)}\n",
        f"sys/fs/cgroup/memory/{folder}/memory.usage_in_bytes": f"{used * MIB}\n",
        f"sys/fs/cgroup/memory/{folder}/memory.stat": stat,
    }


@pytest.mark.parametrize(
    ("own", "files", "mib"),
    [
        pytest.param("0::/\n", {}, 8000, id="no limit"),
        pytest.param("0::/\n", v2("", 4000, 3500, 3000), 3500, id="a container, with a checkpoint in the cache"),
        pytest.param("0::/\n", v2("", 4000, 3500, 0), 500, id="a container that is full"),
        pytest.param("0::/\n", v2("", 4000, 4500, 0), 0, id="above its limit"),
        pytest.param("0::/\n", v2("", 4000, 100, 200), 4000, id="counters that were read one after the other"),
        pytest.param("0::/\n", v2("", 90000, 100, 0), 8000, id="more than the system has"),
        pytest.param("0::/\n", v2("", "max", 100, 0), 8000, id="unlimited"),
        pytest.param("0::/a/b.scope\n", v2("a/b.scope", 3000, 1000, 400), 2400, id="its own group"),
        pytest.param(
            "0::/a/b\n", {**v2("a/b", 3000, 1000, 400), **v2("a", 5000, 4000, 500)}, 1500, id="the one above has less"
        ),
        pytest.param("0::/a/b\n", {**v2("a/b", "max", 1000, 0), **v2("c", 1, 1, 0)}, 8000, id="not another's"),
        pytest.param("0::/kubepods/pod1/x\n", v2("", 4000, 1000, 0), 3000, id="the host's path"),
        pytest.param("0::/../../other\n", v2("", 4000, 1000, 0), 3000, id="a path out of the mount"),
        pytest.param("5:cpu,cpuacct:/a\n4:memory:/a/b\n0::/\n", v1("a/b", 3000, 1000, 400), 2400, id="version 1"),
        pytest.param("4:memory:/docker/x\n", v1("", 3000, 1000, 0), 2000, id="version 1 in a container"),
        pytest.param(
            "4:memory:/a/b\n", {**v1("a/b", 2**60, 1000, 0), **v1("a", 2000, 1500, 300)}, 800, id="version 1, above"
        ),
        pytest.param("4:memory:/a\n", v1("", 2**60, 1000, 0), 8000, id="version 1, unlimited"),
    ],
)
def test_free_memory_is_what_the_system_and_the_groups_allow(
    own: str, files: dict[str, str], mib: int, tmp_path: Path
) -> None:
    system = {"proc/meminfo": f"MemFree: 7 kB\nMemAvailable: {AVAILABLE // 1024} kB\n", "proc/self/cgroup": own}
    for name, text in {**system, **files}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert free_host_memory(tmp_path) == mib * MIB


def test_a_system_that_tells_nothing(tmp_path: Path) -> None:
    assert free_host_memory(tmp_path) == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_this_host() -> None:
    assert 0 < free_host_memory() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
