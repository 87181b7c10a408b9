"""A real server on two ranks, as its users see it."""

from __future__ import annotations

import base64
import contextlib
import re
import struct
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import openai
import psutil
import pytest
from PIL import Image

from tests.checkpoints.common import SavedModel
from tests.clocks import PATIENCE
from tests.e2e.compare import most_difference
from tests.e2e.pictures import chart, photograph
from tests.e2e.reference import NUM_TOKENS, Reference
from tests.e2e.servers import Server, data_url, image_message

RUNNING = "chiasm:num_requests_running"
BLOCKS = "chiasm:kv_cache_usage_perc"


@pytest.fixture(scope="module")
def media_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    chart().save(folder / "chart.png")
    (folder / "link.png").symlink_to("/etc/hostname")
    return folder


@pytest.fixture(scope="module")
def server(qwen2_5_vl: SavedModel, media_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = ["-tp", "2", "--dtype", "float32", "--allowed-local-media-path", str(media_folder)]
    flags += ["--limit-mm-per-prompt.image", "3", "--max-image-pixels", "4000000"]
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(qwen2_5_vl.folder, log, *flags) as server:
        yield server
        server.await_metric(RUNNING, 0)
        server.await_metric(BLOCKS, 0)


def ask(server: Server, *messages: dict[str, Any], **fields: Any) -> httpx2.Response:
    return server.post("/v1/chat/completions", {"messages": list(messages), "max_tokens": 4, **fields})


def test_the_openai_client_streams_an_answer_about_a_real_image(server: Server, qwen2_5_vl: SavedModel) -> None:
    image = photograph()
    reference = Reference(qwen2_5_vl)
    content = [{"type": "image"}, {"type": "text", "text": "What is this?"}]
    prompt = reference.chat_prompt([{"role": "user", "content": content}])
    expected = reference.answer(prompt, [image])
    client = server.client()
    stream = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[image_message(data_url(image))],
        temperature=0,
        max_tokens=NUM_TOKENS,
        stream=True,
        stream_options={"include_usage": True},
        logprobs=True,
        extra_body={"ignore_eos": True, "skip_special_tokens": False},
    )
    tokens: list[bytes] = []
    text = ""
    for chunk in stream:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            tokens += [bytes(entry.bytes or []) for entry in choice.logprobs.content] if choice.logprobs else []
    assert chunk.usage is not None
    assert chunk.usage.completion_tokens == NUM_TOKENS
    assert chunk.usage.prompt_tokens > 18 * 18, "the image's tokens are counted"
    assert text == reference.text(expected)


def test_local_files_are_read_from_the_allowed_folder_only(server: Server, media_folder: Path) -> None:
    assert ask(server, image_message(f"file://{media_folder}/chart.png")).status_code == 200
    for url in (f"file://{media_folder}/link.png", f"file://{media_folder}/../x", "file:///etc/passwd"):
        answer = ask(server, image_message(url))
        assert answer.status_code in (400, 422), url
        assert "root:" not in answer.text


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _bomb() -> str:
    """A PNG of 65 bytes that claims 20,000 x 20,000 pixels."""
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", 20000, 20000, 8, 2, 0, 0, 0))
    png = b"\x89PNG\r\n\x1a\n" + header + _chunk(b"IDAT", zlib.compress(b""))
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _truncated() -> str:
    return data_url(photograph(size=(64, 64)))[:-2000]


PIXEL = data_url(Image.new("RGB", (1, 1)))
TEXT = {"role": "user", "content": "Hi"}
BAD_REQUESTS: dict[str, tuple[dict[str, Any], str]] = {
    "garbage": ({"messages": [image_message("data:image/png;base64,AAAA")]}, "decoded"),
    "cut short": ({"messages": [image_message(_truncated())]}, "decoded|base64"),
    "scheme": ({"messages": [image_message("gopher://x/y.png")]}, "gopher"),
    "no scheme": ({"messages": [image_message("/etc/passwd")]}, "http"),
    "loopback": ({"messages": [image_message("http://127.0.0.1:1/x.png")]}, "not public"),
    "link-local": ({"messages": [image_message("http://169.254.169.254/latest")]}, "not public"),
    "mapped": ({"messages": [image_message("http://[::ffff:10.0.0.1]/")]}, "not public"),
    "decimal": ({"messages": [image_message("http://2130706433/")]}, "four decimal numbers"),
    "bomb": ({"messages": [image_message(_bomb())]}, "4000000"),
    "thin": ({"messages": [image_message(data_url(Image.new("RGB", (2000, 3))))]}, "200 times"),
    "too many images": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL}}] * 4}]},
        "at most 3",
    ),
    "long prompt": ({"messages": [{"role": "user", "content": "word " * 9000}]}, "4096"),
    "temperature": ({"messages": [TEXT], "temperature": 3}, "temperature"),
    "top_p": ({"messages": [TEXT], "top_p": -1}, "top_p"),
    "n": ({"messages": [TEXT], "n": 10**9}, "n must be"),
    "max_tokens": ({"messages": [TEXT], "max_tokens": 0}, "max_tokens"),
    "stop_token_ids": ({"messages": [TEXT], "stop_token_ids": [10**12]}, "stop_token_ids"),
    "stop_token_ids with min_tokens": (
        {"messages": [TEXT], "stop_token_ids": [10**12], "min_tokens": 2, "max_tokens": 4},
        "stop_token_ids",
    ),
    "negative stop token": ({"messages": [TEXT], "stop_token_ids": [-1], "min_tokens": 2}, "stop_token_ids"),
    "min_tokens": ({"messages": [TEXT], "min_tokens": 10**9}, "min_tokens"),
    "logit_bias": ({"messages": [TEXT], "logit_bias": {"-1": 5}}, "logit_bias"),
    "logit_bias beyond": ({"messages": [TEXT], "logit_bias": {"1000000": 5}}, "logit_bias"),
    "allowed_token_ids": ({"messages": [TEXT], "allowed_token_ids": [10**12]}, "allowed_token_ids"),
    "negative allowed token": ({"messages": [TEXT], "allowed_token_ids": [-1]}, "allowed_token_ids"),
    "nothing left": ({"messages": [TEXT], "allowed_token_ids": [40], "bad_words": ["I"]}, "no token is left"),
    "truncation": (
        {"messages": [image_message(PIXEL)], "truncate_prompt_tokens": 3},
        "truncate_prompt_tokens=3 would cut",
    ),
    "processor key": ({"messages": [TEXT], "mm_processor_kwargs": {"num_crops": 4}}, "num_crops"),
    "processor bound": ({"messages": [TEXT], "mm_processor_kwargs": {"max_pixels": 10**9}}, "max_pixels"),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_bad_requests_are_refused_by_name_and_the_server_goes_on(server: Server, name: str) -> None:
    """Threat: one bad request harms others."""
    body, named = BAD_REQUESTS[name]
    answer = server.post("/v1/chat/completions", body)
    assert answer.status_code in (400, 422), answer.text
    error = answer.json()["error"]
    assert error["code"] == answer.status_code
    assert re.search(named, error["message"]), error
    assert len(answer.content) < 2000
    assert ask(server, TEXT).status_code == 200


def test_an_unknown_model_and_malformed_json(server: Server) -> None:
    with pytest.raises(openai.NotFoundError, match="gpt-9"):
        server.client().chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "Hi"}])
    headers = {"Content-Type": "application/json"}
    for content in (b"{", b'{"messages": [], "temperature": NaN}'):
        answer = httpx2.post(f"{server.url}/v1/chat/completions", content=content, headers=headers)
        assert answer.status_code == 400


def test_lm_evals_request_for_a_likelihood(server: Server, qwen2_5_vl: SavedModel) -> None:
    """What its ``local-completions`` sends and reads, beside Hugging Face."""
    reference = Reference(qwen2_5_vl)
    texts = ["The picture shows a small red house.", "What do you see? Ein Bild sagt mehr! 🙂"]
    prompts = [server.post("/v1/completions", {"prompt": text, "return_token_ids": True}).json() for text in texts]
    ids = [prompt["choices"][0]["prompt_token_ids"] for prompt in prompts]
    body = {"prompt": ids, "max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0, "seed": 1234}
    for choice, own, text in zip(server.post("/v1/completions", body).json()["choices"], ids, texts, strict=True):
        assert choice["text"].startswith(text)
        told = choice["logprobs"]
        logits = reference.logits(text, [])
        expected, difference = logits.log_softmax(-1)[:-1], most_difference(logits)
        assert told["token_logprobs"][0] is None
        assert told["top_logprobs"][0] is None
        assert len(told["tokens"]) == len(own) + 1
        likely = [line[token].item() for line, token in zip(expected, own[1:], strict=True)]
        assert told["token_logprobs"][1:-1] == pytest.approx(likely, rel=0, abs=difference)
        greedy = [
            max(top, key=top.get) == token
            for top, token in zip(told["top_logprobs"][1:], told["tokens"][1:], strict=True)
        ]
        assert greedy[:-1] == [line.argmax() == token for line, token in zip(expected, own[1:], strict=True)]


def test_a_prompt_is_echoed_in_every_form(server: Server) -> None:
    text = "There are 3 cats 🙂"
    fields = {"max_tokens": 0, "echo": True, "logprobs": 0, "return_token_ids": True}
    [choice] = server.post("/v1/completions", {"prompt": text, **fields}).json()["choices"]
    assert (choice["text"], choice["token_ids"], choice["finish_reason"]) == (text, [], "length")
    ids = choice["prompt_token_ids"]
    again = server.post("/v1/completions", {"prompt": [ids, text], **fields}).json()
    assert [other["text"] for other in again["choices"]] == [text, text]
    for other in again["choices"]:
        told = choice["logprobs"] | {"token_logprobs": pytest.approx(choice["logprobs"]["token_logprobs"], abs=1e-4)}
        told["top_logprobs"] = [top and pytest.approx(top, abs=1e-4) for top in told["top_logprobs"]]
        assert other["logprobs"] == told
    assert (again["usage"]["prompt_tokens"], again["usage"]["completion_tokens"]) == (2 * len(ids), 0)
    short = {"prompt": text, "truncate_prompt_tokens": 2, **fields}
    [cut] = server.post("/v1/completions", short).json()["choices"]
    assert cut["prompt_token_ids"] == ids[-2:]
    assert text.endswith(cut["text"].lstrip("\ufffd"))


def test_a_literal_image_tag_and_an_empty_stop_list_are_fine(server: Server) -> None:
    message = image_message(PIXEL, "<image>What is <|im_end|>?")
    assert ask(server, message, stop=[], temperature=0.0, seed=1234).status_code == 200


def _leave_early(url: str, body: dict[str, Any]) -> None:
    """Ask, and close the connection while the answer is being made."""
    with httpx2.stream("POST", url, json=body, timeout=0.7) as response:
        for count, _ in enumerate(response.iter_lines()):
            if count > 5:
                return


@pytest.mark.parametrize("streams", [True, False])
def test_a_client_that_leaves_frees_its_blocks(server: Server, streams: bool) -> None:
    """Threat: disconnect."""
    body = {"messages": [TEXT], "max_tokens": 4000, "ignore_eos": True, "stream": streams}
    with contextlib.suppress(httpx2.TimeoutException):
        _leave_early(f"{server.url}/v1/chat/completions", body)
    server.await_metric(RUNNING, 0)
    server.await_metric(BLOCKS, 0)


def test_many_clients_at_once_get_what_they_get_alone(server: Server) -> None:
    questions = [image_message(data_url(photograph(size=(40 + 9 * i, 90 - 7 * i)))) for i in range(6)]
    fields = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
    alone = [ask(server, question, **fields).json()["choices"][0]["message"]["content"] for question in questions]
    together: dict[int, str] = {}

    def run(index: int) -> None:
        answer = ask(server, questions[index], **fields).json()
        together[index] = answer["choices"][0]["message"]["content"]

    threads = [threading.Thread(target=run, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert [together[index] for index in range(6)] == alone


def test_a_picture_that_comes_again_is_neither_processed_nor_encoded_again(server: Server) -> None:
    """Twice in each of two requests that may not share a prefix."""
    url = data_url(photograph(size=(101, 77)))
    picture = {"type": "image_url", "image_url": {"url": url}}
    message = {"role": "user", "content": [picture, picture, {"type": "text", "text": "The same?"}]}
    names = ["chiasm:mm_processor_cache_queries_total", "chiasm:mm_processor_cache_hits_total",
             "chiasm:mm_cache_queries_total", "chiasm:encoder_units_total"]  # fmt: skip
    before = [server.metric(name) for name in names]
    for salt in ("a", "b"):
        assert ask(server, message, cache_salt=salt).status_code == 200
    for name, value, more in zip(names, before, (4, 3, 4, 1), strict=True):
        server.await_metric(name, value + more)


def test_two_servers_side_by_side_and_a_killed_rank(server: Server, qwen2_5_vl: SavedModel, tmp_path: Path) -> None:
    """Threat: death or hang of a worker.

    The second server loses a rank: its request gets a 5xx, it ends with an error, and nothing of it stays.
    """
    with Server(qwen2_5_vl.folder, tmp_path / "log", "-tp", "2") as second:
        family = second.descendants()
        runtime_dirs = {Path(part).parent for process in family for part in process.cmdline() if "/chiasm-" in part}
        answers: list[httpx2.Response] = []
        body = {"messages": [TEXT], "max_tokens": 4000, "ignore_eos": True}
        thread = threading.Thread(target=lambda: answers.append(second.post("/v1/chat/completions", body)))
        thread.start()
        second.await_metric(RUNNING, 1)
        second.ranks()[1].kill()
        assert second.process.wait(PATIENCE) != 0
        thread.join(PATIENCE)
        assert answers[0].status_code >= 500
        assert "engine" in answers[0].json()["error"]["message"].lower()
        _, alive = psutil.wait_procs(family, timeout=PATIENCE)
        assert not alive
        assert runtime_dirs
        assert not any(folder.exists() for folder in runtime_dirs if folder.name.startswith("chiasm-"))
        assert "rank 1 (process" in second.log.read_text()
    assert ask(server, TEXT).status_code == 200


def test_a_rank_that_hangs_ends_the_server(qwen2_5_vl: SavedModel, tmp_path: Path) -> None:
    """Threat: death or hang of a worker (GHSA-4xqp-c3mv-qff7)."""
    with Server(qwen2_5_vl.folder, tmp_path / "log", "-tp", "2", "--step-timeout", "2") as server:
        family = server.descendants()
        server.ranks()[1].suspend()
        answer = server.post("/v1/chat/completions", {"messages": [TEXT], "max_tokens": 4000, "ignore_eos": True})
        assert answer.status_code == 500
        assert server.process.wait(PATIENCE) != 0
        _, alive = psutil.wait_procs(family, timeout=PATIENCE)
        assert not alive
        assert "not finished a step within 2 s" in server.log.read_text()


def test_a_core_that_hangs_ends_the_server(qwen2_5_vl: SavedModel, tmp_path: Path) -> None:
    """Threat: death or hang of a worker (GHSA-4xqp-c3mv-qff7)."""
    with (
        Server(qwen2_5_vl.folder, tmp_path / "log", "--step-timeout", "2") as server,
        ThreadPoolExecutor() as threads,
    ):
        family = server.descendants()
        question = {"messages": [TEXT], "max_tokens": 4000, "ignore_eos": True}
        in_flight = threads.submit(server.post, "/v1/chat/completions", question)
        server.await_metric(RUNNING, 1)
        server.core().suspend()
        server.await_closing()
        assert server.post("/v1/chat/completions", question).status_code == 503
        assert in_flight.result().status_code == 500
        assert server.process.wait(PATIENCE) == 1
        _, alive = psutil.wait_procs(family, timeout=PATIENCE)
        assert not alive
        assert "longer than a step may take, 2 s (step_timeout)" in server.log.read_text()


def test_ranks_inherit_the_environment(server: Server) -> None:
    """Such as the variables that choose the kernels of torch, oneDNN and MKL."""
    of_server = psutil.Process(server.process.pid).environ()
    ranks = server.ranks()
    assert len(ranks) == 2
    for rank in ranks:
        assert of_server.items() - {("OMP_NUM_THREADS", of_server.get("OMP_NUM_THREADS"))} <= rank.environ().items()


def test_a_killed_server_leaves_nothing_behind(qwen2_5_vl: SavedModel, tmp_path: Path) -> None:
    with Server(qwen2_5_vl.folder, tmp_path / "log", "-tp", "2") as doomed:
        family = doomed.descendants()
        assert len(family) >= 4, "a core, two ranks and a preprocessing worker"
        folders = {Path(part) for process in family for part in process.cmdline() if "/chiasm-" in part}
        doomed.process.kill()
        _, alive = psutil.wait_procs(family, timeout=PATIENCE)
        assert not alive
        assert not any(folder.exists() for folder in folders)


def test_sigterm_is_a_clean_end(qwen2_5_vl: SavedModel, tmp_path: Path) -> None:
    """Threat: shutdown."""
    with Server(qwen2_5_vl.folder, tmp_path / "log") as server:
        family = server.descendants()
        server.process.terminate()
        assert server.process.wait(PATIENCE) == 0
        _, alive = psutil.wait_procs(family, timeout=PATIENCE)
        assert not alive


def test_health_is_empty_and_the_version_is_told(server: Server) -> None:
    """Threat: health that tells too much."""
    health = httpx2.get(f"{server.url}/health")
    assert (health.status_code, health.content) == (200, b"")
    assert httpx2.get(f"{server.url}/version").json()["version"]


def test_ranks_listen_on_loopback_only(server: Server) -> None:
    """No port of the engine's own is open to other machines."""
    for process in server.descendants():
        for connection in process.net_connections(kind="inet"):
            if connection.status == psutil.CONN_LISTEN:
                assert connection.laddr.ip in ("127.0.0.1", "::1"), process.cmdline()
