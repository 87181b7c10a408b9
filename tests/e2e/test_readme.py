"""What the README shows works as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from tests.e2e.servers import Server, data_url, image_message

_ROOT = Path(__file__).parents[2]
_BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", (_ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
SHOWN = re.findall(r"^\| !\[\]\((\S+)\) \| (.+\?) \| (.+) \|$", (_ROOT / "README.md").read_text("utf-8"), re.M)
ANSWER = SHOWN[0][2]
"""All commands ask what the first line of the table shows."""


def block(first_words: str) -> str:
    """The one block of code that begins so."""
    [code] = [code for _, code in _BLOCKS if code.startswith(first_words)]
    return code


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(None, tmp_path_factory.mktemp("readme") / "log") as server:
        yield server


def run(command: list[str]) -> str:
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_curl(server: Server) -> None:
    command = block("curl ").replace("http://127.0.0.1:8000", server.url)
    assert f'"content":"{ANSWER}"' in run(["bash", "-c", command])


def test_openai_client(server: Server) -> None:
    code = block("import base64").replace("http://127.0.0.1:8000", server.url)
    assert run([sys.executable, "-c", code]) == ANSWER


def test_offline_api() -> None:
    assert run([sys.executable, "-c", block("from PIL")]).strip() == ANSWER


def test_generate() -> None:
    command = block(".venv/bin/chiasm generate").replace(".venv/bin/chiasm", f"{sys.executable} -m chiasm.cli")
    assert run(["bash", "-c", command]).strip() == ANSWER


@pytest.mark.parametrize(("picture", "question", "answer"), SHOWN)
def test_the_charts_and_answers(server: Server, picture: str, question: str, answer: str) -> None:
    message = image_message(data_url(Image.open(_ROOT / picture)), question)
    body = server.post("/v1/chat/completions", {"messages": [message]}).json()
    assert body["choices"][0]["message"]["content"] == answer


def test_the_command_that_a_server_prints(server: Server, tmp_path: Path) -> None:
    [command] = re.findall(r"^Try: (.*)$", server.log.read_text(encoding="utf-8"), re.M)
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert f'"content":"{ANSWER}"' in done.stdout


def test_the_tree_names_every_room() -> None:
    tree = block("chiasm/\n")
    rooms = [path.stem for path in (_ROOT / "chiasm").iterdir() if path.suffix in ("", ".py") and path.stem[0] != "_"]
    assert not [room for room in rooms if f"  {room}" not in tree]
