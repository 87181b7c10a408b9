"""Whether input and output embeddings are one matrix: by the settings of a checkpoint, and by its tensors."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
import torch

from chiasm.layers.embedding import OutputProjection, VocabEmbedding
from chiasm.logs import get_logger
from chiasm.models.blocks import read_config, require_setting

_HEADS = ("lm_head.weight", "language_model.lm_head.weight")

_log = get_logger(__name__)


class _Setting(msgspec.Struct, frozen=True):
    tie_word_embeddings: bool | None = None


class WeightTying(msgspec.Struct, frozen=True):
    """``tie_word_embeddings`` in the two places where a config may have it; None where it doesn't.

    The value at the top is the model's. Where the two disagree neither is to be trusted: transformers 5.7 to 5.24
    write false at the top and true in ``text_config`` for some checkpoints that have an output projection of their
    own, and others that have none say the same. There, and where a checkpoint that is said to be tied has an output
    projection nevertheless, its tensors decide, as in transformers.

    Attributes:
        top: in ``config.json`` itself.
        text: in its ``text_config``.
    """

    top: bool | None = None
    text: bool | None = None

    @property
    def setting(self) -> bool | None:
        """What the settings say; None where they disagree."""
        if None not in (self.top, self.text) and self.top != self.text:
            return None
        return bool(self.text if self.top is None else self.top)

    def is_tied(self, tensor_names: Collection[str]) -> bool:
        """Whether a model with tensors of these names is built without an output projection of its own."""
        return self.setting is not False and not any(name in tensor_names for name in _HEADS)

    def require_untied(self) -> None:
        """Refuse a checkpoint that is tied for certain, for families of which none is.

        Raises:
            UserError: naming the setting.
        """
        require_setting("config.json", "tie_word_embeddings", bool(self.setting), [False])


def read_weight_tying(raw: dict[str, Any]) -> WeightTying:
    """What ``config.json`` says of it.

    Raises:
        UserError: for a value that is neither true nor false.
    """
    places = (raw, "config.json"), (raw.get("text_config") or {}, "text_config")
    top, text = (read_config(part, _Setting, where).tie_word_embeddings for part, where in places)
    return WeightTying(top, text)


def settle_weight_tying(tying: WeightTying, projection: OutputProjection, embedding: VocabEmbedding) -> None:
    """Once both are filled: keep a copy only once, and say in the log where tensors have decided.

    Args:
        tying: what the settings say.
        projection: the output projection.
        embedding: the input embeddings of the same rank.
    """
    if tying.setting is False:
        return
    is_copy = not projection.is_tied and _are_alike(projection, embedding)
    if is_copy:
        projection.tie(embedding)
    if embedding.group.rank:
        return
    said = "true"
    if tying.setting is None:
        said = f"{_as_json(tying.top)} in config.json and {_as_json(tying.text)} in its text_config"
    if is_copy:
        _log.info("tie_word_embeddings is %s; lm_head.weight is a copy of the embeddings and left out", said)
    elif not projection.is_tied:
        _log.warning("tie_word_embeddings is %s, but lm_head.weight is not the embeddings: it is used", said)
    elif tying.setting is None:
        _log.warning("tie_word_embeddings is %s; there is no lm_head.weight: the embeddings take its place", said)


def _are_alike(projection: OutputProjection, embedding: VocabEmbedding) -> bool:
    """Whether all ranks have the same in both, so that all of them decide alike."""
    is_other = not torch.equal(projection.weight, embedding.weight)
    others = torch.tensor([float(is_other)], device=embedding.weight.device)
    return not embedding.group.all_reduce(others).any()


def _as_json(value: bool | None) -> str:
    return str(value).lower()
