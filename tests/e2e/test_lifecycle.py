"""Engines that fail to start, are stopped early, or are stopped twice: nothing hangs and nothing stays."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from chiasm import LLM, SamplingParams
from chiasm.config.engine import EngineConfig, MediaConfig
from chiasm.dist import runtime_dir
from chiasm.engine.frontend.answers import Answer
from chiasm.errors import EngineDeadError, UserError
from chiasm.llm.serving import AsyncLLM
from chiasm.schema.chat import ImagePart
from chiasm.schema.output import CompletionOutput, SequenceDelta
from tests.checkpoints.common import SavedModel
from tests.clocks import PATIENCE, take_turns
from tests.e2e.pictures import photograph
from tests.e2e.reference import image_prompt

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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"allowed_local_media_path": "/nowhere/at/all"}, "an existing folder"),
        ({"allowed_media_hosts": ("no-port",)}, "allowed_media_hosts"),
    ],
)
def test_bad_sources_of_media_are_refused_before_anything_starts(
    qwen2_5_vl: SavedModel, folders: list[Path], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        LLM(str(qwen2_5_vl.folder), **settings)
    assert_nothing_stays(folders)


def test_a_start_that_is_cancelled_ends(qwen2_5_vl: SavedModel, folders: list[Path]) -> None:
    async def start_and_leave() -> None:
        starting = asyncio.create_task(AsyncLLM.start(config(qwen2_5_vl, tensor_parallel_size=2)))
        await asyncio.sleep(0.3)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    asyncio.run(start_and_leave())
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
            await asyncio.wait_for(answering, PATIENCE)
        await engine.shutdown()
        prompt = await engine.prepare_completion("again")
        with pytest.raises(EngineDeadError, match="shut down"):
            await anext(engine.generate(prompt, LONG, "r2"))

    asyncio.run(run())
    assert_nothing_stays(folders)


def test_a_request_that_cannot_be_sent_leaves_nothing_behind(
    qwen2_5_vl: SavedModel, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = ImagePart(photograph(size=(60, 60)), "image")

    async def run() -> None:
        engine = await AsyncLLM.start(config(qwen2_5_vl, media=MediaConfig(mm_processor_cache_gb=0)))
        prompt = await engine.prepare_completion(image_prompt(1), media=[picture])
        sent = []

        async def send_one_only(message: object) -> None:
            if sent:
                raise OverflowError("can't serialize this")
            sent.append(message)

        with monkeypatch.context() as patch:
            patch.setattr(engine._client, "_send", send_one_only)
            with pytest.raises(OverflowError):
                await anext(engine.generate(prompt, SamplingParams(n=3, temperature=1), "r"))
        assert list(engine._client._listeners) == [sent[0].request.request_id], "only what was sent is waited for"
        engine._client._deliver(SequenceDelta(sent[0].request.request_id, finish_reason="abort"))
        assert list(folders[0].glob("*.pixels")) == []
        assert engine._gauge._reserved == 0
        await engine.shutdown()

    asyncio.run(run())


def test_a_bug_while_one_answer_is_read_fails_no_other(
    qwen2_5_vl: SavedModel, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three requests about a picture in one batch; the detokeniser of one breaks in the middle."""
    picture = ImagePart(photograph(size=(60, 60)), "image")
    take = Answer.take

    def break_once(answer: Answer, delta: SequenceDelta) -> CompletionOutput:
        if answer._params.max_tokens == 20 and answer._cumulative_logprob == 0:
            answer._cumulative_logprob = 1.0  # the next one breaks
        elif answer._params.max_tokens == 20:
            raise IndexError("a bug")
        return take(answer, delta)

    monkeypatch.setattr(Answer, "take", break_once)

    async def answer(engine: AsyncLLM, number: int) -> int:
        prompt = await engine.prepare_completion(image_prompt(1), media=[picture])
        sampling = SamplingParams(temperature=0, max_tokens=20 if number == 1 else 30, ignore_eos=True)
        return len([output async for output in engine.generate(prompt, sampling, str(number))])

    async def run() -> None:
        engine = await AsyncLLM.start(config(qwen2_5_vl, media=MediaConfig(mm_processor_cache_gb=0)))
        fine, broken, also_fine = await asyncio.gather(
            *(answer(engine, number) for number in range(3)), return_exceptions=True
        )
        assert isinstance(broken, IndexError)
        assert (fine, also_fine) == (30, 30)
        while engine.stats.num_running or engine.stats.kv_blocks_used:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert engine._client._listeners == {}
        assert engine.stats.pixel_bytes == 0
        assert list(folders[0].glob("*.pixels")) == []
        await engine.shutdown()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_whoever_comes_and_goes_leaves_only_what_is_kept(qwen2_5_vl: SavedModel, folders: list[Path]) -> None:
    """Twenty requests about four pictures, half of them given up at some point, and room for two pictures."""
    rng = random.Random(0)
    pictures = [ImagePart(photograph(size=(100, 60 + 28 * number)), "image") for number in range(4)]
    largest = 4096 * 30  # 10 x 10 patches of 1,176 bytes

    async def ask(engine: AsyncLLM, number: int) -> None:
        prompt = await engine.prepare_completion(image_prompt(2), media=[pictures[number % 4], pictures[number % 3]])
        async for _ in engine.generate(prompt, SamplingParams(temperature=0, max_tokens=4), str(number)):
            pass

    async def run() -> None:
        media = MediaConfig(mm_processor_cache_gb=2 * largest / 2**30)
        engine = await AsyncLLM.start(config(qwen2_5_vl, media=media))
        tasks = []
        for number in range(20):
            tasks.append(asyncio.create_task(ask(engine, number)))
            await asyncio.sleep(rng.random() / 50)
            if number % 2:
                rng.choice(tasks).cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(outcome is None or isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
        await engine._gauge.reserve(2**40)  # more than there is: one gets it once nobody else has anything
        files = list(folders[0].glob("*.pixels"))
        assert 1 <= len(files) == len(engine._processes.loader._cache._kept)
        assert sum(file.stat().st_size for file in files) <= 2 * largest
        assert engine.stats.processor_hits >= 4
        await engine.shutdown()

    asyncio.run(asyncio.wait_for(run(), 60))
    assert_nothing_stays(folders)


def test_a_slow_host_keeps_nobody_elses_images_waiting(qwen2_5_vl: SavedModel) -> None:
    """Room for pixels is taken when their bytes are here, not while somebody downloads them."""

    async def run() -> None:
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        media = MediaConfig(allowed_media_hosts=(host,), fetch_timeout=600, max_pixel_bytes_in_flight=10**6)
        engine = await AsyncLLM.start(config(qwen2_5_vl, media=media))
        slow = [ImagePart(f"http://{host}/{index}.png", "image") for index in range(8)]
        waiting = asyncio.create_task(engine.prepare_completion(image_prompt(8), media=slow))
        await take_turns()
        picture = ImagePart(photograph(size=(60, 60)), "image")
        prompt = await asyncio.wait_for(engine.prepare_completion(image_prompt(1), media=[picture]), PATIENCE)
        await engine.release(prompt)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await engine.shutdown()

    with socket.create_server(("127.0.0.1", 0), backlog=32) as silent:  # it never answers those who connect
        asyncio.run(run())


def test_a_script_may_just_end(qwen2_5_vl: SavedModel) -> None:
    code = f"from chiasm import LLM, SamplingParams\nllm = LLM({str(qwen2_5_vl.folder)!r})\n"
    code += "print(len(llm.generate('Hi', SamplingParams(max_tokens=3, ignore_eos=True), use_tqdm=False)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_a_closed_llm_says_so(qwen2_5_vl: SavedModel, folders: list[Path]) -> None:
    llm = LLM(str(qwen2_5_vl.folder))
    llm.close()
    llm.close()
    with pytest.raises(EngineDeadError, match="closed"):
        llm.generate("Hi", use_tqdm=False)
    assert_nothing_stays(folders)
