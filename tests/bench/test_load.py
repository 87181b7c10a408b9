"""The benchmarks that put a load on servers, with numbers as small as can be."""

from __future__ import annotations

import numpy as np
import pytest

from bench import mixed_load, sliding_window
from bench.media import cut_windows, encode_clip, moving_frames
from chiasm.multimodal.decode_video import VideoLimits, open_clip
from tests.checkpoints.common import SavedModel

pytestmark = pytest.mark.usefixtures("forked_children")


def _rows(printed: str) -> list[list[str]]:
    """Cells of the tables, without what holds them together."""
    lines = [line for line in printed.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def _decoded(file: bytes) -> np.ndarray:
    with open_clip(file, VideoLimits(max_pixels=10**6, max_seconds=60)) as clip:
        assert clip.fps == 2
        return np.stack(list(clip.frames(range(clip.num_frames))))


def test_a_frame_has_the_same_pixels_in_every_window() -> None:
    clip = encode_clip(moving_frames(16, 64, seed=0), fps=2, keyframe_every=2)
    whole, windows = _decoded(clip), [_decoded(window) for window in cut_windows(clip, 8, 2)]
    assert len(whole) == 16
    assert len(windows) == 5
    for index, window in enumerate(windows):
        np.testing.assert_array_equal(window, whole[2 * index : 2 * index + 8])
    assert len({frame.tobytes() for frame in whole}) == 16


def test_windows_share_three_quarters_of_their_units(
    qwen2_5_vl: SavedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["--frames", "8", "--side", "56", "--windows", "2", "--repeats", "1", "--dtype", "float32"]
    sliding_window.main([str(qwen2_5_vl.folder), *line])
    printed = capsys.readouterr().out
    _, on, off = _rows(printed)
    assert (on[0], *on[3:]) == ("on", "6", "8")
    assert (off[0], *off[3:]) == ("off", "0", "8")
    assert "same answers: 2 of 2" in printed


def test_windows_move_on_by_whole_slices(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        sliding_window.main(["FOLDER", "--frames", "12"])
    assert "--frames 12 must be a multiple of 8" in capsys.readouterr().err


def test_every_mode_gets_the_same_mixed_load(qwen2_5_vl: SavedModel, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--min-side", "28", "--max-side", "84", "--frames", "4", "--frame-side", "56"]
    line = ["--requests", "3", "--rounds", "1", "--tokens", "3", "--dtype", "float32", *sizes]
    mixed_load.main([str(qwen2_5_vl.folder), *line])
    printed = capsys.readouterr().out
    head, *figures = _rows(printed)
    assert [row[0] for row in figures[:3]] == ["weights", "data", "auto"]
    assert head[1:] == [row[0] for row in figures[4:]]
    assert figures[-1][1] == "weights", "between tokens auto is held against weights"
    first, rest = printed.splitlines()[:2]
    capacities = [float(part.split()[-1]) for part in first.removeprefix("capacity, requests/s:").split(",")]
    assert float(rest.split(", ")[1].split()[0]) == pytest.approx(0.8 * max(capacities), abs=2e-3)


def test_a_round_can_be_had_again_and_is_unlike_the_others() -> None:
    line = [
        "FOLDER",
        "--requests",
        "20",
        "--min-side",
        "20",
        "--max-side",
        "80",
        "--frames",
        "2",
        "--frame-side",
        "16",
    ]
    options, _ = mixed_load._parser().parse_known_args(line)
    one, again, other = (mixed_load.MixedLoad(options, seed) for seed in (1, 1, 2))
    assert one.contents == again.contents
    assert list(one.times) == list(again.times)
    kinds = [content[0]["type"] for content in one.contents]
    assert [kinds[:10].count("video_url"), kinds[10:].count("video_url")] == [1, 1]
    texts = [str(content) for load in (one, other) for content in load.contents]
    assert len(set(texts)) == 40, "no content comes twice"
