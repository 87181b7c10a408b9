"""Whatever becomes of a part, the others run and the report is whole."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from bench.device_check import __main__ as command
from bench.device_check import report as reports
from bench.device_check import supervisor
from bench.device_check.parts import PARTS, Part
from bench.device_check.report import PartReport, Report
from bench.device_check.supervisor import Settings, run_parts
from chiasm.models import registry

_ROOT = Path(__file__).parents[3]


def part(name: str, *arguments: str, seconds: float = 30.0) -> Part:
    return Part(name, f"tests.bench.device_check.broken_parts:{name}", arguments, seconds)


def run(folder: Path, *parts: Part, seconds: float = 600.0) -> tuple[dict[str, dict[str, Any]], Report, list[str]]:
    """The entries of the report's file by part, the report, and what was said."""
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "HANGING_CHILD": str(folder / "child")}
    report = Report("a command", "2026-11-30 12:00", [PartReport(each.name) for each in parts])
    said: list[str] = []
    run_parts(parts, Settings("cpu", folder, seconds, environment), report, said.append)
    written = json.loads((folder / "report.json").read_text())
    assert written["is_good"] == report.is_good
    return {each["name"]: each for each in written["parts"]}, report, said


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_every_way_to_end_costs_that_part_only(tmp_path: Path) -> None:
    parts = [part("raises"), part("aborts"), part("hangs", seconds=1.0), part("leaves"), part("wrong"), part("good")]
    found, report, said = run(tmp_path, *parts)
    assert not report.is_good
    assert {name: entry["status"] for name, entry in found.items()} == {
        "raises": "aborted", "aborts": "aborted", "hangs": "hung", "leaves": "aborted", "wrong": "WRONG",
        "good": "ok",
    }  # fmt: skip
    assert found["raises"]["detail"] == "exit status 1; after before; RuntimeError: the engine can't start"
    detail = found["aborts"]["detail"]
    assert detail.startswith("SIGABRT; in it; in broken_parts.py:")
    assert detail.endswith("; CUDA said something")
    assert found["hangs"]["detail"].startswith("in it; in broken_parts.py:")
    assert not is_alive(int((tmp_path / "child").read_text()))
    assert found["leaves"]["detail"] == "exit status 0; after before"
    assert [finding["name"] for finding in found["leaves"]["findings"]] == ["before"]
    assert [finding["status"] for finding in found["wrong"]["findings"]] == ["WRONG", "ok"]
    assert found["good"]["speeds"] == [
        {"name": "speed", "value": 12.5, "unit": "GB/s", "share": 0.25, "of": "50 GB/s"},
    ]
    assert any(line.startswith("WRONG") and "2 is not 1" in line for line in said)
    assert any(line.startswith("hung") for line in said)


def test_the_table_has_all_of_it(tmp_path: Path) -> None:
    run(tmp_path, part("good", "a word"), part("wrong"))
    table = (tmp_path / "report.md").read_text()
    assert table.startswith("# Device check: NOT everything holds\n")
    for line in (
        "| fact | a word |",
        "| wrong: differs | WRONG | 2 is not 1 |",
        "| speed | 12.5 | GB/s | 25 % of 50 GB/s |",
        "| `kernel\\|of_mine` | 3 | 2.000 | 25.0 % |",
        "| good | 1 | 1.5 | 1.5 |",
    ):
        assert line in table.splitlines()
    assert "## Longest kernels: a step" in table


def test_what_is_not_reached_is_not_right(tmp_path: Path) -> None:
    found, report, _ = run(tmp_path, part("good"), seconds=0.0)
    assert (found["good"]["status"], found["good"]["detail"]) == ("not reached", "0 s were over")
    assert not report.is_good


def test_the_report_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    replace = reports._replace

    def counting(file: Path, text: str) -> None:
        replace(file, text)
        if file.name == "report.json":
            counts.append(sum(len(each["findings"]) for each in json.loads(file.read_text())["parts"]))

    monkeypatch.setattr(reports, "_replace", counting)
    run(tmp_path, part("wrong"), part("good"))
    assert set(counts) >= {1, 2, 3}


def test_a_part_that_closes_its_pipe_and_stays_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_SECONDS_TO_END", 0.2)
    found, _, _ = run(tmp_path, part("clings"), part("good"))
    assert found["clings"]["status"] == "aborted"
    assert found["clings"]["detail"].startswith(
        "it said nothing more and did not end; beginning; in broken_parts.py:"
    )
    assert found["good"]["status"] == "ok"


def test_a_report_that_can_not_be_written_ends_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    report = Report("a command", "2026-11-30 12:00", [PartReport("fills"), PartReport("good")])
    said: list[str] = []
    run_parts((part("fills"), part("good")), Settings("cpu", tmp_path, 60, environment), report, said.append)
    assert [own.status for own in report.parts] == ["ok", "ok"]
    assert any("behind" in line for line in said)


def test_a_part_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "HANGING_CHILD": str(tmp_path / "child")}
    hanging = supervisor._Child(part("clings"), Settings("cpu", tmp_path, 60, environment))
    hanging.wait_until_ready(time.monotonic() + 60)
    hanging.go()
    assert hanging._process.stdin is not None
    hanging._process.stdin.close()  # as when a process is killed
    assert hanging._process.wait(30) == 1
    assert hanging._process.stdout is not None
    hanging._process.stdout.close()


def test_what_was_interrupted_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = Report("a command", "2026-11-30 12:00", [PartReport("good"), PartReport("wrong")])

    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_parts(
            (part("good"), part("wrong")),
            Settings("cpu", tmp_path, 60, {**os.environ, "PYTHONPATH": str(_ROOT)}),
            report,
            interrupt,
        )
    written = json.loads((tmp_path / "report.json").read_text())
    assert [each["status"] for each in written["parts"]] == ["interrupted", "not reached"]


def test_what_an_earlier_run_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "PARTS", (part("good"),))
    assert command.main(["--device", "cpu", "--out", str(tmp_path)]) == 0
    for name in command._OWN_FOLDERS:
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "kept").touch()
    monkeypatch.setattr(command, "_LOOK", "import os; os.abort()")
    assert command.main(["--device", "cpu", "--out", str(tmp_path)]) == 2
    assert not list(tmp_path.rglob("kept"))
    assert "NOT everything holds" in (tmp_path / "report.md").read_text()
    assert "SIGABRT" in (tmp_path / "report.md").read_text()
    assert "python -m bench.device_check.wheels --python" in capsys.readouterr().out


@pytest.mark.parametrize("look", ["raise SystemExit(3)", "import time; time.sleep(100)", "import no_such_package"])
def test_what_is_missing_is_told_before_anything_is_begun(
    look: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "_LOOK", look)
    monkeypatch.setattr(command, "_SECONDS_TO_LOOK", 1.0)
    assert command.main(["--out", str(tmp_path)]) == 2
    told = {"raise": "No GPU found", "import time": "did not end within 1 s", "import no": "No module named"}
    assert any(look.startswith(start) and words in capsys.readouterr().out for start, words in told.items())


@pytest.mark.parametrize("arguments", [["--seconds", "nan"], ["--seconds", "0"], ["--out", "/dev/null/x"]])
def test_bad_arguments_are_refused(arguments: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(["--device", "cpu", "--out", str(tmp_path), *arguments])


def test_exit_status_and_parts_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "PARTS", (part("good"), part("wrong")))
    out = ["--device", "cpu", "--out", str(tmp_path)]
    assert command.main([*out, "--only", "good"]) == 0
    assert "# Device check: everything holds" in capsys.readouterr().out
    assert command.main(out) == 1
    with pytest.raises(SystemExit, match="2"):
        command.main([*out, "--only", "god"])
    assert "--only: 'god' is none of good, wrong" in capsys.readouterr().err


def test_every_family_is_a_part() -> None:
    assert {part.name for part in PARTS} >= set(registry._FAMILIES)


def test_a_real_part_in_a_process_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--device", "cpu", "--only", "machine,experts", "--out", str(tmp_path)]) == 0
    written = json.loads((tmp_path / "report.json").read_text())
    assert [each["status"] for each in written["parts"]] == ["ok", "ok"]
    assert {"torch", "CPU", "Python"} <= {fact["name"] for fact in written["parts"][0]["facts"]}
    assert len(written["parts"][1]["findings"]) == 20
    assert "| torch |" in capsys.readouterr().out
