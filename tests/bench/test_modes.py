"""``chiasm bench modes`` and ``throughput`` with the built-in model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from chiasm.bench.modes import ModesBenchmark
from chiasm.bench.serve.command import ServeBenchmark
from chiasm.bench.server import ServerProcess
from chiasm.cli.main import main
from chiasm.errors import UserError
from tests.docs.pasted import pasted

pytestmark = pytest.mark.usefixtures("forked_children")

FEW = ["--num-prompts", "4", "--num-warmups", "0", "--temperature", "0"]


def test_modes_are_measured_in_turn_and_answer_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    modes = ["--mm-encoder-tp-mode", "weights", "--mm-encoder-tp-mode", "data"]
    small = ["--rounds", "1", *FEW, "--output-len", "8", "--request-rate", "100"]
    line = pasted("bench modes MODEL", {"MODEL": None}, *modes, *small, "--result-dir", str(tmp_path))
    assert main([*line, "--", "--max-num-seqs", "4"]) == 0
    printed = capsys.readouterr()
    assert "weights (base) | data" in printed.out
    assert printed.err.splitlines() == [f"round 1 of 1: --mm-encoder-tp-mode {mode}" for mode in ("weights", "data")]
    results = [json.loads((tmp_path / f"{mode}-0.json").read_text()) for mode in ("weights", "data")]
    assert results[0]["generated_texts"] == results[1]["generated_texts"]
    assert all(results[0]["generated_texts"])
    assert [(found["label"], found["request_rate"]) for found in results] == [("weights", 100), ("data", 100)]


def test_each_round_begins_with_another_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModesBenchmark, "_run_once", lambda _, mode: {"mode": mode})
    kept: list[tuple[int, str]] = []
    benchmark = ModesBenchmark([], ServeBenchmark("http://127.0.0.1", []), modes=("weights", "data"), rounds=2)
    groups = benchmark.run(lambda _: None, lambda mode, number, _: kept.append((number, mode)))
    assert kept == [(0, "weights"), (0, "data"), (1, "data"), (1, "weights")]
    assert [(group.name, [run["mode"] for run in group.runs]) for group in groups] == [
        ("weights", ["weights"] * 2), ("data", ["data"] * 2),
    ]  # fmt: skip


@pytest.mark.parametrize(("flags", "num_off"), [([], 3), (["--caches"], 0)])
def test_caches_are_off_unless_asked_for(monkeypatch: pytest.MonkeyPatch, flags: list[str], num_off: int) -> None:
    started: list[Sequence[str]] = []

    def run_once(benchmark: ModesBenchmark, _mode: str) -> dict[str, Any]:
        started.append(benchmark.arguments)
        return {"request_throughput": 1.0}

    monkeypatch.setattr(ModesBenchmark, "_run_once", run_once)
    assert main(["bench", "modes", "a-model", "--rounds", "1", *FEW, *flags]) == 0
    assert len(started) == 3
    for arguments in started:
        off = {"--no-enable-prefix-caching", "--mm-encoder-cache-gb", "--mm-processor-cache-gb"}.intersection(
            arguments
        )
        assert arguments[0] == "a-model"
        assert len(off) == num_off
        assert arguments.count("0") == max(0, num_off - 1)


def test_a_data_set_that_is_not_there_is_said_before_a_server_starts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "modes", "--dataset-name", "custom", "--dataset-path", "none.jsonl"]) == 2
    assert capsys.readouterr().err.startswith("chiasm: error: The data set must be")


def test_a_server_that_does_not_start_is_told_of() -> None:
    with pytest.raises(UserError, match="max_num_seqs must be"), ServerProcess(["--max-num-seqs", "0"], 60):
        pass


def test_throughput_counts_what_was_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t.json"
    line = ["bench", "throughput", "--num-prompts", "5", "--ignore-eos", "--output-len", "4", "--disable-tqdm"]
    assert main([*line, "--output-json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert (found["num_requests"], found["num_output_tokens"]) == (5, 20)
    assert found["total_num_tokens"] == found["num_prompt_tokens"] + 20
    assert found["num_units"] >= 5
    assert found["requests_per_second"] == pytest.approx(5 / found["elapsed_time"])
    assert 0 < sum(found["encoder_seconds"]) < found["elapsed_time"]
    assert capsys.readouterr().out.startswith("Throughput: ")
