"""What is learned: glyphs in patches, facts in tokens, answers to questions."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chiasm.evals.charts.words import COLOURS, LABELS
from training.forward import text, tower
from training.model import TOWER_WIDTH, WIDTH
from training.stream import CHARS, NOT_ASKED, Batch
from training.tokens import Speech

_NONE_WEIGHT = 0.2
_NUM_DIGITS = 11  # the last one: no digit at this place


class Heads(nn.Module):
    """Heads for the dense targets, thrown away after training.

    A token's label and colour are read off with the language model's own embeddings of these words, so that what the
    tower writes is what a question asks for.
    """

    def __init__(self, speech: Speech) -> None:
        super().__init__()
        self.chars = nn.Linear(TOWER_WIDTH, 2 * (len(CHARS) + 1))
        self.digits = nn.Linear(WIDTH, 3 * _NUM_DIGITS)
        self.names = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.patch_facts = nn.Linear(TOWER_WIDTH, len(LABELS) + len(COLOURS) + 3 * _NUM_DIGITS)
        nn.init.normal_(self.chars.weight, std=0.02)
        nn.init.normal_(self.digits.weight, std=0.02)
        nn.init.normal_(self.patch_facts.weight, std=0.02)
        with torch.no_grad():
            self.names.weight.copy_(torch.cat((torch.eye(WIDTH), torch.eye(WIDTH))))
        self.label_ids = [speech.encode(label)[0] for label in LABELS]
        self.colour_ids = [speech.encode(colour)[0] for colour in COLOURS]


class Losses(NamedTuple):
    """The parts of the loss; ``total`` is what is differentiated."""

    total: Tensor
    chars: Tensor
    facts: Tensor
    answers: Tensor


def mask_of(segments: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, 1, L, L] so that each question sees the picture and itself."""
    length = segments.shape[1]
    same = segments[:, :, None] == segments[:, None, :]
    allowed = (same | (segments[:, None, :] == 0)) & torch.ones(length, length, dtype=torch.bool).tril()
    return torch.zeros(allowed.shape, dtype=dtype).masked_fill_(~allowed, float("-inf"))[:, None]


def answers(model: Any, batch: Batch, tokens: Tensor, speech: Speech) -> tuple[Tensor, Tensor]:
    """Logits where a part of an answer comes next, and that part."""
    table = model.model.language_model.embed_tokens.weight
    ids, segments = torch.from_numpy(batch.ids), torch.from_numpy(batch.segments)
    is_picture = ((ids == speech.image_pad) & (segments == 0))[..., None]
    x = F.embedding(ids, table).masked_scatter(is_picture, tokens)
    hidden = text(model, x, torch.from_numpy(batch.places), mask_of(segments, x.dtype))
    targets = torch.from_numpy(batch.targets)
    asked = targets != NOT_ASKED
    return (hidden[asked] @ table.T).float(), targets[asked]


def encode(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """Patches before merging, and tokens."""
    pixels = torch.from_numpy(batch.pixels).to(model.dtype).div_(127.5).sub_(1)
    return tower(model, pixels, batch.rows, batch.columns)


def losses(model: Any, heads: Heads, batch: Batch, speech: Speech, dense_weight: float) -> Losses:
    """The loss of a batch."""
    patches, tokens = encode(model, batch)
    chars = _char_loss(heads, patches, torch.from_numpy(batch.chars))
    known = torch.from_numpy(batch.facts)
    facts = (_fact_loss(model, heads, tokens, known) + _patch_fact_loss(heads, patches, known)) / 2
    dense = dense_weight * (chars + facts)
    if not (batch.targets != NOT_ASKED).any():
        return Losses(dense, chars, facts, torch.zeros(()))
    logits, targets = answers(model, batch, tokens, speech)
    answer_loss = F.cross_entropy(logits, targets)
    return Losses(dense + answer_loss, chars, facts, answer_loss)


def _char_loss(heads: Heads, patches: Tensor, chars: Tensor) -> Tensor:
    weight = torch.ones(len(CHARS) + 1)
    weight[0] = _NONE_WEIGHT
    patches = F.rms_norm(patches, patches.shape[-1:])
    # Most patches are blank: a quarter of those is enough.
    inked = (chars.sum(-1) > 0) | (torch.arange(chars.shape[1]) % 4 == 0)
    logits = heads.chars(patches[inked]).float().view(-1, len(CHARS) + 1)
    return F.cross_entropy(logits, chars[inked].view(-1), weight)


def _fact_loss(model: Any, heads: Heads, tokens: Tensor, facts: Tensor) -> Tensor:
    known = facts[..., 0] != NOT_ASKED
    if not known.any():
        return torch.zeros(())
    table = model.model.language_model.embed_tokens.weight
    own = F.rms_norm(tokens[known], tokens.shape[-1:])
    names = heads.names(own)
    labels, colours = names[:, :WIDTH] @ table[heads.label_ids].T, names[:, WIDTH:] @ table[heads.colour_ids].T
    return _facts_from(labels, colours, heads.digits(own), facts[known])


def _patch_fact_loss(heads: Heads, patches: Tensor, facts: Tensor) -> Tensor:
    """The same of the four patches of each token: it teaches the tower before there is a merger to speak of."""
    facts = facts.repeat_interleave(4, dim=1)
    known = facts[..., 0] != NOT_ASKED
    if not known.any():
        return torch.zeros(())
    logits = heads.patch_facts(F.rms_norm(patches[known], patches.shape[-1:]))
    labels, colours, digits = logits.split((len(LABELS), len(COLOURS), 3 * _NUM_DIGITS), dim=-1)
    return _facts_from(labels, colours, digits, facts[known])


def _facts_from(labels: Tensor, colours: Tensor, digits: Tensor, facts: Tensor) -> Tensor:
    total = F.cross_entropy(labels.float(), facts[:, 0])
    total = total + 3 * F.cross_entropy(digits.float().reshape(-1, _NUM_DIGITS), facts[:, 2:].reshape(-1))
    if (facts[:, 1] != NOT_ASKED).any():
        total = total + F.cross_entropy(colours.float(), facts[:, 1], ignore_index=NOT_ASKED)
    return total / 5
