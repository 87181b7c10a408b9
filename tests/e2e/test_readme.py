"""What the README shows works as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpoints import SavedModel
from tests.e2e.pictures import chart
from tests.e2e.servers import Server

_ROOT = Path(__file__).parents[2]
_BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", (_ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)


def block(first_words: str) -> str:
    """The one block of code that begins so."""
    [code] = [code for _, code in _BLOCKS if code.startswith(first_words)]
    return code


@pytest.fixture(scope="module")
def server(qwen2_5_vl: SavedModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(qwen2_5_vl.folder, tmp_path_factory.mktemp("readme") / "log") as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    chart().save(tmp_path / "picture.png")
    return tmp_path


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_curl(server: Server, folder: Path) -> None:
    command = block("curl ").replace("http://127.0.0.1:8000", server.url)
    assert '"role":"assistant"' in run(["bash", "-c", command], folder)


def test_openai_client(server: Server, folder: Path) -> None:
    code = block("import base64").replace("http://127.0.0.1:8000", server.url)
    assert run([sys.executable, "-c", code], folder)


def test_offline_api(qwen2_5_vl: SavedModel, folder: Path) -> None:
    code = block("from PIL").replace("Qwen/Qwen2.5-VL-3B-Instruct", str(qwen2_5_vl.folder))
    assert run([sys.executable, "-c", code], folder)


def test_generate(qwen2_5_vl: SavedModel, folder: Path) -> None:
    command = block(".venv/bin/chiasm generate").replace("Qwen/Qwen2.5-VL-3B-Instruct", str(qwen2_5_vl.folder))
    command = command.replace(".venv/bin/chiasm", f"{sys.executable} -m chiasm.cli") + " --max-tokens 5"
    assert run(["bash", "-c", command.replace("\n", " ")], folder)


def test_the_tree_names_every_room(folder: Path) -> None:
    tree = block("chiasm/\n")
    rooms = [path.stem for path in (_ROOT / "chiasm").iterdir() if path.suffix in ("", ".py") and path.stem[0] != "_"]
    assert not [room for room in rooms if f"  {room}" not in tree]
