"""What mistral-evals sends and insists on: a server's health, then eight threads that ask one after the other."""

import base64
import re
import time
from concurrent.futures import ThreadPoolExecutor

import datasets
import requests
import scenarios


def health(given):
    url = given["charts_url"]
    answer = requests.get(f"{url}/health", timeout=10)
    is_healthy = answer.status_code == 200 and (answer.content == b"" or answer.json() == {"status": "OK"})
    return [bool(re.fullmatch(r"http.*:\d+", url)), is_healthy]


def answers(given):
    table = datasets.load_dataset("lmms-lab/ChartQA", split="test").cast_column("image", datasets.Image(decode=False))
    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(lambda row: _ask(given, row), table))


def _ask(given, row):
    picture = {"type": "image_url", "image_url": {"url": _data_url(row["image"]["bytes"])}}
    body = {
        "model": "chart-reader",
        "messages": [{"role": "user", "content": [picture, {"type": "text", "text": row["question"]}]}],
        "temperature": 0.0,
        "max_tokens": 2048,
    }
    for _ in range(3):
        answer = requests.post(f"{given['charts_url']}/v1/chat/completions", json=body, timeout=60)
        if answer.status_code == 200:
            message = answer.json()["choices"][0]["message"]
            return [message["role"], message["content"]]
        time.sleep(1)
    raise AssertionError(answer.text)


def _data_url(data):
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


scenarios.run({scenario.__name__: scenario for scenario in (health, answers)})
