"""Real servers in processes of their own, started as a user starts them."""

from __future__ import annotations

import base64
import io
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx2
import openai
import psutil
from PIL import Image

_SECONDS_TO_START = 60


class Server:
    """``chiasm serve`` on a free port while the context is open; with the built-in model if no folder is given.

    Attributes:
        url: where it serves.
        process: its main process.
        log: file with all that it printed.
    """

    def __init__(self, folder: Path | None, log: Path, *flags: str) -> None:
        self.log = log
        model = [] if folder is None else [str(folder)]
        command = [sys.executable, "-m", "chiasm.cli", "serve", *model, "--port", "0", *flags]
        with log.open("wb") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        self.url = ""

    def __enter__(self) -> Server:
        try:
            self.url = self._await_url()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(15)
        finally:
            self.process.kill()
            self.process.wait()

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
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="unused", max_retries=0, timeout=60)

    def post(self, path: str, body: Any) -> httpx2.Response:
        """Post JSON."""
        return httpx2.post(f"{self.url}{path}", json=body, timeout=60)

    def metric(self, name: str) -> float:
        """A sample of ``/metrics``."""
        lines = httpx2.get(f"{self.url}/metrics").text.splitlines()
        return float(next(line.rpartition(" ")[2] for line in lines if line.startswith(f"{name} ")))

    def await_metric(self, name: str, value: float, seconds: float = 10) -> None:
        """Wait until a sample has a value; fail if it does not get there."""
        deadline = time.monotonic() + seconds
        while (now := self.metric(name)) != value:
            assert time.monotonic() < deadline, f"{name} is {now}, not {value}"
            time.sleep(0.05)

    def _await_url(self) -> str:
        deadline = time.monotonic() + _SECONDS_TO_START
        while time.monotonic() < deadline:
            printed = self.log.read_text(encoding="utf-8", errors="replace")
            found = re.search(r"Serving on (http://\S+)", printed)
            if found:
                return found[1]
            assert self.process.poll() is None, printed
            time.sleep(0.05)
        raise AssertionError(f"not serving: {printed}")


def data_url(image: Image.Image, form: str = "PNG") -> str:
    """An image as clients send it."""
    buffer = io.BytesIO()
    image.save(buffer, form)
    return f"data:image/{form.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def image_message(url: str, text: str = "What is this?") -> dict[str, Any]:
    """A user's message with a picture."""
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
    return {"role": "user", "content": content}
