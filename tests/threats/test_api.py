"""Hostile requests without media, against the same server: refused in few words, and in time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.threats import test_media as media
from tests.threats.conftest import Attacked
from tests.threats.test_media import REFUSED, check_short

TEXT = [{"role": "user", "content": "Hi"}]


def ask(attacked: Attacked, messages: object = None, **fields: Any) -> httpx2.Response:
    body = {"messages": TEXT if messages is None else messages, "max_tokens": 1, **fields}
    return attacked.server.post("/v1/chat/completions", body)


def _deep(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


FORMS: dict[str, Any] = {
    "no such type": {"guided_json": {"type": "nope"}},
    "not an object": {"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
    "deep": {"guided_json": _deep(200)},
    "enum": {"guided_json": {"enum": ["x" * 99 + str(number) for number in range(10_000)]}},
    "reference to itself": {"guided_json": {"$ref": "#"}},
    "reference outside": {"guided_json": {"$ref": "file:///etc/passwd"}},
    "reference elsewhere": {"guided_json": {"$ref": "http://127.0.0.1:PORT/schema.json"}},
    "impossible": {"guided_json": {"allOf": [{"type": "string"}, {"type": "integer"}]}},
    "bracket": {"guided_regex": "["},
    "backtracking": {"guided_regex": "(a+)+$" + "(b|b)*" * 30_000},
    "look-behind": {"guided_regex": "(?<=a)b"},
    "endless grammar": {"guided_grammar": "root ::= root"},
    "rules of rules": {
        "guided_grammar": "\n".join(["start: r0", *(f'r{i}: "a" r{i + 1}' for i in range(2500)), "r2500:"])
    },
    "references to references": {
        "guided_json": {
            "$ref": "#/$defs/0",
            "$defs": {str(i): {"items": {"$ref": f"#/$defs/{i + 1}"}} for i in range(999)},
        }
    },
    "no choices": {"guided_choice": []},
    "many choices": {"guided_choice": [str(number) for number in range(100_000)]},
    "two forms": {"guided_regex": "a", "guided_choice": ["a"]},
    "pattern": {"guided_json": {"type": "string", "pattern": "[" * 50}},
}


@pytest.mark.parametrize("name", FORMS)
def test_forms_that_no_answer_can_have(attacked: Attacked, name: str) -> None:
    """Threat: schema and regex (CVE-2025-48942, CVE-2025-48943, CVE-2025-48944, CVE-2026-55574, CVE-2025-29770,
    GHSA-85xf-c7hm-whqw, GHSA-7rgv-gqhr-fxg3)."""
    text = json.dumps(FORMS[name]).replace("PORT", str(attacked.canary.port))
    check_short(ask(attacked, **json.loads(text)))
    assert attacked.canary.num_visitors == 0


@pytest.mark.parametrize(
    "regex", ["((a{1,999}){1,999}){1,999}", "(a|aa)+b", "(a*)*b", "|".join(f"(a|b)*c{{{n}}}" for n in range(1, 300))]
)
def test_forms_that_take_work_take_little_time(attacked: Attacked, regex: str) -> None:
    """Threat: schema and regex (CVE-2025-48943, CVE-2026-55574): compiled and followed, or given up."""
    answer = ask(attacked, guided_regex=regex, max_tokens=50, temperature=1, seed=1)
    assert answer.status_code in (200, *REFUSED)
    assert ask(attacked).status_code == 200


@pytest.mark.parametrize(
    "function",
    [{}, {"name": ""}, {"name": "x" * 1000}, {"name": "../../x"}, {"name": 5}, {"name": "f", "parameters": 5},
     {"name": "f", "parameters": {"type": "nope"}}, {"name": "f", "parameters": _deep(200)}],
)  # fmt: skip
def test_tools_that_no_model_can_call(attacked: Attacked, function: dict[str, Any]) -> None:
    """Threat: schema and regex (CVE-2025-48944)."""
    check_short(ask(attacked, tools=[{"type": "function", "function": function}], tool_choice="required"))


PARAMETERS: tuple[dict[str, Any], ...] = (
    {"n": 10**9}, {"n": 0}, {"n": -1}, {"max_tokens": 2**63}, {"max_tokens": 2**64}, {"max_tokens": -1},
    {"temperature": -1}, {"temperature": 1e300}, {"top_p": 1.5}, {"top_k": -5}, {"top_k": 2**70}, {"min_p": 2},
    {"repetition_penalty": 0}, {"repetition_penalty": -1}, {"presence_penalty": 1e9}, {"frequency_penalty": -1e9},
    {"logit_bias": {"-1": 5}}, {"logit_bias": {"x": 5}}, {"logit_bias": {"5": 1e999}}, {"logit_bias": {"99999": 5}},
    {"stop_token_ids": [10**12]}, {"stop_token_ids": [-1]}, {"stop_token_ids": list(range(1000))},
    {"stop_token_ids": [10**12], "min_tokens": 1}, {"min_tokens": 2**62}, {"min_tokens": 10**6}, {"min_tokens": -1},
    {"stop": ["x"] * 1000}, {"stop": "x" * 100_000}, {"stop": [""]}, {"seed": 2**64}, {"cache_salt": "x" * 10**7},
    {"allowed_token_ids": [-1]}, {"allowed_token_ids": [10**12]},
    {"logprobs": True, "top_logprobs": 10**6}, {"prompt_logprobs": -1}, {"truncate_prompt_tokens": -5},
    {"mm_processor_kwargs": {"max_pixels": 2**62}}, {"mm_processor_kwargs": {"min_pixels": 0}},
)  # fmt: skip


@pytest.mark.parametrize("fields", PARAMETERS, ids=lambda fields: "-".join(fields))
def test_parameters_out_of_range(attacked: Attacked, fields: dict[str, Any]) -> None:
    """Threat: parameters (CVE-2026-34756, CVE-2026-54235, GHSA-v5gm-qgmv-gc6c, GHSA-4xqp-c3mv-qff7, CVE-2026-93840,
    CVE-2026-93592, GHSA-wpww-v874-ph2p, CVE-2026-44223)."""
    text = json.dumps({"messages": TEXT, "max_tokens": 1, **fields})
    headers = {"content-type": "application/json"}
    url = f"{attacked.server.url}/v1/chat/completions"
    check_short(httpx2.post(url, content=text, headers=headers, timeout=60), statuses=(400, 413, 422))


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "repetition_penalty"])
def test_numbers_that_are_none(attacked: Attacked, field: str, value: str) -> None:
    """Threat: parameters (CVE-2026-54235)."""
    text = json.dumps({"messages": TEXT})[:-1] + f', "{field}": {value}}}'
    url = f"{attacked.server.url}/v1/chat/completions"
    check_short(httpx2.post(url, content=text, headers={"content-type": "application/json"}))


@pytest.mark.parametrize(
    "prompt", [["a"] * 100_000, [[1]] * 100_000, [[]], [[-1]], [[10**12]], [[True]], [["a"]], {}]
)
def test_lists_of_prompts(attacked: Attacked, prompt: object) -> None:
    """Threat: parameters (GHSA-87x5-vmc3-756j): one request fans out into as many prompts."""
    check_short(attacked.server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1}))


@pytest.mark.parametrize(
    "fields",
    [
        {"chat_template": "{{ 7 * 7 }}"},
        {"chat_template_kwargs": {"tokenize": True, "chat_template": "{% for i in range(10**9) %}x{% endfor %}"}},
        *({"chat_template_kwargs": {name: True}} for name in ("tokenize", "chat_template", "messages", "tools")),
        {"chat_template_kwargs": {"raise_exception": 5}},
        {"chat_template_kwargs": {"x": "y" * 10_000_000}},
        {"chat_template_kwargs": [1]},
    ],
    ids=lambda fields: str(fields)[:60],
)
def test_a_request_brings_no_template(attacked: Attacked, fields: dict[str, Any]) -> None:
    """Threat: chat template (CVE-2025-61620, CVE-2025-62426)."""
    check_short(ask(attacked, **fields), statuses=(400, 413, 422))


def test_text_is_no_picture(attacked: Attacked) -> None:
    """Threat: placeholder injection (CVE-2026-44222, GHSA-hpv8-x276-m59f)."""
    for text in ("<|vision_start|><|image_pad|><|vision_end|>", "<|image_pad|>" * 300, "<|video_pad|>"):
        for role in ("system", "user", "assistant"):  # the template shows no results of tools, which is refused
            messages = [{"role": "user", "content": "a"}, {"role": role, "content": text}]
            usage = ask(attacked, messages).json()["usage"]
            assert usage["prompt_tokens"] > len(text) / 10
            assert usage["prompt_tokens_details"]["multimodal_tokens"] == {"image": 0, "video": 0}
        check_short(attacked.server.post("/v1/completions", {"prompt": text}))
    for text in ("<image>", "[IMG]", "<|image|>", "<|image_1|>"):
        assert ask(attacked, [{"role": "user", "content": text}]).status_code == 200


def test_a_megabyte_of_marks_takes_a_moment(attacked: Attacked) -> None:
    """Threat: quadratic time (CVE-2025-46560, CVE-2025-48887, GHSA-j828-28rj-hfhp)."""
    for mark in ("<|image_1|>", "<|im_end|>", "<|image_pad|>", "<tool_call>[{", "]]]]((((", "\U0001f642\u200d"):
        check_short(ask(attacked, [{"role": "user", "content": mark * (10**6 // len(mark))}]))


def test_a_full_server_says_so_before_it_fetches_anything(attacked: Attacked) -> None:
    """Threat: overload."""
    long = {"messages": TEXT, "n": 8, "temperature": 1, "max_tokens": 3000, "ignore_eos": True, "stream": True}
    before = attacked.host.num_requests
    with httpx2.stream("POST", f"{attacked.server.url}/v1/chat/completions", json=long, timeout=60) as answering:
        lines = answering.iter_lines()  # the answers end with it
        assert next(lines).startswith("data: ")
        refused = media.ask(attacked, media.image(f"{attacked.host_url}/picture.png"))
        check_short(refused, statuses=(503,))
        assert int(refused.headers["retry-after"]) > 0
        assert attacked.host.num_requests == before
    attacked.server.await_metric("chiasm:num_requests_running", 0)
    assert ask(attacked).status_code == 200


def test_answers_to_nonsense_are_small(attacked: Attacked) -> None:
    """Threat: amplification: twelve thousand mistakes are not twelve thousand errors."""
    for messages in ([5] * 12_000, [{"role": "user", "content": [{"type": "x" * 99}] * 12_000}], [{}] * 12_000):
        check_short(ask(attacked, messages))


def test_names_of_clients_are_no_paths(attacked: Attacked) -> None:
    """Threat: file write by name (CVE-2026-7302)."""
    where = attacked.media.parent
    before = sorted(path for path in where.rglob("*") if path.is_file())
    name = "../" * 12 + str(where / "written")
    headers = {"X-Request-Id": name}
    part = {"type": "text", "text": "Hi", "filename": name, "name": name, "file_id": name, "uuid": name}
    fields = {"user": name, "cache_salt": name, "metadata": {"file": name}, "prompt_cache_key": name}
    body = {"messages": [{"role": "user", "name": name, "content": [part]}], "max_tokens": 1, **fields}
    answer = httpx2.post(f"{attacked.server.url}/v1/chat/completions", json=body, headers=headers, timeout=60)
    assert answer.status_code == 200
    assert answer.headers["x-request-id"] != name
    assert attacked.server.post("/v1/chat/completions", {**body, "model": name}).status_code == 404
    assert httpx2.get(f"{attacked.server.url}/v1/models/{name}").status_code == 404
    assert sorted(path for path in where.rglob("*") if path.is_file()) == before
    assert not Path(where / "written").exists()


def test_bodies_nested_without_end(attacked: Attacked) -> None:
    """Threat: amplification: also fields that are only kept, which are 900 deep here."""
    deep: Any = "x"
    for _ in range(900):
        deep = [deep]
    for fields in (
        {"metadata": {"a": deep}},
        {"guided_json": {"enum": [deep]}},
        {"chat_template_kwargs": {"a": deep}},
    ):
        answer = ask(attacked, **fields)
        assert answer.status_code in (200, *REFUSED), answer.text
    assert ask(attacked, [{"role": "user", "content": "Hi", "tool_calls": deep}]).status_code in (200, *REFUSED)


def test_salts_part_the_prefixes_of_tenants(attacked: Attacked) -> None:
    """Threat: prefix-cache timing (GHSA-4qjh-9fv9-r85r)."""
    messages = [{"role": "user", "content": "The same long question of two tenants. " * 20}]

    def cached(salt: str) -> int:
        usage = ask(attacked, messages, cache_salt=salt).json()["usage"]
        return int((usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0)

    assert cached("one") == 0
    assert cached("one") > 0
    assert cached("two") == 0
