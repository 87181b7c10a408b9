"""How mistral-evals asks: it comes with no licence, so its requests are made here without its code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.charts import Asked, write_lines
from tests.clients.driven import DRIVERS, Driven, drive
from tests.clients.environments import Environment


@pytest.fixture(scope="module")
def driven(
    install: Callable[[str], Environment],
    given: dict[str, Any],
    charts: list[Asked],
    tmp_path_factory: pytest.TempPathFactory,
) -> Driven:
    """ChartQA lies where mistral-evals finds it offline: under its name on the hub, in the folder of the run."""
    folder, client = tmp_path_factory.mktemp("mistral_evals"), install("lm-eval")
    rows = [{"image": str(c.picture), "question": c.question, "answer": c.expected} for c in charts]
    table = folder / "lmms-lab" / "ChartQA" / "data" / "test-00000-of-00001.parquet"
    table.parent.mkdir(parents=True)
    lines = write_lines(folder / "charts.jsonl", rows)
    client.run("python", str(DRIVERS / "make_parquet.py"), str(lines), str(table), cwd=folder)
    return drive(client, "mistral_evals.py", folder, given)


def test_the_server_is_found_healthy(driven: Driven) -> None:
    assert driven["health"] == [True, True]


def test_answers(driven: Driven, charts: list[Asked]) -> None:
    assert driven["answers"] == [["assistant", chart.said] for chart in charts]
