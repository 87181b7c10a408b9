"""Hostile media against a real server on two ranks: refused with few words, and the next request is answered."""

from __future__ import annotations

import base64
import io
import struct
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from PIL import Image

from tests.clocks import PATIENCE
from tests.e2e.servers import data_url
from tests.multimodal.encoded import png_bomb
from tests.multimodal.videos import encode_video, make_frames, mp4_bomb
from tests.threats.conftest import Attacked
from tests.threats.forms import LOCATIONS, inside_urls

REFUSED = (400, 422)
FLAT = {size: data_url(Image.new("RGB", size, (9, 99, 199))) for size in ((1, 1), (56, 56), (2000, 1000))}


OUR_WORDS = (
    "can't be decoded as an image; accepted formats are JPEG, PNG, WEBP, GIF, BMP.",
    "can't be decoded as a video; accepted formats are MP4, WebM, GIF.",
    "the video is cut short: its file ends before the video does.",
    "must be between 1 and",
)


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def video(url: str) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": url}}


def as_data(kind: str, data: bytes) -> str:
    return f"data:{kind};base64," + base64.b64encode(data).decode()


def ask(attacked: Attacked, *parts: dict[str, Any], **fields: Any) -> httpx2.Response:
    body = {"messages": [{"role": "user", "content": list(parts)}], "max_tokens": 1, **fields}
    return attacked.server.post("/v1/chat/completions", body)


def bodies(part: dict[str, Any], paths: set[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """A question with this part for every route that takes media, of those that there are."""
    messages = [{"role": "user", "content": [part]}]
    yield "/v1/chat/completions", {"messages": messages, "max_tokens": 1}
    if "/tokenize" in paths:
        yield "/tokenize", {"messages": messages}
    if "/v1/responses" in paths and "image_url" in part:
        shown = {"type": "input_image", "image_url": part["image_url"]["url"]}
        yield "/v1/responses", {"input": [{"role": "user", "content": [shown]}], "max_output_tokens": 1}


def check_short(answer: httpx2.Response, *, statuses: tuple[int, ...] = REFUSED) -> str:
    """The message of a refusal, which tells nothing of how the server is made."""
    assert answer.status_code in statuses, answer.text
    assert len(answer.content) < 2000
    error = answer.json()["error"]
    assert error["code"] == answer.status_code
    assert not any(word in error["message"] for word in ("0x", "Traceback", "/dev/shm", "site-packages", "object at"))
    return str(error["message"])


def test_no_form_of_an_inside_target_is_reached(attacked: Attacked) -> None:
    """Threat: SSRF by media URL (CVE-2025-6242, GHSA-3f6c-7fw2-ppm4, CVE-2026-33626, vLLM issue 57157).

    As served: every route that takes media, pictures and videos, the system's own resolver and network.
    """
    paths = set(httpx2.get(f"{attacked.server.url}/openapi.json").json()["paths"])
    urls = inside_urls(attacked.canary.port)  # no name among them that a name server would be asked for
    with httpx2.Client(base_url=attacked.server.url, timeout=PATIENCE) as client:
        for url in urls:
            for part in (image(url), video(url)):
                for path, body in bodies(part, paths):
                    check_short(client.post(path, json=body))
    assert attacked.canary.num_visitors == 0


def test_no_redirect_leads_inside(attacked: Attacked) -> None:
    """Threat: redirects (CVE-2026-24779, CVE-2026-25960)."""
    for number, location in enumerate(LOCATIONS):
        to = quote(location.replace("PORT", str(attacked.canary.port)), safe="")
        status = (301, 302, 303, 307, 308)[number % 5]
        part = (image, video)[number % 2](f"{attacked.host_url}/redirect?status={status}&to={to}")
        before = attacked.host.num_requests
        check_short(ask(attacked, part))
        assert attacked.host.num_requests == before + 1
    assert attacked.canary.num_visitors == 0


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("endless.png", 422, "at most 1000000 bytes"),
        ("short.png", 422, "broke off"),
        ("slow.png", 422, "within 4 seconds"),
        ("packed.png", 422, "at most 1000000 bytes"),
    ],
)
def test_a_host_can_not_keep_or_fill_the_server(attacked: Attacked, path: str, status: int, words: str) -> None:
    """Threat: unbounded media (GHSA-p6g9-7v3x-m8mv): endless, of a false length, a byte now and then, packed."""
    assert words in check_short(ask(attacked, image(f"{attacked.host_url}/{path}")), statuses=(status,))
    assert ask(attacked, image(f"{attacked.host_url}/picture.png")).status_code == 200


@pytest.mark.parametrize("count", [5, 4000, 10_000])
def test_items_are_counted_before_any_is_fetched(attacked: Attacked, count: int) -> None:
    """Threat: unbounded media (GHSA-p6g9-7v3x-m8mv): more items than the four that are allowed."""
    before = attacked.host.num_requests
    message = check_short(ask(attacked, *[image(f"{attacked.host_url}/picture.png")] * count))
    assert ("at most 4" in message) or (count > 4096 and "at most 4096 content parts" in message)
    assert attacked.host.num_requests == before


def test_downloads_of_a_request_are_bounded_together(attacked: Attacked) -> None:
    """Threat: unbounded media (GHSA-p6g9-7v3x-m8mv): each of 0.9 MB."""
    large = image(f"{attacked.host_url}/large.png")
    for _ in range(3):
        assert "at most 3000000 bytes together" in check_short(ask(attacked, *[large] * 4), statuses=(422,))
    assert ask(attacked, *[large] * 3).status_code == 200


def test_base64_is_measured_before_it_is_decoded(attacked: Attacked) -> None:
    """Threat: unbounded media (GHSA-p6g9-7v3x-m8mv)."""
    answer = ask(attacked, image("data:image/png;base64," + "A" * 1_400_000))
    assert "at most 1333336 characters of base64" in check_short(answer, statuses=(422,))


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "file:///etc/passwd", "file://FOLDER/../imported", "file://localhost/etc/passwd",
             "file://example.org/etc/passwd", "file://FOLDER/%2e%2e/log", "file://FOLDER/link.png", "file:///proc/self/environ",
             "file:///dev/zero", "file:etc/passwd", "FOLDER/x.png"]
)  # fmt: skip
def test_files_outside_of_the_folder_are_not_read(attacked: Attacked, path: str) -> None:
    """Threat: local files (vLLM PR 43117)."""
    link = attacked.media / "link.png"
    if not link.is_symlink():
        link.symlink_to("/etc/hostname")
    url = path.replace("FOLDER", str(attacked.media))
    for part in (image(url), video(url)):
        check_short(ask(attacked, part))


@pytest.mark.parametrize("size", [(20_000, 20_000), (9_000, 9_000), (2**31 - 1, 2), (65_535, 65_535)])
def test_headers_that_claim_huge_pictures(attacked: Attacked, size: tuple[int, int]) -> None:
    """Threat: decompression bomb."""
    bomb = png_bomb(*size)
    assert len(bomb) < 70
    assert "4000000 pixels" in check_short(ask(attacked, image(as_data("image/png", bomb))))


def test_pixels_of_a_prompt_are_bounded_together(attacked: Attacked) -> None:
    """Threat: decompression bomb: small files of two million pixels each; also where one is known."""
    large = image(FLAT[2000, 1000])
    for _ in range(2):
        assert "more than 6000000 pixels together" in check_short(ask(attacked, *[large] * 4))
    assert ask(attacked, *[large] * 3).status_code == 200


def _mutated(data: bytes) -> Iterator[bytes]:
    yield data[: len(data) // 2]
    yield data[:20] + b"\xff" * 50 + data[70:]
    yield data[:4] + bytes(len(data) - 4)


def test_decoders_words_stay_inside(attacked: Attacked) -> None:
    """Threat: error leaks and decoder RCE (CVE-2026-22778, GHSA-4r2x-xpjr-7cvv)."""
    clip = encode_video(make_frames(4))
    pictures = []
    for form in ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "JPEG2000", "ICO", "PCX"):
        buffer = io.BytesIO()
        Image.effect_noise((40, 40), 90).convert("RGB").save(buffer, form)
        pictures.append(buffer.getvalue())
    garbage = [b"", b"\0", b"garbage" * 30, b"%PDF-1.4", b"<svg onload='x'/>", b"\x00\x00\x00\x0cjP  \r\n\x87\n"]
    for data in (*garbage, *(bad for whole in (*pictures, clip) for bad in _mutated(whole))):
        for part in (image(as_data("image/png", data)), video(as_data("video/mp4", data))):
            answer = ask(attacked, part)
            if answer.status_code != 200:  # some decoders make do with what is there
                message = check_short(answer, statuses=(400,))
                assert any(words in message for words in OUR_WORDS), message


@pytest.mark.parametrize(
    ("url", "fields"),
    [
        ("data:video/jpeg;base64," + ",".join(["/9j/4AAQ"] * 5000), {}),
        (as_data("video/mp4", encode_video(make_frames(4))), {"media_io_kwargs": {"video": {"fps": 1e9}}}),
        (as_data("video/mp4", encode_video(make_frames(4))), {"media_io_kwargs": {"video": {"num_frames": 10**9}}}),
        (as_data("video/mp4", encode_video(make_frames(4))), {"media_io_kwargs": {"video": {"max_frames": 10**9}}}),
        (as_data("video/mp4", encode_video(make_frames(4))), {"mm_processor_kwargs": {"fps": 1e-9}}),
        (as_data("video/mp4", mp4_bomb(100_000_000)), {}),
        (as_data("video/mp4", mp4_bomb(2**32 - 1)), {}),
        (as_data("video/mp4", encode_video(make_frames(25), fps=1)), {}),
        (as_data("video/mp4", encode_video(make_frames(2, 400, 400))), {}),
    ],
    ids=["jpegs", "fps", "num_frames", "max_frames", "processor", "samples", "more samples", "long", "large"],
)
def test_videos_have_few_frames_whoever_asks(attacked: Attacked, url: str, fields: dict[str, Any]) -> None:
    """Threat: video frames (CVE-2026-34755, GHSA-pq5c-rjhq-qp7p, CVE-2026-5497, CVE-2026-105758,
    GHSA-x6mc-67gf-chw4)."""
    check_short(ask(attacked, video(url), **fields))
    paths = set(httpx2.get(f"{attacked.server.url}/openapi.json").json()["paths"])
    for path, body in bodies(video(url), paths):
        assert attacked.server.post(path, {**body, **fields}).status_code in REFUSED, path


def _apng() -> bytes:
    """A PNG that claims four billion frames."""
    frames = [Image.new("RGB", (60, 60), colour) for colour in ("red", "blue")]
    buffer = io.BytesIO()
    frames[0].save(buffer, "PNG", save_all=True, append_images=frames[1:])
    data = bytearray(buffer.getvalue())
    start = data.index(b"acTL") + 4
    data[start : start + 4] = struct.pack(">I", 2**32 - 1)
    return bytes(data)


def test_of_many_frames_one_is_decoded(attacked: Attacked) -> None:
    """Threat: decompression bomb: a GIF of 2,000 frames, a PNG that claims more than there are."""
    frames = [Image.new("P", (60, 60), index % 256) for index in range(2000)]
    buffer = io.BytesIO()
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    for data in (buffer.getvalue(), _apng()):
        assert ask(attacked, image(as_data("image/gif", data))).status_code in (200, *REFUSED)


@pytest.mark.parametrize(
    ("size", "status"),
    [
        ((1, 1), 200),
        ((3, 1), 200),
        ((1, 3), 200),
        ((200, 1), 200),
        ((201, 1), 400),
        ((1, 10_000), 400),
        ((10_000, 1), 400),
    ],
)
def test_tiny_and_thin_pictures(attacked: Attacked, size: tuple[int, int], status: int) -> None:
    """Threat: tiny and odd images (CVE-2026-22773, GHSA-grg2-63fw-f2qr)."""
    for mode in ("RGB", "L", "LA", "RGBA", "1", "I;16", "P"):
        answer = ask(attacked, image(data_url(Image.new(mode, size))))
        assert answer.status_code == status, answer.text


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_embeds", "image_embeds": "AAAA"},
        {"type": "image_embeds", "image_embeds": {"image_embeds": "AAAA", "image_grid_thw": "AAAA"}},
        {"type": "audio_embeds", "audio_embeds": "AAAA"},
        {"type": "prompt_embeds", "prompt_embeds": "AAAA"},
        {"type": "image_url", "image_url": {"url": "data:application/x-torch;base64,gAKKCmz8nEb5IGqoUBku"}},
        {"type": "image_url", "image_url": {"url": as_data("image/x-npy", b"\x93NUMPY\x01\0v\0{'descr': '|O'}")}},
    ],
)
def test_features_in_place_of_media_are_not_taken(attacked: Attacked, part: dict[str, Any]) -> None:
    """Threat: embeddings (CVE-2025-62164, CVE-2026-56340, CVE-2025-62372, GHSA-pmqf-x6x8-p7qw, CVE-2026-55514)."""
    check_short(ask(attacked, part))
    text = {"type": "text", "text": "Hi"}
    assert "prompt_embeds" in check_short(ask(attacked, text, prompt_embeds="AAAA"))


def test_a_users_names_for_media_mean_nothing(attacked: Attacked) -> None:
    """Threat: user uuid (GHSA-p92p-rxj5-7p2x): the same for two pictures, and one without a picture."""
    before = attacked.server.metric("chiasm:encoder_units_total")
    for colour in ("red", "green"):
        url = data_url(Image.new("RGB", (60, 90), colour))
        for part in (
            {**image(url), "uuid": "mine"},
            {"type": "image_url", "image_url": {"url": url, "uuid": "mine"}},
        ):
            assert ask(attacked, part).status_code == 200
    attacked.server.await_metric("chiasm:encoder_units_total", before + 2)
    for part in ({"type": "image_url", "image_url": None, "uuid": "mine"}, {"type": "image_url", "uuid": "mine"}):
        check_short(ask(attacked, part))


def test_pictures_that_differ_only_in_shape_or_palette_are_encoded_apart(attacked: Attacked) -> None:
    """Threat: cache hash collision (CVE-2025-46722, GHSA-c65p-x677-fgj6, CVE-2025-25183)."""
    pixels = Image.effect_noise((300, 100), 90).tobytes()
    pictures = [Image.frombytes("L", (300, 100), pixels), Image.frombytes("L", (100, 300), pixels)]
    for colours in ((255, 0, 0, 0, 0, 255), (0, 0, 255, 255, 0, 0)):
        picture = Image.new("P", (84, 56))
        picture.putpalette(colours)
        picture.paste(1, (0, 0, 40, 40))
        pictures.append(picture)
    before = attacked.server.metric("chiasm:encoder_units_total")
    for picture in pictures:
        assert ask(attacked, image(data_url(picture))).status_code == 200
    url = image(data_url(pictures[0]))  # other settings of the processor
    assert ask(attacked, url, mm_processor_kwargs={"max_pixels": 10_000}).status_code == 200
    attacked.server.await_metric("chiasm:encoder_units_total", before + 5)
