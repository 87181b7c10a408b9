"""LiteLLM, with its provider for servers that speak as OpenAI's and the one for vLLM's."""

import asyncio
from typing import Literal

import litellm
import pydantic
import scenarios

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}


class Verdict(pydantic.BaseModel):
    verdict: Literal["yes", "no"]
    marks: Literal[1, 2, 3]


def _fields(given, model="openai/chart-reader"):
    server = "tools_url" if model.endswith("scripted") else "charts_url"
    return {"model": model, "api_base": f"{given[server]}/v1", "api_key": "unused"}


def _messages(chart):
    picture = {"type": "image_url", "image_url": {"url": chart["url"]}}
    return [{"role": "user", "content": [{"type": "text", "text": chart["question"]}, picture]}]


def _ask(given, model):
    found = []
    for chart in given["charts"]:
        fields = _fields(given, model)
        answer = litellm.completion(
            **fields, messages=_messages(chart), temperature=0, max_tokens=given["max_tokens"], timeout=60
        )
        usage = answer.usage
        found.append([answer.choices[0].message.content, usage.prompt_tokens, usage.completion_tokens])
    return found


def answers(given):
    return _ask(given, "openai/chart-reader")


def answers_as_of_vllm(given):
    return _ask(given, "hosted_vllm/chart-reader")


def streams(given):
    found = []
    for chart in given["charts"]:
        chunks = list(
            litellm.completion(
                **_fields(given),
                messages=_messages(chart),
                temperature=0,
                max_tokens=given["max_tokens"],
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        whole = litellm.stream_chunk_builder(chunks)
        found.append([whole.choices[0].message.content, whole.usage.prompt_tokens, whole.usage.completion_tokens])
    return found


def many_at_once(given):
    async def ask_all():
        return await asyncio.gather(*[ask(chart) for chart in given["charts"]])

    async def ask(chart):
        answer = await litellm.acompletion(
            **_fields(given), messages=_messages(chart), temperature=0, max_tokens=given["max_tokens"]
        )
        return answer.choices[0].message.content

    return asyncio.run(ask_all())


def tools(given):
    fields = {**_fields(given, "openai/scripted"), "tools": [WEATHER], "max_tokens": 60}
    messages = _messages(given["charts"][0])
    turn = litellm.completion(**fields, messages=messages, tool_choice="auto").choices[0]
    [call] = turn.message.tool_calls
    chunks = list(litellm.completion(**fields, messages=messages, tool_choice="auto", stream=True))
    [streamed] = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": "blue"}
    told = litellm.completion(**fields, messages=[*messages, turn.message.model_dump(), result]).choices[0]
    return {
        "called": [[c.function.name, c.function.arguments] for c in (call, streamed)],
        "reason": turn.finish_reason,
        "reasoning": turn.message.reasoning_content,
        "told": told.message.content,
    }


def forms(given):
    answer = litellm.completion(
        **_fields(given, "openai/scripted"),
        messages=_messages(given["charts"][0]),
        max_tokens=60,
        response_format=Verdict,
    )
    return Verdict.model_validate_json(answer.choices[0].message.content).model_dump()


def errors(given):
    messages = [{"role": "user", "content": "Hello"}]
    found = []
    for fields in ({"temperature": 3}, {"model": "openai/gpt-4o"}):
        try:
            litellm.completion(**{**_fields(given), **fields}, messages=messages, num_retries=0)
        except (litellm.BadRequestError, litellm.NotFoundError) as error:
            found.append([type(error).__name__, error.status_code])
    return found


def responses(given):
    found = []
    for chart in given["charts"][:4]:
        picture = {"type": "input_image", "image_url": chart["url"]}
        content = [{"type": "input_text", "text": chart["question"]}, picture]
        answer = litellm.responses(
            **_fields(given),
            input=[{"role": "user", "content": content}],
            temperature=0,
            max_output_tokens=given["max_tokens"],
        )
        found.append([answer.output[-1].content[0].text, answer.usage.input_tokens, answer.usage.output_tokens])
    return found


scenarios.run(
    {
        scenario.__name__: scenario
        for scenario in (
            answers, answers_as_of_vllm, streams, many_at_once, tools, forms, errors, responses,
        )
    }
)  # fmt: skip
