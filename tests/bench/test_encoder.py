"""The encoder's benchmark: its rows, its table, its trace and its command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chiasm.bench.baseline import whole_items
from chiasm.bench.encoder import MODES, BatchResult, Measured, Row, plan_mode, predict, row_of
from chiasm.bench.machines import QWEN3_VL_8B, gpu_rates
from chiasm.bench.report import as_text
from chiasm.bench.trace import Block, Chart, predicted_chart, write_trace
from chiasm.bench.workloads import NAMES, Workload, find_workloads, image, units_of, video
from chiasm.cli.main import main
from chiasm.errors import UserError
from chiasm.schema.media import CanvasShape
from chiasm.vision.cost import CostModel
from chiasm.vision.plan import plan_vision
from tests.checkpoints.common import SavedModel
from tests.checkpoints.llama4 import save_llama4
from tests.published.glm import GLM
from tests.published.llama import LLAMA4, MLLAMA
from tests.published.qwen import QWEN2_VL, QWEN3_VL

pytestmark = pytest.mark.usefixtures("forked_children")

RATES = gpu_rates(tflops=500, link_gbs=400, link_us=10)
SMALL = Workload("small", (((1, 16, 16), (3, 8, 8)),))


def model(num_ranks: int) -> CostModel:
    return CostModel(QWEN3_VL_8B, RATES, num_ranks)


@pytest.mark.parametrize("name", NAMES)
def test_named_workloads_are_always_the_same_and_fit_merge_blocks(name: str) -> None:
    (workload,) = find_workloads(name)
    assert [workload] == find_workloads(name)
    for batch in workload.batches[:50]:
        units_of(batch, QWEN3_VL_8B)


def test_tiles_cover_an_image_and_an_overview_comes_with_several() -> None:
    shape = msgspec.structs.replace(QWEN3_VL_8B, tile_side=24, can_cut_rows=False)
    batch = ((1, 24, 24), (1, 24, 26), (1, 64, 64), (3, 20, 30))
    found = units_of(batch, shape)
    assert [len(units) for units in found] == [1, 3, 10, 9]
    assert {unit.grid for units in found for unit in units} == {(24, 24)}
    assert {unit.num_tokens for units in found for unit in units} == {144}


def test_the_random_mix_is_as_described() -> None:
    (workload,) = find_workloads("random-mix")
    items = [item for batch in workload.batches for item in batch]
    videos = [item for item in items if item[0] > 1]
    assert len(workload.batches) == 1000
    assert {len(batch) for batch in workload.batches} == set(range(1, 17))
    assert len(videos) / len(items) == pytest.approx(0.2, abs=0.02)
    assert {item[0] for item in videos} == set(range(4, 49))
    sizes = sorted(rows * columns for frames, rows, columns in items if frames == 1)
    assert 230 < sizes[0] < 300
    assert 15000 < sizes[-1] < 17000
    assert sizes[len(sizes) // 2] == pytest.approx(2048, rel=0.1)


def test_images_have_about_so_many_patches() -> None:
    assert image(4096) == (1, 64, 64)
    assert video(32, 1200) == (32, 30, 40)
    _, rows, columns = image(1000, aspect=2.0)
    assert rows % 2 == columns % 2 == 0
    assert rows * columns == pytest.approx(1000, rel=0.05)


def test_pictures_are_put_on_the_tiles_on_which_they_fit_best() -> None:
    shape = msgspec.structs.replace(QWEN3_VL_8B, merge_size=1, canvas=CanvasShape(40, 4))
    ((one,), (two,), frames) = units_of([(1, 10, 20), (1, 30, 90), (2, 128, 128)], shape)
    assert (one.grid, two.grid, [unit.grid for unit in frames]) == ((40, 40), (40, 120), [(80, 80)] * 2)
    assert {unit.num_rows for unit in (one, two, *frames)} == {6432}
    assert len(predict(Workload("tiles", (((1, 64, 64), (1, 30, 90)),)), CostModel(shape, RATES, 2))) == len(MODES)


def test_whole_items_stay_together_the_largest_first() -> None:
    items = units_of([(1, 8, 8), (4, 8, 8), (3, 8, 8)], QWEN3_VL_8B)
    plan = whole_items(items, 2)
    assert [one.shares[0].rank for one in plan] == [1, 0, 0, 0, 0, 1, 1, 1]
    assert not any(one.is_cut for one in plan)


def test_a_row_for_every_mode() -> None:
    rows = predict(SMALL, model(2))
    assert [row.mode for row in rows] == list(MODES)
    for row in rows:
        assert (row.workload, row.ranks, row.measured_seconds, row.peak_memory_bytes) == ("small", 2, None, None)
        assert 0 < row.efficiency < 1
        assert row.bytes > 0
        assert row.reasons


def test_heads_that_do_not_divide_leave_out_sharded_weights() -> None:
    rows = predict(SMALL, model(3))
    assert [row.mode for row in rows] == ["whole-items", "data", "auto"]
    assert as_text(rows).splitlines()[1].split()[-1] == "-"


def test_what_is_measured_stands_beside_what_is_predicted() -> None:
    items = units_of([(1, 64, 64)], QWEN3_VL_8B)
    rows = []
    for mode in MODES:
        plan = plan_mode(mode, items, model(2))
        runs = [Measured(seconds, 3.0, 4_000_000, (2**20, peak * 2**20)) for seconds, peak in [(1.5, 3), (2.5, 2)]]
        rows.append(row_of("small", mode, [BatchResult(plan, model(2), run) for run in runs]))
        assert rows[-1].predicted_seconds == plan.predicted_seconds
    assert all(row.efficiency == pytest.approx((1 + 0.6) / 2) for row in rows)
    assert all(row.measured_seconds == 2.0 for row in rows)
    assert all(row.peak_memory_bytes == (2**20, 3 * 2**20) for row in rows)
    lines = [line.split() for line in as_text(rows).splitlines()]
    assert ["measured", "ms", *["2000.00"] * 4] in lines
    assert ["measured", "MB", "-", "-", "4.0", "-"] in lines, "only auto cuts"
    assert ["peak", "MiB", "a", "rank", *["3"] * 4] in lines


def test_a_trace_has_a_track_for_each_rank_and_no_overlaps() -> None:
    costs = model(4)
    units = [unit for item in units_of([(1, 64, 64), (1, 20, 20)], QWEN3_VL_8B) for unit in item]
    plan = plan_vision(units, num_ranks=4, mode="auto", model=costs)
    cost = costs.price(plan.assignments)
    chart = predicted_chart("mix", cost, costs)
    for rank in range(4):
        own = sorted(block for block in chart.blocks if block.rank == rank)
        ordered = sorted(own, key=lambda block: block.start)
        assert {block.activity for block in own} == {"compute", "exchange", "gather"}
        ends = [block.start + block.seconds for block in ordered]
        starts = [*(block.start for block in ordered[1:]), cost.makespan]
        assert all(end <= start * (1 + 1e-9) for end, start in zip(ends, starts, strict=True))
        assert sum(block.seconds for block in own if block.activity == "compute") == pytest.approx(
            cost.compute_seconds[rank]
        )


def test_a_trace_is_in_the_chrome_format(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    write_trace(file, [Chart("a", (Block(0, "compute", 0.5, 1.0),)), Chart("b", (Block(1, "gather", 0, 2e-6),))])
    events = json.loads(file.read_text())["traceEvents"]
    assert [event["args"]["name"] for event in events if event["ph"] == "M"] == ["a", "rank 0", "b", "rank 1"]
    spans = [event for event in events if event["ph"] == "X"]
    assert [(span["pid"], span["tid"], span["name"], span["ts"], span["dur"]) for span in spans] == [
        (0, 0, "compute", 0.5e6, 1e6),
        (1, 1, "gather", 0, 2),
    ]


def test_the_command_prints_the_modes_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows_file, trace_file = tmp_path / "rows.json", tmp_path / "trace.json"
    line = ["bench", "encoder", "--simulate", "8", "--simulate", "2", "--workload", "one-image"]
    assert main([*line, "--json", str(rows_file), "--trace", str(trace_file)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == list(MODES)
    assert printed[1].split()[:4] == ["one-image,", "8", "ranks", "efficiency"]
    rows = json.loads(rows_file.read_text())
    assert [(row["mode"], row["ranks"]) for row in rows] == [(mode, n) for n in (8, 2) for mode in MODES]
    assert set(rows[0]) == set(Row.__struct_fields__)
    assert len({event["pid"] for event in json.loads(trace_file.read_text())["traceEvents"]}) == len(rows)


def test_a_file_that_can_no_longer_be_written_costs_no_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    line = ["bench", "encoder", "--simulate", "2", "--workload", "one-image", "--json", str(tmp_path / "rows.json")]
    assert main(line) == 2
    told = capsys.readouterr()
    assert told.out.split()[: len(MODES)] == list(MODES)
    assert f"json {tmp_path / 'rows.json'} can't be written: No space left on device" in told.err
    assert not list(tmp_path.iterdir()), "finding out leaves nothing behind"


def test_a_faster_link_cuts_better(capsys: pytest.CaptureFixture[str]) -> None:
    def efficiency(*options: str) -> float:
        assert main(["bench", "encoder", "--simulate", "8", "--workload", "one-image", *options]) == 0
        return float(capsys.readouterr().out.splitlines()[1].split()[-2])

    assert efficiency("--link-us", "1", "--link-gbs", "900") > efficiency() > efficiency("--tflops", "2000")


def test_a_file_of_grids_and_the_tower_of_a_checkpoint(
    qwen2_5_vl: SavedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.json"
    file.write_text("[[1, 16, 16], [5, 8, 12]]")
    assert main(["bench", "encoder", str(qwen2_5_vl.folder), "--simulate", "2", "--workload", str(file)]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("mine, 2 ranks")


@pytest.mark.parametrize(
    "raw",
    [
        QWEN2_VL["Qwen2-VL-7B-Instruct"],
        QWEN2_VL["Qwen2.5-VL-7B-Instruct"],
        QWEN3_VL["Qwen3-VL-8B-Instruct"],
        GLM["GLM-4.5V"],
        LLAMA4["Llama-4-Scout-17B-16E-Instruct"],
        MLLAMA["Llama-3.2-11B-Vision-Instruct"],
    ],
    ids=lambda raw: raw["model_type"],
)
def test_a_config_is_enough_to_simulate(
    raw: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert main(["bench", "encoder", str(tmp_path), "--simulate", "8", "--workload", "nine-images"]) == 0
    whole_items, _, auto = capsys.readouterr().out.splitlines()[1].split()[4:7]
    assert float(auto) > 1.3 * float(whole_items)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("[]", "must have items"),
        ("[[1, 0, 2]]", "at least 1"),
        ("[[1, 3, 2]]", "multiples of 2"),
        ("[[1, 2]]", "must be a list of"),
        ("{", "must be a list of"),
        ("[[100000000, 2, 2]]", "at most 10000 images and frames of 4194304 patches in all, got 100000000 "),
        ("[[1, 4096, 4096]]", "at most 10000 images and frames"),
    ],
)
def test_a_file_that_is_no_workload(content: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.json"
    file.write_text(content)
    with pytest.raises(UserError, match=told):
        predict(find_workloads(str(file))[0], model(2))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (["--simulate", "2", "--workload", "many-images"], "must be one of one-image, "),
        (["--simulate", "2", "--workload", "absent.json"], "can't be read"),
        (["--simulate", "2", "--tflops", "0"], "tflops must be in [0.001, 1e+06], got 0"),
        (["--simulate", "2", "--tflops", "inf"], "tflops must be in"),
        (["--simulate", "2", "--tflops", "1e-320"], "tflops must be in"),
        (["--simulate", "2", "--link-gbs", "-1"], "link-gbs must be in"),
        (["--simulate", "2", "--link-gbs", "1e300"], "link-gbs must be in"),
        (["--simulate", "2", "--link-us", "nan"], "link-us must be in [0, 1e+06]"),
        (["--simulate", "2", "-tp", "2"], "tensor-parallel-size can't be given with simulate"),
        (["--simulate", "2", "--repeats", "5"], "repeats can't be given with simulate"),
        (["--simulate", "2", "--dtype", "auto"], "dtype can't be given with simulate"),
        (["--link_us", "10"], "link-us can only be given with simulate"),
        (["--tflops", "500"], "tflops can only be given with simulate"),
        (["--simulate", "2", "--json", "/absent/rows.json"], "json /absent/rows.json can't be written: No such file"),
        (["--trace", "/"], "trace / can't be written: Is a directory"),
        (["absent", "--simulate", "2"], "neither a folder nor a hub name"),
    ],
)
def test_what_the_command_refuses(line: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "encoder", *line]) == 2
    assert told in capsys.readouterr().err


def test_a_tower_over_tiles_is_listed_with_whole_units_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, rows_file = save_llama4(tmp_path).folder, tmp_path / "rows.json"
    line = ["bench", "encoder", str(folder), "--simulate", "4", "--workload", "small", "--json", str(rows_file)]
    assert main(line) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == list(MODES)
    rows = {(row["workload"], row["mode"]): row["efficiency"] for row in json.loads(rows_file.read_text())}
    for name in ("one-image", "short-video", "mix-of-12"):
        assert rows[name, "auto"] == rows[name, "data"] >= rows[name, "whole-items"]
