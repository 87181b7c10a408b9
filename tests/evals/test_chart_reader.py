"""The checkpoint that comes with the package: right answers, in all ways of running, as Hugging Face's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from chiasm import LLM
from chiasm.cli.main import main
from chiasm.config.built_in import BUILT_IN_FOLDER
from chiasm.evals.charts.examples import Example, held_out_seed, make_example
from chiasm.evals.runner import ALL_SETUPS, LONGEST_ANSWER, ask_all, conversation, run_charts_eval, score
from chiasm.evals.served import ask_server
from tests.docs.pasted import pasted
from tests.e2e.servers import Server
from training.compare import differences

pytestmark = pytest.mark.usefixtures("forked_children")

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


def test_the_report_is_shown_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.json"
    line = ["eval", "charts", "--limit", "2", "-tp", "1", "--mm-encoder-tp-mode", "auto", "--json", str(file)]
    assert main(line) == 0
    assert json.loads(file.read_text())["scores"]["auto x1"]["all"]["asked"] == 2
    assert capsys.readouterr().out.splitlines()[-1].startswith("question: ")


def test_a_server_gives_the_same_answers(llm: LLM, examples: list[Example], tmp_path: Path) -> None:
    with Server(None, tmp_path / "log") as server:
        greedy = {"temperature": 0, "max_tokens": LONGEST_ANSWER}
        conversations = [conversation(example) for example in examples[:16]]
        assert ask_server(server.url, None, conversations, [greedy] * 16) == ask_all(llm, examples[:16])
        line = pasted("eval charts --base-url", {"http://127.0.0.1:8000": server.url}, "--limit", "4")
        assert main([*line, "--json", str(tmp_path / "r.json")]) == 0
    assert json.loads((tmp_path / "r.json").read_text())["scores"][server.url]["all"]["asked"] == 4


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "No answer from http://127.0.0.1:9/v1/models: ConnectError"),
        (["--base-url", "127.0.0.1:9"], "base-url must be an http(s) URL, got '127.0.0.1:9'"),
        (["--dtype", "float32"], "dtype can't be given with base-url"),
        (["--tensor-parallel-size", "2"], "tensor-parallel-size can't be given with base-url"),
    ],
)
def test_what_cannot_be_asked_of_a_server_is_said(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", "charts", "--base-url", "http://127.0.0.1:9", "--limit", "1", *flags]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("task", ["charts", "chartqa"])
def test_an_unknown_mode_is_refused_before_any_runs(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    modes = ["--mm-encoder-tp-mode", "data", "--mm-encoder-tp-mode", "rows"]
    assert main(["eval", task, *modes]) == 2
    assert "mm-encoder-tp-mode must be one of weights, data, auto, got 'rows'" in capsys.readouterr().err


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
