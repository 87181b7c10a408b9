"""What the README and the quick start show works as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from tests.e2e.servers import Server, data_url, image_message
from tests.multimodal.videos import encode_video, make_frames

_ROOT = Path(__file__).parents[2]
QUICKSTART = "docs/quickstart.md"
SHOWN = re.findall(r"^\| !\[\]\((\S+)\) \| (.+\?) \| (.+) \|$", (_ROOT / "README.md").read_text("utf-8"), re.M)
ANSWER = SHOWN[0][2]
"""All commands ask what the first line of the table shows."""


def block(first_words: str, page: str = "README.md") -> str:
    """The one block of code on a page that begins so."""
    text = (_ROOT / page).read_text(encoding="utf-8")
    [code] = [code for code in re.findall(r"^```\w*\n(.*?)^```$", text, re.M | re.S) if code.startswith(first_words)]
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


def test_curl_of_the_quick_start(server: Server) -> None:
    command = block("curl ", QUICKSTART).replace("http://127.0.0.1:8000", server.url)
    events = run(["bash", "-c", command])
    assert f'"content":"{ANSWER}"' in events
    assert '"completion_tokens":2' in events
    assert events.rstrip().endswith("data: [DONE]")


def test_openai_client_of_the_quick_start(server: Server, tmp_path: Path) -> None:
    (tmp_path / "clip.mp4").write_bytes(encode_video(make_frames(8, 60, 90), fps=4))
    code = "\n".join(block(words, QUICKSTART) for words in ("import base64", "one_of = ", "line = "))
    code = code.replace("http://127.0.0.1:8000", server.url).replace("clip.mp4", str(tmp_path / "clip.mp4"))
    streamed, choice, shaped, number, details, _about_the_clip = run([sys.executable, "-c", code]).splitlines()
    assert [streamed, choice, shaped, number] == [ANSWER, ANSWER, f'{{ "bar" : "{ANSWER}" }}', SHOWN[1][2]]
    assert "image_tokens=" in details


def test_offline_api_of_the_quick_start() -> None:
    printed = run([sys.executable, "-c", block("from PIL", QUICKSTART)]).split()
    assert printed == [ANSWER, SHOWN[2][2]]


def test_the_commands_that_compare(server: Server, tmp_path: Path) -> None:
    flags = {"serve": f"serve --base-url {server.url} --num-prompts 4", "compare": "compare"}
    script = block("chiasm bench serve --label", "docs/benchmarks.md")
    for name, given in flags.items():
        script = script.replace(f"chiasm bench {name}", f"{sys.executable} -m chiasm.cli bench {given}")
    done = subprocess.run(["bash", "-ec", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Successful requests:                     4") == 2
    assert re.search(r"^ +old \(base\) +new$", done.stdout, re.M)
    assert (tmp_path / "compare.png").stat().st_size > 10_000
    assert "<svg" in (tmp_path / "compare.html").read_text(encoding="utf-8")


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
