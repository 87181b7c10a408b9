"""LangChain's ``ChatOpenAI``."""

import asyncio
from typing import Literal

import pydantic
import scenarios
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def get_weather(city: Literal["Paris", "Rome"], unit: Literal["celsius", "fahrenheit"]) -> str:
    """The weather in a city."""
    return f"{unit} in {city}: blue"


class Verdict(pydantic.BaseModel):
    """A judgement."""

    verdict: Literal["yes", "no"]
    marks: Literal[1, 2, 3]


def _charts_model(given, **settings):
    url = f"{given['charts_url']}/v1"
    tokens = given["max_tokens"]
    return ChatOpenAI(
        model="chart-reader", base_url=url, api_key="unused", temperature=0, max_completion_tokens=tokens, **settings
    )


def _tools_model(given):
    url = f"{given['tools_url']}/v1"
    return ChatOpenAI(model="scripted", base_url=url, api_key="unused", max_completion_tokens=200)


def _message(chart):
    picture = {"type": "image_url", "image_url": {"url": chart["url"], "detail": "low"}}
    return HumanMessage(content=[{"type": "text", "text": chart["question"]}, picture])


def _found(answer):
    usage = answer.usage_metadata
    return [answer.text, usage["input_tokens"], usage["output_tokens"]]


def answers(given):
    model = _charts_model(given)
    return [_found(model.invoke([_message(chart)])) for chart in given["charts"]]


def streams(given):
    model = _charts_model(given, stream_usage=True)
    found = []
    for chart in given["charts"]:
        whole = None
        for chunk in model.stream([_message(chart)]):
            whole = chunk if whole is None else whole + chunk
        found.append(_found(whole))
    return found


def streams_without_usage(given):
    chunks = list(_charts_model(given).stream([_message(given["charts"][0])]))
    return "".join(chunk.text for chunk in chunks)


def many_at_once(given):
    messages = [[_message(chart)] for chart in given["charts"]]
    return [answer.text for answer in asyncio.run(_charts_model(given).abatch(messages))]


def pictures_in_langchains_form(given):
    chart = given["charts"][0]
    head, _, data = chart["url"].partition(";base64,")
    picture = {"type": "image", "base64": data, "mime_type": head.removeprefix("data:")}
    message = HumanMessage(content=[{"type": "text", "text": chart["question"]}, picture])
    return _found(_charts_model(given).invoke([message]))


def tools(given):
    model = _tools_model(given).bind_tools([get_weather])
    messages = [_message(given["charts"][0])]
    turn = model.invoke(messages)
    streamed = None
    for chunk in model.stream(messages):
        streamed = chunk if streamed is None else streamed + chunk
    [call] = turn.tool_calls
    result = get_weather.invoke(call)
    assert isinstance(result, ToolMessage)
    forced = _tools_model(given).bind_tools([get_weather], tool_choice="get_weather", parallel_tool_calls=False)
    return {
        "called": [[c["name"], c["args"]] for c in (call, streamed.tool_calls[0])],
        "told": model.invoke([*messages, turn, result]).text,
        "forced": [c["name"] for c in forced.invoke(messages).tool_calls],
    }


def forms(given):
    model = _tools_model(given)
    methods = {"json_schema": {"strict": True}, "function_calling": {}}
    return {
        method: model.with_structured_output(Verdict, method=method, **settings)
        .invoke([_message(given["charts"][0])])
        .model_dump()
        for method, settings in methods.items()
    }


def responses(given):
    model = _charts_model(given, use_responses_api=True)
    return [_found(model.invoke([_message(chart)])) for chart in given["charts"][:4]]


scenarios.run(
    {
        scenario.__name__: scenario
        for scenario in (
            answers, streams, streams_without_usage, many_at_once, pictures_in_langchains_form,
            tools, forms, responses,
        )
    }
)  # fmt: skip
