"""Real servers in processes of their own, started as a user starts them."""

from __future__ import annotations

import base64
import io
import time
from pathlib import Path
from typing import Any

import httpx2
import openai
import psutil
from PIL import Image

from chiasm.bench.server import ServerProcess
from tests.clocks import PATIENCE, wait_until

_SECONDS_TO_START = 120


class Server(ServerProcess):
    """``chiasm serve`` on a free port while the context is open; with the built-in model if no folder is given."""

    def __init__(self, folder: Path | None, log: Path, *flags: str) -> None:
        super().__init__([*([] if folder is None else [str(folder)]), *flags], _SECONDS_TO_START, log)

    def descendants(self) -> list[psutil.Process]:
        """All processes below the main one."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def ranks(self) -> list[psutil.Process]:
        """The ranks' processes, where they have their own."""
        return [process for process in self.descendants() if "chiasm.engine.executor.rank_main" in process.cmdline()]

    def core(self) -> psutil.Process:
        """The process that schedules."""
        return next(each for each in self.descendants() if "chiasm.engine.core.main" in each.cmdline())

    def client(self) -> openai.OpenAI:
        """OpenAI's own client, which reports an error instead of trying again."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="unused", max_retries=0, timeout=PATIENCE)

    def post(self, path: str, body: Any) -> httpx2.Response:
        """Post JSON."""
        return httpx2.post(f"{self.url}{path}", json=body, timeout=PATIENCE)

    def await_closing(self) -> None:
        """Wait until it takes nothing new, because it ends or finds that its engine is stuck."""
        wait_until(lambda: httpx2.get(f"{self.url}/health", timeout=PATIENCE).status_code == 503)

    def metric(self, name: str) -> float:
        """A sample of ``/metrics``."""
        lines = httpx2.get(f"{self.url}/metrics").text.splitlines()
        return float(next(line.rpartition(" ")[2] for line in lines if line.startswith(f"{name} ")))

    def await_metric(self, name: str, value: float, seconds: float = PATIENCE) -> None:
        """Wait until a sample has a value; fail if it does not get there."""
        deadline = time.monotonic() + seconds
        while (now := self.metric(name)) != value:
            assert time.monotonic() < deadline, f"{name} is {now}, not {value}"
            time.sleep(0.05)


def data_url(image: Image.Image, form: str = "PNG") -> str:
    """An image as clients send it."""
    buffer = io.BytesIO()
    image.save(buffer, form)
    return f"data:image/{form.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def image_message(url: str, text: str = "What is this?") -> dict[str, Any]:
    """A user's message with a picture."""
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
    return {"role": "user", "content": content}
