"""The page before a real server on two ranks: a picture asked about, an answer, the ranks at work."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from PIL import Image

from chiasm.config.built_in import BUILT_IN_EXAMPLE
from tests.browser import Browser, needs_chromium
from tests.checkpoints.common import SavedModel
from tests.clocks import PATIENCE
from tests.e2e.servers import Server, data_url, image_message
from tests.e2e.test_readme import SHOWN
from tests.multimodal.videos import encode_video, make_frames

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(None, tmp_path_factory.mktemp("page") / "log", "--tensor-parallel-size", "2") as server:
        yield server


@needs_chromium
def test_a_picture_is_asked_about(server: Server) -> None:
    picture, question, answer = SHOWN[0]
    with Browser() as page:
        page.open(server.url)
        page.wait("document.querySelectorAll('.lane').length === 2")
        page.drop(ROOT / picture)
        page.wait("document.querySelectorAll('#attached li').length === 1")
        page.type(question)
        page.press("Enter")
        page.wait("document.querySelector('.turn.assistant') && !document.querySelector('.waiting')")
        assert page.text(".answer").strip() == answer
        assert "of images)" in page.text(".meta")
        page.wait("document.getElementById('feed').innerText === 'idle'")
        labels = page.run("[...document.querySelectorAll('.block')].map((one) => one.title)")
        assert any(label.startswith("image 1") and "another request" not in label for label in labels)
        assert page.text("#plans li").startswith("auto: ")
        assert "took" in page.text("#plans .took")
        assert page.run("document.querySelectorAll('.block.language').length") >= 2
        assert page.problems == []


class Listener:
    """Reads the feed in a thread of its own, from its first event to its end or ``stop_when_idle``.

    It asks for a word at first, and again, until it hears of the steps that it takes.

    Attributes:
        heard: its events so far.
    """

    def __init__(self, server: Server) -> None:
        self.heard: list[dict[str, Any]] = []
        self._url = server.url
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()
        while not any(event["type"] == "end" for event in self.heard):
            assert server.post("/v1/completions", {"prompt": "Hi", "max_tokens": 1}).status_code == 200

    def _listen(self) -> None:
        with httpx2.stream("GET", f"{self._url}/ranks/events", timeout=PATIENCE) as response:
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    self.heard.append(msgspec.json.decode(line[6:]))
                    if self._is_stopping.is_set() and self._is_idle():
                        return

    def _is_idle(self) -> bool:
        has_encoded = any(event["type"] == "begin" for event in self.heard)
        return has_encoded and not self.heard[-1].get("gauges", {"running": 1})["running"]

    def stop_when_idle(self) -> None:
        """End with the next event that says that no request is under way, once there was one with media."""
        self._is_stopping.set()

    def join(self) -> list[dict[str, Any]]:
        """All events, once it has ended."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        return self.heard


def test_the_feed_names_the_frames_of_a_video(qwen2_5_vl: SavedModel, tmp_path: Path) -> None:
    clip = base64.b64encode(encode_video(make_frames(40, 60, 90), fps=10)).decode()
    with Server(qwen2_5_vl.folder, tmp_path / "log", "-tp", "2", "--mm-encoder-tp-mode", "data") as server:
        listener = Listener(server)
        content = [{"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{clip}"}}]
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 4, "ignore_eos": True}
        listener.stop_when_idle()
        headers = {"x-request-id": "page-1-2"}
        httpx2.post(
            f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=PATIENCE
        ).raise_for_status()
        heard = listener.join()
        assert heard[0]["type"] == "hello"
        assert heard[0]["num_ranks"] == 2
        begun = [event for event in heard if event["type"] == "begin"]
        names = [name for event in begun for _, name in event["units"]]
        assert {(name["modality"], name["item"], name["num_units"]) for name in names} == {("video", 0, 4)}
        assert sorted(name["unit"] for name in names) == [0, 1, 2, 3]
        assert all(name["request_id"] == "page-1-2" for name in names)
        assert all(len(event["lanes"]) == 2 for event in begun)
        assert {rank for event in begun for rank, lane in enumerate(event["lanes"]) if lane} == {0, 1}
        ended = {event["encoder_step"]: event for event in heard if event["type"] == "end"}
        for event in begun:
            assert len(ended[event["step"]]["seconds"]) == 2
            assert event["time"] < ended[event["step"]]["time"]
        # Nobody watches any more, and all goes on.
        assert server.post("/v1/chat/completions", body).status_code == 200


def test_the_metrics_of_a_request(server: Server) -> None:
    before = {
        name: server.metric(f"chiasm:request_{name}_time_seconds_count")
        for name in ("fetch", "preprocess", "queue", "encode", "prefill", "decode")
    }
    url = data_url(Image.open(BUILT_IN_EXAMPLE.picture).rotate(90, expand=True))
    body = {"messages": [image_message(url, BUILT_IN_EXAMPLE.question)], "max_tokens": 4, "ignore_eos": True}
    assert server.post("/v1/chat/completions", body).status_code == 200
    for name, count in before.items():
        assert server.metric(f"chiasm:request_{name}_time_seconds_count") == count + 1, name
    assert server.metric('chiasm:encoder_seconds_total{rank="1"}') > 0


def test_an_open_page_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """Which is asked for, and waited for, when the context is left."""
    with Server(None, tmp_path / "log", "--shutdown-timeout", "600") as server:
        listener = Listener(server)
    heard = listener.join()
    assert server.process.returncode == 0
    assert "shutting down" in heard[-1]["error"]["message"]
