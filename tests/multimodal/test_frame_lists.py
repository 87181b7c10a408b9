"""Videos that are written as a list of pictures: ``data:video/jpeg;base64,<frame>,<frame>``."""

from __future__ import annotations

import base64
from pathlib import Path

import msgspec
import numpy as np
import pytest
from PIL import Image

from chiasm.errors import UserError
from chiasm.multimodal import worker as workers
from chiasm.multimodal.decode_video import VideoLimits
from chiasm.multimodal.jobs import Done, Job, Refused, Reply
from chiasm.multimodal.sources import MediaSource, parse_frames
from chiasm.multimodal.worker import Worker
from chiasm.schema.media import FrameTimes, ProcessedItem, VideoProcessorSpec
from tests.multimodal.encoded import encode
from tests.multimodal.specs import QWEN
from tests.multimodal.videos import make_frames

PARAM = "messages[0].content[0].video_url.url"
HEAD = "data:video/jpeg;base64,"
SPEC = VideoProcessorSpec(QWEN)


def test_a_list_is_known_by_its_type() -> None:
    limits = {"max_bytes": 100, "max_frames": 3, "param": PARAM}
    assert parse_frames("DATA:Video/JPEG;base64,QUJD,QUJD", **limits) == MediaSource("frames", b"QUJD,QUJD")
    for other in ("data:video/mp4;base64,QUJD", "data:image/jpeg;base64,QUJD", "https://a/b.mp4", "data:video/jpegs"):
        assert parse_frames(other, **limits) is None


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (HEAD + ",".join(["A"] * 4), "4 frames"),
        (HEAD + "," * 10**6, "characters of base64"),
        (HEAD + "A" * 1000, "characters of base64"),
        ("data:video/jpeg,A", "form"),
        (HEAD + "ä", "not valid base64"),
    ],
)
def test_what_is_refused_undecoded(url: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        parse_frames(url, max_bytes=100, max_frames=3, param=PARAM)
    assert caught.value.param == PARAM


def run(folder: Path, payload: bytes, spec: VideoProcessorSpec = SPEC, max_pixels: int = 10**6) -> Reply:
    worker = Worker(folder, 10**6, 10**6, VideoLimits(max_pixels, 60), None)
    return worker.run(Job("frames", None, None, spec, "pixels", PARAM), bytearray(payload))


def payload_of(frames: list[np.ndarray]) -> bytes:
    return b",".join(base64.b64encode(encode(Image.fromarray(frame))) for frame in frames)


@pytest.fixture(autouse=True)
def _without_limits_on_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_limit_memory", lambda *_: None)


@pytest.mark.parametrize("count", [1, 4, 5])
def test_every_frame_is_taken(tmp_path: Path, count: int) -> None:
    frames = list(make_frames(count))
    reply = run(tmp_path, payload_of(frames))
    assert isinstance(reply, Done)
    times = FrameTimes.of_all(count, SPEC.fps)
    (tmp_path / "pixels").unlink()
    expected = workers.process_video(frames, times, SPEC, tmp_path, file_name="pixels", param=PARAM)
    assert _facts(reply.item) == _facts(expected)


def _facts(item: ProcessedItem) -> tuple[object, ...]:
    return [unit.key for unit in item.units], item.num_tokens, item.seconds_per_slice, item.frame_seconds


def test_fewer_where_fewer_are_asked_for(tmp_path: Path) -> None:
    spec = msgspec.structs.replace(SPEC, num_frames=4)
    reply = run(tmp_path, payload_of(list(make_frames(12))), spec)
    assert isinstance(reply, Done)
    assert len(reply.item.frame_seconds) == 4


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"AAAA,AAAA", "can't be decoded"),
        (b"AAAA,", "can't be decoded"),
        (b"A,A", "not valid base64"),
        (payload_of([make_frames(1)[0], make_frames(1, 32, 32)[0]]), "change their size"),
        (payload_of([make_frames(1, 400, 400)[0]]), "100000 pixels"),
    ],
)
def test_what_is_refused(tmp_path: Path, payload: bytes, words: str) -> None:
    reply = run(tmp_path, payload, max_pixels=100_000)
    assert isinstance(reply, Refused)
    assert words in reply.message
    assert reply.param == PARAM
    assert not list(tmp_path.iterdir())
