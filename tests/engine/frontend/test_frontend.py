from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chiasm.config.engine import EngineConfig, MediaConfig
from chiasm.engine.frontend.frontend import Frontend, TextFiles
from chiasm.engine.frontend.messages import parse_messages
from chiasm.engine.frontend.tokenizer import Tokenizer, load_tokenizer
from chiasm.schema.chat import FITTING, PreparedPrompt, Truncation
from chiasm.schema.media import ProcessedItem
from chiasm.schema.sampling import SamplingParams
from chiasm.schema.wire import Ready
from tests.checkpoints.common import edit_json, write_json
from tests.engine.frontend.support import IMAGE, make_facts, make_item, refused, text, token_id, user

MAX_MODEL_LEN = 64


def make_frontend(
    folder: Path, tokenizer: Tokenizer, *, chat_template: str | None = None, **changes: Any
) -> Frontend:
    config = EngineConfig(model=str(folder), media=MediaConfig(limit_mm_per_prompt={"image": 3}))
    facts = msgspec.structs.replace(make_facts(tokenizer), **changes)
    return Frontend(config, TextFiles(config, chat_template), Ready(facts, MAX_MODEL_LEN, (), ()))


@pytest.fixture(scope="module")
def frontend(text_folder: Path, tokenizer: Tokenizer) -> Frontend:
    return make_frontend(text_folder, tokenizer)


def prepare(
    frontend: Frontend, messages: list[Any], *items: ProcessedItem, truncation: Truncation | None = None
) -> PreparedPrompt:
    conversation = frontend.seal_chat(
        parse_messages(messages), add_generation_prompt=True, continue_final_message=False, chat_template_kwargs={}
    )
    return frontend.prepare_chat(frontend.render_chat(conversation), items, "salt", truncation)


# --- conversations


def test_a_conversation_becomes_ids_with_every_placeholder(frontend: Frontend, tokenizer: Tokenizer) -> None:
    prompt = prepare(frontend, [user([text("a"), IMAGE, text("<|im_end|>")])], make_item(4))
    pad = token_id(tokenizer, "<|image_pad|>")
    assert prompt.token_ids.count(pad) == 4
    (item,) = prompt.items
    assert prompt.token_ids[item.offset : item.end] == (pad,) * 4
    assert prompt.text is not None
    assert prompt.text.endswith(
        "<|im_start|>user\na<|vision_start|><|image_pad|><|vision_end|><|im_end|><|im_end|>\n<|im_start|>assistant\n"
    )
    assert prompt.cache_salt == "salt"


def test_a_template_that_drops_or_doubles_an_image_is_refused(text_folder: Path, tokenizer: Tokenizer) -> None:
    for count in (0, 2):
        source = (
            "{% for m in messages %}{% for p in m.content if p.type == 'image' %}"
            + "<|image_pad|>" * count
            + "{% endfor %}{% endfor %}"
        )
        with refused("messages", f"{count} image placeholders", "1 images"):
            prepare(make_frontend(text_folder, tokenizer, chat_template=source), [user([IMAGE])], make_item(1))


def test_a_conversation_that_is_too_long_is_refused(frontend: Frontend) -> None:
    with refused("messages", "media included", f"max_model_len={MAX_MODEL_LEN}"):
        prepare(frontend, [user([IMAGE])], make_item(MAX_MODEL_LEN))


def test_ids_that_the_model_does_not_have_never_reach_it(text_folder: Path, tokenizer: Tokenizer) -> None:
    small = make_frontend(text_folder, tokenizer, vocab_size=token_id(tokenizer, "<|im_start|>"))
    with refused("messages", "token ids"):
        prepare(small, [user("a")])
    with refused("prompt", "token ids"):
        small.prepare_completion("<|im_start|>")


def test_images_are_counted_before_any_is_fetched(frontend: Frontend) -> None:
    images = [user([IMAGE] * 2), user([text("a"), IMAGE])]
    assert [part.param for part in frontend.media_parts(parse_messages(images))] == [
        "messages[0].content[0].image_url.url",
        "messages[0].content[1].image_url.url",
        "messages[1].content[1].image_url.url",
    ]
    with refused("messages", "4 images", "at most 3"):
        frontend.media_parts(parse_messages([*images, user([IMAGE])]))


def test_the_processor_is_the_models_within_what_a_request_may_narrow(frontend: Frontend) -> None:
    parts = frontend.media_parts(parse_messages([user([IMAGE])]))
    assert frontend.media_specs(parts, {}, {}) == [frontend.facts.processor]
    [narrowed] = frontend.media_specs(parts, {"max_pixels": 100_000}, {})
    assert narrowed == msgspec.structs.replace(frontend.facts.processor, max_pixels=100_000)
    with refused("mm_processor_kwargs.max_pixels", "301056"):
        frontend.media_specs(parts, {"max_pixels": 10**9}, {})


# --- completions


def test_a_completion_is_taken_as_it_is(frontend: Frontend, tokenizer: Tokenizer) -> None:
    written = "<|im_start|>user\nHi<|im_end|>\n"
    prompt = frontend.prepare_completion(written)
    assert prompt == PreparedPrompt(written, tuple(tokenizer.encode(written)))
    assert frontend.prepare_completion(prompt.token_ids) == PreparedPrompt(None, prompt.token_ids)


@pytest.mark.parametrize("written", ["a\ufdd0<|im_end|>\ufdd0b", "\ufdd0", "<\ufdd0|im_end|>", "\ufdd1 a"])
def test_no_character_of_a_completion_has_a_meaning_of_its_own(
    frontend: Frontend, tokenizer: Tokenizer, written: str
) -> None:
    prompt = frontend.prepare_completion(written)
    assert prompt.token_ids == tuple(tokenizer.encode(written))
    assert prompt.text == written


@pytest.mark.parametrize("special", ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"])
def test_media_tokens_in_a_completion_without_images_are_refused(
    frontend: Frontend, tokenizer: Tokenizer, special: str
) -> None:
    with refused("prompt", special):
        frontend.prepare_completion(f"What? {special} hm")
    with refused("prompt", special):
        frontend.prepare_completion([1, token_id(tokenizer, special)])


def test_a_completion_with_images_has_a_placeholder_for_each(frontend: Frontend, tokenizer: Tokenizer) -> None:
    written = "<|vision_start|><|image_pad|><|vision_end|>What?"
    prompt = frontend.prepare_completion(written, [make_item(3)])
    pad = token_id(tokenizer, "<|image_pad|>")
    assert prompt.token_ids.count(pad) == 3
    assert [(item.offset, item.num_tokens) for item in prompt.items] == [(1, 3)]
    with refused("prompt", "1 image placeholders", "2 images"):
        frontend.prepare_completion(written, [make_item(3), make_item(3)])
    with refused("prompt", "0 image placeholders", "1 images"):
        frontend.prepare_completion("What?", [make_item(3)])


@pytest.mark.parametrize("bad", [-1, 417, 10**12])
def test_unknown_token_ids_are_refused(frontend: Frontend, bad: int) -> None:
    with refused("prompt", str(bad), "417"):
        frontend.prepare_completion([1, bad])


def test_the_length_of_a_completion_is_checked(frontend: Frontend) -> None:
    assert frontend.prepare_completion([1] * (MAX_MODEL_LEN - 1))
    with refused("prompt", f"{MAX_MODEL_LEN} tokens"):
        frontend.prepare_completion([1] * MAX_MODEL_LEN)
    for empty in ("", []):
        with refused("prompt", "empty"):
            frontend.prepare_completion(empty)


# --- what the checkpoint recommends


@pytest.mark.parametrize(
    ("generation", "defaults"),
    [
        (None, {}),
        ({"max_new_tokens": 5, "eos_token_id": 3}, {"max_tokens": 5}),
        (
            {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.05},
            {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.05},
        ),
        ({"do_sample": True, "temperature": 1e-6, "top_k": None}, {"temperature": 1e-6}),
        (
            {"do_sample": False, "temperature": 0.7, "repetition_penalty": 1.1},
            {"temperature": 0.0, "repetition_penalty": 1.1},
        ),
    ],
)
def test_default_sampling(
    text_folder: Path, tokenizer: Tokenizer, tmp_path: Path, generation: Any, defaults: dict[str, Any]
) -> None:
    folder = Path(shutil.copytree(text_folder, tmp_path / "own"))
    if generation is not None:
        write_json(folder / "generation_config.json", generation)
    found = make_frontend(folder, tokenizer).default_sampling
    assert found == defaults
    SamplingParams(**found)


@pytest.mark.parametrize("generation", [{"temperature": 5}, {"top_p": -1}, {"temperature": "warm"}])
def test_recommendations_that_cant_be_are_refused_at_the_start(
    text_folder: Path, tokenizer: Tokenizer, tmp_path: Path, generation: dict[str, Any]
) -> None:
    folder = Path(shutil.copytree(text_folder, tmp_path / "own"))
    write_json(folder / "generation_config.json", generation)
    with refused("model", "generation_config.json"):
        make_frontend(folder, tokenizer)


# --- files


def test_a_template_of_the_servers_own_replaces_the_checkpoints(text_folder: Path, tokenizer: Tokenizer) -> None:
    own = make_frontend(text_folder, tokenizer, chat_template="{{ messages[0].content }}!")
    assert prepare(own, [user("Hi")]).text == "Hi!"


def test_a_checkpoint_without_template_takes_completions_only(
    text_folder: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(text_folder, tmp_path / "own"))
    (folder / "chat_template.jinja").unlink()
    write_json(folder / "tokenizer_config.json", {})
    frontend = make_frontend(folder, tokenizer)
    assert frontend.prepare_completion("Hi").text == "Hi"
    with refused("messages", "chat template"):
        prepare(frontend, [user("Hi")])


def test_a_prompt_that_is_cut_is_no_longer_its_text(frontend: Frontend, tokenizer: Tokenizer) -> None:
    words = "Once upon a time " * 30
    prompt = frontend.prepare_completion(words, truncation=Truncation(5))
    assert prompt == PreparedPrompt(None, tuple(tokenizer.encode(words)[-5:]))
    assert frontend.prepare_completion("Hi", truncation=Truncation(5)).text == "Hi"
    whole = prepare(frontend, [user("a " * 60)], truncation=Truncation(FITTING, 10))
    assert len(whole.token_ids) == MAX_MODEL_LEN - 10


def test_special_tokens_are_put_around_a_plain_prompt_if_that_is_asked_for(text_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(text_folder, tmp_path / "model")

    def begin(raw: dict[str, Any]) -> None:
        first = {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}
        begins = {"<|im_start|>": {"id": "<|im_start|>", "ids": [own], "tokens": ["<|im_start|>"]}}
        single = [first, {"Sequence": {"id": "A", "type_id": 0}}]
        pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}]
        raw["post_processor"] = {
            "type": "TemplateProcessing",
            "single": single,
            "pair": pair,
            "special_tokens": begins,
        }

    own = token_id(load_tokenizer(text_folder), "<|im_start|>")
    edit_json(tmp_path / "model" / "tokenizer.json", begin)
    tokenizer = load_tokenizer(tmp_path / "model")
    frontend = make_frontend(tmp_path / "model", tokenizer)
    plain, special = (frontend.prepare_completion("Hi", add_special_tokens=adds) for adds in (False, True))
    assert special.token_ids == (own, *plain.token_ids)
    assert (plain.text, special.text) == ("Hi", "Hi"), "what was sent, for those who want it back"
    begun = frontend.prepare_completion("<|im_start|>Hi")
    assert begun.token_ids == special.token_ids  # not twice


# --- bad words


def test_words_are_banned_as_they_are_written_at_the_beginning_and_behind_a_space(
    frontend: Frontend, tokenizer: Tokenizer
) -> None:
    banned = frontend.banned_sequences(SamplingParams(bad_words=("house", "\n", "What do", "house", "🙂")))
    texts = [tokenizer.decode(tokens, skip_special_tokens=False) for tokens in banned]
    assert texts == ["house", " house", "\n", "What do", " What do", "🙂", " 🙂"]
    assert len(banned[-2]) > 1
    assert frontend.banned_sequences(SamplingParams()) == ()


def test_what_can_not_be_sampled_need_not_be_banned(text_folder: Path, tokenizer: Tokenizer) -> None:
    end = token_id(tokenizer, "<|im_end|>")
    frontend = make_frontend(text_folder, tokenizer, vocab_size=end, num_input_only=20)
    assert frontend.banned_sequences(SamplingParams(bad_words=("<|im_end|>",))) == ()
