"""The time of a batch, and what a profile of one tells."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chiasm import LLM, SamplingParams
from chiasm.cli.main import main
from chiasm.errors import UserError

pytestmark = pytest.mark.usefixtures("forked_children")

BATCH = ["--batch-size", "2", "--input-len", "5", "--output-len", "3", "--image-size", "56x84", "--num-images", "2"]
FEW = ["--num-iters-warmup", "1", "--num-iters", "2"]


def spans(trace: Path, name: str) -> list[float]:
    """Microseconds of the blocks of that name in a trace."""
    events = json.loads(trace.read_text())["traceEvents"]
    return [event["dur"] for event in events if event.get("ph") == "X" and event["name"] == name]


def test_a_batch_is_timed_and_profiled_on_every_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures, folder = tmp_path / "latency.json", tmp_path / "new" / "traces"
    line = ["bench", "latency", "-tp", "2", *BATCH, *FEW, "--json", str(figures), "--profile", str(folder)]
    assert main(line) == 0
    found = json.loads(figures.read_text())
    assert len(found["latencies"]) == 2
    assert found["avg_latency"] == pytest.approx(sum(found["latencies"]) / 2)
    assert min(found["latencies"]) <= found["median_latency"] <= max(found["latencies"])
    assert found["percentiles"]["50"] == pytest.approx(found["median_latency"])
    profile = found["profile"]
    assert {file.name for file in folder.iterdir()} == {"rank-0.json", "rank-1.json"}
    for rank in profile["ranks"]:
        trace, phases = Path(rank["trace"]), rank["phase_seconds"]
        assert trace == folder / f"rank-{rank['rank']}.json"
        for phase in ("vision", "language model", "sampling"):
            assert sum(spans(trace, phase)) / 1e6 == pytest.approx(phases[phase], rel=0.01, abs=1e-4)
        assert len(spans(trace, "language model")) == profile["num_steps"]
        assert min(phases["vision"], phases["language model"]) > 0
        assert sum(phases.values()) + profile["schedule_seconds"] <= 1.1 * profile["step_seconds"]
        assert "aten::embedding" in {operator["name"] for operator in rank["operators"]}
    printed = capsys.readouterr().out
    assert "5 tokens of text and 2 images of 56x84, 3 tokens each" in printed
    for name in ("mean", "p99", "schedule", "vision", "language model", "sampling", "rest of the step", "rank 1"):
        assert name in printed


def test_nothing_is_profiled_unless_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = tmp_path / "latency.json"
    assert main(["bench", "latency", *BATCH, "--num-images", "0", *FEW, "--json", str(figures)]) == 0
    assert json.loads(figures.read_text())["profile"] is None
    printed = capsys.readouterr().out
    assert "images" not in printed
    assert "operators" not in printed


def test_a_folder_that_cannot_be_written_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["bench", "latency", "no-such-model", "--profile", str(tmp_path / "file" / "traces")]) == 2
    assert f"profile {tmp_path}/file/traces can't be written: Not a directory" in capsys.readouterr().err


@pytest.mark.parametrize("size", ["448", "0x448", "448x", "axb", "448x448x3"])
def test_an_image_has_a_height_and_a_width(size: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "latency", "--image-size", size]) == 2
    assert "image_size" in capsys.readouterr().err


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_profile_that_fails_ends_on_all_ranks(num_ranks: int, tmp_path: Path) -> None:
    sampling = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    last = f"rank-{num_ranks - 1}.json"
    with LLM(tensor_parallel_size=num_ranks) as llm:
        with pytest.raises(UserError, match="no profile"):
            llm.stop_profile(tmp_path)
        llm.start_profile()
        with pytest.raises(UserError, match="already"):
            llm.start_profile()
        [answer] = llm.generate("What is this?", sampling, use_tqdm=False)
        (tmp_path / "bad" / last).mkdir(parents=True)
        with pytest.raises(UserError, match=f"{last} can't be written: Is a directory"):
            llm.stop_profile(tmp_path / "bad")
        llm.start_profile()
        assert llm.generate("What is this?", sampling, use_tqdm=False)[0].outputs[0].text == answer.outputs[0].text
        profile = llm.stop_profile(str(tmp_path))
    assert profile.num_steps == 2
    assert len(profile.ranks) == num_ranks
    assert all(Path(rank.trace).stat().st_size for rank in profile.ranks)
    assert all(rank.phase_seconds["vision"] == 0 for rank in profile.ranks)
