"""The checkpoint that comes with the package: right answers, in all ways of running, as Hugging Face's."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from chiasm import LLM
from chiasm.config.built_in import BUILT_IN_FOLDER
from chiasm.evals.charts.examples import Example, held_out_seed, make_example
from chiasm.evals.runner import ALL_SETUPS, Setup, ask_all, run_charts_eval, score
from training.compare import differences

ROOT = Path(__file__).parents[2]
_FLOOR = 0.75
"""Of the accuracy on the first charts; the model card has what was measured on many."""


@pytest.fixture(scope="module")
def examples() -> list[Example]:
    return [make_example(held_out_seed(index)) for index in range(60)]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM() as llm:
        yield llm


def test_its_answers_are_right(llm: LLM, examples: list[Example]) -> None:
    scores = score(examples, ask_all(llm, examples))
    assert scores["all"].accuracy >= _FLOOR, scores


def test_hugging_face_gives_the_same_answers(examples: list[Example]) -> None:
    assert not differences(examples[:24])


def test_all_ways_of_running_agree() -> None:
    report = run_charts_eval(limit=16)
    assert set(report.scores) == {str(setup) for setup in ALL_SETUPS}
    assert report.num_different == 0


def test_the_report_on_disk(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    report = run_charts_eval(limit=2, json_file=file, setups=[Setup("auto", 1)])
    assert '"auto x1"' in file.read_text()
    assert report.as_text().endswith("All 1 ways of running gave the same 2 answers.")


def test_a_wheel_holds_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, check=True, timeout=60)
    [wheel] = tmp_path.iterdir()
    held = set(zipfile.ZipFile(wheel).namelist())
    files = [path for path in BUILT_IN_FOLDER.rglob("*") if path.is_file()]
    assert {"model.safetensors", "README.md"} <= {path.name for path in files}
    assert {path.relative_to(ROOT).as_posix() for path in files} <= held


def test_it_is_small() -> None:
    assert sum(path.stat().st_size for path in BUILT_IN_FOLDER.rglob("*")) < 20e6
