"""``chiasm generate``: the question and the pictures that reach the engine, and the answer as it comes."""

from __future__ import annotations

from pathlib import Path

import pytest

from chiasm.cli.main import main
from chiasm.config.built_in import BUILT_IN_FOLDER
from chiasm.errors import EngineDeadError, UserError
from chiasm.schema.chat import ChatMessage, ImagePart, TextPart
from chiasm.schema.sampling import SamplingParams
from tests.cli.conftest import Started


def test_an_answer_about_pictures(
    started: Started, checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "a.png"
    picture.write_bytes(b"pixels")
    url = "https://example.org/b.jpg"
    line = ["generate", checkpoint, "--image", str(picture), "--image", url, "What is it?", "-tp", "2"]
    assert main([*line, "--temperature", "0", "--max-tokens", "3"]) == 0
    assert capsys.readouterr().out == "Hello big world\n"
    ((message,), _) = started.engine.conversations[0]
    assert message == ChatMessage(
        "user",
        (
            ImagePart("data:image/png;base64,cGl4ZWxz", f"--image {picture}"[:88]),
            ImagePart(url, f"--image {url}"),
            TextPart("What is it?"),
        ),
        "question",
    )
    assert started.engine.sampling == [SamplingParams(temperature=0.0, max_tokens=3)]
    assert started.configs[0][0].tensor_parallel_size == 2
    assert started.engine.stops == 1
    assert started.engine.is_idle


def test_a_picture_that_is_not_there(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", checkpoint, "--image", "no.png", "What?"]) == 2
    assert capsys.readouterr().err == "chiasm: error: image 'no.png' can't be read: No such file or directory.\n"


@pytest.mark.parametrize(
    ("error", "status"), [(UserError("The picture is broken."), 2), (EngineDeadError("A rank was killed."), 1)]
)
def test_errors_of_the_engine(
    started: Started, checkpoint: str, capsys: pytest.CaptureFixture[str], error: Exception, status: int
) -> None:
    started.engine.prepare_error = error
    assert main(["generate", checkpoint, "What?"]) == status
    assert capsys.readouterr().err == f"chiasm: error: {error}\n"
    assert started.engine.stops == 1


def test_without_a_model_the_built_in_one_answers(started: Started) -> None:
    assert main(["generate", "What?"]) == 0
    assert started.configs[0][0].model == str(BUILT_IN_FOLDER)


def test_a_question_without_quotes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "What", "is", "it?"]) == 2
    assert "quote the question" in capsys.readouterr().err


def test_missing_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate"]) == 2
    assert capsys.readouterr().err.startswith("chiasm: error: Missing argument")


def test_a_value_out_of_range(started: Started, checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", checkpoint, "What?", "--temperature", "5"]) == 2
    assert capsys.readouterr().err == "chiasm: error: temperature must be in [0, 2], got 5.0.\n"
