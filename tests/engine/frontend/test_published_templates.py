"""Published chat templates: all conversations as transformers renders them, or refused as the docs say."""

from __future__ import annotations

import gzip
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from chiasm.engine.frontend.chat_template import load_chat_template
from chiasm.engine.frontend.prompts import PromptBuilder
from chiasm.engine.frontend.tokenizer import Tokenizer, load_tokenizer
from chiasm.errors import UserError
from chiasm.models.registry import find_entry
from chiasm.schema.facts import ModelFacts
from tests.checkpoints.common import make_tokenizer
from tests.engine.frontend.support import render
from tests.published.files import PUBLISHED, needs_published, read_published
from tests.published.glm import GLM
from tests.published.qwen import QWEN2_VL, QWEN3_VL

MODELS = {name: {**QWEN2_VL, **QWEN3_VL, **GLM}[name] for name in (
    "Qwen2.5-VL-7B-Instruct", "Qwen3-VL-30B-A3B-Instruct", "Qwen3-VL-4B-Thinking", "GLM-4.1V-9B-Thinking", "GLM-4.5V"
)}  # fmt: skip
NAMES = (
    "text", "image", "interleaved", "two images", "video", "image+video", "system", "system+image", "system parts",
    "system 2 parts", "multi-turn image", "assistant parts", "tools", "tools+system", "tools+image", "tool turn",
    "tool turn+text", "two calls", "tool result parts", "tool result image", "no tools param, tool turn",
    "thinking off", "thinking on", "thinking off image", "nothink user", "reasoning history", "reasoning tool",
    "think in content", "no gen", "vision id", "specials", "empty user", "spaces",
)  # fmt: skip
WITH_TOOLS = [name for name in NAMES if "tool" in name or name == "two calls"]
TAKES_NO_TOOLS = "this model's chat template takes no tools; --chat-template gives the server one that does."
REFUSED = {
    **{(m, name): TAKES_NO_TOOLS for m in ("Qwen2.5-VL-7B-Instruct", "GLM-4.1V-9B-Thinking") for name in WITH_TOOLS},
    ("GLM-4.5V", "tool result image"): "messages[2].content has images, but the chat template reads text only in "
    "messages of the role tool.",
}
for _model in ("Qwen2.5-VL-7B-Instruct", "GLM-4.1V-9B-Thinking"):
    REFUSED[_model, "no tools param, tool turn"] = f"messages[1] has calls of tools, but {TAKES_NO_TOOLS}"
# Where a template shows a list of parts in Python's notation: the texts, as one string.
AS_TEXT = {
    ("GLM-4.1V-9B-Thinking", "system parts"): "[gMASK]<sop><|system|>\nBe brief.<|user|>\nHi<|assistant|>\n",
    ("GLM-4.1V-9B-Thinking", "system 2 parts"): (
        "[gMASK]<sop><|system|>\nBe brief. Be kind.<|user|>\nHi<|assistant|>\n"
    ),
    ("GLM-4.1V-9B-Thinking", "assistant parts"): "[gMASK]<sop><|user|>\na<|assistant|>\nbc<|user|>\nd<|assistant|>\n",
}
GLM_SPECIAL_TOKENS = (
    "<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>",
    "<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>", "<|image|>", "<|video|>",
    "/nothink",
)  # fmt: skip

pytestmark = needs_published


@pytest.fixture(scope="session")
def qwen_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tokenizer of Qwen's models as the hub has it in the older form."""
    folder = tmp_path_factory.mktemp("qwen")
    for name in ("vocab.json", "merges.txt"):
        packed = PUBLISHED / "tokenizer-qwen" / f"{name}.gz"
        (folder / name).write_bytes(gzip.decompress(packed.read_bytes()))
    shutil.copy(PUBLISHED / "Qwen3-VL-30B-A3B-Instruct" / "tokenizer_config.json", folder)
    return folder


@pytest.fixture(scope="session")
def qwen_tokenizer(qwen_folder: Path) -> Tokenizer:
    return load_tokenizer(qwen_folder)


@pytest.fixture(scope="session")
def glm_tokenizer() -> Tokenizer:
    """Theirs is not at hand: a small one with their special tokens."""
    return Tokenizer(make_tokenizer(GLM_SPECIAL_TOKENS))


@pytest.fixture(scope="session", params=MODELS)
def published(
    request: pytest.FixtureRequest, qwen_tokenizer: Tokenizer, glm_tokenizer: Tokenizer
) -> tuple[str, PromptBuilder]:
    """A model's name, and what makes its prompts."""
    name = request.param
    raw = MODELS[name]
    entry = find_entry(raw["model_type"])
    tokenizer, facts = qwen_tokenizer, entry.facts(entry.parse_config(raw), {}, {})
    if name.startswith("GLM"):
        tokenizer, facts = glm_tokenizer, _with_tokens_of(glm_tokenizer, entry.facts, entry.parse_config, raw)
    return name, PromptBuilder(tokenizer, load_chat_template(PUBLISHED / name, None), facts)


def _with_tokens_of(tokenizer: Tokenizer, facts: Any, parse: Any, raw: dict[str, Any]) -> ModelFacts:
    spelled = {
        "image_start_token_id": "<|begin_of_image|>",
        "image_end_token_id": "<|end_of_image|>",
        "video_start_token_id": "<|begin_of_video|>",
        "video_end_token_id": "<|end_of_video|>",
        "image_token_id": "<|image|>",
        "video_token_id": "<|video|>",
    }
    own = {key: tokenizer.added_tokens[text].token_id for key, text in spelled.items()}
    made: ModelFacts = facts(parse({**raw, **own}), {}, {})
    return made


@pytest.mark.parametrize("name", NAMES)
def test_renders_as_transformers_does(published: tuple[str, PromptBuilder], name: str) -> None:
    model, builder = published
    goldens = read_published("renders.json")
    assert tuple(goldens["cases"]) == NAMES
    case, expected = goldens["cases"][name], goldens["rendered"][model][name]
    options = {
        "add_generation_prompt": case["add_generation_prompt"],
        "kwargs": case["chat_template_kwargs"],
        "tools": case["tools"] or [],
    }
    if (model, name) in REFUSED:
        with pytest.raises(UserError) as caught:
            render(builder, case["messages"], **options)
        assert caught.value.message == REFUSED[model, name]
        return
    shown = builder.plain_text(render(builder, case["messages"], **options))
    if "{'type': 'text'" in expected:  # Python's notation, in which transformers shows what a template doesn't read
        expected = AS_TEXT.get((model, name)) or _joined_results(expected)
    assert shown == expected
    assert "{'" not in shown


def _joined_results(rendered: str) -> str:
    """GLM-4.5V's template writes one result for each part of one."""
    texts = "".join(re.findall(r"'text': '(.*?)'", rendered))
    [whole] = re.findall(r"<\|observation\|>.*</tool_response>", rendered, re.DOTALL)
    return rendered.replace(whole, f"<|observation|>\n<tool_response>\n{texts}\n</tool_response>")


@pytest.fixture(scope="session")
def qwen_of_transformers(qwen_folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(qwen_folder)


@pytest.mark.parametrize("model", [name for name in MODELS if name.startswith("Qwen")])
def test_tokens_of_qwen_are_those_of_transformers(
    qwen_tokenizer: Tokenizer, qwen_of_transformers: Any, model: str
) -> None:
    for name, rendered in read_published("renders.json")["rendered"][model].items():
        assert qwen_tokenizer.encode(rendered) == qwen_of_transformers(rendered)["input_ids"], name


def test_special_texts_of_users_are_no_special_tokens(published: tuple[str, PromptBuilder]) -> None:
    _, builder = published
    specials = read_published("renders.json")["cases"]["specials"]["messages"]
    plain = [{"role": "user", "content": "a"}]
    known = builder._tokenizer.special_ids
    counts = [sum(token in known for token in builder.tokenize(render(builder, m))) for m in (specials, plain)]
    assert counts[0] == counts[1] > 0
