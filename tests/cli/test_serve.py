"""``chiasm serve``: what reaches the engine and the server, from the command line, the environment and a file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

import chiasm.server.run
from chiasm.cli.main import main
from chiasm.config.built_in import Example
from chiasm.config.engine import EngineConfig
from chiasm.config.server import ServerConfig
from chiasm.server.run import Announce, StartEngine
from tests.clocks import PATIENCE

ROOT = Path(__file__).parents[2]  # where ``tests`` can be imported from
Served = tuple[EngineConfig, str | None, ServerConfig]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, checkpoint: str) -> Callable[[str], Served]:
    """Run ``chiasm serve`` with the checkpoint, given the rest of its command line; returns what it would serve."""
    served: list[Served] = []

    def instead(config: ServerConfig, start: StartEngine, announce: Announce, example: Example | None) -> int:
        assert example is None
        engine_config, chat_template = start.args  # type: ignore[attr-defined]
        served.append((engine_config, chat_template, config))
        return 0

    monkeypatch.setattr(chiasm.server.run, "serve", instead)

    def run(line: str) -> Served:
        assert main(["serve", checkpoint, *line.split()]) == 0
        return served[-1]

    return run


def test_without_options(serve: Callable[[str], Served], checkpoint: str) -> None:
    engine, template, server = serve("")
    assert engine == EngineConfig(model=checkpoint)
    assert server == ServerConfig(model=checkpoint)
    assert template is None


def test_options_in_every_spelling(serve: Callable[[str], Served]) -> None:
    engine, template, server = serve(
        "--max_model_len 512 --max-num-seqs=3 -tp 2 --mm_encoder_tp_mode data --no_enable_prefix_caching"
        " --limit-mm-per-prompt.image 5 --chat-template chat.jinja --dtype float16"
        " --served-model-name a --served_model_name b --api-key x --api-key y --port 0 --host ::1"
    )
    assert (engine.max_model_len, engine.max_num_seqs, engine.tensor_parallel_size) == (512, 3, 2)
    assert (engine.mm_encoder_tp_mode, engine.enable_prefix_caching, engine.dtype) == ("data", False, "float16")
    assert engine.media.limit_mm_per_prompt["image"] == 5
    assert template == "chat.jinja"
    assert (server.served_model_names, server.api_keys) == (("a", "b"), ("x", "y"))
    assert (server.host, server.port) == ("::1", 0)


def test_keys_from_the_environment(serve: Callable[[str], Served], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIASM_API_KEY", "from-env")
    assert serve("")[2].api_keys == ("from-env",)
    assert "CHIASM_API_KEY" not in os.environ, "what the server starts would inherit it"
    monkeypatch.setenv("CHIASM_API_KEY", "from-env")
    assert serve("--api-key given")[2].api_keys == ("given",)


def test_a_file_sets_defaults_and_the_command_line_wins(serve: Callable[[str], Served], tmp_path: Path) -> None:
    file = tmp_path / "chiasm.yaml"
    file.write_text(
        "max-model-len: 512\nmax_num_seqs: 3\nenable_prefix_caching: false\nlimit-mm-per-prompt: {image: 5}\n"
        "served-model-name: one\napi_key: [a, b]\ngpu-memory-utilization: 0.5\nhost:\n"
    )
    engine, _, server = serve(f"--config {file} --max-num-seqs 4 --api-key c")
    assert (engine.max_model_len, engine.max_num_seqs, engine.gpu_memory_utilization) == (512, 4, 0.5)
    assert engine.enable_prefix_caching is False
    assert engine.media.limit_mm_per_prompt["image"] == 5
    assert (server.served_model_names, server.api_keys, server.host) == (("one",), ("c",), "127.0.0.1")
    assert serve(f"--enable-prefix-caching --config {file}")[0].enable_prefix_caching is True


def test_the_queue_has_a_second_name(serve: Callable[[str], Served], tmp_path: Path) -> None:
    """The one that vLLM's users know, wherever options are given."""
    assert serve("")[2].max_queue == 4096
    for name in ("max-queue", "max-num-queued-reqs"):
        assert serve(f"--{name} 7")[2].max_queue == 7
        file = tmp_path / "chiasm.yaml"
        file.write_text(f"{name}: 8\n")
        assert serve(f"--config {file}")[2].max_queue == 8
        assert serve(f"--config {file} --max_queue 9")[2].max_queue == 9


def test_a_file_can_name_the_model(serve: Callable[[str], Served], checkpoint: str, tmp_path: Path) -> None:
    serve("")  # the model on the command line, to have the stand-in there
    file = tmp_path / "chiasm.yaml"
    file.write_text(f"model: {checkpoint}\n")
    assert main(["serve", "--config", str(file)]) == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("tensor_paralel_size: 2", "has an unknown key 'tensor_paralel_size'; did you mean 'tensor_parallel_size'?"),
        ("max-model-length: 2", "has an unknown key 'max-model-length'; did you mean 'max_model_len'?"),
        ("config: other.yaml", "has an unknown key 'config'"),
        ("- a", "must be a mapping of option names to values."),
        ("a: [", "can't be read: "),
        ("port: eighty", "Invalid value for '--port'"),
        ("dtype: int8", "Invalid value for '--dtype'"),
    ],
)
def test_mistakes_in_a_file(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, message: str
) -> None:
    file = tmp_path / "chiasm.yaml"
    file.write_text(content)
    assert main(["serve", checkpoint, "--config", str(file)]) == 2
    assert_one_line(capsys, message)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--prot 1", "No such option: --prot"),
        ("--port x", "Invalid value for '--port'"),
        ("--otlp-traces-endpoint localhost:4317", "otlp_traces_endpoint must be an http:// or https:// URL, got"),
        ("--port -1", "port must be in [0, 65535], got -1."),
        ("--dtype int8", "Invalid value for '--dtype'"),
        ("--limit-mm-per-prompt.image x", "limit_mm_per_prompt.image must be a whole number, got 'x'."),
        ("--config nowhere.yaml", "config file nowhere.yaml can't be read: No such file or directory"),
        ("another", "Got unexpected extra argument"),
    ],
)
def test_mistakes_on_the_command_line(
    checkpoint: str, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    assert main(["serve", checkpoint, *line.split()]) == 2
    assert_one_line(capsys, message)


def test_a_checkpoint_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(tmp_path / "no")]) == 2
    assert_one_line(capsys, "is neither a folder nor a hub name")
    assert main(["serve", str(tmp_path), "--block-size", "0"]) == 2
    assert_one_line(capsys, "block_size must be at least 1")  # known before the checkpoint is looked for


def test_a_process(checkpoint: str) -> None:
    command = [sys.executable, "-m", "tests.cli.serve_fake", "serve", checkpoint, "--port", "0", "--api-key", "k"]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True, cwd=ROOT) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline().strip() for _ in range(3)]
        assert lines[0] == "device: none"
        assert "Bearer YOUR_KEY" in lines[2]
        url = lines[1].removeprefix("Serving on ")
        models = httpx2.get(f"{url}/v1/models", headers={"authorization": "Bearer k"}, trust_env=False)
        assert models.json()["data"][0]["root"] == checkpoint
        taken = subprocess.run([*command, "--port", url.rpartition(":")[2]], capture_output=True, text=True, cwd=ROOT)
        assert taken.returncode == 2
        assert taken.stderr.count("\n") == 1
        assert "can't listen on 127.0.0.1" in taken.stderr
        child.send_signal(signal.SIGTERM)
        assert child.wait(PATIENCE) == 0


def test_the_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("chiasm ")
    for line in ([], ["--help"], ["serve", "-h"], ["generate", "-h"]):
        assert main(line) == 0
        assert "Usage: chiasm" in capsys.readouterr().out
    assert main(["sreve"]) == 2
    assert_one_line(capsys, "No such command 'sreve'")


def test_starting_imports_nothing_heavy() -> None:
    code = (
        "import sys, chiasm.cli.main, chiasm.server.run, chiasm.llm.serving;"
        "print([m for m in ('torch', 'transformers', 'openai') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def assert_one_line(capsys: pytest.CaptureFixture[str], message: str) -> None:
    """Standard error is one line with ``message`` and nothing else was written."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("chiasm: error: ")
    assert err.count("\n") == 1
    assert message in err
