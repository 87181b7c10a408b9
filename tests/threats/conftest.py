"""One real server on two ranks for all attacks that need one; its checkpoint and its environment hold canaries."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.checkpoints.qwen2 import save_qwen2_5_vl
from tests.e2e.servers import Server
from tests.threats.hosts import Canary, HostileServer, hostile_host

SECRET = "a-key-that-no-decoder-may-have"
_LIMITS = {
    "limit-mm-per-prompt.image": 4, "max-image-pixels": 4_000_000, "max-pixels-per-prompt": 6_000_000,
    "max-media-bytes": 1_000_000, "max-download-bytes-in-flight": 3_000_000, "max-video-seconds": 20,
    "max-video-pixels": 100_000, "fetch-timeout": 4, "video-fetch-timeout": 4, "num-workers": 1,
    "max-num-queued-reqs": 8,
}  # fmt: skip


@dataclass(frozen=True)
class Attacked:
    """A server under attack.

    Attributes:
        server: it.
        canary: on this machine; nobody may come.
        host: of harmful media, which the server's operator has admitted.
        imported: a file that is there once code of the checkpoint has run.
        media: the folder of local files.
    """

    server: Server
    canary: Canary
    host: HostileServer
    imported: Path
    media: Path

    @property
    def host_url(self) -> str:
        """Of the host of harmful media."""
        return f"http://127.0.0.1:{self.host.server_address[1]}"


def _plant_code(folder: Path, imported: Path) -> None:
    """Code beside the weights, named in every way that transformers knows, and pickled weights that run some."""
    code = f"import pathlib\npathlib.Path({str(imported)!r}).touch()\n"
    classes = "\n".join(f"class {name}:\n    pass\n" for name in ("CanaryConfig", "CanaryModel", "CanaryTool"))
    (folder / "canary.py").write_text(code + classes)
    for file, names in (
        ("config.json", {"AutoConfig": "canary.CanaryConfig", "AutoModel": "canary.CanaryModel"}),
        ("tokenizer_config.json", {"AutoTokenizer": ["canary.CanaryTool", "canary.CanaryTool"]}),
        (
            "preprocessor_config.json",
            {"AutoImageProcessor": "canary.CanaryTool", "AutoProcessor": "canary.CanaryTool"},
        ),
    ):
        path = folder / file
        settings = json.loads(path.read_text())
        path.write_text(json.dumps({**settings, "auto_map": names}))
    (folder / "pytorch_model.bin").write_bytes(pickle_that_touches(imported))


def pickle_that_touches(path: Path) -> bytes:
    """A pickle that makes a file when it is loaded."""
    return b"cos\nsystem\n(S'touch " + os.fsencode(path) + b"'\ntR."


@pytest.fixture(scope="package")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    """The server; a test may break nothing for the others."""
    folder = tmp_path_factory.mktemp("attacked")
    media = folder / "media"
    media.mkdir()
    imported = folder / "imported"
    checkpoint = save_qwen2_5_vl(folder / "checkpoint").folder
    _plant_code(checkpoint, imported)
    with pytest.MonkeyPatch.context() as patch, Canary() as canary, hostile_host() as host:
        patch.setenv("HF_TOKEN", SECRET)
        flags = ["-tp", "2", "--dtype", "float32", "--allowed-local-media-path", str(media)]
        flags += ["--allowed-media-hosts", f"127.0.0.1:{host.server_address[1]}"]
        flags += [part for name, value in _LIMITS.items() for part in (f"--{name}", str(value))]
        with Server(checkpoint, folder / "log", *flags) as server:
            yield Attacked(server, canary, host, imported, media)
            server.await_metric("chiasm:num_requests_running", 0)
            server.await_metric("chiasm:kv_cache_usage_perc", 0)
            assert canary.num_visitors == 0
            assert not imported.exists()
            assert "Traceback" not in server.log.read_text()
