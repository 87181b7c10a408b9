"""Commands run with a fake engine in place of a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from chiasm.cli import engine as engines
from chiasm.config.engine import EngineConfig
from tests.server.fake_engine import FakeEngine


class Started:
    """What the commands started.

    Attributes:
        engine: the one engine that every start returns.
        configs: the settings of each start, with its chat template.
    """

    def __init__(self) -> None:
        self.engine = FakeEngine()
        self.configs: list[tuple[EngineConfig, str | None]] = []

    async def start_engine(self, config: EngineConfig, chat_template: str | None) -> FakeEngine:
        self.configs.append((config, chat_template))
        return self.engine


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """Commands start a fake engine."""
    started = Started()
    monkeypatch.setattr(engines, "start_engine", started.start_engine)
    return started


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """A folder that passes for a checkpoint."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return str(folder)
