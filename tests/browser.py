"""Headless Chromium, driven over the pipe of its own debugging protocol: no driver and no package is needed."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from tests.clocks import PATIENCE
from tests.skipped import needs

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
needs_chromium = pytest.mark.skipif(not CHROMIUM, reason=needs("browser", "install chromium"))

_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-default-apps",
    "--disable-dev-shm-usage", "--remote-debugging-pipe", "--force-color-profile=srgb", "--hide-scrollbars",
    "--disable-features=BackForwardCache",  # a page that is left shall let go of its connections
)  # fmt: skip
_SECONDS = PATIENCE


class Browser:
    """One page in a browser of its own, with an empty profile, while the context is open.

    Attributes:
        problems: what scripts failed with and what the page's policy refused, so far.
        requests: URLs that the page has asked for.
    """

    def __init__(self, width: int = 1280, height: int = 800) -> None:
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._size = (width, height)
        self._profile = tempfile.mkdtemp(prefix="chromium-")
        self._number = 0
        self._unread = b""
        self._session: str | None = None

    def __enter__(self) -> Browser:
        heard, told = os.pipe(), os.pipe()  # by the browser, and by us
        its_in, its_out = (fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (heard[0], told[1]))
        quiet = os.open(os.devnull, os.O_WRONLY)
        actions = [
            (os.POSIX_SPAWN_DUP2, its_in, 3),
            (os.POSIX_SPAWN_DUP2, its_out, 4),
            (os.POSIX_SPAWN_DUP2, quiet, 2),
        ]
        command = [CHROMIUM, *_FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        self._pid = os.posix_spawn(CHROMIUM, command, os.environ, file_actions=actions, setsid=True)
        for fd in (heard[0], told[1], its_in, its_out, quiet):
            os.close(fd)
        self._to, self._from = heard[1], told[0]
        try:
            self._open_page()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._to)
        os.close(self._from)
        for _ in range(50):  # its children may still write
            shutil.rmtree(self._profile, ignore_errors=True)
            if not Path(self._profile).exists():
                return
            time.sleep(0.1)

    def _open_page(self) -> None:
        target = next(
            one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page"
        )["targetId"]  # fmt: skip
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "DOM"):
            self.call(f"{domain}.enable")
        self.resize(*self._size)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a command of the debugging protocol."""
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]  # type: ignore[no-any-return]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            assert select.select([self._from], [], [], _SECONDS)[0], "the browser says nothing"
            data = os.read(self._from, 1 << 16)
            assert data, "the browser has ended"
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.problems.append(str(params["exceptionDetails"].get("exception", params)))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def open(self, url: str) -> None:
        """Load a page, up to its scripts."""
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """The value of an expression in the page; a promise is waited for."""
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, condition: str, seconds: float = _SECONDS) -> None:
        """Wait until an expression is true; fail if it doesn't become so."""
        deadline = time.monotonic() + seconds
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < deadline, f"{condition} did not become true; problems: {self.problems}"
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        """The text of the first element, as shown."""
        return str(self.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key: str, *, shift: bool = False, alt: bool = False) -> None:
        """Press a key."""
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, " ": 32}
        code = codes.get(key, ord(key[0].upper()))
        text = {"Enter": "\r", " ": " "}.get(key, "")
        common = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 8 * shift + alt}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def choose_files(self, selector: str, *files: Path) -> None:
        """Choose files in an input, as its dialog would."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(file.resolve()) for file in files])

    def drop(self, *files: Path) -> None:
        """Drag files over the page and let go."""
        data = {"items": [], "files": [str(file.resolve()) for file in files], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, x=300, y=300, data=data)

    def resize(self, width: int, height: int) -> None:
        """Give the window a size."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefer(self, **features: str) -> None:
        """What the person prefers: ``color_scheme="dark"``."""
        chosen = [{"name": f"prefers-{name.replace('_', '-')}", "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=chosen)

    def screenshot(self, file: Path) -> None:
        """Write what is seen as a PNG."""
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
