"""Videos to units: decoding, sampling and processing, each against the plainest way or Hugging Face's own values."""

from __future__ import annotations

import gc
import hashlib
import json
import random
from contextlib import suppress
from pathlib import Path

import av
import numpy as np
import pytest

from chiasm.config.engine import MediaConfig
from chiasm.errors import UserError
from chiasm.models import glm4v
from chiasm.models.blocks import read_video_processor
from chiasm.multimodal.bounds import request_video_spec, server_video_spec
from chiasm.multimodal.decode_video import VideoLimits, open_clip
from chiasm.multimodal.in_memory import video_source_of_object
from chiasm.multimodal.pixels import read_rows
from chiasm.multimodal.processing import process_image, process_video
from chiasm.multimodal.sampling import at_true_times, sample_frames
from chiasm.schema.media import FrameTimes, VideoProcessorSpec
from tests.multimodal.specs import QWEN
from tests.multimodal.videos import (
    DURATIONS,
    ENCODINGS,
    SAMPLINGS,
    SIZE_CASES,
    Encoding,
    SizeCase,
    decode_all,
    encode_to_file,
    encode_video,
    make_frames,
)
from tests.published.glm import GLM, GLM_PROCESSOR

GOLDENS = json.loads(Path(__file__).with_name("video_goldens.json").read_text(encoding="utf-8"))
LIMITS = VideoLimits(max_pixels=1_000_000, max_seconds=60.0)


@pytest.fixture(scope="module", params=ENCODINGS)
def encoded(request: pytest.FixtureRequest) -> bytes:
    return encode_video(make_frames(40), ENCODINGS[request.param])


# --- decoding


@pytest.mark.parametrize(
    "indices",
    [range(40), [0, 20, 39], [5, 30], [13], [39], [0, 0, 25, 25], range(0, 40, 7), [11, 12, 13, 23, 24, 25]],
)
def test_only_what_is_wanted_is_what_decoding_everything_gives(encoded: bytes, indices: list[int]) -> None:
    expected = decode_all(encoded)
    with open_clip(encoded, LIMITS) as clip:
        assert (clip.num_frames, clip.fps) == (40, 10)
        taken = list(clip.frames(indices))
    assert len(taken) == len(indices)
    for index, frame in zip(indices, taken, strict=True):
        assert np.array_equal(frame, expected[index]), index


def test_frames_that_are_not_wanted_are_skipped_where_a_keyframe_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    video = encode_video(make_frames(40), ENCODINGS["vp9"])
    fed = []
    from chiasm.multimodal import decode_video

    feed = decode_video._Decoder._feed
    monkeypatch.setattr(decode_video._Decoder, "_feed", lambda self: (fed.append(self._next), feed(self)))
    with open_clip(video, LIMITS) as clip:
        list(clip.frames([1, 37]))
    assert fed == [0, 1, 36, 37]


VARYING = [0, 1, 2, 3, 10, 20, 30, 40]  # tenths of a second


@pytest.mark.parametrize("encoding", ["vp9", "h264 with B frames", "gif"])
def test_a_rate_that_varies_is_its_average_and_frames_have_their_own_times(encoding: str) -> None:
    with open_clip(encode_video(make_frames(8), ENCODINGS[encoding], times=VARYING), LIMITS) as clip:
        assert clip.num_frames == 8
        assert clip.fps == pytest.approx(7 / 4.0)
        assert clip.seconds == pytest.approx([time / 10 for time in VARYING])
        assert len(list(clip.frames(range(8)))) == 8


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("fps", [7, 10, 24, 30])
def test_what_a_container_rounds_is_no_rate_that_varies(encoding: str, fps: int) -> None:
    with open_clip(encode_video(make_frames(40), ENCODINGS[encoding], fps=fps), LIMITS) as clip:
        assert clip.seconds is None
        # A GIF counts in hundredths of a second.
        assert clip.fps == pytest.approx(fps, rel=0.2 if encoding == "gif" else 1e-3)


def test_a_frame_that_was_lost_shifts_no_others() -> None:
    times = [*range(10), *range(14, 40)]
    with open_clip(encode_video(make_frames(36), ENCODINGS["vp9"], times=times), LIMITS) as clip:
        assert clip.seconds == pytest.approx([time / 10 for time in times])


def test_one_frame() -> None:
    with open_clip(encode_video(make_frames(1)), LIMITS) as clip:
        assert clip.num_frames == 1
        assert len(list(clip.frames([0, 0]))) == 2


def with_matrix(video: bytes, a: float, b: float, c: float, d: float) -> bytes:
    """The same MP4 with another matrix in its track's header (ISO 14496-12, 8.3.2)."""
    start = video.index(b"tkhd") + 4 + 40
    matrix = np.array([65536 * a, 65536 * b, 0, 65536 * c, 65536 * d, 0, 0, 0, 1 << 30]).astype(">i4").tobytes()
    return video[:start] + matrix + video[start + 36 :]


UPRIGHT = {
    (1, 0, 0, 1): lambda rgb: rgb,
    (-1, 0, 0, 1): lambda rgb: rgb[:, ::-1],
    (1, 0, 0, -1): lambda rgb: rgb[::-1],
    (-1, 0, 0, -1): lambda rgb: rgb[::-1, ::-1],
    (0, 1, -1, 0): lambda rgb: np.rot90(rgb, -1),
    (0, -1, 1, 0): lambda rgb: np.rot90(rgb, 1),
    (0, 1, 1, 0): lambda rgb: rgb.transpose(1, 0, 2),
    (0, -1, -1, 0): lambda rgb: np.rot90(rgb, 2).transpose(1, 0, 2),
    (2, 0, 0, 0.5): lambda rgb: rgb,
    (0.1, 0.99, -0.99, 0.1): lambda rgb: np.rot90(rgb, -1),
    (0, 0, 0, 0): lambda rgb: rgb,
}


@pytest.mark.parametrize("codec", ["mpeg4 with B frames", "h264 with B frames"])
@pytest.mark.parametrize("matrix", UPRIGHT)
def test_frames_are_turned_and_mirrored_as_the_file_says(matrix: tuple[float, ...], codec: str) -> None:
    video = with_matrix(encode_video(make_frames(2), ENCODINGS[codec]), *matrix)
    with open_clip(video, LIMITS) as clip:
        [frame] = clip.frames([1])
    assert np.array_equal(frame, UPRIGHT[matrix](decode_all(video)[1]))


@pytest.mark.parametrize("matrix", [(1, 0, 0, 1), (-1, 0, 0, -1), (0, 1, -1, 0), (0, -1, 1, 0)])
def test_frames_are_turned_among_data_that_pyav_does_not_know(
    matrix: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    from chiasm.multimodal import decode_video

    def unknown(_frame: object) -> None:
        raise ValueError("99 is not a valid Type")

    monkeypatch.setattr(decode_video, "SideDataContainer", unknown)
    video = with_matrix(encode_video(make_frames(2)), *matrix)
    with open_clip(video, LIMITS) as clip:
        [frame] = clip.frames([1])
    assert np.array_equal(frame, UPRIGHT[matrix](decode_all(video)[1]))


def test_frames_are_freed_at_once() -> None:
    """Each holds memory of its decoder, and threads once it is converted."""
    gc.disable()
    try:
        with open_clip(encode_video(make_frames(20)), LIMITS) as clip:
            list(clip.frames(range(20)))
            left = sum(type(found) is av.VideoFrame for found in gc.get_objects())
    finally:
        gc.enable()
    assert left < 5


@pytest.mark.parametrize(
    ("video", "words"),
    [
        (encode_video(make_frames(2, 1000, 1100)), "between 1 and 1000000 pixels in the size of a frame"),
        (encode_video(make_frames(70), fps=1), "at most 60 seconds long"),
        (encode_video(make_frames(70), ENCODINGS["vp9"], fps=1), "at most 60 seconds long"),
        (encode_video(make_frames(2))[:200], "cut short: its file ends before the video does"),
        (encode_video(make_frames(1, 1000, 1100), ENCODINGS["vp9"]), r"1000000 pixels .* got 'more"),
        (b"", "can't be decoded as a video"),
        (b"not a video at all", "can't be decoded as a video"),
        (b"GIF89a", "cut short"),
        (b"\x1a\x45\xdf\xa3" * 100, "can't be decoded as a video"),
        (b"\x00\x00\x00\x18ftypmp42" + b"\x00" * 100, "can't be decoded as a video"),
    ],
    ids=["large", "long", "long webm", "cut short", "large vp9", "empty", "text", "gif", "webm", "mp4"],
)
def test_what_is_refused(video: bytes, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught, open_clip(video, LIMITS, "field") as clip:
        list(clip.frames(range(clip.num_frames)))
    assert caught.value.param == "field"


class TestCutShort:
    """No part of a video passes for all of it, as far as its file tells where it ends."""

    @pytest.mark.parametrize(
        "encoding", [*ENCODINGS.values(), ENCODINGS["h264 with B frames"]._replace(format="matroska")]
    )
    @pytest.mark.parametrize("kept", [0.3, 0.5, 0.9, 0.999])
    def test_files(self, encoding: Encoding, kept: float) -> None:
        video = encode_video(make_frames(40), encoding)
        with (
            pytest.raises(UserError, match="cut short") as caught,
            open_clip(video[: int(len(video) * kept)], LIMITS),
        ):
            pass
        assert caught.value.status == 400
        with open_clip(video, LIMITS) as clip:
            assert len(list(clip.frames(range(40)))) == 40

    @pytest.mark.parametrize("flags", ["+faststart", "+frag_keyframe+empty_moov"])
    @pytest.mark.parametrize("codec", ["mpeg4 with B frames", "h264 with B frames"])
    def test_mp4_files_that_tell_first_what_is_in_them(self, flags: str, codec: str, tmp_path: Path) -> None:
        path = tmp_path / "a.mp4"
        encode_to_file(str(path), make_frames(40), ENCODINGS[codec], movflags=flags)
        video = path.read_bytes()
        with open_clip(video, LIMITS) as clip:
            assert clip.num_frames == 40
        end = video.rindex(b"mdat") - 4
        end += int.from_bytes(video[end : end + 4], "big")
        for length in (end - 1, end - 30, end - 1000, end // 2):
            with pytest.raises(UserError, match="cut short"), open_clip(video[:length], LIMITS):
                pass

    def test_a_last_box_up_to_the_end_of_the_file(self, tmp_path: Path) -> None:
        path = tmp_path / "a.mp4"
        encode_to_file(str(path), make_frames(40), ENCODINGS["mpeg4 with B frames"], movflags="+faststart")
        video = bytearray(path.read_bytes())
        start = video.rindex(b"mdat") - 4
        assert start + int.from_bytes(video[start : start + 4], "big") == len(video)
        video[start : start + 4] = bytes(4)
        with open_clip(video, LIMITS) as clip:
            assert clip.num_frames == 40
        with pytest.raises(UserError, match="cut short"), open_clip(video[:-200], LIMITS):
            pass

    def test_a_recording_that_does_not_say_where_it_ends(self, tmp_path: Path) -> None:
        path = tmp_path / "a.webm"
        encode_to_file(str(path), make_frames(40), ENCODINGS["vp9"], live="1")
        video = path.read_bytes()
        with open_clip(video[: len(video) // 2], LIMITS) as clip:
            assert 10 < clip.num_frames < 30
            assert len(list(clip.frames(range(clip.num_frames)))) == clip.num_frames

    @pytest.mark.parametrize("encoding", ENCODINGS)
    @pytest.mark.parametrize("behind", [b"\0" * 9, b"junk" * 9, b"\n"])
    def test_what_stands_behind_a_video_is_no_part_of_it(self, encoding: str, behind: bytes) -> None:
        with open_clip(encode_video(make_frames(4), ENCODINGS[encoding]) + behind, LIMITS) as clip:
            assert clip.num_frames == 4


def test_codecs_that_few_videos_need_are_refused() -> None:
    video = encode_video(
        make_frames(2), ENCODINGS["gif"]._replace(codec="ffv1", format="matroska", pixel_format="bgr0")
    )
    with pytest.raises(UserError, match="codec is not accepted"), open_clip(video, LIMITS):
        pass


def test_damaged_files_are_read_or_refused(encoded: bytes) -> None:
    draw = random.Random(0)
    for attempt in range(60):
        damaged = bytearray(encoded)
        if attempt % 2:
            del damaged[draw.randrange(1, len(damaged)) :]
        for _ in range(draw.choice([0, 1, 3, 30])):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        with suppress(UserError), open_clip(damaged, LIMITS) as clip:
            for frame in clip.frames(range(0, clip.num_frames, 5)):
                assert frame.shape[2] == 3


# --- sampling


@pytest.mark.parametrize("sampling", ["steps", "ends", "seconds"])
@pytest.mark.parametrize("number", range(len(SAMPLINGS)))
def test_frames_taken_equal_hugging_face(sampling: str, number: int) -> None:
    total, fps, asked = SAMPLINGS[number]
    golden = GOLDENS["indices"][sampling][number]
    if golden is None:
        return
    spec = VideoProcessorSpec(QWEN, sampling=sampling, **asked)  # type: ignore[arg-type]
    taken = list(sample_frames(total, fps, spec).indices)
    assert (hashlib.sha256(repr(taken).encode()).hexdigest() if len(taken) > 40 else taken) == golden


GLM_4_6 = glm4v.read_video(
    glm4v.parse_config(GLM["GLM-4.6V"]), {**GLM_PROCESSOR, "image_processor_type": "Glm46VImageProcessor"}
).processor


@pytest.mark.parametrize("number", range(len(DURATIONS)))
def test_frames_taken_by_duration_equal_hugging_face(number: int) -> None:
    count, digest = GOLDENS["indices"]["duration"][number]
    taken = list(sample_frames(*DURATIONS[number], GLM_4_6).indices)
    if count == 0:  # Hugging Face's processor takes none of a video that is shorter than its clock's first tick
        assert taken == [0, 0]
        return
    assert (len(taken), hashlib.sha256(repr(taken).encode()).hexdigest()[:16]) == (count, digest)


def test_a_video_of_ten_seconds_has_thirty_slices() -> None:
    assert len(sample_frames(300, 30.0, GLM_4_6).indices) == 60


@pytest.mark.parametrize(("most", "taken"), [(768, 640), (100, 100), (9, 8), (1, 1)])
def test_frames_taken_by_duration_are_limited(most: int, taken: int) -> None:
    for frames in (300 * 30, 3000 * 30):
        spec = server_video_spec(GLM_4_6, MediaConfig(max_video_frames=most))
        assert len(sample_frames(frames, 30.0, spec).indices) == min(taken, 600 if frames == 9000 else 640)


@pytest.mark.parametrize(("fps", "taken"), [(1, 10), (2, 20), (30, 300), (100, 300)])
def test_a_rate_that_is_asked_for_goes_before_that_of_a_duration(fps: int, taken: int) -> None:
    settings = MediaConfig(media_io_kwargs={"video": {"fps": fps}})
    assert len(sample_frames(300, 30.0, server_video_spec(GLM_4_6, settings)).indices) == taken
    assert len(sample_frames(300, 30.0, request_video_spec(GLM_4_6, {}, {"video": {"fps": fps}})).indices) == taken


def test_settings_that_transformers_writes_for_glm_4_6_change_nothing() -> None:
    """Its processor has them and doesn't read them."""
    written = {"fps": 2, "num_frames": 16, "max_duration": 300, "video_processor_type": "Glm46VVideoProcessor"}
    again = glm4v.read_video(glm4v.parse_config(GLM["GLM-4.6V"]), {**GLM_PROCESSOR, **written})
    assert again.processor == GLM_4_6


def test_all_frames_up_to_the_limit() -> None:
    spec = VideoProcessorSpec(QWEN, num_frames=-1, max_frames=9)
    assert sample_frames(9, 30.0, spec).indices == tuple(range(9))
    with pytest.raises(UserError, match="at most 9 frames") as caught:
        sample_frames(10, 30.0, spec, "field")
    assert caught.value.param == "field"


@pytest.mark.parametrize("sampling", ["steps", "ends"])
def test_what_a_model_takes_by_its_rate_is_no_limit_to_what_is_asked_for(sampling: str) -> None:
    """As in Hugging Face's processors, whose max_frames is about rates."""
    model = read_video_processor({"max_frames": 8}, VideoProcessorSpec(QWEN, sampling=sampling))  # type: ignore[arg-type]
    for most in (8, 1000):
        spec = server_video_spec(model, MediaConfig(max_video_frames=most))
        assert len(sample_frames(900, 30.0, spec).indices) == 8
    for asked, taken in ((800, 800), (-1, 900)):
        settings = MediaConfig(max_video_frames=1000, media_io_kwargs={"video": {"num_frames": asked}})
        assert len(sample_frames(900, 30.0, server_video_spec(model, settings)).indices) == taken


def test_rounding_to_whole_slices_does_not_pass_the_limit() -> None:
    assert len(sample_frames(100, 30.0, VideoProcessorSpec(QWEN, num_frames=43, max_frames=43)).indices) == 43, (
        "not 44"
    )


@pytest.mark.parametrize(("total", "asked", "taken"), [(5, 5, 4), (9, 9, 8), (8, 8, 8), (7, 7, 7), (3, 8, 3)])
def test_as_many_frames_as_there_are_make_whole_slices_too(total: int, asked: int, taken: int) -> None:
    """Where Hugging Face has an answer: it refuses more than there are."""
    assert len(sample_frames(total, 30.0, VideoProcessorSpec(QWEN, num_frames=asked)).indices) == taken


def test_less_than_a_slice_is_one_frame() -> None:
    """By a limit, or by a low rate: never all frames."""
    assert sample_frames(100, 100.0, VideoProcessorSpec(QWEN, min_frames=1, max_frames=1)).indices == (0,)
    assert sample_frames(100, 100.0, VideoProcessorSpec(QWEN, fps=1.0, min_frames=1)).indices == (0,)


@pytest.mark.parametrize("total", [1, 2, 3])
def test_the_shortest_videos_have_a_frame(total: int) -> None:
    for spec in (
        VideoProcessorSpec(QWEN),
        VideoProcessorSpec(QWEN, num_frames=1),
        VideoProcessorSpec(QWEN, num_frames=8),
    ):
        assert sample_frames(total, 30.0, spec).indices


@pytest.mark.parametrize(
    ("asked", "indices", "shown"),
    [
        # Eight frames in four seconds, taken as if they were 1.75 in each.
        ({"fps": 1.0}, (0, 4, 5, 6), (0, 2 / 1.75, 4 / 1.75, 6 / 1.75)),
        ({"num_frames": 2}, (0, 5), (0, 4 / 1.75)),
        ({"fps": 1.0, "sampling": "ends"}, (0, 4, 5, 7), (0, 2 / 1.75, 5 / 1.75, 4.0)),
        ({"fps": 1.0, "sampling": "seconds"}, (0, 4, 5, 6), (0, 2 / 1.75, 4 / 1.75, 6 / 1.75)),
        ({"num_frames": -1}, tuple(range(8)), (0, 0.1, 0.2, 0.3, 1, 2, 3, 4)),
        ({"num_frames": 8}, tuple(range(8)), (0, 0.1, 0.2, 0.3, 1, 2, 3, 4)),
    ],
)
def test_of_a_rate_that_varies_what_is_on_the_screen_is_taken(asked: dict, indices: tuple, shown: tuple) -> None:
    spec = VideoProcessorSpec(QWEN, **asked)
    times = at_true_times(sample_frames(8, 1.75, spec), [time / 10 for time in VARYING])
    assert times.indices == indices
    assert times.shown == pytest.approx(shown)
    assert times.seconds(4) == pytest.approx((*shown, *shown[-1:] * (-len(shown) % 4)))


@pytest.mark.parametrize("sampling", ["steps", "ends", "seconds"])
def test_true_times_of_an_even_rate_change_nothing(sampling: str) -> None:
    for total, fps, asked in SAMPLINGS[:9]:
        times = sample_frames(total, fps, VideoProcessorSpec(QWEN, sampling=sampling, **asked))  # type: ignore[arg-type]
        true = at_true_times(times, [index / fps for index in range(total)])
        assert true.indices == times.indices
        assert true.seconds(2) == pytest.approx(times.seconds(2))


# --- processing


def spec_of(case: SizeCase, area: str) -> VideoProcessorSpec:
    settings = {"min_pixels": case.min_pixels, "max_pixels": case.max_pixels}
    if area == "frame":
        settings["max_video_tokens"] = case.max_video_tokens
    return read_video_processor(settings, VideoProcessorSpec(QWEN, area=area))  # type: ignore[arg-type]


@pytest.mark.parametrize("case", SIZE_CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("area", ["frame", "clip"])
def test_pixels_equal_hugging_face_to_the_last_bit(case: SizeCase, area: str, tmp_path: Path) -> None:
    if case.name not in GOLDENS[area]:
        return
    frames = make_frames(case.count, case.height, case.width)
    item = process_video(frames, FrameTimes.of_all(case.count, 10.0), spec_of(case, area), tmp_path)
    rows = np.concatenate([read_rows(unit.pixels) for unit in item.units])
    thw = item.placed_at(0).thw
    assert {"thw": list(thw), "sha256": hashlib.sha256(rows.tobytes()).hexdigest()} == GOLDENS[area][case.name]


def test_times_of_slices(tmp_path: Path) -> None:
    times = FrameTimes((0, 6, 12), 20, 12.0)
    item = process_video(make_frames(3), times, VideoProcessorSpec(QWEN), tmp_path)
    assert item.frame_seconds == (0.0, 0.5, 1.0, 1.0)
    assert item.seconds_per_slice == pytest.approx(2 / (3 / 20 * 12))


def test_slices_that_come_again_and_still_pictures_have_the_same_key(tmp_path: Path) -> None:
    frames = make_frames(6)
    spec = VideoProcessorSpec(QWEN, fps=1.0)
    clips = [process_video(part, FrameTimes.of_all(4, None), spec, tmp_path) for part in (frames[:4], frames[2:])]
    assert clips[0].units[1].key == clips[1].units[0].key != clips[0].units[0].key
    still = process_image(np.ascontiguousarray(frames[0]), QWEN, tmp_path)
    [twice] = process_video(frames[[0, 0]], FrameTimes.of_all(2, None), spec, tmp_path).units
    assert twice.key == still.units[0].key


def test_a_video_that_breaks_off_leaves_no_file(tmp_path: Path) -> None:
    def frames():
        yield from make_frames(3)
        raise UserError("broken")

    with pytest.raises(UserError, match="broken"):
        process_video(frames(), FrameTimes.of_all(4, None), VideoProcessorSpec(QWEN), tmp_path)
    assert list(tmp_path.iterdir()) == []


# --- what a script hands over


@pytest.mark.parametrize(
    ("video", "words"),
    [
        (7, "got 'int'"),
        (make_frames(2).astype(np.float32), "a uint8 array of shape"),
        (make_frames(2)[0], "a uint8 array of shape"),
        (make_frames(1)[:0], "between 1 and 8 frames"),
        (make_frames(9), "between 1 and 8 frames"),
        (make_frames(1, 1001, 1000), "1000000 pixels"),
        ((make_frames(2), {"fps": 0}), r"in \[0.001, 10000\]"),
        ((make_frames(2), {"fps": float("nan")}), r"in \[0.001, 10000\]"),
        ((make_frames(2), {"backend": "x"}), "unknown key"),
        ((make_frames(2), {"frames_indices": [1]}), "2 indices"),
        ((make_frames(2), {"frames_indices": [0, 3], "total_num_frames": 3}), "above 3"),
        (b"x" * 101, "at most 100 bytes"),
    ],
)
def test_objects_that_are_refused(video: object, words: str) -> None:
    with pytest.raises(UserError, match=words):
        video_source_of_object(video, max_pixels=1_000_000, max_frames=8, max_bytes=100)


def test_arrays_with_and_without_times() -> None:
    frames, bounds = make_frames(2), {"max_pixels": 10_000, "max_frames": 8, "max_bytes": 100}
    bare = video_source_of_object(frames, **bounds)
    assert (bare.kind, bare.shape, bare.payload) == ("rgb", frames.shape, frames.tobytes())
    assert bare.times == FrameTimes((0, 1), 2, 24.0)
    timed = video_source_of_object((frames, {"fps": 5, "frames_indices": [0, 9], "total_num_frames": 20}), **bounds)
    assert timed.times == FrameTimes((0, 9), 20, 5)
