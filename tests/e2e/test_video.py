"""Videos through whole engines and a real server, against Hugging Face."""

from __future__ import annotations

import base64
import random
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from chiasm import LLM, SamplingParams
from chiasm.errors import UserError
from tests.checkpoints.common import SavedModel
from tests.checkpoints.glm4v import GLM46V_IMAGE_PROCESSOR, save_glm4v
from tests.checkpoints.qwen2 import save_qwen2_vl
from tests.checkpoints.qwen3_vl import save_qwen3_vl
from tests.e2e.patch_inputs import Frames
from tests.e2e.pictures import photograph
from tests.e2e.reference import NUM_TOKENS, Reference, folder_of
from tests.e2e.servers import Server, data_url
from tests.multimodal.encoded import encode
from tests.multimodal.videos import ENCODINGS, decode_all, encode_video, make_frames

pytestmark = pytest.mark.usefixtures("forked_children")

GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
CLIP = encode_video(make_frames(40, 60, 90), fps=10)
TAKEN = np.stack(decode_all(CLIP)[::5])  # two in a second
VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"
IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
SIX_A_SECOND = [index for second in (0, 10, 20, 30) for index in (second + tick for tick in (0, 2, 4, 5, 7, 9))]


class Case:
    """A prompt with its media as a script gives them, and as Hugging Face's model gets them."""

    def __init__(self, prompt: str, images: list[Any], videos: list[Any], frames: list[Frames]) -> None:
        self.prompt, self.images, self.frames = prompt, images, frames
        self.input = {"prompt": prompt, "multi_modal_data": {"image": images, "video": videos}}


def _cases() -> dict[str, Case]:
    odd, one, timed = make_frames(5, 70, 40, 1), make_frames(1, 50, 50, 2), make_frames(6, 40, 90, 3)
    picture = photograph("chelsea.png", (100, 80))
    return {
        "a file": Case(f"{VIDEO}What?", [], [CLIP], [Frames(TAKEN, 2.0)]),
        "an odd number of frames": Case(f"{VIDEO}What?", [], [odd], [Frames(odd, 24.0)]),
        "one frame": Case(f"a{VIDEO}", [], [one], [Frames(one, 24.0)]),
        "frames with a rate": Case(f"{VIDEO}What?", [], [(timed, {"fps": 1.5})], [Frames(timed, 1.5)]),
        "the same frames faster": Case(f"{VIDEO}What?", [], [(timed, {"fps": 12.0})], [Frames(timed, 12.0)]),
        "several, and a picture": Case(
            f"{VIDEO}And {IMAGE}, or {VIDEO}{VIDEO}?",
            [picture],
            [odd, CLIP, (timed, {"fps": 0.5})],
            [Frames(odd, 24.0), Frames(TAKEN, 2.0), Frames(timed, 0.5)],
        ),
    }


CASES = _cases()


@pytest.fixture(scope="module")
def expected(qwen2_5_vl: SavedModel) -> dict[str, list[int]]:
    reference = Reference(qwen2_5_vl)
    return {name: reference.answer(case.prompt, case.images, case.frames) for name, case in CASES.items()}


@pytest.fixture(scope="module")
def llm(qwen2_5_vl: SavedModel) -> Iterator[LLM]:
    with LLM(folder_of(qwen2_5_vl), dtype="float32") as llm:
        yield llm


def tokens(llm: LLM, inputs: Any) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(inputs, GREEDY, use_tqdm=False)]


@pytest.mark.parametrize("name", CASES)
def test_greedy_tokens_equal_hugging_face(llm: LLM, expected: dict[str, list[int]], name: str) -> None:
    assert tokens(llm, CASES[name].input) == [expected[name]]


@pytest.mark.parametrize("mode", ["data", "auto"])
def test_two_ranks_give_the_same_tokens(qwen2_5_vl: SavedModel, expected: dict[str, list[int]], mode: str) -> None:
    settings = {"tensor_parallel_size": 2, "mm_encoder_tp_mode": mode, "max_num_batched_tokens": 20}
    with LLM(folder_of(qwen2_5_vl), dtype="float32", **settings) as llm:
        assert tokens(llm, [case.input for case in CASES.values()]) == list(expected.values())


def test_qwen2_vl_takes_the_same_videos(tmp_path: Path) -> None:
    saved = save_qwen2_vl(tmp_path)
    reference = Reference(saved)
    answers = [reference.answer(case.prompt, case.images, case.frames) for case in CASES.values()]
    with LLM(folder_of(saved), dtype="float32") as llm:
        assert tokens(llm, [case.input for case in CASES.values()]) == answers


def test_overlapping_clips_share_their_frames(llm: LLM) -> None:
    frames = make_frames(12, 80, 80, 9)
    tokens(llm, {"prompt": VIDEO, "multi_modal_data": {"video": frames[:8]}})
    before = llm.stats.units_encoded
    tokens(llm, {"prompt": VIDEO, "multi_modal_data": {"video": frames[4:]}})
    assert llm.stats.units_encoded == before + 2, "of four slices two were there"


@pytest.mark.parametrize(
    ("data", "io", "words"),
    [
        ({"video": CLIP}, {"video": {"num_frames": 1000}}, "max_video_frames"),
        ({"video": b"nothing"}, {}, "can't be decoded as a video"),
        ({"video": [CLIP] * 5}, {}, "5 videos; at most 4"),
        ({"video": make_frames(800, 2, 2)}, {}, "between 1 and 768 frames"),
        ({"video": [CLIP, CLIP]}, {}, "1 video placeholders for 2 videos"),
    ],
)
def test_what_is_refused(llm: LLM, data: dict[str, Any], io: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        tokens(llm, {"prompt": VIDEO, "multi_modal_data": data, "media_io_kwargs": io})
    assert len(tokens(llm, "still there")) == 1


TIMED: dict[str, tuple[Callable[[Path], SavedModel], Sequence[int]]] = {
    # How a small checkpoint is made, and which frames of the clip are taken.
    "qwen3_vl": (lambda folder: save_qwen3_vl(folder, has_experts=False), [0, 6, 11, 17, 22, 28, 33, 39]),
    "glm4v": (save_glm4v, range(0, 40, 5)),
    "glm-4.6v-flash": (partial(save_glm4v, processor=GLM46V_IMAGE_PROCESSOR), SIX_A_SECOND),
    "glm-4.6v": (partial(save_glm4v, processor=GLM46V_IMAGE_PROCESSOR, has_experts=True), SIX_A_SECOND),
}


@pytest.mark.parametrize("family", TIMED)
def test_prompts_with_times_equal_hugging_face(family: str, tmp_path: Path) -> None:
    """Of families whose slices stand apart; Hugging Face's GLM-4V can't have pictures beside videos."""
    is_glm = family.startswith("glm")
    save, taken = TIMED[family]
    saved = save(tmp_path)
    video = "<|begin_of_video|><|video|><|end_of_video|>" if is_glm else VIDEO
    odd, pictures = make_frames(5, 70, 40, 1), [] if is_glm else [photograph("chelsea.png", (100, 80))]
    decoded = decode_all(CLIP)
    clip = Frames(np.stack([decoded[index] for index in taken]), 2.0, [index / 10 for index in taken])
    frames = Frames(odd, 24.0, [index / 24 for index in range(5)])
    prompts = [f"a{video}b", f"{video}And {IMAGE * len(pictures)}, or {video}?"]
    reference = Reference(saved)
    expected = [
        reference.answer(prompts[0], [], [clip]),
        reference.answer(prompts[1], pictures, [frames, clip]),
    ]
    data: list[dict[str, Any]] = [{"video": CLIP}, {"video": [odd, CLIP], "image": pictures}]
    inputs = [{"prompt": p, "multi_modal_data": d} for p, d in zip(prompts, data, strict=True)]
    for size in (1, 2):
        settings = {"tensor_parallel_size": size, "max_num_batched_tokens": 30}
        with LLM(folder_of(saved), dtype="float32", **settings) as llm:
            assert tokens(llm, inputs) == expected


# --- a server


@pytest.fixture(scope="module")
def media_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    (folder / "a.bin").write_bytes(CLIP)
    return folder


@pytest.fixture(scope="module")
def server(qwen2_5_vl: SavedModel, media_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = ["-tp", "2", "--dtype", "float32", "--allowed-local-media-path", str(media_folder)]
    flags += ["--media-io-kwargs", '{"video": {"num_frames": -1}}', "--max-video-frames", "40"]
    flags += ["--max-video-seconds", "20", "--max-video-pixels", "100000"]
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(qwen2_5_vl.folder, log, *flags) as server:
        yield server
        server.await_metric("chiasm:num_requests_running", 0)
        server.await_metric("chiasm:kv_cache_usage_perc", 0)


def video_url(video: bytes, kind: str = "mp4") -> str:
    return f"data:video/{kind};base64,{base64.b64encode(video).decode()}"


def message(*urls: str) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "video_url", "video_url": {"url": url}} for url in urls]
    return {"role": "user", "content": [*content, {"type": "text", "text": "What happens?"}]}


def test_the_openai_client_asks_about_a_video_and_a_picture(server: Server, qwen2_5_vl: SavedModel) -> None:
    picture = photograph("coffee.png", (64, 90))
    content = [
        {"type": "video_url", "video_url": {"url": video_url(CLIP)}},
        {"type": "image_url", "image_url": {"url": data_url(picture)}},
        {"type": "text", "text": "What happens?"},
    ]
    reference = Reference(qwen2_5_vl)
    parts = [{"type": "video"}, {"type": "image"}, content[2]]
    prompt = reference.chat_prompt([{"role": "user", "content": parts}])
    client = server.client()
    # The server takes all 40 frames where the request doesn't say.
    for io, taken in (({}, Frames(np.stack(decode_all(CLIP)), 10.0)), ({"video": {"fps": 2}}, Frames(TAKEN, 2.0))):
        extra = {"ignore_eos": True, "skip_special_tokens": False, "media_io_kwargs": io}
        answer = client.chat.completions.create(
            model=client.models.list().data[0].id,
            messages=[{"role": "user", "content": content}],  # type: ignore[misc,list-item]
            temperature=0,
            max_tokens=NUM_TOKENS,
            extra_body=extra,
        )
        assert answer.choices[0].message.content == reference.text(reference.answer(prompt, [picture], [taken]))
        assert answer.usage is not None
        details = answer.usage.prompt_tokens_details.model_extra["multimodal_tokens"]  # type: ignore[union-attr,index]
        assert details["video"] == -(-len(taken.pixels) // 2) * 6, "of each slice 3 x 2 tokens"
        assert details["image"] > 0


BAD_REQUESTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "not a video": (video_url(b"hello"), {}, "can't be decoded as a video"),
    "a picture": (data_url(photograph(size=(64, 64))), {}, "can't be decoded as a video"),
    "cut short": (video_url(CLIP[: len(CLIP) // 3]), {}, "cut short"),
    "not base64": ("data:video/mp4;base64,a", {}, "not valid base64"),
    "frames of jpeg": ("data:video/jpeg;base64,AAAA,AAAA", {}, "can.t be decoded"),
    "many frames of jpeg": ("data:video/jpeg;base64," + "AAAA," * 5000, {}, "at most 40 frames"),
    "too long": (video_url(encode_video(make_frames(30), fps=1)), {}, "at most 20 seconds long"),
    "too many frames": (video_url(encode_video(make_frames(50))), {}, "at most 40 frames"),
    "large frames": (video_url(encode_video(make_frames(2, 400, 400))), {}, "100000 pixels"),
    "frames without end": (video_url(CLIP), {"media_io_kwargs": {"video": {"fps": 1e9}}}, "at most 120"),
    "more than the server's": (video_url(CLIP), {"media_io_kwargs": {"video": {"num_frames": 41}}}, r"\[1, 40\]"),
    "unknown setting": (video_url(CLIP), {"media_io_kwargs": {"video": {"backend": "x"}}}, "unknown key"),
    "outside file": ("file:///etc/passwd", {}, "leads out of the folder"),
    "loopback": ("http://127.0.0.1:1/x.mp4", {}, "not public"),
}


def test_a_video_that_is_a_list_of_frames(server: Server) -> None:
    texts = [base64.b64encode(encode(Image.fromarray(frame), "JPEG")).decode() for frame in make_frames(5)]
    body = {"messages": [message("data:video/jpeg;base64," + ",".join(texts))], "max_tokens": 2}
    answer = server.post("/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]["prompt_tokens_details"]["multimodal_tokens"]
    assert usage["video"] % 3 == 0, "five frames are three slices"
    assert usage["video"] > 0


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_what_a_server_refuses(server: Server, name: str) -> None:
    url, fields, words = BAD_REQUESTS[name]
    answer = server.post("/v1/chat/completions", {"messages": [message(url)], "max_tokens": 2, **fields})
    assert answer.status_code in (400, 422), answer.text
    error = answer.json()["error"]
    assert re.search(words, error["message"])
    assert error["param"].startswith("media_io_kwargs" if fields else "messages[0].content[0].video_url.url")


def test_local_files_and_formats_by_content(server: Server, media_folder: Path) -> None:
    gif = video_url(encode_video(make_frames(4), ENCODINGS["gif"]), "mp4")
    for url in (f"file://{media_folder}/a.bin", gif):
        answer = server.post("/v1/chat/completions", {"messages": [message(url)], "max_tokens": 2})
        assert answer.status_code == 200, answer.text


def test_damaged_videos_never_break_the_server(server: Server) -> None:
    draw = random.Random(0)
    files = [encode_video(make_frames(8), encoding) for encoding in ENCODINGS.values()]
    for attempt in range(30):
        damaged = bytearray(files[attempt % len(files)])
        del damaged[draw.randrange(10, len(damaged)) :]
        damaged[draw.randrange(len(damaged))] ^= 0xFF
        body = {"messages": [message(video_url(bytes(damaged)))], "max_tokens": 1}
        assert server.post("/v1/chat/completions", body).status_code in (200, 400, 422)
