"""Rates of the encoder: measured once, kept on disk, and never a reason not to start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from chiasm.config.engine import EngineConfig
from chiasm.engine.core.encoder_rates import cache_folder, encoder_rates
from chiasm.engine.executor.inproc import InprocExecutor
from chiasm.schema.facts import EncoderRates
from chiasm.schema.wire import RankInfo
from tests.engine.mirror import RATES
from tests.engine.test_capacity import info

CONFIG = EngineConfig(model="m")


class Measuring(InprocExecutor):
    """Counts how often it is asked."""

    def __init__(self) -> None:
        super().__init__(CONFIG)
        self.num_asked = 0

    def measure_encoder(self) -> EncoderRates:
        self.num_asked += 1
        return RATES


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CHIASM_CACHE", str(tmp_path / "new" / "folder"))
    return tmp_path / "new" / "folder"


def changed(old: RankInfo, **changes: object) -> RankInfo:
    return msgspec.structs.replace(old, **changes)


def test_a_second_start_reads_what_the_first_has_measured(folder: Path) -> None:
    executor = Measuring()
    for _ in range(3):
        assert encoder_rates(CONFIG, info(10**6), executor) == RATES
    assert executor.num_asked == 1
    [file] = folder.iterdir()
    assert msgspec.json.decode(file.read_bytes(), type=EncoderRates) == RATES


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        (EngineConfig(model="m", tensor_parallel_size=2), {}),
        (EngineConfig(model="m", mm_encoder_tp_mode="weights"), {}),
        (CONFIG, {"dtype": "bfloat16 (as asked)"}),
        (CONFIG, {"device": "cuda:0, NVIDIA H200 (as asked)"}),
        (CONFIG, {"kernels": ("encoder passes: launched anew (enforce_eager)",)}),
    ],
)
def test_what_speed_depends_on_is_measured_anew(folder: Path, config: EngineConfig, changes: dict[str, Any]) -> None:
    executor = Measuring()
    encoder_rates(CONFIG, info(10**6), executor)
    encoder_rates(config, changed(info(10**6), **changes), executor)
    assert executor.num_asked == 2


def test_another_tower_is_measured_anew(folder: Path) -> None:
    executor, old = Measuring(), info(10**6)
    encoder_rates(CONFIG, old, executor)
    tower = msgspec.structs.replace(old.facts.encoder, num_layers=old.facts.encoder.num_layers + 1)
    encoder_rates(CONFIG, changed(old, facts=msgspec.structs.replace(old.facts, encoder=tower)), executor)
    assert executor.num_asked == 2


@pytest.mark.parametrize("content", [b"", b"{", b'{"seconds_per_pass": "soon"}', b"\xff"])
def test_a_broken_file_is_replaced(folder: Path, content: bytes) -> None:
    executor = Measuring()
    encoder_rates(CONFIG, info(10**6), executor)
    [file] = folder.iterdir()
    file.write_bytes(content)
    assert encoder_rates(CONFIG, info(10**6), executor) == RATES
    assert encoder_rates(CONFIG, info(10**6), executor) == RATES
    assert executor.num_asked == 2


@pytest.mark.parametrize("field", ["seconds_per_flop", "seconds_per_attention_flop"])
@pytest.mark.parametrize("value", [0.0, -1e-9, 1e300])
def test_rates_that_no_plan_can_be_made_by_are_measured_anew(folder: Path, field: str, value: float) -> None:
    executor = Measuring()
    encoder_rates(CONFIG, info(10**6), executor)
    [file] = folder.iterdir()
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(RATES, **{field: value})))
    assert encoder_rates(CONFIG, info(10**6), executor) == RATES
    assert executor.num_asked == 2


def test_the_reason_for_a_device_does_not_matter(folder: Path) -> None:
    executor = Measuring()
    for device in ("cpu (as asked)", "cpu (no GPU found)"):
        encoder_rates(CONFIG, changed(info(10**6), device=device), executor)
    assert executor.num_asked == 1


def test_nobodys_home_costs_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("CHIASM_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", nobody)
    assert encoder_rates(CONFIG, info(10**6), Measuring()) == RATES


def test_a_folder_that_cannot_be_made_costs_a_measurement(folder: Path) -> None:
    folder.parent.write_text("a file in the way")
    executor = Measuring()
    for _ in range(2):
        assert encoder_rates(CONFIG, info(10**6), executor) == RATES
    assert executor.num_asked == 2


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"CHIASM_CACHE": "/a"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/chiasm"),
        ({"HOME": "/c"}, "/c/.cache/chiasm"),
    ],
)
def test_where_the_cache_is(variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CHIASM_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(expected)
