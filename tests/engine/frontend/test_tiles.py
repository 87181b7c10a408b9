"""Tiles of pictures in prompts: what stands between them, as Hugging Face's processor has it."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import pytest
from transformers import AutoTokenizer
from transformers.models.llama4.processing_llama4 import Llama4Processor, chat_template

from chiasm.engine.frontend.chat_template import ChatTemplate
from chiasm.engine.frontend.prompts import PromptBuilder
from chiasm.engine.frontend.tokenizer import Tokenizer, load_tokenizer
from chiasm.models.registry import open_checkpoint
from chiasm.schema.media import PixelRef, ProcessedItem, Unit
from tests.checkpoints.llama4 import save_llama4
from tests.engine.frontend.support import IMAGE, assistant, refused, render, text, user


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama4(tmp_path_factory.mktemp("llama4")).folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def builder(folder: Path, tokenizer: Tokenizer) -> PromptBuilder:
    return PromptBuilder(tokenizer, None, open_checkpoint(folder).facts)


def make_item(rows: int, columns: int) -> ProcessedItem:
    num_units = rows * columns + (rows * columns > 1)
    units = tuple(Unit(f"{rows}x{columns} {n}", (6, 6), 9, PixelRef("", 36 * n, 36, 588)) for n in range(num_units))
    return ProcessedItem("image", 9 * num_units, units, canvas=(rows, columns))


CANVASES = [[(1, 1)], [(1, 2)], [(2, 1)], [(2, 3)], [(3, 2), (1, 1), (1, 4)]]


@pytest.mark.parametrize("canvases", CANVASES, ids=str)
def test_tiles_stand_as_hugging_face_has_them(
    builder: PromptBuilder, tokenizer: Tokenizer, canvases: list[tuple[int, int]]
) -> None:
    prompt = "".join(f"picture {number}: <|image|> " for number in range(len(canvases)))
    items = [make_item(*canvas) for canvas in canvases]
    expanded = builder.expand(tokenizer.encode(prompt), items, "prompt")
    pieces = prompt.split("<|image|>")
    images = [Llama4Processor._prompt_split_image(None, canvas, 9) for canvas in canvases]
    theirs = "".join(chain.from_iterable(zip(pieces, [*images, ""], strict=True)))
    assert list(expanded.token_ids) == tokenizer.encode(theirs)
    assert [item.units for item in expanded.items] == [(unit,) for item in items for unit in item.units]
    patch = tokenizer.encode("<|patch|>")
    for item in expanded.items:
        assert list(expanded.token_ids[item.offset : item.end]) == patch * 9
    assert sum(item.num_tokens for item in expanded.items) == list(expanded.token_ids).count(*patch)


def test_a_mismatch_is_refused_with_both_numbers(builder: PromptBuilder, tokenizer: Tokenizer) -> None:
    with refused("prompt", "2 image placeholders", "1 images"):
        builder.expand(tokenizer.encode("<|image|> or <|image|>"), [make_item(1, 2)], "prompt")


@pytest.mark.parametrize("token", ["<|image|>", "<|patch|>", "<|image_start|>", "<|tile_x_separator|>"])
def test_tokens_of_tiles_in_a_prompt_without_media_are_refused(
    builder: PromptBuilder, tokenizer: Tokenizer, token: str
) -> None:
    with refused("prompt", token):
        builder.refuse_media_tokens(tokenizer.encode(f"a {token}"), "prompt")


CONVERSATIONS = [
    [user("Hello, world!")],
    [
        {"role": "system", "content": " Be brief. "},
        user([IMAGE, text("What?"), IMAGE]),
        assistant("Cats."),
        user("Why?"),
    ],
]


@pytest.mark.parametrize("messages", CONVERSATIONS)
def test_the_published_template_gives_the_ids_of_hugging_face(
    folder: Path, tokenizer: Tokenizer, messages: list[dict[str, object]]
) -> None:
    template = ChatTemplate(chat_template, {"bos_token": "<|begin_of_text|>"})
    builder = PromptBuilder(tokenizer, template, open_checkpoint(folder).facts)
    theirs = AutoTokenizer.from_pretrained(folder).apply_chat_template(
        json.loads(json.dumps(messages).replace("image_url", "image")),
        chat_template=chat_template,
        add_generation_prompt=True,
    )
    assert builder.tokenize(render(builder, messages)) == theirs["input_ids"]
