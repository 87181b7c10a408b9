"""The page's files: how they are served, and that they come with the package."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from chiasm.server.page import PAGE_PATHS
from tests.server.running import RunningServer

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "chiasm/server/ui"


@pytest.mark.parametrize("path", sorted(PAGE_PATHS))
def test_files_are_served_for_this_origin_only(server: RunningServer, path: str) -> None:
    response = server.client.get(path)
    assert response.status_code == 200
    kind = {"": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    assert response.headers["content-type"].startswith(kind[path.partition(".")[2]])
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert "*" not in policy
    assert response.headers["x-content-type-options"] == "nosniff"


def test_every_file_is_served_and_asks_for_nothing_elsewhere() -> None:
    served = {path.rpartition("/")[2] or "index.html" for path in PAGE_PATHS}
    assert served == {file.name for file in FOLDER.iterdir()}
    for file in FOLDER.iterdir():
        text = file.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        addresses = re.findall(r"""(?:src|href|from|url\(|fetch\()\s*=?\s*["'(]?\s*(https?:)?//""", text)
        assert not addresses, file
        for slip in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "onclick=", "style="):
            assert slip not in text, (file, slip)


def test_without_the_page() -> None:
    with RunningServer(ui=False) as server:
        assert {server.client.get(path).status_code for path in PAGE_PATHS} == {404}
        assert server.chat().status_code == 200


def test_a_key_is_asked_by_the_page_and_not_for_it() -> None:
    with RunningServer(api_keys=("k",)) as server:
        assert {server.client.get(path).status_code for path in PAGE_PATHS} == {200}
        for path in ("/ui/", "/ui", "/ui/other.js", "/ui/../v1/models", "/?/v1/models/"):
            assert server.client.get(path).status_code == (200 if path.startswith("/?") else 401), path
    with RunningServer(api_keys=("k",), ui=False) as server:
        assert server.client.get("/").status_code == 401


def test_a_wheel_holds_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, check=True, timeout=60)
    [wheel] = tmp_path.iterdir()
    assert {f"chiasm/server/ui/{file.name}" for file in FOLDER.iterdir()} <= set(zipfile.ZipFile(wheel).namelist())
