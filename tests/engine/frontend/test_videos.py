"""Videos in prompts: how their placeholders expand, how many there may be, and what a request may ask of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from transformers.models.glm46v.processing_glm46v import Glm46VProcessor
from transformers.video_utils import VideoMetadata

from chiasm.config.engine import EngineConfig, MediaConfig
from chiasm.engine.frontend.frontend import Frontend, TextFiles
from chiasm.engine.frontend.messages import parse_messages
from chiasm.engine.frontend.prompts import PromptBuilder
from chiasm.engine.frontend.tokenizer import Tokenizer
from chiasm.llm.inputs import as_conversations, as_prompts
from chiasm.models import glm4v
from chiasm.multimodal.bounds import server_video_spec
from chiasm.schema.chat import ImagePart, TextPart, VideoPart
from chiasm.schema.facts import ModelFacts, SliceForm, VideoFacts
from chiasm.schema.media import PatchProcessorSpec, PixelRef, ProcessedItem, Unit, VideoProcessorSpec
from chiasm.schema.wire import Ready
from tests.engine.frontend.support import make_facts, make_item, refused, text, token_id, user
from tests.published.glm import GLM, GLM_BRACKETS, GLM_PROCESSOR

VIDEO = {"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}}
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
SPEC = VideoProcessorSpec(PatchProcessorSpec(14, 2, 2, 3136, 100_000))


def make_video(num_slices: int, num_tokens: int, *frame_seconds: float) -> ProcessedItem:
    """A processed video of slices of some length."""
    refs = [PixelRef("clip", 4 * num_tokens * index, 4 * num_tokens, 10) for index in range(num_slices)]
    units = tuple(Unit(f"slice {i}", (2, 2 * num_tokens), num_tokens, ref) for i, ref in enumerate(refs))
    return ProcessedItem("video", num_slices * num_tokens, units, 0.5, frame_seconds)


def video_facts(tokenizer: Tokenizer, slices: SliceForm | None = None) -> ModelFacts:
    video = VideoFacts(token_id(tokenizer, "<|video_pad|>"), SPEC, slices)
    return msgspec.structs.replace(make_facts(tokenizer), video=video)


def make_frontend(folder: Any, tokenizer: Tokenizer, facts: ModelFacts, **media: Any) -> Frontend:
    config = EngineConfig(model=str(folder), media=MediaConfig(**media))
    return Frontend(config, TextFiles(config, None), Ready(facts, 64, (), ()))


# --- in the prompt


def test_one_run_for_all_slices_and_items_in_their_places(tokenizer: Tokenizer) -> None:
    builder = PromptBuilder(tokenizer, None, video_facts(tokenizer))
    image, video = make_item(2), make_video(3, 2)
    expanded = builder.expand(tokenizer.encode("a<|video_pad|>b<|image_pad|>c"), [image, video], "prompt")
    assert list(expanded.token_ids) == tokenizer.encode("a" + "<|video_pad|>" * 6 + "b" + "<|image_pad|>" * 2 + "c")
    clip, picture = expanded.items
    assert (clip.modality, clip.num_tokens, clip.thw, clip.seconds_per_slice) == ("video", 6, (3, 2, 4), 0.5)
    assert clip.offset == expanded.token_ids.index(token_id(tokenizer, "<|video_pad|>"))
    assert (picture.modality, picture.offset) == ("image", clip.end + 1)


@pytest.mark.parametrize(
    ("before", "after", "placeholder", "time", "written"),
    [
        # As Qwen3-VL and as GLM-4V have it.
        (("<{seconds:.1f} seconds>", "<|vision_start|>"), ("<|vision_end|>",), "<|video_pad|>", "middle",
         ("<0.2 seconds><|vision_start|>", "<|vision_end|>", "<1.9 seconds><|vision_start|>", "<|vision_end|>")),
        (("<|vision_start|>",), ("<|vision_end|>", "{whole_seconds}"), "<|image_pad|>", "first",
         ("<|vision_start|>", "<|vision_end|>0", "<|vision_start|>", "<|vision_end|>1")),
    ],
    ids=["seconds before", "seconds behind"],
)  # fmt: skip
def test_a_run_for_each_slice(
    tokenizer: Tokenizer, before: Any, after: Any, placeholder: str, time: Any, written: tuple[str, ...]
) -> None:
    before, after = (
        tuple(token_id(tokenizer, part) if part.startswith("<|") else part for part in parts)
        for parts in (before, after)
    )
    form = SliceForm(before, after, token_id(tokenizer, placeholder), time)
    builder = PromptBuilder(tokenizer, None, video_facts(tokenizer, form))
    video = make_video(2, 3, 0.0, 0.35, 1.8, 2.0)
    expanded = builder.expand(tokenizer.encode("<|im_start|><|video_pad|><|im_end|>"), [video], "prompt")
    run = placeholder * 3
    whole = f"<|im_start|>{written[0]}{run}{written[1]}{written[2]}{run}{written[3]}<|im_end|>"
    assert list(expanded.token_ids) == tokenizer.encode(whole)
    assert [(item.modality, item.thw, item.units) for item in expanded.items] == [
        ("video", (1, 2, 6), (unit,)) for unit in video.units
    ]
    for item in expanded.items:
        assert set(expanded.token_ids[item.offset : item.end]) == {form.token_id}


@pytest.mark.parametrize("seconds", [(0.0, 0.17), (9.94, 10.1), (9.96, 10.2), (2399.999, 2400.0)])
def test_times_of_glm_4_6_are_written_as_its_own_processor_does(seconds: tuple[float, float]) -> None:
    facts = glm4v.read_video(
        glm4v.parse_config(GLM["GLM-4.6V"]), {**GLM_PROCESSOR, "image_processor_type": "Glm46VImageProcessor"}
    )
    assert facts.slices is not None
    assert facts.slices.before == (GLM_BRACKETS["image_start_token_id"],)
    end, written = facts.slices.after
    assert (end, facts.slices.token_id) == (GLM_BRACKETS["image_end_token_id"], GLM["GLM-4.6V"]["image_token_id"])
    processor = object.__new__(Glm46VProcessor)
    processor.image_token, processor.video_processor = "<|image|>", SimpleNamespace(merge_size=2)
    metadata = VideoMetadata(total_num_frames=100_000, fps=1.0, frames_indices=seconds)
    inputs = {"video_grid_thw": np.array([[1, 2, 4]]), "video_metadata": [metadata]}
    theirs = processor.replace_video_token(inputs, 0)
    ours = f"<|begin_of_image|><|image|><|image|><|end_of_image|>{written}".format(seconds=seconds[0])
    assert ours == theirs


def test_placeholders_and_videos_must_match(tokenizer: Tokenizer) -> None:
    builder = PromptBuilder(tokenizer, None, video_facts(tokenizer))
    for written, items in (("<|video_pad|>", []), ("a", [make_video(1, 1)]), ("<|image_pad|>", [make_video(1, 1)])):
        with refused("prompt", "placeholders for", "there must be one each"):
            builder.expand(tokenizer.encode(written), items, "prompt")


def test_parts_become_what_templates_know(text_folder: Any, tokenizer: Tokenizer) -> None:
    frontend = make_frontend(text_folder, tokenizer, video_facts(tokenizer))
    messages = parse_messages([user([VIDEO, text("What?"), IMAGE])])
    options = {"add_generation_prompt": False, "continue_final_message": False, "chat_template_kwargs": {}}
    rendered = frontend.render_chat(frontend.seal_chat(messages, **options))
    prompt = frontend.prepare_chat(rendered, [make_video(2, 1), make_item(3)], "")
    assert [item.modality for item in prompt.items] == ["video", "image"]
    assert prompt.media == (make_video(2, 1), make_item(3))


# --- spellings


def test_spellings_of_a_video() -> None:
    array = object()
    for part, source, field in (
        (VIDEO, VIDEO["video_url"]["url"], "video_url.url"),  # type: ignore[index]
        ({"type": "video_url", "video_url": "data:x"}, "data:x", "video_url"),
        ({"video_url": {"url": "data:x"}}, "data:x", "video_url.url"),
        ({"type": "video", "video": array}, array, "video"),
        ({"type": "video", "url": "file:///a"}, "file:///a", "url"),
    ):
        (message,) = parse_messages([user([text("a"), part])])
        assert message.content == (TextPart("a"), VideoPart(source, f"messages[0].content[1].{field}"))


def test_a_script_is_warned_of_what_nobody_reads(caplog: pytest.LogCaptureFixture) -> None:
    as_conversations([user([{**IMAGE, "note": 1}, text("a")])])
    as_conversations([[user("a")], [{**user("b"), "prefix": True}, user([VIDEO])]])
    assert [record.message for record in caplog.records] == [
        "Ignored unknown keys of messages: 'content.note'.",
        "Ignored unknown keys of messages: 'prefix'.",
    ]


def test_videos_of_a_script() -> None:
    timed = ([0], {"fps": 2})
    for given, expected in (("a", ["a"]), (["a", b"b"], ["a", b"b"]), (timed, [timed]), ([timed, "a"], [timed, "a"])):
        [prompt] = as_prompts([{"prompt": "x", "multi_modal_data": {"video": given, "image": "i"}}])
        assert prompt.media[0] == ImagePart("i", "prompts[0].multi_modal_data.image[0]")
        assert [part.source for part in prompt.media[1:]] == expected
        assert prompt.media[1].param == "prompts[0].multi_modal_data.video[0]"


# --- limits


def test_videos_are_counted_before_any_is_fetched(text_folder: Any, tokenizer: Tokenizer) -> None:
    frontend = make_frontend(text_folder, tokenizer, video_facts(tokenizer), limit_mm_per_prompt={"video": 1})
    assert len(frontend.media_parts(parse_messages([user([VIDEO, IMAGE])]))) == 2
    with refused("messages", "2 videos", "at most 1", "limit_mm_per_prompt"):
        frontend.media_parts(parse_messages([user([VIDEO]), user([VIDEO])]))


def test_a_model_that_takes_no_videos_says_so(text_folder: Any, tokenizer: Tokenizer) -> None:
    frontend = make_frontend(text_folder, tokenizer, make_facts(tokenizer))
    with refused("messages[0].content[0].video_url.url", "take no videos"):
        frontend.media_parts(parse_messages([user([VIDEO])]))


def test_what_a_request_may_ask(text_folder: Any, tokenizer: Tokenizer) -> None:
    frontend = make_frontend(text_folder, tokenizer, video_facts(tokenizer))
    parts = frontend.media_parts(parse_messages([user([VIDEO, IMAGE])]))

    def video_spec(io: dict[str, Any], **kwargs: int | None) -> Any:
        spec, image = frontend.media_specs(parts, kwargs, {"video": io})
        assert isinstance(image, PatchProcessorSpec)
        return spec

    assert video_spec({}) == SPEC
    assert video_spec({"fps": 0.5}).fps == 0.5
    assert video_spec({"num_frames": 32}).num_frames == 32
    assert video_spec({"num_frames": -1}).num_frames == -1
    assert video_spec({}, max_pixels=50_000).patches.max_pixels == 50_000
    assert video_spec({}, max_pixels=300_000).patches.max_pixels == 100_000, "as far as a frame's range goes"
    for bad in ({"fps": 1e9}, {"fps": 0}, {"fps": True}, {"fps": "1"}, {"num_frames": 769}, {"num_frames": 0},
                {"num_frames": -2}, {"num_frames": 1.5}, {"backend": "x"}, {"fps": 1, "num_frames": 2}):  # fmt: skip
        with pytest.raises(ValueError, match="media_io_kwargs"):
            video_spec(bad)
    for nothing in ({"fps": None}, {"fps": None, "num_frames": None}):
        assert video_spec(nothing) == SPEC
    assert video_spec({"fps": None, "num_frames": 32}).num_frames == 32
    assert video_spec({}, max_pixels=None) == SPEC
    for empty in ({"video": None}, {"image": None}, {"image": {}, "audio": {"rate": None}}):
        assert frontend.media_specs(parts, {}, empty)[0] == SPEC
    for wrong in ({"image": {"image_mode": "L"}}, {"video": 5}):
        with pytest.raises(ValueError, match="media_io_kwargs"):
            frontend.media_specs(parts, {}, wrong)


OWN = ("messages[0].content[0]", "messages[0].content[0].video_url", "messages[0].content[0].image_url")


def specs_of(frontend: Frontend, *parts: dict[str, Any], **request: Any) -> list[Any]:
    found = frontend.media_parts(parse_messages([user(list(parts))]))
    return frontend.media_specs(found, request.get("mm_processor_kwargs", {}), request.get("media_io_kwargs", {}))


def test_what_a_part_may_ask_for_itself(text_folder: Any, tokenizer: Tokenizer) -> None:
    frontend = make_frontend(text_folder, tokenizer, video_facts(tokenizer))
    inner = {"type": "image_url", "image_url": {"url": "data:x", "max_pixels": 9000, "min_pixels": None}}
    images = specs_of(frontend, {**IMAGE, "max_pixels": 5000}, inner, IMAGE, mm_processor_kwargs={"max_pixels": 7000})
    assert [spec.max_pixels for spec in images] == [5000, 9000, 7000]
    videos = specs_of(
        frontend,
        {**VIDEO, "fps": 1, "max_pixels": 50_000},
        {**VIDEO, "nframes": 6},
        {"type": "video", "video": "data:x", "num_frames": 8},
        VIDEO,
        media_io_kwargs={"video": {"num_frames": 4}},
        mm_processor_kwargs={"min_pixels": 4000},
    )
    assert [(spec.fps, spec.num_frames) for spec in videos] == [(1, None), (2, 6), (2, 8), (2, 4)]
    assert [spec.patches.max_pixels for spec in videos] == [50_000, 100_000, 100_000, 100_000]
    assert [spec.patches.min_pixels for spec in videos] == [4000] * 4


@pytest.mark.parametrize(
    ("part", "param", "words"),
    [
        ({**IMAGE, "max_pixels": 10**9}, f"{OWN[0]}.max_pixels", "the range this server allows"),
        ({**IMAGE, "max_pixels": "big"}, f"{OWN[0]}.max_pixels", "a positive whole number"),
        ({"type": "image_url", "image_url": {"url": "data:x", "min_pixels": -1}}, f"{OWN[2]}.min_pixels", "positive"),
        ({**IMAGE, "max_pixels": 4000, "min_pixels": 5000}, OWN[0], "must not be above"),
        ({**IMAGE, "resized_height": 28}, f"{OWN[0]}.resized_height", "is not served"),
        ({"type": "input_image", "image_url": "data:x", "file_id": "f"}, f"{OWN[0]}.file_id", "is not served"),
        ({**VIDEO, "fps": 10**9}, f"{OWN[0]}.fps", "above 0 and at most"),
        ({**VIDEO, "num_frames": 0}, f"{OWN[0]}.num_frames", "whole number in"),
        ({**VIDEO, "fps": 1, "num_frames": 4}, OWN[0], "fps or num_frames, not both"),
        ({**VIDEO, "max_pixels": 200_000}, f"{OWN[0]}.max_pixels", "the range this server allows"),
        ({**VIDEO, "total_pixels": 9}, f"{OWN[0]}.total_pixels", "is not served"),
        ({**VIDEO, "video_start": 1.5}, f"{OWN[0]}.video_start", "is not served"),
        ({"type": "video_url", "video_url": {"url": "data:x", "fps": 0}}, f"{OWN[1]}.fps", "above 0"),
        (
            {"type": "video_url", "video_url": {"url": "data:x", "fps": 1}, "max_pixels": 9000},
            OWN[1],
            "can't both have settings",
        ),
    ],
)
def test_what_a_part_may_not_ask_for(
    text_folder: Any, tokenizer: Tokenizer, part: dict[str, Any], param: str, words: str
) -> None:
    with refused(param, words):
        specs_of(make_frontend(text_folder, tokenizer, video_facts(tokenizer)), part)


def test_a_frame_of_a_whole_clips_limits_has_none_of_its_own(text_folder: Any, tokenizer: Tokenizer) -> None:
    facts = video_facts(tokenizer)
    assert facts.video
    clip = msgspec.structs.replace(facts.video, processor=msgspec.structs.replace(SPEC, area="clip"))
    frontend = make_frontend(text_folder, tokenizer, msgspec.structs.replace(facts, video=clip))
    assert specs_of(frontend, {**VIDEO, "fps": 1})[0].fps == 1
    with refused(f"{OWN[0]}.max_pixels", "a whole clip"):
        specs_of(frontend, {**VIDEO, "max_pixels": 9000})


def test_a_server_bounds_what_models_take() -> None:
    media = MediaConfig(
        max_video_frames=3, media_io_kwargs={"video": {"num_frames": -1}}, mm_processor_kwargs={"max_pixels": 9000}
    )
    spec = server_video_spec(SPEC, media)
    assert (spec.max_frames, spec.min_frames, spec.num_frames, spec.patches.max_pixels) == (3, 3, -1, 9000)
    clip = server_video_spec(msgspec.structs.replace(SPEC, area="clip"), media)
    assert clip.patches == SPEC.patches, "a picture's limits are not a clip's"
    nulls = MediaConfig(media_io_kwargs={"video": {"fps": None}}, mm_processor_kwargs={"max_pixels": None})  # type: ignore[dict-item]
    assert server_video_spec(SPEC, nulls) == SPEC
    with pytest.raises(ValueError, match="num_frames must be"):
        MediaConfig(max_video_frames=3, media_io_kwargs={"video": {"num_frames": 4}})
