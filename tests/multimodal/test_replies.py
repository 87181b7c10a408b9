"""Items that a sound worker makes pass; whatever a worker that was taken over may claim instead does not."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from chiasm.multimodal.jobs import Job, Refused
from chiasm.multimodal.processing import process_image, process_video
from chiasm.multimodal.replies import ForgedReplyError, check_item, check_refusal
from chiasm.schema.media import (
    CanvasProcessorSpec,
    CanvasShape,
    FrameTimes,
    TileProcessorSpec,
    VideoProcessorSpec,
)
from tests.multimodal.pictures import make_picture
from tests.multimodal.specs import QWEN

TILES = TileProcessorSpec(patch_size=14, merge_size=2, temporal_patch_size=1, tile_size=56, max_tiles=4)
CANVAS = CanvasProcessorSpec(
    patch_size=14, merge_size=1, temporal_patch_size=1, canvas=CanvasShape(side=4, num_tiles=4)
)
VIDEO = VideoProcessorSpec(QWEN)
SPECS = {"picture": QWEN, "tiles": TILES, "canvas": CANVAS, "video": VIDEO}


def replace(item, **changes):
    return msgspec.structs.replace(item, **changes)


def first_unit(**changes):
    return lambda item: replace(item, units=(replace(item.units[0], **changes), *item.units[1:]))


def last_rows(**changes):
    """The last unit with other pixels; those that are callable are given the true value."""

    def forge(item):
        *units, unit = item.units
        ref = unit.pixels
        new = {name: change(getattr(ref, name)) for name, change in changes.items()}
        return replace(item, units=(*units, replace(unit, pixels=replace(ref, **new))))

    return forge


def all_units(**changes):
    return lambda item: replace(item, units=tuple(replace(unit, **changes) for unit in item.units))


def with_tokens(number):
    return lambda item: replace(all_units(num_tokens=number)(item), num_tokens=number * len(item.units))


FORGERIES = {
    "no units": lambda item: replace(item, units=()),
    "too many units": lambda item: replace(item, units=item.units * 2),
    "a unit less": lambda item: replace(item, units=item.units[1:]),
    "other modality": lambda item: replace(item, modality="image" if item.modality == "video" else "video"),
    "grid of one": all_units(grid=(1, 1)),
    "grid of none": all_units(grid=(0, 0)),
    "negative grid": all_units(grid=(-4, -4)),
    "one grid differs": first_unit(grid=(2, 2)),
    "tokens too many": lambda item: replace(item, num_tokens=item.num_tokens + 7),
    "tokens negative": with_tokens(-5),
    "tokens in masses": with_tokens(10**9),
    "a unit's tokens": first_unit(num_tokens=3),
    "extra rows": first_unit(num_extra=1),
    "padding": first_unit(num_padding=1),
    "short key": first_unit(key="0" * 63),
    "key of other signs": first_unit(key="g" * 64),
    "key with more behind": first_unit(key="0" * 64 + "\n"),
    "fewer rows": last_rows(num_rows=lambda rows: rows - 1),
    "rows in masses": last_rows(num_rows=lambda _: 2**40),
    "rows elsewhere": last_rows(first_row=lambda row: row - 5),
    "other rows": last_rows(row_bytes=lambda _: 1),
    "another file": last_rows(path=lambda path: path + "x"),
    "times missing": lambda item: replace(item, frame_seconds=item.frame_seconds[1:] or (0.0,)),
    "endless time": lambda item: replace(item, seconds_per_slice=math.inf),
    "no time": lambda item: replace(item, frame_seconds=(math.nan,) * (len(item.frame_seconds) or 1)),
    "negative time": lambda item: replace(item, seconds_per_slice=-1.0),
    "canvas": lambda item: replace(item, canvas=(3, 3)),
    "canvas of none": lambda item: replace(item, canvas=(0, 1)),
    "negative canvas": lambda item: replace(item, canvas=(-1, -1)),
    "negative pixels": lambda item: replace(item, num_pixels=-1),
}  # fmt: skip


@pytest.fixture(params=SPECS)
def true_reply(request, tmp_path):
    """(item, job, path) of sound work."""
    spec, path = SPECS[request.param], tmp_path / "a.pixels"
    if isinstance(spec, VideoProcessorSpec):
        frames = np.stack([make_picture("noise", 56, 84)] * 5)
        item = process_video(frames, FrameTimes.of_all(5, 2.0), spec, tmp_path, file_name=path.name)
    else:
        item = process_image(make_picture("noise", 56, 84), spec, tmp_path, file_name=path.name)
    return item, Job("bytes", None, None, spec, path.name, None), path


def test_sound_work_passes(true_reply):
    check_item(*true_reply)


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forgery_does_not(true_reply, forgery):
    item, job, path = true_reply
    forged = FORGERIES[forgery](item)
    assert forged != item
    with pytest.raises(ForgedReplyError):
        check_item(forged, job, path)


@pytest.mark.parametrize("size", [0, -1, 1])
def test_nor_does_a_file_of_another_size(true_reply, size):
    item, job, path = true_reply
    with path.open("r+b") as file:
        file.truncate(0 if size == 0 else path.stat().st_size + size)
    with pytest.raises(ForgedReplyError, match="file"):
        check_item(item, job, path)


def test_nor_does_a_link_or_nothing_in_its_place(true_reply):
    item, job, path = true_reply
    path.rename(path.with_name("b"))
    with pytest.raises(ForgedReplyError, match="not there"):
        check_item(item, job, path)
    path.symlink_to(path.with_name("b"))
    with pytest.raises(ForgedReplyError, match="file"):
        check_item(item, job, path)


def test_nor_does_a_picture_larger_than_any(tmp_path):
    item = process_image(make_picture("noise", 56, 84), QWEN, tmp_path, file_name="a")
    small = msgspec.structs.replace(QWEN, min_pixels=28 * 28, max_pixels=28 * 28)
    with pytest.raises(ForgedReplyError, match="grid"):
        check_item(
            replace(item, units=(replace(item.units[0], grid=(60, 60)),)),
            Job("bytes", None, None, small, "a", None),
            tmp_path / "a",
        )


JOB = Job("bytes", None, None, QWEN, "a", "field")


def test_a_sound_refusal_passes():
    check_refusal(Refused("the image is 1 x 201 pixels.", "field", 400), JOB)


@pytest.mark.parametrize(
    "refused",
    [
        Refused("x" * 301, "field", 400),
        Refused("two\r\nlines", "field", 400),
        Refused("\x1b[2J", "field", 400),
        Refused("\N{RIGHT-TO-LEFT OVERRIDE}", "field", 400),
        Refused("x", "other", 400),
        Refused("x", "field", 200),
        Refused("x", "field", 0),
        Refused("x", "field", 99999),
    ],
)
def test_a_refusal_that_clients_must_not_see_does_not(refused):
    with pytest.raises(ForgedReplyError):
        check_refusal(refused, JOB)
