"""vLLM's own load generator, from its environment, against any server."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

CHAT = ("--backend", "openai-chat", "--endpoint", "/v1/chat/completions")
_SETTINGS = (
    "--model", "m", "--dataset-name", "random-mm",
    "--random-input-len", "32", "--random-output-len", "32", "--random-range-ratio", "0",
    "--random-mm-base-items-per-request", "1", "--random-mm-num-mm-items-range-ratio", "0",
    "--random-mm-limit-mm-per-prompt", '{"image":1,"video":0}', "--random-mm-bucket-config", "{(448,448,1): 1.0}",
    "--num-warmups", "2", "--ignore-eos", "--seed", "0",
)  # fmt: skip
_TIMEOUT = 1200.0


class Load(NamedTuple):
    """What is asked of a server.

    Attributes:
        python: interpreter of vLLM's environment.
        folder: of the checkpoint, for its tokenizer.
        prompts: asked in all, after two that don't count.
        concurrency: asked at a time.
    """

    python: str
    folder: Path
    prompts: int
    concurrency: int


class Served(NamedTuple):
    """How a server did; milliseconds but for the first and the last.

    Attributes:
        tokens_per_second: of answers.
        mean_ttft: to the first token.
        median_ttft: likewise.
        p99_ttft: likewise.
        median_tpot: for each later token.
        ready_seconds: from the start of the process until it served.
    """

    tokens_per_second: float
    mean_ttft: float
    median_ttft: float
    p99_ttft: float
    median_tpot: float
    ready_seconds: float


def run_client(load: Load, url: str, ready_seconds: float) -> Served:
    """Put a load on the server at ``url``.

    Raises:
        SystemExit: if the client fails or not every prompt is answered.
    """
    result = bench_serve(
        load.python, url, *_SETTINGS, "--tokenizer", str(load.folder), "--num-prompts", str(load.prompts),
        "--max-concurrency", str(load.concurrency),
    )  # fmt: skip
    if result["completed"] != load.prompts:
        raise SystemExit(f"{url} answered {result['completed']} of {load.prompts} prompts: {result.get('errors')}")
    return Served(
        tokens_per_second=result["output_throughput"],
        mean_ttft=result["mean_ttft_ms"],
        median_ttft=result["median_ttft_ms"],
        p99_ttft=result["p99_ttft_ms"],
        median_tpot=result["median_tpot_ms"],
        ready_seconds=ready_seconds,
    )


def bench_serve(python: str, url: str, *arguments: str) -> dict[str, Any]:
    """What ``vllm bench serve`` with these arguments writes about the server at ``url``.

    Raises:
        SystemExit: if it fails.
    """
    with TemporaryDirectory() as folder:
        command = [
            str(Path(python).with_name("vllm")), "bench", "serve", *CHAT, "--base-url", url, *arguments,
            "--save-result", "--result-dir", folder, "--result-filename", "result.json",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, cwd=folder, check=False)
        file = Path(folder) / "result.json"
        if done.returncode or not file.exists():
            raise SystemExit(f"vllm bench serve failed against {url}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        found: dict[str, Any] = json.loads(file.read_text())
    return found
