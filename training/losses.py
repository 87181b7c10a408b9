"""What is learned: glyphs in patches, facts in tokens, answers to questions."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chiasm.evals.charts.words import COLOURS, LABELS
from training.facts import (
    COLOUR,
    COUNT,
    ENTRY,
    HUNDREDS,
    LABEL,
    NAMES,
    NOT_ASKED,
    NOWHERE,
    NUM_COUNTS,
    NUM_DIGITS,
    NUM_FACTS,
    SERIES,
)
from training.forward import Thought, text, tower
from training.model import TOWER_WIDTH, WIDTH
from training.stream import CHARS, NUM_PLACES, Batch
from training.tokens import Speech

_NONE_WEIGHT = 0.2
_SPLIT = (len(NAMES), len(COLOURS), len(LABELS), 3 * NUM_DIGITS, NUM_COUNTS)
_NUM_LOGITS = sum(_SPLIT)


class Heads(nn.Module):
    """Heads for the dense targets, thrown away after training.

    A token's label and colour are read off with the language model's own embeddings of these words, so that what the
    tower writes is what a question asks for.
    """

    def __init__(self, speech: Speech) -> None:
        super().__init__()
        self.chars = nn.Linear(TOWER_WIDTH, 2 * (len(CHARS) + 1))
        self.places = nn.Linear(TOWER_WIDTH, 2 * NUM_PLACES)
        self.numbers = nn.Linear(WIDTH, 3 * NUM_DIGITS + NUM_COUNTS)
        self.names = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.patch_facts = nn.Linear(TOWER_WIDTH, _NUM_LOGITS)
        self.carried = nn.Linear(WIDTH, _NUM_LOGITS)
        for head in (self.chars, self.places, self.numbers, self.patch_facts, self.carried):
            nn.init.normal_(head.weight, std=0.02)
        with torch.no_grad():
            self.names.weight.copy_(torch.eye(WIDTH).repeat(3, 1))
        self.compared = nn.Linear(WIDTH, 2 + 3 * NUM_DIGITS)
        self.dots = nn.Linear(TOWER_WIDTH, 2 * (len(COLOURS) + 1))
        for head in (self.compared, self.dots):
            nn.init.normal_(head.weight, std=0.02)
        self.name_ids = [speech.encode(name)[0] for name in NAMES]
        self.colour_ids = [speech.encode(colour)[0] for colour in COLOURS]


class Losses(NamedTuple):
    """The parts of the loss; ``total`` is what is differentiated."""

    total: Tensor
    chars: Tensor
    facts: Tensor
    answers: Tensor
    pointing: Tensor


def mask_of(segments: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, 1, L, L] so that each question sees the picture and itself."""
    length = segments.shape[1]
    same = segments[:, :, None] == segments[:, None, :]
    allowed = (same | (segments[:, None, :] == 0)) & torch.ones(length, length, dtype=torch.bool).tril()
    return torch.zeros(allowed.shape, dtype=dtype).masked_fill_(~allowed, float("-inf"))[:, None]


def answers(model: Any, batch: Batch, tokens: Tensor, speech: Speech) -> tuple[Tensor, Tensor, Thought]:
    """Logits where a part of an answer comes next, that part, and all that was thought."""
    table = model.model.language_model.embed_tokens.weight
    ids, segments = torch.from_numpy(batch.ids), torch.from_numpy(batch.segments)
    is_picture = ((ids == speech.image_pad) & (segments == 0))[..., None]
    x = F.embedding(ids, table).masked_scatter(is_picture, tokens)
    thought = text(model, x, torch.from_numpy(batch.places), mask_of(segments, x.dtype))
    targets = torch.from_numpy(batch.targets)
    asked = targets != NOT_ASKED
    return (thought.hidden[asked] @ table.T).float(), targets[asked], thought


def encode(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """Patches before merging, and tokens."""
    pixels = torch.from_numpy(batch.pixels).to(model.dtype).div_(127.5).sub_(1)
    return tower(model, pixels, batch.rows, batch.columns)


def scaffold(model: Any, heads: Heads, batch: Batch, tokens: Tensor) -> Tensor:
    """[B * F, m, d] what a perfect tower would write into its tokens, as strong as what it writes now.

    It is the sum of the directions along which the heads read the facts. With it the language model learns to look
    things up while the tower still reads badly; it is faded out.
    """
    facts = torch.from_numpy(batch.facts)
    known = (facts != NOT_ASKED).any(-1)
    table = model.model.language_model.embed_tokens.weight
    own = facts[known]
    named, coloured, serial = heads.names.weight.split(WIDTH)
    names, colours = table[heads.name_ids], table[heads.colour_ids]
    pairs = [(LABEL, names @ named), (COLOUR, colours @ coloured), (SERIES, names @ serial)]
    *digits, counts = heads.numbers.weight.split((*[NUM_DIGITS] * 3, NUM_COUNTS))
    pairs += [*enumerate(digits, HUNDREDS), (COUNT, counts)]
    asked = own != NOT_ASKED
    parts = [F.normalize(rows[own[:, fact].clamp(min=0)], dim=-1) * asked[:, fact, None] for fact, rows in pairs]
    ideal = torch.stack(parts).sum(0)
    ideal = F.normalize(ideal, dim=-1) * tokens[known].norm(dim=-1, keepdim=True)
    return torch.zeros_like(tokens).masked_scatter(known[..., None], ideal.detach().to(tokens.dtype))


def losses(
    model: Any, heads: Heads, batch: Batch, speech: Speech, dense_weight: float, help_weight: float = 0.0
) -> Losses:
    """The loss of a batch; ``help_weight`` is that of the scaffold."""
    patches, tokens = encode(model, batch)
    chars = _char_loss(heads, patches, torch.from_numpy(batch.chars))
    chars = chars + _dot_loss(heads, patches, torch.from_numpy(batch.dots))
    known = _for_tower(torch.from_numpy(batch.facts))
    facts = (_fact_loss(model, heads, tokens, known) + _patch_fact_loss(heads, patches, known)) / 2
    dense = dense_weight * (chars + facts)
    if not (batch.targets != NOT_ASKED).any():
        return Losses(dense, chars, facts, torch.zeros(()), torch.zeros(()))
    if help_weight > 0:
        # From no help to full help within a batch: what is learned with help is so carried over to none.
        weights = torch.linspace(0, help_weight, len(tokens), dtype=tokens.dtype)[:, None, None]
        tokens = tokens + weights * scaffold(model, heads, batch, tokens)
    logits, targets, thought = answers(model, batch, tokens, speech)
    answer_loss = F.cross_entropy(logits, targets)
    pointing = _pointing_loss(heads, batch, thought, speech) + _relay_loss(batch, thought.pointing[2])
    pointing = pointing + _legend_loss(batch, thought.pointing[0], speech)
    pointing = pointing + _absence_loss(batch, thought.pointing[1]) + _pair_loss(heads, batch, thought.compared)
    return Losses(dense + answer_loss + dense_weight * pointing, chars, facts, answer_loss, pointing)


def _are_legends_followed(facts: Tensor) -> bool:
    return bool((facts[..., ENTRY] != NOT_ASKED).any())


def _for_tower(facts: Tensor) -> Tensor:
    """Without the series of elements where legends are followed: looking them up is the language model's part."""
    if not _are_legends_followed(facts):
        return facts
    facts = facts.clone()
    facts[..., SERIES].masked_fill_(facts[..., LABEL] != NOT_ASKED, NOT_ASKED)
    return facts


def _legend_loss(batch: Batch, scores: Tensor, speech: Speech) -> Tensor:
    """How little the tokens of an element attend to the entry of the legend that names it."""
    entries = torch.from_numpy(batch.facts)[..., ENTRY].view(len(batch.ids), -1)
    rows, tokens = (entries > 0).nonzero(as_tuple=True)
    is_before = torch.arange(entries.shape[1]) < tokens[:, None]
    is_like = (entries[rows] == -entries[rows, tokens][:, None]) & is_before
    found = is_like.any(-1)
    if not found.any():
        return torch.zeros(())
    is_picture = (batch.ids[0] == speech.image_pad) & (batch.segments[0] == 0)
    columns = torch.from_numpy(is_picture.nonzero()[0])  # the same in all rows
    likely = scores[rows[found], columns[tokens[found]]].float().log_softmax(-1)[:, columns]
    return -likely.masked_fill(~is_like[found], float("-inf")).logsumexp(-1).mean()


def _absence_loss(batch: Batch, scores: Tensor) -> Tensor:
    """How little a name that is not in the picture attends to the very first token."""
    rows, places = torch.from_numpy(batch.points[batch.wanted[:, ENTRY] == NOWHERE]).T
    return -scores[rows, places].float().log_softmax(-1)[:, 0].mean() if len(rows) else torch.zeros(())


def _pair_loss(heads: Heads, batch: Batch, compared: Tensor) -> Tensor:
    """How badly the second of two elements knows whether the first is larger, and by how much."""
    rows, places = torch.from_numpy(batch.pairs).T
    if not len(rows):
        return torch.zeros(())
    targets = torch.from_numpy(batch.compared)
    own = compared[rows, places]
    larger, digits = heads.compared(F.rms_norm(own, own.shape[-1:])).float().split((2, 3 * NUM_DIGITS), dim=-1)
    difference = F.cross_entropy(digits.reshape(-1, NUM_DIGITS), targets[:, 1:].reshape(-1))
    return F.cross_entropy(larger, targets[:, 0]) + difference


def _pointing_loss(heads: Heads, batch: Batch, thought: Thought, speech: Speech) -> Tensor:
    """How little a word of a question attends to the tokens of its elements, and knows of them then.

    Binding a question to a place is learned very late from answers alone, even where the tower reads well.
    """
    ids, segments = torch.from_numpy(batch.ids), torch.from_numpy(batch.segments)
    rows, places = torch.from_numpy(batch.points).T
    wanted = torch.from_numpy(batch.wanted)[:, None]
    facts = torch.from_numpy(batch.facts).view(len(ids), -1, NUM_FACTS)[rows]
    is_like = ((facts == wanted) | (wanted == NOT_ASKED)).all(-1)
    if _are_legends_followed(facts):  # then elements go before entries
        is_element = is_like & (facts[..., LABEL] != NOT_ASKED)
        is_like = torch.where(is_element.any(-1, keepdim=True), is_element, is_like)
    found = is_like.any(-1)
    if not found.any():
        return torch.zeros(())
    rows, places, facts, is_like = rows[found], places[found], facts[found], is_like[found]
    is_picture = ((ids == speech.image_pad) & (segments == 0))[rows]
    likely = thought.pointing[1][rows, places].float().log_softmax(-1)
    in_picture = likely[is_picture].view(is_like.shape)
    attended = -in_picture.masked_fill(~is_like, float("-inf")).logsumexp(-1).mean()
    return attended + _carried_loss(heads, thought.carried[rows, places], facts, is_like)


def _carried_loss(heads: Heads, carried: Tensor, facts: Tensor, is_like: Tensor) -> Tensor:
    """How badly what all elements of a word have in common can be read off that word."""
    first = facts[torch.arange(len(facts)), is_like.int().argmax(-1)]
    in_common = ((facts == first[:, None]) | ~is_like[..., None]).all(1)
    logits = heads.carried(F.rms_norm(carried, carried.shape[-1:]))
    return _facts_from(logits, first.masked_fill(~in_common, NOT_ASKED))


def _char_loss(heads: Heads, patches: Tensor, chars: Tensor) -> Tensor:
    weight = torch.ones(len(CHARS) + 1)
    weight[0] = _NONE_WEIGHT
    patches = F.rms_norm(patches, patches.shape[-1:])
    glyphs, places = chars[..., :2], chars[..., 2:]
    # Most patches are blank: a quarter of those is enough.
    inked = (glyphs.sum(-1) > 0) | (torch.arange(chars.shape[1]) % 4 == 0)
    logits = heads.chars(patches[inked]).float().view(-1, len(CHARS) + 1)
    loss = F.cross_entropy(logits, glyphs[inked].view(-1), weight)
    if not (places != NOT_ASKED).any():
        return loss
    place_logits = heads.places(patches[inked]).float().view(-1, NUM_PLACES)
    return loss + F.cross_entropy(place_logits, places[inked].view(-1), ignore_index=NOT_ASKED)


def _dot_loss(heads: Heads, patches: Tensor, dots: Tensor) -> Tensor:
    """How badly the patches of scatter charts know where points are, and of which colour."""
    scattered = (dots > 0).any(-1).any(-1)
    if not scattered.any():
        return torch.zeros(())
    own = patches[scattered]
    logits = heads.dots(F.rms_norm(own, own.shape[-1:])).float().view(-1, len(COLOURS) + 1)
    weight = torch.ones(len(COLOURS) + 1)
    weight[0] = _NONE_WEIGHT
    return F.cross_entropy(logits, dots[scattered].view(-1), weight)


def _fact_loss(model: Any, heads: Heads, tokens: Tensor, facts: Tensor) -> Tensor:
    known = (facts != NOT_ASKED).any(-1)
    if not known.any():
        return torch.zeros(())
    table = model.model.language_model.embed_tokens.weight
    own = F.rms_norm(tokens[known], tokens.shape[-1:])
    labels, colours, series = heads.names(own).split(WIDTH, dim=-1)
    names = table[heads.name_ids]
    read = (labels @ names.T, colours @ table[heads.colour_ids].T, series @ names[: len(LABELS)].T)
    return _facts_from(torch.cat((*read, heads.numbers(own)), -1), facts[known])


def _patch_fact_loss(heads: Heads, patches: Tensor, facts: Tensor) -> Tensor:
    """The same of the four patches of each token: it teaches the tower before there is a merger to speak of."""
    facts = facts.repeat_interleave(4, dim=1)
    known = (facts != NOT_ASKED).any(-1)
    if not known.any():
        return torch.zeros(())
    return _facts_from(heads.patch_facts(F.rms_norm(patches[known], patches.shape[-1:])), facts[known])


def _facts_from(logits: Tensor, facts: Tensor) -> Tensor:
    labels, colours, series, digits, counts = logits.float().split(_SPLIT, dim=-1)
    digit_facts = facts[:, HUNDREDS:COUNT].reshape(-1)
    total = 3 * _entropy(digits.reshape(-1, NUM_DIGITS), digit_facts)
    for part, fact in ((labels, LABEL), (colours, COLOUR), (series, SERIES), (counts, COUNT)):
        total = total + _entropy(part, facts[:, fact])
    return total / 5


def _entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy over what is asked; 0 where nothing is."""
    asked = targets != NOT_ASKED
    return F.cross_entropy(logits, targets, ignore_index=NOT_ASKED) if asked.any() else torch.zeros(())


def _relay_loss(batch: Batch, scores: Tensor) -> Tensor:
    """How little an answer attends to the words of its question that look into the picture."""
    segments = torch.from_numpy(batch.segments)
    in_answer = torch.from_numpy(batch.targets) != NOT_ASKED
    looks = torch.zeros_like(in_answer)
    looks[tuple(torch.from_numpy(batch.points).T)] = True
    rows, places = in_answer.nonzero(as_tuple=True)
    wanted = looks[rows] & (segments[rows] == segments[rows, places][:, None])
    found = wanted.any(-1)
    if not found.any():
        return torch.zeros(())
    likely = scores[rows[found], places[found]].float().log_softmax(-1)
    return -likely.masked_fill(~wanted[found], float("-inf")).logsumexp(-1).mean()
