"""The offline API's keyword arguments as settings."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Any

import pytest

from chiasm.llm.settings import engine_config


@pytest.mark.parametrize(
    ("settings", "budget_ms"),
    [
        ({}, inf),
        ({"encoder_step_budget_ms": 20}, 20),
        ({"encoder_step_budget_ms": None}, None),
        ({"encoder_step_budget_patches": 256}, None),
        ({"encoder_step_budget_patches": None}, inf),
    ],
)
def test_a_batch_has_no_bound_on_the_encoders_steps_unless_asked_for(
    tmp_path: Path, settings: dict[str, Any], budget_ms: float | None
) -> None:
    (tmp_path / "config.json").write_text("{}")
    config = engine_config(str(tmp_path), settings)
    assert config.encoder_step_budget_ms == budget_ms
    assert config.encoder_step_budget_patches == settings.get("encoder_step_budget_patches")
