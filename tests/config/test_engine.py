"""What an engine's settings refuse, and by which name."""

from __future__ import annotations

import pytest

from chiasm.config.engine import EngineConfig
from chiasm.errors import UserError


def test_sharded_weights_have_no_units_to_place() -> None:
    with pytest.raises(UserError, match="mm_encoder_min_units_per_rank must be 0 with mm_encoder_tp_mode=weights"):
        EngineConfig(model="any", mm_encoder_tp_mode="weights", mm_encoder_min_units_per_rank=1)
    EngineConfig(model="any", mm_encoder_tp_mode="data", mm_encoder_min_units_per_rank=1)
