"""Engines that fail to start, are stopped early, or are stopped twice: nothing hangs and nothing stays."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import psutil
import pytest

from chiasm import LLM, SamplingParams
from chiasm.config.engine import EngineConfig
from chiasm.dist import runtime_dir
from chiasm.errors import EngineDeadError, UserError
from chiasm.llm.serving import AsyncLLM
from tests.checkpoints import SavedModel

LONG = SamplingParams(temperature=0, max_tokens=4000, ignore_eos=True)


@pytest.fixture(autouse=True)
def folders(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The runtime folders that the test's engines made."""
    made: list[Path] = []
    create = runtime_dir.create_runtime_dir

    def remember() -> Path:
        made.append(create())
        return made[-1]

    monkeypatch.setattr("chiasm.llm.serving.create_runtime_dir", remember)
    return made


def assert_nothing_stays(folders: list[Path]) -> None:
    assert folders
    assert not any(folder.exists() for folder in folders)
    mine = [child for child in psutil.Process().children(recursive=True) if "chiasm" in " ".join(child.cmdline())]
    assert not [child for child in mine if str(folders[0]) in child.cmdline()]


def config(saved: SavedModel, **settings: object) -> EngineConfig:
    return EngineConfig(model=str(saved.folder), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("generation_config.json", json.dumps({"temperature": 3.0}), "temperature"),
        ("tokenizer.json", "{", "tokenizer"),
        ("config.json", json.dumps({"model_type": "gpt-9"}), "gpt-9"),
        ("model.safetensors", "short", "model.safetensors"),
    ],
)
def test_a_broken_checkpoint_is_refused_and_nothing_stays(
    tied_qwen2_5_vl: SavedModel, folders: list[Path], file: str, content: str, message: str
) -> None:
    (tied_qwen2_5_vl.folder / file).write_text(content)
    with pytest.raises(UserError, match=message):
        LLM(str(tied_qwen2_5_vl.folder), tensor_parallel_size=2)
    assert_nothing_stays(folders)


def test_a_start_that_is_cancelled_ends_at_once(qwen2_5_vl: SavedModel, folders: list[Path]) -> None:
    async def start_and_leave() -> float:
        starting = asyncio.create_task(AsyncLLM.start(config(qwen2_5_vl, tensor_parallel_size=2)))
        await asyncio.sleep(0.3)
        starting.cancel()
        begin = asyncio.get_running_loop().time()
        with pytest.raises(asyncio.CancelledError):
            await starting
        return asyncio.get_running_loop().time() - begin

    assert asyncio.run(start_and_leave()) < 5
    assert_nothing_stays(folders)


def test_shutting_down_tells_requests_in_flight_and_may_be_repeated(
    qwen2_5_vl: SavedModel, folders: list[Path]
) -> None:
    async def answer(engine: AsyncLLM, has_begun: asyncio.Event) -> None:
        prompt = await engine.prepare_completion("Once upon a time")
        async for _ in engine.generate(prompt, LONG, "r"):
            has_begun.set()

    async def run() -> None:
        engine = await AsyncLLM.start(config(qwen2_5_vl))
        has_begun = asyncio.Event()
        answering = asyncio.create_task(answer(engine, has_begun))
        await has_begun.wait()
        await engine.shutdown()
        with pytest.raises(EngineDeadError):
            await asyncio.wait_for(answering, 5)
        await engine.shutdown()
        prompt = await engine.prepare_completion("again")
        with pytest.raises(EngineDeadError, match="shut down"):
            await anext(engine.generate(prompt, LONG, "r2"))

    asyncio.run(run())
    assert_nothing_stays(folders)


def test_a_closed_llm_says_so(qwen2_5_vl: SavedModel, folders: list[Path]) -> None:
    llm = LLM(str(qwen2_5_vl.folder))
    llm.close()
    llm.close()
    with pytest.raises(EngineDeadError, match="closed"):
        llm.generate("Hi", use_tqdm=False)
    assert_nothing_stays(folders)
