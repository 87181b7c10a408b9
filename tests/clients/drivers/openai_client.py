"""OpenAI's own client."""

import asyncio
import threading
import time
from typing import Literal

import openai
import pydantic
import scenarios

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Paris", "Rome"]},
                "unit": {"enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}


class Verdict(pydantic.BaseModel):
    verdict: Literal["yes", "no"]
    marks: Literal[1, 2, 3]


def _client(url, **settings):
    return openai.OpenAI(base_url=f"{url}/v1", api_key="unused", **settings)


def _messages(chart):
    picture = {"type": "image_url", "image_url": {"url": chart["url"], "detail": "high"}}
    return [{"role": "user", "content": [{"type": "text", "text": chart["question"]}, picture]}]


def models(given):
    client = _client(given["charts_url"])
    [model] = client.models.list().data
    return {"listed": model.model_dump(exclude_unset=True), "same": client.models.retrieve(model.id) == model}


def answers(given):
    client = _client(given["charts_url"])
    found = []
    for chart in given["charts"]:
        answer = client.chat.completions.create(
            model="chart-reader", messages=_messages(chart), max_completion_tokens=given["max_tokens"], temperature=0
        )
        [choice] = answer.choices
        found.append([choice.message.content, choice.finish_reason, answer.usage.model_dump(), answer._request_id])
    return found


def streams(given):
    client = _client(given["charts_url"])
    found = []
    for chart in given["charts"]:
        text, roles, reasons, usages = "", [], [], []
        stream = client.chat.completions.create(
            model="chart-reader",
            messages=_messages(chart),
            max_tokens=given["max_tokens"],
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        for chunk in stream:
            for choice in chunk.choices:
                roles.append(choice.delta.role)
                text += choice.delta.content or ""
                reasons.append(choice.finish_reason)
            if chunk.usage:
                usages.append([len(chunk.choices), chunk.usage.model_dump()])
        found.append([text, roles, reasons, usages])
    return found


def many_at_once(given):
    async def ask_all():
        async with openai.AsyncOpenAI(base_url=f"{given['charts_url']}/v1", api_key="unused") as client:
            return await asyncio.gather(*[ask(client, chart) for _ in range(4) for chart in given["charts"]])

    async def ask(client, chart):
        answer = await client.chat.completions.create(
            model="chart-reader", messages=_messages(chart), max_tokens=given["max_tokens"], temperature=0
        )
        return answer.choices[0].message.content

    return asyncio.run(ask_all())


def several_answers(given):
    answer = _client(given["tools_url"]).chat.completions.create(
        model="scripted",
        messages=[{"role": "user", "content": "Hello"}],
        n=3,
        seed=1,
        max_tokens=5,
        logprobs=True,
        top_logprobs=2,
        stop=["\n\n\n"],
        presence_penalty=0.1,
        extra_body={"ignore_eos": True, "top_k": 50, "min_p": 0.0},
    )
    return [[c.index, len(c.logprobs.content), {len(t.top_logprobs) for t in c.logprobs.content} == {2}]
            for c in answer.choices]  # fmt: skip


def request_ids(given):
    client = _client(given["charts_url"])
    messages = _messages(given["charts"][0])
    answer = client.chat.completions.create(
        model="chart-reader", messages=messages, max_tokens=4, extra_headers={"X-Request-Id": "mine-1"}
    )
    return answer._request_id


def _error(call):
    try:
        call()
    except openai.APIStatusError as error:
        found = [type(error).__name__, error.status_code, error.param, error.type, error.message]
        return [*found, bool(error.request_id)]
    return None


def errors(given):
    client = _client(given["charts_url"], max_retries=0)
    chart = given["charts"][0]

    def ask(**fields):
        usual = {"model": "chart-reader", "messages": _messages(chart), "max_tokens": 4}
        client.chat.completions.create(**{**usual, **fields})

    def ask_about(url):
        ask(messages=_messages({**chart, "url": url}))

    return {
        "temperature": _error(lambda: ask(temperature=3)),
        "stop": _error(lambda: ask(stop=["a"] * 99)),
        "model": _error(lambda: ask(model="gpt-4o")),
        "garbage": _error(lambda: ask_about("data:image/png;base64,AAAA")),
        "private": _error(lambda: ask_about("http://169.254.169.254/latest")),
        "streamed": _error(lambda: ask(temperature=3, stream=True)),
        "route": _error(lambda: client.post("/nowhere", cast_to=object, body={})),
    }


def keys(given):
    url = given["busy_url"]
    messages = [{"role": "user", "content": "Hello"}]
    wrong = _client(url, max_retries=0)
    right = openai.OpenAI(base_url=f"{url}/v1", api_key=given["key"])
    error = _error(lambda: wrong.chat.completions.create(model="chart-reader", messages=messages, max_tokens=2))
    answer = right.chat.completions.create(model="chart-reader", messages=messages, max_tokens=2)
    return [error, answer.object]


def retries(given):
    client = openai.OpenAI(base_url=f"{given['busy_url']}/v1", api_key=given["key"])
    ask = {"model": "chart-reader", "messages": [{"role": "user", "content": "Hello"}]}
    stream = client.chat.completions.create(**ask, max_tokens=4000, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    refused = _error(lambda: client.with_options(max_retries=0).chat.completions.create(**ask, max_tokens=2))
    threading.Timer(0.3, stream.close).start()
    began = time.monotonic()
    raw = client.with_options(max_retries=4).chat.completions.with_raw_response.create(**ask, max_tokens=2)
    return {
        "refused": refused,
        "retries": raw.retries_taken,
        "seconds": time.monotonic() - began,
        "object": raw.parse().object,
    }


def timeouts(given):
    client = _client(given["tools_url"], timeout=0.2, max_retries=0)
    try:
        client.chat.completions.create(
            model="scripted",
            messages=[{"role": "user", "content": "Hello"}],
            max_tokens=3000,
            extra_body={"ignore_eos": True},
        )
    except openai.APITimeoutError as error:
        return type(error).__name__
    return None


def _calls(message):
    return [[call.type, call.function.name, call.function.arguments] for call in message.tool_calls or []]


def _both(client, fields):
    """A whole answer and a streamed one: texts, calls and reason of each."""
    whole = client.chat.completions.create(**fields).choices[0]
    with client.chat.completions.stream(**fields) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion().choices[0]
    return [[c.message.content or "", _calls(c.message), c.finish_reason] for c in (whole, streamed)]


def forced_tools(given):
    client = _client(given["tools_url"])
    fields = {
        "model": "scripted",
        "messages": _messages(given["charts"][0]),
        "tools": [WEATHER],
        "parallel_tool_calls": False,
        "max_tokens": 100,
        "seed": 5,
    }
    choices = {"required": "required", "named": {"type": "function", "function": {"name": "get_weather"}}}
    return {name: _both(client, {**fields, "tool_choice": choice}) for name, choice in choices.items()}


def conversation(given):
    """The model calls, gets a result and tells it; then it is asked again."""
    client = _client(given["tools_url"])
    messages = _messages(given["charts"][0])
    fields = {"model": "scripted", "tools": [WEATHER], "max_tokens": 60}
    called = _both(client, {**fields, "messages": messages})
    answer = client.chat.completions.create(**fields, messages=messages)
    turn = answer.choices[0].message
    result = {"role": "tool", "tool_call_id": turn.tool_calls[0].id, "content": '{"sky": "blue"}'}
    messages = [*messages, turn.model_dump(exclude_none=True), result]
    told = _both(client, {**fields, "messages": messages})
    messages = [*messages, {"role": "assistant", "content": told[0][0]}, {"role": "user", "content": "And now?"}]
    again = _both(client, {**fields, "messages": messages})
    plain = client.chat.completions.create(**fields, messages=messages, tool_choice="none").choices[0]
    return {
        "called": called,
        "reasoning": [turn.reasoning, turn.reasoning_content],
        "counts": [answer.usage.completion_tokens_details.reasoning_tokens, answer.usage.completion_tokens],
        "told": told,
        "again": again,
        "calls of none": _calls(plain.message),
    }


def forms(given):
    client = _client(given["tools_url"])
    fields = {"model": "scripted", "messages": _messages(given["charts"][0]), "max_tokens": 60, "seed": 2}
    parsed = client.chat.completions.parse(**fields, response_format=Verdict).choices[0].message.parsed
    with client.chat.completions.stream(**fields, response_format=Verdict) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion().choices[0].message.parsed
    tools = [openai.pydantic_function_tool(Verdict, name="judge")]
    forced = {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 200}
    call = client.chat.completions.parse(**{**fields, **forced}).choices[0].message
    form = {"type": "json_object"}
    text = client.chat.completions.create(**{**fields, "max_tokens": 30}, response_format=form).choices[0]
    return {
        "parsed": parsed.model_dump(),
        "streamed": streamed.model_dump(),
        "tool": call.tool_calls[0].function.parsed_arguments.model_dump(),
        "object": [text.message.content, text.finish_reason],
    }


def completions(given):
    client = _client(given["charts_url"])
    answer = client.completions.create(
        model="chart-reader", prompt=["What is", "How many"], max_tokens=3, temperature=0, logprobs=1, echo=True
    )
    return [[c.index, c.text, c.logprobs.model_dump()] for c in answer.choices]


scenarios.run(
    {
        scenario.__name__: scenario
        for scenario in (
            models, answers, streams, many_at_once, several_answers, request_ids, errors, keys, retries, timeouts,
            forced_tools, conversation, forms, completions,
        )
    }
)  # fmt: skip
