"""The suite's own guard: a client that looks for anything but this machine is found out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.clients.environments import Environment
from tests.e2e.servers import Server

_CODE = """
import sys, urllib.request
for url in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(url, timeout=5).status)
    except (OSError, RuntimeError) as error:
        print(error)
"""


def test_what_lies_outside_is_refused_and_written_down(
    install: Callable[[str], Environment], charts_server: Server, tmp_path: Path
) -> None:
    client = replace(install("openai"), outside=tmp_path / "outside")
    urls = ("http://chiasm.invalid/", "http://192.0.2.1/", f"{charts_server.url}/health")
    printed = client.run("python", "-c", _CODE, *urls, cwd=tmp_path).splitlines()
    assert "chiasm.invalid is outside" in printed[0]
    assert "192.0.2.1 is outside" in printed[1]
    assert printed[2] == "200"
    assert set((tmp_path / "outside").read_text(encoding="utf-8").split()) == {"chiasm.invalid", "192.0.2.1"}
