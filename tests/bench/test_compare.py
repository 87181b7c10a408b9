"""The comparison with Hugging Face and the checkpoints that it is made for."""

from __future__ import annotations

import pytest
from rich.console import Console

from bench.compare import CUTTING, as_table, compare
from bench.make_checkpoint import FAMILIES
from chiasm.models import registry
from tests.checkpoints.common import SavedModel
from tests.e2e.compare import Setup

pytestmark = pytest.mark.usefixtures("forked_children")


def test_every_family_has_a_checkpoint() -> None:
    assert set(FAMILIES) == set(registry._FAMILIES)


def test_a_difference_is_told(qwen2_5_vl: SavedModel) -> None:
    found = compare(qwen2_5_vl.folder, [Setup(2, "data"), CUTTING])
    assert found.is_good
    assert found.num_cut_plans
    assert not found._replace(logits={**found.logits, "text": 2e-4}).is_good
    setup, answers = next(iter(found.answers.items()))
    other = {**answers, "1 video": answers["1 video"]._replace(has_same_tokens=False)}
    bad = found._replace(answers={**found.answers, setup: other})
    assert not bad.is_good
    console = Console(width=110, record=True)
    console.print(as_table(bad))
    printed = console.export_text()
    assert printed.count("OTHER") == 1
    assert {"text", "1 image", "3 images", "1 video", "image + video", "one batch of all"} == set(answers)
