"""Data sets of conversations about pictures, as they are published: VisionArena's form and ShareGPT4V's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from chiasm.bench.datasets.sample import Sample, media_part, text_part
from chiasm.datasets.pictures import image_url, read_picture
from chiasm.datasets.rows import Row, find_files, iterate_rows
from chiasm.errors import UserError, refuse

_PLACEHOLDER = "<image>"


def arena_samples(path: str, split: str, output_len: int) -> Iterator[Sample]:
    """The first question of each conversation of lmarena-ai/VisionArena-Chat, after its first picture.

    Args:
        path: see ``iterate_rows``; the paths of pictures begin at the folder, or at the file's. A row has ``images``,
            and ``conversation`` (or ``turns``, as in the arena's bench) with a list of messages in each turn.
        split: of the data set.
        output_len: most tokens of an answer.
    """
    place = Path(path).expanduser()
    folder = place.parent if place.is_file() else place
    for row in iterate_rows(path, split):
        question, pictures = _arena_question(row), row.get("images")
        if not isinstance(pictures, list) or not pictures:
            refuse("dataset_path", row.get("images"), "rows whose images are a list with a picture")
        url = image_url(read_picture(pictures[0], folder))
        yield Sample([text_part(question), media_part("image", url)], output_len)


def _arena_question(row: Row) -> str:
    turns = row.get("conversation") or row.get("turns")
    try:
        message = turns[0][0]  # type: ignore[index]  # whatever it is, if it isn't that it is refused
        content = message["content"] if isinstance(message, Mapping) else message
    except (TypeError, LookupError):
        content = None
    if not isinstance(content, str):
        refuse("dataset_path", turns, "rows with conversation[0][0].content, a text")
    return content


def sharegpt4v_samples(path: str, image_folder: Path | None, output_len: int) -> Iterator[Sample]:
    """The first question of each conversation of Lin-Chen/ShareGPT4V, before it its picture.

    Args:
        path: a JSON list of objects with ``image``, the path of a picture, and ``conversations``, a list of objects
            with ``from`` and ``value``. Objects without a picture are left out, as are those whose file is not there:
            the pictures are published in parts.
        image_folder: where the pictures' paths begin; the folder of the file if not given.
        output_len: most tokens of an answer.
    """
    folder = image_folder or find_files(path, "train")[0].parent
    num_missing = num_found = 0
    for row in iterate_rows(path, "train"):
        if not isinstance(row.get("image"), str):
            continue
        file = folder / row["image"]
        if not file.is_file():
            num_missing += 1
            continue
        question = _first_question(row).replace(_PLACEHOLDER, "").strip()
        num_found += 1
        yield Sample([media_part("image", image_url(read_picture(str(file)))), text_part(question)], output_len)
    if num_missing and not num_found:
        message = f"None of the {num_missing} pictures is below {folder}; --image-folder says where they are."
        raise UserError(message, param="image_folder")


def _first_question(row: Row) -> str:
    turns: Any = row.get("conversations")
    for turn in turns if isinstance(turns, list) else ():
        if isinstance(turn, dict) and turn.get("from") in {"human", "user"} and isinstance(turn.get("value"), str):
            return str(turn["value"])
    return refuse("dataset_path", turns, "rows with conversations that have a human's value")
