"""The files in ``examples/`` do what they say."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.checkpoints.common import SavedModel
from tests.e2e.servers import Server
from tests.e2e.test_tools import TEMPLATE
from tests.multimodal.videos import ENCODINGS, encode_video, make_frames

_ROOT = Path(__file__).parents[2]
_EXAMPLES = _ROOT / "examples"
_CHARTS = _ROOT / "chiasm" / "assets" / "chart-reader" / "examples"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_args: object) -> None:
        pass


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with a picture and a video."""
    folder = tmp_path_factory.mktemp("media")
    (folder / "bars.png").write_bytes((_CHARTS / "bars.png").read_bytes())
    (folder / "clip.mp4").write_bytes(encode_video(make_frames(12), ENCODINGS["mpeg4 with B frames"]))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def server(media: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(None, tmp_path_factory.mktemp("server") / "log", "--allowed-media-hosts", media) as server:
        yield server


def run(command: list[str], **variables: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), **variables}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def ask(server: Server, name: str, *arguments: str) -> str:
    return run([sys.executable, str(_EXAMPLES / "server" / name), *arguments], CHIASM_URL=server.url)


def test_text(server: Server) -> None:
    assert ask(server, "ask_text.py")


def test_one_picture(server: Server) -> None:
    assert ask(server, "ask_image.py") == "C"


def test_several_pictures_by_file_and_by_url(server: Server, media: str) -> None:
    places = [str(_CHARTS / "line.png"), f"http://{media}/bars.png"]
    assert ask(server, "ask_image.py", "Which bar is the largest?", *places)


def test_a_video(server: Server, media: str) -> None:
    assert ask(server, "ask_video.py", f"http://{media}/clip.mp4", "Which bar grows?", "1")


def test_structured_output(server: Server) -> None:
    assert ask(server, "structured_output.py").startswith("kind='")


def test_three_requests(server: Server, media: str) -> None:
    places = {"PICTURE_URL": f"http://{media}/bars.png", "VIDEO_URL": f"http://{media}/clip.mp4"}
    answers = run([str(_EXAMPLES / "server" / "three_requests.sh")], CHIASM_URL=server.url, **places).splitlines()
    assert len(answers) == 3
    assert all('"finish_reason":' in answer for answer in answers), answers


def offline(*arguments: str) -> list[str]:
    printed = run([sys.executable, str(_EXAMPLES / "vision_language.py"), *arguments])
    return [answer.strip() for answer in printed.split("-" * 50)[1:]]


def test_images_offline() -> None:
    assert offline("--seed", "1", "--num-prompts", "4") == ["80", "pink", "7", "C"]


def test_videos_offline() -> None:
    assert len(offline("--modality", "video")) == 2


def test_tools(qwen2_5_vl: SavedModel, tmp_path: Path) -> None:
    (tmp_path / "template.jinja").write_text(TEMPLATE, encoding="utf-8")
    flags = ["--chat-template", str(tmp_path / "template.jinja")]
    flags += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    with Server(qwen2_5_vl.folder, tmp_path / "log", *flags) as server:
        printed = ask(server, "call_tools.py", "required")
    assert printed.startswith("multiply({'a': ")
