"""Plain completions: the forms of a prompt, several at once, echo, logprobs, streams."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from chiasm.schema.sampling import SamplingParams
from tests.clocks import wait_until
from tests.server.fake_engine import FakeEngine
from tests.server.running import RunningServer
from tests.server.test_chat import events_of


def test_one_prompt(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="org/fake-vl", prompt="Once upon a time")
    assert answer.id.startswith("cmpl-")
    assert answer.object == "text_completion"
    choice = answer.choices[0]
    assert (choice.index, choice.text, choice.finish_reason, choice.logprobs) == (0, "Hello big world!", "stop", None)
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (4, 4)


@pytest.mark.parametrize(
    ("prompt", "prepared"),
    [
        ("a b", ["a b"]),
        (["a", "b c"], ["a", "b c"]),
        ([5, 6, 7], [[5, 6, 7]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
        (["a", [7]], ["a", [7]]),
    ],
)
def test_forms_of_prompts(server: RunningServer, engine: FakeEngine, prompt: Any, prepared: list[Any]) -> None:
    answer = server.complete(prompt)
    assert answer.status_code == 200
    assert engine.prompts == prepared
    assert [choice["index"] for choice in answer.json()["choices"]] == list(range(len(prepared)))


def test_several_prompts_with_several_answers_each(server: RunningServer, engine: FakeEngine) -> None:
    answer = server.complete(["one", "two words"], n=2, echo=True).json()
    assert [(c["index"], c["text"].removesuffix("Hello big world!")) for c in answer["choices"]] == [
        (0, "one"),
        (1, "one"),
        (2, "two words"),
        (3, "two words"),
    ]
    assert answer["usage"]["prompt_tokens"] == 3
    assert answer["usage"]["completion_tokens"] == 16
    assert len(set(engine.request_ids)) == 2


def test_a_stream_of_several_prompts(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True}
    stream = client.completions.create(
        model="org/fake-vl", prompt=["one", "two"], stream=True, echo=True, stream_options=options
    )
    texts = {0: "", 1: ""}
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == {0: "oneHello big world!", 1: "twoHello big world!"}
    assert chunk.choices == []
    assert chunk.usage is not None
    assert chunk.usage.completion_tokens == 8


def test_the_exact_events_of_a_stream(server: RunningServer, engine: FakeEngine) -> None:
    engine.words = ("Yes",)
    (event,) = events_of(server.complete(stream=True).text)
    assert set(event) == {"id", "object", "created", "model", "choices"}
    assert event["choices"] == [
        {"index": 0, "text": "Yes", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    ]


def test_logprobs(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="org/fake-vl", prompt="Once", logprobs=1)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["Hello", " big", " world", "!"]
    assert logprobs.text_offset == [0, 5, 9, 15]
    assert logprobs.token_logprobs == [-2.5] * 4
    assert logprobs.top_logprobs is not None
    assert logprobs.top_logprobs[0] == {"Hello": -2.5, "t0": -0.5}


def test_offsets_go_on_through_a_stream(server: RunningServer) -> None:
    events = events_of(server.complete(stream=True, logprobs=0).text)
    assert [e["choices"][0]["logprobs"]["text_offset"] for e in events] == [[0], [5], [9], [15]]


def test_offsets_do_not_wait_for_text_that_is_held_back(server: RunningServer, engine: FakeEngine) -> None:
    """Outputs whose text comes later than their tokens: a stop string may have begun, or a character is not whole."""
    engine.words, engine.held_back = ("b", "b", "\ufffd", "b"), True
    whole = server.complete(logprobs=0).json()["choices"][0]
    pieces = [e["choices"][0] for e in events_of(server.complete(stream=True, logprobs=0).text)]
    assert [piece["text"] for piece in pieces] == ["", "", "", "bb\ufffdb"]
    offsets = [offset for piece in pieces for offset in piece["logprobs"]["text_offset"]]
    assert offsets == whole["logprobs"]["text_offset"] == [0, 1, 2, 3]


SCORED = {"tokens": ["5", " 6", " 7"], "token_logprobs": [None, -1.5, -1.5], "text_offset": [0, 1, 3]}


def test_a_prompt_of_token_ids_is_echoed_as_text(server: RunningServer) -> None:
    answer = server.complete([[5, 6, 7], [8]], echo=True).json()
    assert [choice["text"] for choice in answer["choices"]] == ["5 6 7Hello big world!", "8Hello big world!"]
    assert [choice["logprobs"] for choice in answer["choices"]] == [None, None]


def test_lm_evals_request_for_a_likelihood(server: RunningServer, engine: FakeEngine) -> None:
    """https://github.com/EleutherAI/lm-evaluation-harness, ``local-completions``: what it sends and reads."""
    fields = {"max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0, "seed": 1234}
    answer = server.complete([[5, 6, 7], [8]], **fields).json()
    assert engine.sampling[0] == SamplingParams(temperature=0, max_tokens=1, logprobs=1, prompt_logprobs=1, seed=1234)
    first, second = (choice["logprobs"] for choice in answer["choices"])
    assert {key: values[:3] for key, values in first.items() if key in SCORED} == SCORED
    assert first["top_logprobs"][:2] == [None, {" 6": -1.5, "t0": -0.25}]
    assert [values[3:] for values in first.values()] == [[5], [-2.5], ["Hello"], [{"Hello": -2.5, "t0": -0.5}]]
    assert [second[key] for key in SCORED] == [["8", "Hello"], [None, -2.5], [0, 1]]


def test_tokens_that_are_not_in_the_prompt_that_was_sent_are_not_echoed(server: RunningServer) -> None:
    choice = server.complete("Once upon", echo=True, logprobs=0, max_tokens=1).json()["choices"][0]
    assert choice["text"] == "Once uponHello"
    assert choice["logprobs"]["tokens"] == ["5", " 5", "Hello"]
    assert choice["logprobs"]["text_offset"] == [0, 0, 9], "the engine's special tokens stand around the text"


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_only_looked_at(server: RunningServer, stream: bool) -> None:
    fields = {"max_tokens": 0, "logprobs": 0, "echo": True, "stream": stream}
    answer = server.complete([5, 6, 7], **fields)
    (event,) = events_of(answer.text) if stream else (answer.json(),)
    (choice,) = event["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("5 6 7", "length")
    assert {key: choice["logprobs"][key] for key in SCORED} == SCORED
    if not stream:
        assert event["usage"]["completion_tokens"] == 0


def test_a_stream_tells_of_its_prompt_with_the_first_piece_of_each_answer(
    server: RunningServer, engine: FakeEngine
) -> None:
    """Also of answers that are further than the one whose sequence scores the prompt."""
    engine.words_before_scores = 2
    events = events_of(server.complete([5, 6, 7], stream=True, echo=True, logprobs=0, n=2).text)
    for index in (0, 1):
        choices = [event["choices"][0] for event in events if event["choices"][0]["index"] == index]
        assert "".join(choice["text"] for choice in choices) == "5 6 7Hello big world!"
        assert choices[0]["logprobs"]["token_logprobs"] == [None, -1.5, -1.5, -2.5]
        assert [choice["logprobs"]["text_offset"] for choice in choices] == [[0, 1, 3, 5], [10], [14], [20]]


def test_prompt_logprobs_have_vllms_form(server: RunningServer) -> None:
    (choice,) = server.complete([5, 6], prompt_logprobs=1).json()["choices"]
    own = {"logprob": -1.5, "rank": 9, "decoded_token": " 6"}
    assert choice["prompt_logprobs"] == [
        None,
        {"6": own, "500": {**own, "logprob": -0.25, "rank": 1, "decoded_token": "t0"}},
    ]
    assert (choice["text"], choice["logprobs"]) == ("Hello big world!", None)


def test_tokens_are_told_by_their_ids(server: RunningServer) -> None:
    fields = {"return_token_ids": True, "return_tokens_as_token_ids": True, "logprobs": 1, "echo": True}
    (choice,) = server.complete([5, 6], max_tokens=2, **fields).json()["choices"]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == ([5, 6], [10, 11])
    assert choice["logprobs"]["tokens"] == [f"token_id:{i}" for i in (5, 6, 10, 11)]
    assert choice["logprobs"]["top_logprobs"][1] == {"token_id:6": -1.5, "token_id:500": -0.25}
    events = events_of(server.complete([5, 6], stream=True, max_tokens=2, return_token_ids=True).text)
    told = [{key: event["choices"][0].get(key) for key in ("prompt_token_ids", "token_ids")} for event in events]
    assert told == [{"prompt_token_ids": [5, 6], "token_ids": [10]}, {"prompt_token_ids": None, "token_ids": [11]}]


def test_a_bad_prompt_frees_those_before_it(server: RunningServer, engine: FakeEngine) -> None:
    assert server.complete(["fine", "fine too", "too long"]).status_code == 400
    assert engine.is_idle
    assert engine.request_ids == []


def test_one_failing_prompt_ends_the_others(server: RunningServer, engine: FakeEngine) -> None:
    engine.generate_error = RuntimeError("a bug")
    engine.words_before_error = 2
    assert server.complete(["one", "two", "three"]).status_code == 500
    wait_until(lambda: engine.is_idle)
    assert engine.num_aborted == 3


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (None, "prompt must be a string, token ids, or a non-empty list of them, got None."),
        ([], "prompt must be a string, token ids, or a non-empty list of them, got []."),
        ([5, "a"], "prompt[1] must be a token id, got 'a'."),
        ([[5], []], "prompt[1] must be a string or a non-empty list of token ids, got []."),
        ([[True]], "prompt[0][0] must be a token id, got True."),
        (["a"] * 257, "prompt must be at most 256 prompts, got '257 prompts'."),
    ],
)
def test_bad_prompts(server: RunningServer, prompt: Any, message: str) -> None:
    answer = server.complete(prompt)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == message


def test_a_missing_prompt(server: RunningServer) -> None:
    answer = server.client.post("/v1/completions", json={})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": 21}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt": [[5] * 200] * 128, "prompt_logprobs": 20}, "prompt_logprobs"),
        ({"prompt": [[5] * 200] * 128, "logprobs": 20, "echo": True}, "prompt_logprobs"),
    ],
)
def test_what_is_not_served(server: RunningServer, fields: dict[str, Any], param: str) -> None:
    answer = server.complete(**{"prompt": "a", **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
