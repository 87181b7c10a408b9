"""The forms of ``prompt`` in ``/v1/completions``: a string, token ids, or a list of either."""

from __future__ import annotations

from chiasm.errors import refuse

MAX_PROMPTS = 256  # in one request, which fans out into as many prompts

Prompt = str | list[int]


def parse_prompts(prompt: object) -> list[Prompt]:
    """The prompts of a completion request.

    Raises:
        UserError: naming the entry at fault.
    """
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list) or not prompt:
        refuse("prompt", prompt, "a string, token ids, or a non-empty list of them")
    if type(prompt[0]) is int:
        return [_token_ids(prompt, "prompt")]
    if len(prompt) > MAX_PROMPTS:
        refuse("prompt", f"{len(prompt)} prompts", f"at most {MAX_PROMPTS} prompts")
    return [_one(entry, f"prompt[{index}]") for index, entry in enumerate(prompt)]


def _one(prompt: object, param: str) -> Prompt:
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, list) or not prompt:
        refuse(param, prompt, "a string or a non-empty list of token ids")
    return _token_ids(prompt, param)


def _token_ids(values: list[object], param: str) -> list[int]:
    token_ids = [value for value in values if type(value) is int]  # a bool is an int too, but no token id
    if len(token_ids) != len(values):
        index = next(i for i, value in enumerate(values) if type(value) is not int)
        refuse(f"{param}[{index}]", values[index], "a token id")
    return token_ids
