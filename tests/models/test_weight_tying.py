"""Whether a checkpoint's output projection is its embeddings: settings, tensors, and what the log says of both."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from chiasm.dist.group import Group
from chiasm.errors import UserError
from chiasm.models.loader import load_model
from chiasm.models.weight_tying import WeightTying, read_weight_tying
from tests.checkpoints.common import SavedModel, edit_json, save_weights
from tests.checkpoints.glm4v import save_glm4v
from tests.checkpoints.llama4 import save_llama4
from tests.checkpoints.mllama import save_mllama
from tests.checkpoints.qwen2 import save_qwen2_5_vl, save_qwen2_vl
from tests.checkpoints.qwen3_vl import QWEN3_VL_CLASSES, save_qwen3_vl
from tests.invariants import CPU
from tests.ranks import RankPool

SAVERS: dict[str, Callable[[Path], SavedModel]] = {
    "qwen2_5_vl": save_qwen2_5_vl,
    "qwen2_vl": save_qwen2_vl,
    "qwen3_vl": lambda folder: save_qwen3_vl(folder, has_experts=False),
    "qwen3_vl_moe": lambda folder: save_qwen3_vl(folder, has_experts=True),
    "glm4v": save_glm4v,
    "glm4v_moe": lambda folder: save_glm4v(folder, has_experts=True),
}
HEAD = "lm_head.weight"
COPY, OWN, NONE = "a copy", "its own", "none"


def settle(folder: Path, family: str, top: bool | None, text: bool | None, head: str) -> torch.Tensor:
    """Write a checkpoint with these settings and such an output projection; returns the matrix that is right."""
    SAVERS[family](folder)

    def set_both(config: dict[str, Any]) -> None:
        nested = config.setdefault("text_config", {**config})
        for part, value in ((config, top), (nested, text)):
            part.pop("tie_word_embeddings", None)
            if value is not None:
                part["tie_word_embeddings"] = value

    edit_json(folder / "config.json", set_both)
    tensors = load_file(folder / "model.safetensors")
    [embeddings] = [tensor for name, tensor in tensors.items() if name.endswith("embed_tokens.weight")]
    assert not torch.equal(tensors[HEAD], embeddings)
    if head == NONE:
        del tensors[HEAD]
    elif head == COPY:
        tensors[HEAD] = embeddings
    save_weights(folder, tensors)
    return tensors.get(HEAD, embeddings)


@pytest.mark.parametrize("family", SAVERS)
@pytest.mark.parametrize(
    ("top", "text", "head", "is_own", "said"),
    [
        # What transformers writes for a model whose projection is its own, and some quantized ones for a tied one.
        (False, True, OWN, True, "false in config.json and true in its text_config, but lm_head.weight is not"),
        (False, True, NONE, False, "false in config.json and true in its text_config; there is no lm_head.weight"),
        (False, True, COPY, False, "lm_head.weight is a copy"),
        (True, False, OWN, True, "true in config.json and false in its text_config, but lm_head.weight is not"),
        (True, False, NONE, False, "true in config.json and false in its text_config; there is no lm_head.weight"),
        (True, True, NONE, False, ""),
        (True, None, NONE, False, ""),
        (None, True, NONE, False, ""),
        (True, True, COPY, False, "tie_word_embeddings is true; lm_head.weight is a copy"),
        (True, None, OWN, True, "tie_word_embeddings is true, but lm_head.weight is not the embeddings: it is used"),
        (None, True, OWN, True, "tie_word_embeddings is true, but lm_head.weight is not the embeddings: it is used"),
        (False, False, OWN, True, ""),
        (False, None, OWN, True, ""),
        (None, False, OWN, True, ""),
        (None, None, OWN, True, ""),
    ],
)
def test_the_right_projection_is_used(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    family: str,
    top: bool | None,
    text: bool | None,
    head: str,
    is_own: bool,
    said: str,
) -> None:
    expected = settle(tmp_path, family, top, text, head)
    with caplog.at_level(logging.INFO, "chiasm"):
        model = load_model(tmp_path, dtype=torch.float32, device=CPU).model
    weights = dict(model.named_parameters())
    assert torch.equal(weights.get(HEAD, weights["language_model.embed_tokens.weight"]), expected)
    assert (HEAD in weights) == is_own
    hidden = torch.randn(2, model.hidden_size)
    torch.testing.assert_close(model.compute_logits(hidden), hidden @ expected.T)
    if said:
        assert said in caplog.text
    else:
        assert "tie_word_embeddings" not in caplog.text


def test_what_transformers_saves_of_a_qwen3_vl_keeps_its_projection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A published mixture of experts says at the top alone that it isn't tied, and transformers adds the contrary."""
    published, again = tmp_path / "published", tmp_path / "again"
    saved = save_qwen3_vl(published, has_experts=True)
    edit_json(published / "config.json", lambda raw: raw["text_config"].pop("tie_word_embeddings"))
    kind, model = QWEN3_VL_CLASSES["qwen3_vl_moe"]
    loaded = model._from_config(kind.from_pretrained(published))
    loaded.load_state_dict(saved.reference.state_dict())
    loaded.save_pretrained(again)
    written = json.loads((again / "config.json").read_text(encoding="utf-8"))
    assert (written["tie_word_embeddings"], written["text_config"]["tie_word_embeddings"]) == (False, True)
    with caplog.at_level(logging.INFO, "chiasm"):
        ours = load_model(again, dtype=torch.float32, device=CPU).model
    hidden = torch.randn(3, ours.hidden_size)
    torch.testing.assert_close(ours.compute_logits(hidden), saved.reference.lm_head(hidden))
    assert "it is used" in caplog.text


def _has_own_projection(group: Group, folder: Path) -> bool:
    model = load_model(folder, dtype=torch.float32, device=CPU, text_group=group).model
    return HEAD in dict(model.named_parameters())


@pytest.mark.parametrize("is_copy", [True, False])
def test_ranks_decide_alike(tmp_path: Path, rank_pool: RankPool, is_copy: bool) -> None:
    """The rows of one rank are a copy, too, where those of another are not."""
    settle(tmp_path, "qwen3_vl", True, True, COPY)
    tensors = load_file(tmp_path / "model.safetensors")
    if not is_copy:
        tensors[HEAD] = tensors[HEAD].clone()
        tensors[HEAD][-1] += 1
        save_weights(tmp_path, tensors)
    assert rank_pool.run(2, _has_own_projection, tmp_path) == [not is_copy] * 2


@pytest.mark.parametrize("top", [False, None])
def test_a_missing_projection_is_refused_where_nothing_says_that_it_is_tied(tmp_path: Path, top: bool | None) -> None:
    settle(tmp_path, "qwen3_vl", top, top, NONE)
    with pytest.raises(UserError, match=r"lacks 1 tensors of the model: lm_head\.weight"):
        load_model(tmp_path, dtype=torch.float32, device=CPU)


@pytest.mark.parametrize("save", [save_llama4, save_mllama], ids=["llama4", "mllama"])
def test_families_that_are_never_tied_follow_the_tensors_where_settings_disagree(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, save: Callable[[Path], SavedModel]
) -> None:
    save(tmp_path)

    def disagree(config: dict[str, Any]) -> None:
        config["tie_word_embeddings"] = False
        config["text_config"]["tie_word_embeddings"] = True

    edit_json(tmp_path / "config.json", disagree)
    with caplog.at_level(logging.INFO, "chiasm"):
        model = load_model(tmp_path, dtype=torch.float32, device=CPU).model
    assert HEAD in dict(model.named_parameters())
    assert "false in config.json and true in its text_config, but lm_head.weight is not" in caplog.text
    edit_json(tmp_path / "config.json", lambda config: config.pop("tie_word_embeddings"))
    with pytest.raises(UserError, match="tie_word_embeddings=True"):
        load_model(tmp_path, dtype=torch.float32, device=CPU)


@pytest.mark.parametrize("where", ["top", "text_config"])
def test_a_setting_that_is_neither_true_nor_false_is_refused(where: str) -> None:
    raw: dict[str, Any] = {"text_config": {}}
    (raw if where == "top" else raw["text_config"])["tie_word_embeddings"] = "yes"
    with pytest.raises(UserError, match="tie_word_embeddings"):
        read_weight_tying(raw)


def test_layers_that_a_setting_leaves_out_are_named_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_glm4v(tmp_path, has_experts=True)
    tensors = load_file(tmp_path / "model.safetensors")
    extra = "model.language_model.layers.3.eh_proj.weight"
    save_weights(tmp_path, {**tensors, extra: torch.zeros(2)})
    edit_json(tmp_path / "config.json", lambda raw: raw["text_config"].update(num_nextn_predict_layers=1))
    with caplog.at_level(logging.INFO, "chiasm"):
        load_model(tmp_path, dtype=torch.float32, device=CPU)
    assert f"1 tensors of the checkpoint are not used: {extra}" in caplog.text


def test_the_value_at_the_top_is_the_models() -> None:
    assert WeightTying(True, None).setting
    assert WeightTying(None, True).setting
    assert WeightTying(False, None).setting is False
    assert WeightTying(False, True).setting is None
