"""What each data set asks."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import av
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from chiasm.bench.datasets.choose import Dataset
from chiasm.bench.datasets.random_media import Bucket, RandomMedia, parse_buckets
from chiasm.bench.datasets.sample import Sample
from chiasm.errors import UserError


def png(color: str, size: tuple[int, int] = (8, 6)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, color).save(buffer, "PNG")
    return buffer.getvalue()


def media_of(sample: Sample, kind: str) -> list[bytes]:
    urls = [part[f"{kind}_url"]["url"] for part in sample.content if part["type"] == f"{kind}_url"]
    return [base64.b64decode(url.partition(",")[2]) for url in urls]


def size_of(image: bytes) -> tuple[int, int]:
    return Image.open(io.BytesIO(image)).size


def text_of(sample: Sample) -> str:
    return str(next(part["text"] for part in sample.content if part["type"] == "text"))


def arena_rows(count: int) -> list[dict[str, Any]]:
    return [
        {
            "conversation": [
                [{"role": "user", "content": f"Question {i}?"}],
                [{"role": "assistant", "content": "."}],
            ],
            "images": [{"bytes": png("red", (8 + i, 6)), "path": None}],
        }
        for i in range(count)
    ]


def test_charts_are_the_same_for_a_seed() -> None:
    charts = Dataset("charts")
    first, other = charts.take(3, 0), charts.take(3, 1)
    assert charts.take(3, 0) == first
    assert not any(sample in first for sample in other), "a server's caches would answer"
    assert first[0].content[0]["image_url"]["url"].startswith("data:image/png;base64,")
    assert text_of(first[0]).endswith("?")


def test_arena_from_a_folder_of_parquet_files(tmp_path: Path) -> None:
    rows = arena_rows(3)
    (tmp_path / "data").mkdir()
    pq.write_table(pa.Table.from_pylist(rows[:2]), tmp_path / "data" / "train-00000-of-00002.parquet")
    pq.write_table(pa.Table.from_pylist(rows[2:]), tmp_path / "data" / "train-00001-of-00002.parquet")
    pq.write_table(pa.Table.from_pylist(rows[:1]), tmp_path / "data" / "test-00000-of-00001.parquet")
    dataset = Dataset("hf", str(tmp_path))
    found = dataset.take(5, 0)  # more than there are: from the beginning again
    assert [text_of(sample) for sample in found] == [f"Question {i}?" for i in (0, 1, 2, 0, 1)]
    assert [size_of(media_of(sample, "image")[0])[0] for sample in found] == [8, 9, 10, 8, 9]
    assert found[0].output_len == 128
    assert len(Dataset("hf", str(tmp_path), split="test", oversample=False).take(1, 0)) == 1


def test_arena_from_json_lines_with_pictures_in_base64_or_in_files(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png("blue"))
    forms: list[Any] = [{"bytes": base64.b64encode(png("red")).decode()}, "a.png", {"bytes": None, "path": "a.png"}]
    lines = [{"turns": [["What?"]], "images": [form]} for form in forms]
    (tmp_path / "train.jsonl").write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    found = Dataset("hf", str(tmp_path), hf_name="lmarena-ai/vision-arena-bench-v0.1").take(3, 0)
    colors = [Image.open(io.BytesIO(media_of(sample, "image")[0])).getpixel((0, 0)) for sample in found]
    assert colors[0][0] > 200 > colors[0][2]  # type: ignore[index]
    assert all(color[2] > 200 > color[0] for color in colors[1:])  # type: ignore[index]


def test_a_base64_picture_may_be_longer_than_a_file_s_name(tmp_path: Path) -> None:
    picture = base64.b64encode(png("red", (200, 100))).decode()
    assert 255 < len(picture) < 4096
    (tmp_path / "mine.jsonl").write_text(json.dumps({"turns": [["What?"]], "images": [picture]}))
    [sample] = Dataset("hf", str(tmp_path / "mine.jsonl")).take(1, 0)
    assert size_of(media_of(sample, "image")[0]) == (200, 100)


def test_pictures_lie_beside_the_file_that_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png("blue"))
    (tmp_path / "mine.jsonl").write_text(json.dumps({"turns": [["What?"]], "images": ["a.png"]}))
    assert media_of(Dataset("hf", str(tmp_path / "mine.jsonl")).take(1, 0)[0], "image")


def test_a_picture_that_breaks_off_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png("red", (400, 400))[:-200])
    (tmp_path / "mine.jsonl").write_text(json.dumps({"turns": [["What?"]], "images": ["a.png"]}))
    with pytest.raises(UserError, match=r"not a picture that can be read: 'a.png'"):
        Dataset("hf", str(tmp_path / "mine.jsonl")).take(1, 0)


def test_sharegpt4v_takes_the_pictures_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "coco").mkdir()
    (tmp_path / "coco" / "1.png").write_bytes(png("red"))
    talk = [{"from": "human", "value": "<image>\nWhat is it?"}, {"from": "gpt", "value": "Red."}]
    rows = [
        {"id": "0", "image": "coco/0.png", "conversations": talk},
        {"id": "1", "image": "coco/1.png", "conversations": talk},
        {"id": "2", "conversations": talk},
    ]
    (tmp_path / "share.json").write_text(json.dumps(rows))
    found = Dataset("sharegpt4v", str(tmp_path / "share.json")).take(2, 0)
    assert [text_of(sample) for sample in found] == ["What is it?"] * 2
    with pytest.raises(UserError, match="image-folder"):
        Dataset("sharegpt4v", str(tmp_path / "share.json"), image_folder=tmp_path / "coco").take(1, 0)


def test_custom_requests_by_files_or_by_parts(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png("red"))
    parts = [{"type": "text", "text": "As it is"}]
    rows: list[Mapping[str, Any]] = [
        {"prompt": "Look", "image_files": ["a.png", "a.png"], "output_tokens": 7},
        {"content": parts},
    ]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    look, given = Dataset("custom", str(tmp_path / "mine.jsonl")).take(2, 0)
    assert text_of(look) == "Look"
    assert media_of(look, "image") == [png("red")] * 2  # the very bytes, not encoded again
    assert (look.output_len, given.output_len) == (7, 256)
    asked_for = Dataset("custom", str(tmp_path / "mine.jsonl"), output_len=9).take(2, 0)
    assert [sample.output_len for sample in asked_for] == [9, 9]
    assert given.content == parts


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "image": "a.png"},
        {"type": "image_url", "image_url": {"url": "a.png"}},
        {"type": "image_url", "image_url": "a.png"},
    ],
)
def test_parts_may_name_files(part: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png("red"))
    (tmp_path / "mine.jsonl").write_text(json.dumps({"content": [part]}))
    [sample] = Dataset("custom", str(tmp_path / "mine.jsonl")).take(1, 0)
    assert media_of(sample, "image") == [png("red")]


def test_parts_with_urls_stay_as_they_are(tmp_path: Path) -> None:
    part = {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "low"}}
    (tmp_path / "mine.jsonl").write_text(json.dumps({"content": [part]}))
    assert Dataset("custom", str(tmp_path / "mine.jsonl")).take(1, 0)[0].content == [part]


def test_a_part_with_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text(json.dumps({"content": [{"type": "image", "image": "a" * 5000}]}))
    with pytest.raises(UserError, match="can't be read: File name too long"):
        Dataset("custom", str(tmp_path / "mine.jsonl")).take(1, 0)


def test_random_media_have_the_sizes_that_were_asked_for() -> None:
    buckets = {Bucket(20, 30, 1): 0.5, Bucket(32, 48, 5): 0.5}
    random = RandomMedia(input_len=6, output_len=3, items=2, limits={"image": 2, "video": 1}, buckets=buckets)
    samples = Dataset("random-mm", random=random).take(8, 3)
    assert Dataset("random-mm", random=random).take(8, 3) == samples
    for sample in samples:
        images, videos = media_of(sample, "image"), media_of(sample, "video")
        assert len(text_of(sample).split()) == 6
        assert sample.output_len == 3
        assert len(images) <= 2
        assert len(videos) <= 1
        assert {size_of(image) for image in images} <= {(30, 20)}
        for video in videos:
            with av.open(io.BytesIO(video)) as container:
                frames = list(container.decode(video=0))
            assert [(frame.width, frame.height) for frame in frames] == [(48, 32)] * 5
    assert {len(media_of(sample, "video")) for sample in samples} == {0, 1}


def test_random_lengths_vary_as_far_as_asked() -> None:
    random = RandomMedia(input_len=10, output_len=10, range_ratio=0.5, items=0)
    lengths = {sample.output_len for sample in Dataset("random-mm", random=random).take(200, 0)}
    assert lengths == set(range(5, 16))


def test_a_bucket_table_is_read_as_it_is_written_for_vllm() -> None:
    assert parse_buckets("{(256, 256, 1): 0.5, (720, 1280, 16): 0}") == {(256, 256, 1): 0.5, (720, 1280, 16): 0.0}


def test_videos_need_a_limit_of_their_own() -> None:
    with pytest.raises(UserError, match="random_mm_limit_mm_per_prompt must be a number for video"):
        RandomMedia(limits={"image": 1}, buckets={Bucket(8, 8, 2): 1.0})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        "{(1, 2): 1}",
        "{(0, 5, 1): 1}",
        "{(5, 5, 1): 2}",
        "f()",
        "{(1, 9, 2): 1}",
        "{(8192, 8192, 9): 1}",
    ],
)
def test_other_tables_are_refused(text: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_buckets(text)
    assert caught.value.param == "random_mm_bucket_config"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "rows.jsonl:1 is not valid JSON"),
        ("[1]", "rows.jsonl:1 must be a JSON object"),
        ("{}", "prompt must be"),
        ('{"prompt": "x", "image_files": ["none.png"]}', "none.png.* can.t be read: No such file"),
        ('{"prompt": "x", "output_tokens": 0}', "output_tokens must be"),
        ('{"content": "x"}', "content must be"),
        ('{"prompt": "x", "image_files": "a.png"}', "image_files must be a list of paths"),
        ('{"prompt": "x", "image_files": ["a\\u0000"]}', "embedded null byte"),
        ("[" * 100_000, "rows.jsonl:1 is not valid JSON"),
        ("", "is empty"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "rows.jsonl").write_text(line)
    with pytest.raises(UserError, match=said):
        Dataset("custom", str(tmp_path / "rows.jsonl")).take(1, 0)


@pytest.mark.parametrize(
    ("dataset", "param"),
    [
        (Dataset("hf"), "dataset_path"),
        (Dataset("charts", "somewhere"), "dataset_path"),
        (Dataset("charts", hf_name="lmarena-ai/VisionArena-Chat"), "hf_name"),
        (Dataset("custom", "somewhere", image_folder=Path()), "image_folder"),
        (Dataset("hf", "nowhere"), "dataset_path"),
        (Dataset("hf", "some/data", hf_name="who/knows"), "hf_name"),
    ],
)
def test_a_data_set_that_cannot_be_is_refused(dataset: Dataset, param: str) -> None:
    with pytest.raises(UserError) as caught:
        dataset.take(1, 0)
    assert caught.value.param == param


def test_a_file_may_begin_with_a_mark_but_must_be_utf_8(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"prompt": "x"}')
    assert text_of(Dataset("custom", str(file)).take(1, 0)[0]) == "x"
    file.write_bytes('{"prompt": "é"}'.encode("latin-1"))
    with pytest.raises(UserError, match=r"rows.jsonl can't be read: 'utf-8' codec"):
        Dataset("custom", str(file)).take(1, 0)


def test_too_few_requests_are_refused_where_none_may_come_twice(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "x"}')
    with pytest.raises(UserError, match="at most the 1 requests"):
        Dataset("custom", str(tmp_path / "rows.jsonl"), oversample=False).take(2, 0)


def test_requests_of_a_file_can_be_shuffled(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"prompt": str(i)}) for i in range(50)))
    dataset = Dataset("custom", str(tmp_path / "rows.jsonl"), shuffle=True)
    one, other = ([text_of(sample) for sample in dataset.take(50, seed)] for seed in (0, 1))
    assert one != other
    assert sorted(one) == sorted(other)
    few = [text_of(sample) for seed in range(40) for sample in dataset.take(5, seed)]
    assert len(set(few)) > 40, "from the whole file"
