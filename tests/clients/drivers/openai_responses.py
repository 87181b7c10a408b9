"""OpenAI's own client, its endpoint ``responses``."""

from typing import Literal

import openai
import pydantic
import scenarios

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "unit": {"enum": ["celsius", "fahrenheit"]}},
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
}


class Verdict(pydantic.BaseModel):
    verdict: Literal["yes", "no"]
    marks: Literal[1, 2, 3]


def _client(url):
    return openai.OpenAI(base_url=f"{url}/v1", api_key="unused")


def _input(chart):
    picture = {"type": "input_image", "image_url": chart["url"], "detail": "auto"}
    return [{"role": "user", "content": [{"type": "input_text", "text": chart["question"]}, picture]}]


def answers(given):
    client = _client(given["charts_url"])
    found = []
    for chart in given["charts"]:
        answer = client.responses.create(
            model="chart-reader", input=_input(chart), max_output_tokens=given["max_tokens"], temperature=0
        )
        usage = answer.usage
        found.append([answer.output_text, answer.status, usage.input_tokens, usage.output_tokens, usage.total_tokens])
    return found


def streams(given):
    client = _client(given["charts_url"])
    found = []
    for chart in given["charts"]:
        stream = client.responses.create(
            model="chart-reader",
            input=_input(chart),
            max_output_tokens=given["max_tokens"],
            temperature=0,
            stream=True,
        )
        events = list(stream)
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        numbers = [event.sequence_number for event in events]
        types = [event.type for event in events]
        found.append([text, events[-1].response.output_text, types, numbers == list(range(len(numbers)))])
    return found


def text_only(given):
    answer = _client(given["charts_url"]).responses.create(
        model="chart-reader", instructions="Answer briefly.", input="Hello", max_output_tokens=4
    )
    return [answer.object, answer.status, answer.usage.output_tokens]


def _calls(response):
    return [[i.name, i.arguments] for i in response.output if i.type == "function_call"]


def tools(given):
    client = _client(given["tools_url"])
    fields = {"model": "scripted", "tools": [WEATHER], "max_output_tokens": 100}
    turn = client.responses.create(**fields, input=_input(given["charts"][0]))
    with client.responses.stream(**fields, input=_input(given["charts"][0])) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_response()
    forced = client.responses.create(**fields, input="Hello", tool_choice={"type": "function", "name": "get_weather"})
    items = [item.model_dump(exclude_none=True) for item in turn.output]
    [call] = [item for item in turn.output if item.type == "function_call"]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": '{"sky": "blue"}'}
    told = client.responses.create(**fields, input=[*_input(given["charts"][0]), *items, result])
    return {
        "called": _calls(turn),
        "streamed": _calls(streamed),
        "forced": _calls(forced),
        "kinds": [item.type for item in turn.output],
        "told": told.output_text,
    }


def forms(given):
    client = _client(given["tools_url"])
    fields = {"model": "scripted", "input": _input(given["charts"][0]), "max_output_tokens": 60}
    return client.responses.parse(**fields, text_format=Verdict).output_parsed.model_dump()


def errors(given):
    client = openai.OpenAI(base_url=f"{given['charts_url']}/v1", api_key="unused", max_retries=0)
    try:
        client.responses.create(model="chart-reader", input="Hello", temperature=3)
    except openai.BadRequestError as error:
        return [error.status_code, error.param]
    return None


scenarios.run({s.__name__: s for s in (answers, streams, text_only, tools, forms, errors)})
