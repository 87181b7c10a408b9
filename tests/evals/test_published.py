"""ChartQA and MMMU through lm-eval, with small data in the data sets' own forms."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from chiasm.cli.main import main
from chiasm.errors import UserError
from chiasm.evals.charts.examples import Example, held_out_seed, make_example
from tests.docs.pasted import pasted
from tests.e2e.servers import Server

pytestmark = pytest.mark.usefixtures("forked_children")

OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
METRICS = (
    "exact_match",
    "relaxed_accuracy",
    "anywhere_accuracy",
    "explicit_prompt_relaxed_correctness",
    "anywhere_in_answer_relaxed_correctness",
)


def png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def charts(count: int) -> list[Example]:
    examples = (make_example(held_out_seed(index)) for index in range(100))
    return [example for example in examples if len(example.images) == 1][:count]


@pytest.fixture(scope="module")
def chartqa(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four charts as HuggingFaceM4/ChartQA has its own."""
    rows = [
        {"image": {"bytes": png(e.images[0]), "path": None}, "query": e.question, "label": [e.answer]}
        for e in charts(4)
    ]
    folder = tmp_path_factory.mktemp("chartqa") / "data"
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(rows), folder / "test-00000-of-00001.parquet")
    return folder.parent


def evaluate(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json", str(tmp_path / "report.json")]) == 0
    report: dict[str, Any] = json.loads((tmp_path / "report.json").read_text())
    return report


def test_chartqa_by_mode(chartqa: Path, tmp_path: Path) -> None:
    line = pasted("eval chartqa MODEL", {"MODEL": None}, "--data", str(chartqa), "--limit", "3")
    report = evaluate(tmp_path, *line)
    assert set(report["scores"]) == {"weights x2", "data x2"}
    assert report["num_different"] == 0
    for scores in report["scores"].values():
        assert set(scores) == set(METRICS)
        assert {score["asked"] for score in scores.values()} == {3}


def test_chartqa_by_a_server(chartqa: Path, tmp_path: Path) -> None:
    with Server(None, tmp_path / "log") as server:
        stand_ins = {"NAME": "chart-reader", "http://127.0.0.1:8000": server.url}
        report = evaluate(tmp_path, *pasted("eval chartqa NAME", stand_ins, "--data", str(chartqa), "--limit", "2"))
    assert set(report["scores"]) == {server.url}
    assert report["scores"][server.url]["relaxed_accuracy"]["asked"] == 2


def test_charts_that_are_drawn_need_no_data(tmp_path: Path) -> None:
    report = evaluate(tmp_path, *pasted("eval chartqa --data charts", {}, "--limit", "2"))
    assert report["scores"]["auto x1"]["exact_match"]["asked"] == 2


def test_mmmu_from_files(tmp_path: Path) -> None:
    picture = {"bytes": png(charts(1)[0].images[0]), "path": None}
    row = {
        "question": "Look at <image 1>. Which is it?",
        "question_type": "multiple-choice",
        "options": "['Red', 'Blue']",
        "answer": "A",
        "image_1": picture,
        "image_2": None,
    }
    (tmp_path / "Accounting").mkdir()
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "Accounting" / "validation-00000-of-00001.parquet")
    stand_ins = {"MODEL": None, "folder/with/Accounting/and/so/on": str(tmp_path)}
    report = evaluate(tmp_path, *pasted("eval mmmu", stand_ins))
    assert report["scores"]["auto x1"]["acc"]["asked"] == 1


def test_lm_evals_own_command_line_knows_the_model(chartqa: Path, tmp_path: Path) -> None:
    task = {
        "task": "colours", "dataset_path": "parquet", "test_split": "test", "output_type": "generate_until",
        "dataset_kwargs": {"data_files": {"test": str(chartqa / "data" / "test-00000-of-00001.parquet")}},
        "doc_to_text": "{{query}}", "doc_to_target": "{{label[0]}}",
        "generation_kwargs": {"until": [], "max_gen_toks": 8},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }  # fmt: skip
    (tmp_path / "colours.yaml").write_text(json.dumps(task))
    line = ["--model", "chiasm-vlm", "--tasks", "colours", "--include_path", str(tmp_path), "--limit", "2"]
    command = [sys.executable, "-m", "chiasm.evals.harness", *line]
    done = subprocess.run(
        [*command, "--model_args", "dtype=float32,tensor_parallel_size=2"],
        env={**os.environ, **OFFLINE}, capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "colours" in done.stdout


def test_rows_of_files_are_brought_into_the_form_of_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One answer may stand for a list, paths of pictures begin beside the file, and no copy is kept in the cache."""
    from chiasm.evals.tasks import datasets, loaded_tasks

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "bars.png").write_bytes(png(charts(1)[0].images[0]))
    rows = [{"image": "bars.png", "query": "Which?", "label": label} for label in ("Blue", ["Red", "Green"], 14)]
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with loaded_tasks("chartqa", str(tmp_path / "test.jsonl"), None) as [task]:
        docs = list(task.test_docs())
        assert [doc["label"] for doc in docs] == [["Blue"], ["Red", "Green"], ["14"]]
        assert [task.doc_to_target(doc) for doc in docs] == ["Blue", "Red", "14"]
        assert docs[0]["image"].size == charts(1)[0].images[0].size
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"question": "Which?", "answer": "C"}, "Row 1 has no image nor query nor label; it has 'question, answer'"),
        ({"image": None, "query": "Which?", "label": ["C"]}, "Row 1 has no image;"),
        ({"image": "a.png", "query": "Which?", "label": []}, "Row 1 has no label;"),
    ],
)
def test_rows_that_lack_something_are_named(tmp_path: Path, row: dict[str, Any], said: str) -> None:
    from chiasm.evals.tasks import loaded_tasks

    (tmp_path / "test.jsonl").write_text(json.dumps(row))
    with pytest.raises(UserError, match=said), loaded_tasks("chartqa", str(tmp_path), None):
        pass


def test_data_that_is_not_there_is_said_before_a_model_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "chartqa", "no-such-model", "--data", "/nowhere"]) == 2
    assert "The data set must be" in capsys.readouterr().err
