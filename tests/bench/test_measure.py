"""The encoder's benchmark on real ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chiasm.bench.encoder import MODES
from chiasm.cli.main import main
from tests.checkpoints.common import SavedModel

pytestmark = pytest.mark.usefixtures("forked_children")


def test_measured_figures_stand_beside_predicted_ones(
    qwen2_5_vl: SavedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workload, rows_file, trace_file = tmp_path / "tiny.json", tmp_path / "rows.json", tmp_path / "trace.json"
    workload.write_text("[[1, 8, 12], [2, 4, 4]]")
    line = ["bench", "encoder", str(qwen2_5_vl.folder), "--workload", str(workload), "--repeats", "1"]
    assert main([*line, "--dtype", "float32", "--json", str(rows_file), "--trace", str(trace_file)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert any(line.split()[:2] == ["measured", "ms"] for line in printed)
    rows = json.loads(rows_file.read_text())
    assert [row["mode"] for row in rows] == list(MODES)
    for row in rows:
        assert row["measured_seconds"] > 0
        assert row["predicted_seconds"] > 0
        assert row["efficiency"] > 0
        assert row["measured_cut_bytes"] == row["cut_bytes"], "bytes are no matter of opinion"
    events = json.loads(trace_file.read_text())["traceEvents"]
    assert {event["tid"] for event in events if event["ph"] == "X"} == {0, 1}
