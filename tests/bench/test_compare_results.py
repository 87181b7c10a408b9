"""``chiasm bench compare``: what the table says, and what the pictures need."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from chiasm.bench.plots import draw
from chiasm.bench.results import FIGURES, common_figures, read_groups
from chiasm.cli.main import main


def result(label: str | None, ttft: float, tokens: float = 100.0, rate: float | str = "inf") -> dict[str, Any]:
    figures = {figure.key: ttft if "ttft" in figure.key else tokens for figure in FIGURES if "e2el" not in figure.key}
    times = {"ttfts": [ttft / 1e3, 2 * ttft / 1e3], "itls": [[0.01, 0.02], [0.03]]}
    return {"label": label, "request_rate": rate, **figures, **times}


def width_of(picture: Path) -> int:
    with Image.open(picture) as image:
        return image.width


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(*results: dict[str, Any]) -> list[str]:
        files = [tmp_path / f"run{index}.json" for index in range(len(results))]
        for file, fields in zip(files, results, strict=True):
            file.write_text(json.dumps(fields))
        return [str(file) for file in files]

    return write


def test_runs_with_one_label_are_held_against_those_with_the_first(
    write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = ([result(name, ttft) for ttft in values] for name, values in (("old", (10, 12)), ("new", (5, 6))))
    assert main(["bench", "compare", *write(*old, *new)]) == 0
    printed = capsys.readouterr().out
    rows = {line.split("  ")[0]: line for line in printed.splitlines()}
    assert "old (base)" in printed
    assert "11.00 ±9.1%" in rows["mean TTFT (ms)"]
    assert "5.50 ±9.1%  0.50x, better" in rows["mean TTFT (ms)"]
    assert "1.00x, within noise" in rows["output tokens/s"]
    assert "E2EL" not in printed  # not every result has it


def test_single_runs_say_that_the_noise_is_unknown(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "compare", "--markdown", *write(result(None, 10), result(None, 20))]) == 0
    printed = capsys.readouterr().out
    assert "|  | run0 (base) | run1 |" in printed
    assert "| mean TTFT (ms) | 10.00 | 20.00  2.00x, noise unknown |" in printed


def test_rates_are_compared_one_by_one(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [result("old", 10, rate=2), result("old", 30, rate=4), result("new", 20, rate=2)]
    assert main(["bench", "compare", *write(*runs)]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("mean TTFT")]
    assert [row.split("  ")[0] for row in rows] == [f"mean TTFT (ms), at {rate} requests/s" for rate in (2, 4)]
    assert "2.00x" in rows[0]
    assert rows[1].endswith("-")


def test_pictures_are_drawn_and_the_page_needs_nothing_else(write: Any, tmp_path: Path) -> None:
    runs = [result("a<b", ttft, rate=rate) for ttft, rate in ((10, 1), (11, 2))]
    files = write(*runs, result("b", 9, rate=1), result("b", 9))
    picture, page = tmp_path / "a.png", tmp_path / "a.html"
    assert main(["bench", "compare", *files, "--png", str(picture), "--html", str(page)]) == 0
    assert width_of(picture) > 1000
    loaded: list[str] = []
    texts: list[str] = []

    class Parser(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            loaded.extend(value or "" for name, value in attrs if name in ("src", "href", "xlink:href"))

        def handle_data(self, data: str) -> None:
            texts.append(data.strip())

    parser = Parser()
    parser.feed(page.read_text())
    assert all(reference.startswith("#") for reference in loaded)
    assert "a<b (base)" in texts


def test_results_without_details_have_bars_alone(write: Any, tmp_path: Path) -> None:
    runs = [{k: v for k, v in result(name, 10).items() if k not in ("ttfts", "itls")} for name in ("a", "b")]
    assert main(["bench", "compare", *write(*runs), "--png", str(tmp_path / "a.png")]) == 0
    assert width_of(tmp_path / "a.png") < 1000


@pytest.mark.parametrize("name", ["a$b$c", "$\\nope$", "_hidden", "a name " * 20])
def test_any_name_can_be_drawn(write: Any, tmp_path: Path, name: str) -> None:
    assert main(["bench", "compare", *write(result("x", 10), result(name, 9)), "--png", str(tmp_path / "a.png")]) == 0


def test_figures_show_one_rate_and_no_failures(write: Any) -> None:
    failing = result("new", 20, rate=2) | {"ttfts": [0.02, 0.0], "itls": [[0.1], []], "errors": ["", "refused"]}
    groups = read_groups(
        [Path(file) for file in write(result("old", 10, rate=2), result("old", 30, rate=4), failing)]
    )
    assert groups[1].gathered("ttfts") == [0.02]
    figure = draw(groups)
    assert [axis.get_title() for axis in figure.axes] == [
        "Time to first token, 2 requests / s", "Inter-token latency, 2 requests / s", "Throughput by rate",
    ]  # fmt: skip
    assert max(figure.axes[0].lines[0].get_xdata()) == pytest.approx(20), "ms; 30 is of the other rate"


def test_requests_that_failed_are_told_of(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "compare", *write(result("old", 10), result("new", 9) | {"failed": 3})]) == 0
    assert "Requests that failed, which are in no figure: old: 0, new: 3." in capsys.readouterr().out


def test_what_is_not_compared_is_told_of(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    other = result("new", 20) | {"model_id": "other", "max_concurrency": 4}
    files = write(result("old", 10), result("new", 20), other, result("new", 5, rate=8.0))
    assert main(["bench", "compare", *files]) == 0
    printed = capsys.readouterr().out
    assert "Left out, since the base has no such rate: 8." in printed
    assert "Runs of new are not of the same thing: they differ in model_id, max_concurrency." in printed


def test_a_growing_rate_is_not_all_at_once(write: Any) -> None:
    growing = {"ramp_up_strategy": "linear", "ramp_up_start_rps": 1, "ramp_up_end_rps": 5}
    files = write(result("old", 10), result("old", 10) | growing)
    assert [group.name for group in read_groups([Path(file) for file in files])] == ["old", "old, 1 to 5/s"]


def test_what_vllm_writes_beyond_the_standard_is_read(tmp_path: Path) -> None:
    runs = [result("a", 1) | {"burstiness": float("inf")}, result("a", 2) | {"mean_itl_ms": float("nan")}]
    (tmp_path / "appended.json").write_text("\n".join(map(json.dumps, runs)))
    groups = read_groups([tmp_path / "appended.json"])
    assert [(group.name, len(group.runs)) for group in groups] == [("a", 2)]
    assert "mean_itl_ms" not in [figure.key for figure in common_figures(groups)]


def test_latencies_that_nothing_has_are_no_figures(write: Any) -> None:
    one_token = {f"{name}_tpot_ms": 0.0 for name in ("mean", "median", "p99")} | {"request_throughput": 0.0}
    files = [Path(file) for file in write(result("a", 10) | one_token, result("b", 9) | one_token)]
    keys = [figure.key for figure in common_figures(read_groups(files))]
    assert "request_throughput" in keys
    assert "mean_tpot_ms" not in keys
    files = [Path(file) for file in write(result("a", 10) | one_token, result("b", 9) | {"mean_tpot_ms": 1.0})]
    assert "mean_tpot_ms" in [figure.key for figure in common_figures(read_groups(files))]


def test_results_without_tokens_show_requests(write: Any) -> None:
    fields = {key: value for key, value in result("a", 10).items() if key != "output_throughput"}
    assert draw(read_groups([Path(file) for file in write(fields)])).axes[-1].get_xlabel() == "requests/s"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not valid JSON"),
        ("", "is not valid JSON"),
        ("{}", "x.json is not a result of bench serve"),
        ('{"request_throughput": "1"}', "Expected `float`, got `str` - at `$.request_throughput`"),
        ('{"request_throughput": 1, "request_rate": "fast"}', "request_rate"),
        ('{"request_throughput": 1, "ttfts": ["a"]}', "ttfts"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.json").write_text(text)
    assert main(["bench", "compare", str(tmp_path / "x.json")]) == 2
    assert said in capsys.readouterr().err


def test_a_file_that_is_not_there_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "compare", "none.json"]) == 2
    assert "none.json can't be read" in capsys.readouterr().err


def test_a_result_without_a_label_is_called_like_its_file(write: Any) -> None:
    files = write(result("x", 1), result(None, 2), result("x", 3))
    groups = read_groups([Path(file) for file in files])
    assert [(group.name, len(group.runs)) for group in groups] == [("x", 2), ("run1", 1)]
