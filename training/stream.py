"""Batches of charts: pixels as patches, dense targets, packed questions. Each is a function of its number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from chiasm.evals.charts.clips import MAX_FRAMES
from chiasm.evals.charts.examples import MAX_CLIP_CELLS, Chart, held_out_seed, make_chart, train_seed
from chiasm.evals.charts.figure import Figure, Mark
from chiasm.evals.charts.plan import CELL, FULL, Scope, draw_font
from chiasm.evals.charts.questions import Question, Subject, ask
from chiasm.evals.charts.words import COLOURS, LABELS
from training.facts import NOT_ASKED, NUM_FACTS, Array, Legends, fact_targets, pair, pointers
from training.tokens import Speech

CHARS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
NUM_PLACES = 3
_PATCH = CELL // 2
_PER_BATCH = 256  # seeds set aside for a batch
_NOTHING = Subject("", "", ())
_DOT_CLASS = {colour: index + 1 for index, colour in enumerate(COLOURS)}
_CHAR_CLASS = {char: index + 1 for index, char in enumerate(CHARS)}


@dataclass(frozen=True)
class Recipe:
    """What batches hold.

    Attributes:
        scope: of the charts.
        num_patches: about how many patches a batch has.
        look_ups: factor of the share of look-up questions.
        yes_or_no: factor of the share of questions whose answer is yes or no.
        extremes: factor of the share of questions after the largest and the smallest.
        num_questions: per picture; 0 for dense targets only.
        glyph_share: how much of the pictures are lines of text.
        snap_share: how much of these have their glyphs on the lattice of patches.
        legends: what is told of the entries of a legend.
        finer: whether names that are absent, and two elements that are compared, have targets of their own.
        dots: whether scattered points have targets of their own.
    """

    scope: Scope = FULL
    num_patches: int = 2048
    num_questions: int = 6
    look_ups: float = 1.0
    yes_or_no: float = 1.0
    extremes: float = 1.0
    glyph_share: float = 0.0
    snap_share: float = 0.0
    legends: Legends = "ignored"
    finer: bool = False
    dots: bool = False


@dataclass(frozen=True)
class Batch:
    """B charts of F frames of one size; F is 1 but for clips.

    Attributes:
        rows: of patches.
        columns: of patches.
        pixels: [B * F, n, 588] uint8 patches in the order of merge blocks.
        chars: [B * F, n, 4] the glyph in the left and right half of each patch, 0 for none, and the places of both in
            their numbers; ``NOT_ASKED`` for what is no digit.
        dots: [B * F, n, 2] the colour of a scattered point in the left and right half of each patch, 0 for none.
        facts: [B * F, m, 8] what is known of the element at each token.
        ids: [B, L] text.
        places: [3, B, L] rotary positions.
        segments: [B, L] 0 for the pictures, else the number of the question; -1 for padding.
        targets: [B, L] the next token where it is a part of an answer.
        points: [K, 2] row and place of each word of a question that is taught to look into the picture.
        wanted: [K, 8] the facts of the elements that it leads to; ``NOT_ASKED`` matches all.
        pairs: [P, 2] row and place of the second of two elements in a question.
        compared: [P, 4] whether the first is larger, and the digits of their difference.
        kinds: of chart and question, for each picture and question.
    """

    rows: int
    columns: int
    pixels: npt.NDArray[np.uint8]
    chars: Array
    dots: Array
    facts: Array
    ids: Array
    places: Array
    segments: Array
    targets: Array
    points: Array
    wanted: Array
    pairs: Array
    compared: Array
    kinds: list[list[tuple[str, str]]]


def train_batch(number: int, recipe: Recipe, speech: Speech) -> Batch:
    """The batch with this number, for training."""
    return _batch([train_seed(number * _PER_BATCH + i) for i in range(_PER_BATCH)], recipe, speech)


def held_out_batch(number: int, recipe: Recipe, speech: Speech) -> Batch:
    """The batch with this number, for watching; from seeds that training never sees, nor the final measurement."""
    return _batch([held_out_seed((1 << 30) + number * _PER_BATCH + i) for i in range(_PER_BATCH)], recipe, speech)


def _batch(seeds: Sequence[int], recipe: Recipe, speech: Speech) -> Batch:
    rng = Random(-1 - seeds[0])
    scope, size, num_frames = _common(rng, recipe.scope)
    count = max(2, min(_PER_BATCH, recipe.num_patches // (4 * size[0] * size[1] * num_frames)))
    figures: list[Figure] = []
    facts: list[Array] = []
    asked: list[tuple[Subject, list[Question]]] = []
    kinds: list[list[tuple[str, str]]] = []
    for own in (Random(seed) for seed in seeds[:count]):
        if num_frames == 1 and own.random() < recipe.glyph_share:
            figures.append(glyph_figure(own, size, own.random() < recipe.snap_share, scope))
            facts.append(fact_targets(figures[-1], _NOTHING, (), recipe.legends))
            asked.append((_NOTHING, []))
            kinds.append([])
            continue
        chart = make_chart(own, scope, size, num_frames)
        figures += chart.figures
        shown = zip(chart.figures, _known_marks(chart), strict=True)
        facts += [fact_targets(figure, chart.subject, marks, recipe.legends) for figure, marks in shown]
        factors = (recipe.look_ups, recipe.yes_or_no, recipe.extremes)
        questions = ask(chart.subject, own, recipe.num_questions, *factors)
        asked.append((chart.subject, questions))
        kinds.append([(chart.subject.kind, question.kind) for question in questions])
    pixels = np.stack([patchify(figure.image) for figure in figures])
    chars = np.stack([glyph_targets(figure) for figure in figures])
    dots = np.stack([dot_targets(figure) for figure in figures])
    if not recipe.dots:
        dots[:] = 0
    texts = pack(asked, size, num_frames, speech, finer=recipe.finer)
    return Batch(2 * size[1], 2 * size[0], pixels, chars, dots, np.stack(facts), *texts, kinds)


def _common(rng: Random, scope: Scope) -> tuple[Scope, tuple[int, int], int]:
    """What all charts of a batch share: whether they are clips, their size, their number of frames."""
    kinds = tuple(kind for kind in scope.kinds if kind != "clip")
    num_frames, most = 1, scope.max_cells
    if "clip" in scope.kinds and rng.random() < 1 / len(scope.kinds):
        kinds, num_frames, most = ("clip",), rng.randint(2, MAX_FRAMES), min(most, MAX_CLIP_CELLS)
    size = (rng.randint(scope.min_cells, most), rng.randint(scope.min_cells, most))
    return replace(scope, kinds=kinds), size, num_frames


def _known_marks(chart: Chart) -> list[Sequence[Mark]]:
    """The elements of each frame; none for those in the middle of a clip."""
    if len(chart.figures) == 1:
        return [chart.subject.marks]
    return [chart.subject.before, *[()] * (len(chart.figures) - 2), chart.subject.marks]


def glyph_figure(rng: Random, size: tuple[int, int], snapped: bool, scope: Scope) -> Figure:
    """Lines of random text."""
    figure = Figure(size[0] * CELL, size[1] * CELL, rng)
    font = draw_font(rng, scope, 16)
    if rng.random() < 0.3:
        figure.background, figure.ink = (60, 60, 60), figure.ink
        paint = tuple(rng.randint(110, 255) for _ in range(3))
        figure.draw.rectangle((0, 0, figure.width, figure.height), fill=paint)
    if snapped:
        for middle in range(_PATCH // 2, figure.height, _PATCH * rng.choice((1, 2))):
            shift = rng.choice((0.25, 0.5, 0.75))
            for column in range(figure.width // _PATCH):
                if rng.random() < 0.7:
                    figure.text((column + shift) * _PATCH, middle, _random_word(rng)[0], font)
        return figure
    line = rng.uniform(7, 14)
    while line < figure.height - 6:
        x = rng.uniform(1, 20)
        while x < figure.width - 24:
            x = figure.text(x, line, _random_word(rng), font, align="left").right + rng.uniform(4, 20)
        line += font.size * rng.uniform(1.1, 1.8)
    return figure


def _random_word(rng: Random) -> str:
    lot = rng.random()
    if lot < 0.5:
        return str(rng.randint(0, 999) if lot < 0.2 else rng.randint(0, 99))
    if lot < 0.8:
        return rng.choice(LABELS)
    return "".join(rng.choice(CHARS) for _ in range(rng.randint(1, 4)))


def patchify(image: Image.Image) -> npt.NDArray[np.uint8]:
    """[n, 588] patches in the order of merge blocks, channels first."""
    pixels = np.asarray(image)
    rows, columns = pixels.shape[0] // CELL, pixels.shape[1] // CELL
    blocks = pixels.reshape(rows, 2, _PATCH, columns, 2, _PATCH, 3)
    return blocks.transpose(0, 3, 1, 4, 6, 2, 5).reshape(rows * columns * 4, -1)


def _in_blocks(grid: Array) -> Array:
    """[rows, columns, k] by patch to [n, k] in the order of merge blocks."""
    rows, columns, last = grid.shape
    return grid.reshape(rows // 2, 2, columns // 2, 2, last).transpose(0, 2, 1, 3, 4).reshape(-1, last)


def glyph_targets(figure: Figure) -> Array:
    """[n, 4] which glyph has its centre in the left and in the right half of each patch, and at which place it is."""
    grid = np.zeros((figure.height // _PATCH, figure.width // _PATCH, 4), np.int64)
    grid[..., 2:] = NOT_ASKED
    for char, x, y, place in figure.glyphs:
        if 0 <= x < figure.width and 0 <= y < figure.height:
            half = int(x % _PATCH >= _PATCH / 2)
            at = grid[int(y) // _PATCH, int(x) // _PATCH]
            at[half] = _CHAR_CLASS.get(char, 0)
            at[half + 2] = place if 0 <= place < NUM_PLACES else NOT_ASKED
    return _in_blocks(grid)


def dot_targets(figure: Figure) -> Array:
    """[n, 2] the colour of the scattered point that has its centre in the left and right half of each patch."""
    grid = np.zeros((figure.height // _PATCH, figure.width // _PATCH, 2), np.int64)
    for colour, x, y in figure.dots:
        grid[int(y) // _PATCH, int(x) // _PATCH, int(x % _PATCH >= _PATCH / 2)] = _DOT_CLASS[colour]
    return _in_blocks(grid)


class Packed(NamedTuple):
    """The texts of a batch; see ``Batch``."""

    ids: Array
    places: Array
    segments: Array
    targets: Array
    points: Array
    wanted: Array
    pairs: Array
    compared: Array


def pack(
    asked: list[tuple[Subject, list[Question]]],
    size: tuple[int, int],
    num_frames: int,
    speech: Speech,
    *,
    finer: bool,
) -> Packed:
    """The pictures once, then each question as if it were alone."""
    prefix, prefix_places = _prefix(size, num_frames, speech)
    after = int(prefix_places.max()) + 1
    lines = [[(speech.question(q.text), speech.answer(q.answer)) for q in questions] for _, questions in asked]
    length = len(prefix) + max(sum(len(q) + len(a) for q, a in line) for line in lines)
    shape = (len(asked), length)
    ids = np.full(shape, speech.image_pad, np.int64)
    segments, targets = np.full(shape, -1, np.int64), np.full(shape, NOT_ASKED, np.int64)
    places = np.zeros((3, *shape), np.int64)
    ids[:, : len(prefix)], segments[:, : len(prefix)] = prefix, 0
    places[:, :, : len(prefix)] = prefix_places[:, None]
    points: list[tuple[int, int]] = []
    wanted: list[list[int]] = []
    pairs: list[tuple[int, int]] = []
    compared: list[list[int]] = []
    for row, line in enumerate(lines):
        start = len(prefix)
        for number, (question, answer) in enumerate(line, 1):
            middle, end = start + len(question), start + len(question) + len(answer)
            ids[row, start:end] = question + answer
            segments[row, start:end] = number
            places[:, row, start:end] = after + np.arange(end - start)
            targets[row, middle - 1 : end - 1] = answer
            subject, own = asked[row][0], asked[row][1][number - 1]
            for pointer in pointers(own, subject, finer=finer):
                points.append((row, start + speech.token_at(own.text, pointer.last_char)))
                wanted.append(pointer.facts)
            if finer and (both := pair(own, subject)):
                pairs.append((row, start + speech.token_at(own.text, both.last_char)))
                compared.append(both.targets)
            start = end
    lists = ((points, 2), (wanted, NUM_FACTS), (pairs, 2), (compared, 1 + NUM_PLACES))
    return Packed(
        ids, places, segments, targets, *(np.array(rows, np.int64).reshape(-1, width) for rows, width in lists)
    )


def _prefix(size: tuple[int, int], num_frames: int, speech: Speech) -> tuple[list[int], Array]:
    """The beginning of the user's turn with its pictures, and the three rotary positions of each token."""
    columns, rows = size
    grid = np.stack([np.zeros((rows, columns), np.int64), *np.mgrid[:rows, :columns]]).reshape(3, -1)
    ids = list(speech.user)
    parts = [np.tile(np.arange(len(ids)), (3, 1))]
    place = len(ids)
    for _ in range(num_frames):
        ids += [speech.vision_start, *[speech.image_pad] * (rows * columns), speech.vision_end]
        after = place + 1 + max(rows, columns)
        parts += [np.full((3, 1), place), place + 1 + grid, np.full((3, 1), after)]
        place = after + 1
    return ids, np.concatenate(parts, axis=1)
