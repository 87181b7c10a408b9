"""A checkpoint that says what it is told to: it calls a tool by itself, and tells what the tool has found.

Its language model's layers add nothing, so the next token hangs on the last one alone. Each token of a script has a
direction of the embedding to itself, in which the output's row of the next token points; so a script is said as soon
as the prompt ends with its first token, greedily or not. Pictures are encoded all the same. Other text is random.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from tests.checkpoints.common import CHAT_TEMPLATE
from tests.checkpoints.qwen2 import save_qwen2_5_vl

ARGUMENTS: dict[str, Any] = {"city": "Paris", "unit": "celsius"}
REASONING = "I have to look out of the window."
RESULT = "It is sunny in Paris."
_CALL = (
    "<<call>>", "<think>", REASONING, "</think>", "<tool_call>",
    '{"name": "get_weather", ', '"arguments": {"city": "Paris", ', '"unit": "celsius"}}', "</tool_call>",
    "<|im_end|>",
)  # fmt: skip
_TELL = ("<<tell>>", "It is sunny", " in Paris.", "<|endoftext|>")
_START = "{%- if add_generation_prompt %}<|im_start|>assistant\n"
_TOOLS = "{% for tool in tools or [] %}<tools>{{ tool | tojson }}</tools>\n{% endfor %}"
_CALLS = "{% for call in message.tool_calls or [] %}{{ call | tojson }}{% endfor %}<|im_end|>\n{% endfor %}"
_BEGIN = "{% if messages[-1].role == 'tool' %}<<tell>>{% elif tools %}<<call>>{% endif %}"
_LOUD = 4.0  # what is said is e to the 30 times as likely as anything else


def save_scripted(folder: Path) -> Path:
    """Write a checkpoint that thinks and calls ``get_weather`` where there are tools, and then tells ``RESULT``."""
    scripts = (_CALL, _TELL)
    save_qwen2_5_vl(folder, changes={"vocab_size": 512})
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens([token for script in scripts for token in script])
    tokenizer.save(str(folder / "tokenizer.json"))
    weights = load_file(folder / "model.safetensors")
    for name, weight in weights.items():
        if name.startswith("model.") and name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.zero_()
    steps = [(tokenizer.token_to_id(a), tokenizer.token_to_id(b)) for script in scripts for a, b in pairwise(script)]
    for direction, (token, following) in enumerate(steps):
        weights["model.embed_tokens.weight"][token] = 0
        weights["model.embed_tokens.weight"][token, direction] = 1
        weights["lm_head.weight"][following, direction] = _LOUD
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    template = _TOOLS + CHAT_TEMPLATE.replace("<|im_end|>\n{% endfor %}", _CALLS).replace(_START, _START + _BEGIN)
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder
