"""lm-evaluation-harness: charts over chat, and log-likelihoods over completions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration

from chiasm.config.built_in import BUILT_IN_FOLDER
from tests.clients.charts import Asked, write_lines
from tests.clients.driven import DRIVERS
from tests.clients.environments import Environment
from tests.e2e.servers import Server

# With the prompt of ChartQA's own task, and with the bare question, which is all that the built-in model understands.
_TASKS = {
    "chartqa_local": """\
include: {chartqa}
task: chartqa_local
dataset_path: parquet
dataset_kwargs: {{data_files: {{test: {parquet}}}}}
""",
    "charts": """\
task: charts
dataset_path: parquet
dataset_kwargs: {{data_files: {{test: {parquet}}}}}
test_split: test
output_type: generate_until
doc_to_image: [image]
doc_to_text: "{{{{query}}}}"
doc_to_target: "{{{{label[0]}}}}"
generation_kwargs: {{until: [], temperature: 0.0, do_sample: false, max_gen_toks: 24}}
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true, ignore_case: true}}
""",
    "likely": """\
task: likely
dataset_path: json
dataset_kwargs: {{data_files: {{test: {lines}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{query}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{gold}}}}"
target_delimiter: ""
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
""",
}
QUESTIONS = [
    {"query": "What is the value", "choices": [" of Rome?", " of Rome Rome", "?"], "gold": 0},
    {"query": "Which bar", "choices": [" is the largest?", " 12"], "gold": 0},
    {"query": "How many", "choices": [" bars are there?", " the the"], "gold": 1},
]


@pytest.fixture(scope="module")
def client(install: Callable[[str], Environment]) -> Environment:
    return install("lm-eval")


@pytest.fixture(scope="module")
def folder(client: Environment, charts: list[Asked], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lm_eval")
    lines = write_lines(folder / "questions.jsonl", QUESTIONS)
    parquet = make_parquet(client, charts, folder, ("query", "label"))
    find = "import lm_eval, pathlib; print(pathlib.Path(lm_eval.__file__).parent / 'tasks/chartqa/chartqa.yaml')"
    chartqa = client.run("python", "-c", find, cwd=folder).split()[-1]
    (folder / "tasks").mkdir()
    for name, text in _TASKS.items():
        filled = text.format(chartqa=chartqa, parquet=parquet, lines=lines)
        (folder / "tasks" / f"{name}.yaml").write_text(filled, encoding="utf-8")
    return folder


def make_parquet(client: Environment, charts: list[Asked], folder: Path, names: tuple[str, str]) -> Path:
    """The charts as ChartQA comes: pictures, questions and lists of answers under the given names."""
    question, answer = names
    rows = [{"image": str(c.picture), question: c.question, answer: [c.expected]} for c in charts]
    lines = write_lines(folder / "charts.jsonl", rows)
    client.run("python", str(DRIVERS / "make_parquet.py"), str(lines), str(folder / "charts.parquet"), cwd=folder)
    return folder / "charts.parquet"


def evaluate(client: Environment, folder: Path, task: str, kind: str, **settings: Any) -> tuple[Any, list[Any]]:
    """The task's results, and its samples in order."""
    out = folder / f"{task}-{settings.get('tokenizer_backend', 'none')}"
    arguments = ",".join(f"{name}={value}" for name, value in settings.items())
    options = ["--apply_chat_template"] if kind == "local-chat-completions" else []
    client.run(
        "lm_eval", "--model", kind, "--model_args", arguments, "--tasks", task, "--include_path", "tasks",
        "--output_path", str(out), "--log_samples", *options, cwd=folder,
    )  # fmt: skip
    [results] = out.rglob("results_*.json")
    [samples] = out.rglob(f"samples_{task}_*.jsonl")
    rows = [json.loads(line) for line in samples.read_text(encoding="utf-8").splitlines()]
    return json.loads(results.read_text())["results"][task], sorted(rows, key=lambda row: row["doc_id"])


def test_charts(client: Environment, folder: Path, charts_server: Server, charts: list[Asked]) -> None:
    url = f"{charts_server.url}/v1/chat/completions"
    settings = {"model": "chart-reader", "base_url": url, "num_concurrent": 4, "max_images": 1}
    results, samples = evaluate(client, folder, "charts", "local-chat-completions", **settings)
    assert [sample["resps"][0][0] for sample in samples] == [chart.said for chart in charts]
    exact = sum(chart.said.lower() == chart.expected.lower() for chart in charts)
    assert results["exact_match,none"] == pytest.approx(exact / len(charts))


def test_chartqa_with_its_own_prompt(client: Environment, folder: Path, charts_server: Server) -> None:
    """Its prompt has ``<image>`` as plain text beside the picture; what the model makes of it is no matter."""
    before = charts_server.metric("chiasm:prompt_tokens_total")
    url = f"{charts_server.url}/v1/chat/completions"
    settings = {"model": "chart-reader", "base_url": url, "num_concurrent": 4, "max_images": 1}
    results, samples = evaluate(client, folder, "chartqa_local", "local-chat-completions", **settings)
    assert results.keys() >= {"exact_match,none", "relaxed_accuracy,none", "anywhere_accuracy,none"}
    assert all(sample["resps"][0][0] for sample in samples)
    assert charts_server.metric("chiasm:prompt_tokens_total") > before


@pytest.mark.parametrize("backend", ["huggingface", "remote"])
def test_log_likelihoods(client: Environment, folder: Path, charts_server: Server, backend: str) -> None:
    settings: dict[str, Any] = {"model": "chart-reader", "base_url": f"{charts_server.url}/v1/completions"}
    settings |= {"num_concurrent": 2, "tokenizer_backend": backend, "tokenized_requests": True}
    if backend == "huggingface":
        settings["tokenizer"] = BUILT_IN_FOLDER
    results, samples = evaluate(client, folder, "likely", "local-completions", **settings)
    expected = list(_likelihoods())
    for sample, likelihoods in zip(samples, expected, strict=True):
        found = [float(response[0][0]) for response in sample["resps"]]
        greedy = [str(response[0][1]) == "True" for response in sample["resps"]]
        assert found == pytest.approx([value for value, _ in likelihoods], abs=2e-3)
        assert greedy == [is_greedy for _, is_greedy in likelihoods]
    right = [max(range(len(row)), key=lambda i: row[i][0]) for row in expected]
    golds = [question["gold"] for question in QUESTIONS]
    assert results["acc,none"] == pytest.approx(sum(a == b for a, b in zip(right, golds, strict=True)) / len(golds))


def _likelihoods() -> Iterator[list[tuple[float, bool]]]:
    """For each question those of its choices, by Hugging Face's own class, and whether they are what it would say."""
    tokenizer = AutoTokenizer.from_pretrained(BUILT_IN_FOLDER)
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(BUILT_IN_FOLDER, dtype=torch.float32).eval()
    for question in QUESTIONS:
        yield [_likelihood(tokenizer, model, question["query"], choice) for choice in question["choices"]]


@torch.inference_mode()
def _likelihood(tokenizer: Any, model: Any, query: str, choice: str) -> tuple[float, bool]:
    begin = tokenizer(query).input_ids
    whole = (
        begin + tokenizer(query + choice).input_ids[len(begin) :]
    )  # as the harness parts them, be they alike or not
    logprobs = model(input_ids=torch.tensor([whole])).logits[0].log_softmax(-1)
    places = range(len(begin), len(whole))
    is_greedy = all(int(logprobs[place - 1].argmax()) == whole[place] for place in places)
    return sum(float(logprobs[place - 1, whole[place]]) for place in places), is_greedy
