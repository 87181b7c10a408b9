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
        nn.init.normal_(self.chars.weight, std=0.02)
        nn.init.normal_(self.digits.weight, std=0.02)
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
    head = len(speech.head)
    embedded = F.embedding(torch.from_numpy(batch.ids), table)
    x = torch.cat((embedded[:, :head], tokens, embedded[:, head + tokens.shape[1] :]), 1)
    hidden = text(model, x, torch.from_numpy(batch.places), mask_of(torch.from_numpy(batch.segments), x.dtype))
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
    facts = _fact_loss(model, heads, tokens, torch.from_numpy(batch.facts))
    dense = dense_weight * (chars + facts)
    if not any(batch.kinds):
        return Losses(dense, chars, facts, torch.zeros(()))
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
    own, facts = F.rms_norm(tokens[known], tokens.shape[-1:]), facts[known]
    names = heads.names(own)
    label = F.cross_entropy((names[:, :WIDTH] @ table[heads.label_ids].T).float(), facts[:, 0])
    digit_logits = heads.digits(own).float().view(-1, _NUM_DIGITS)
    total = label + F.cross_entropy(digit_logits, facts[:, 2:].reshape(-1)) * 3
    if (facts[:, 1] != NOT_ASKED).any():
        colour_logits = (names[:, WIDTH:] @ table[heads.colour_ids].T).float()
        total = total + F.cross_entropy(colour_logits, facts[:, 1], ignore_index=NOT_ASKED)
    return total / 5
