"""Forms are tried out in a process that may break."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from chiasm.dist.bounded_worker import WorkerStartError
from chiasm.engine.runner.guides import Guides
from chiasm.errors import UserError
from chiasm.grammar import checker as checkers
from chiasm.grammar.checker import GrammarChecker
from chiasm.grammar.compile import GrammarCompiler
from chiasm.grammar.worker import refusal as refusal_of
from chiasm.sampling.rows import SamplingRow
from chiasm.schema.sampling import SamplingParams
from chiasm.schema.structured import StructuredOutputs
from tests.checkpoints.common import make_tokenizer
from tests.clocks import pause

GOOD = StructuredOutputs(regex="[0-9]+")
BAD = StructuredOutputs(regex="[", param="guided_regex")


@asynccontextmanager
async def running(folder: Path) -> AsyncGenerator[GrammarChecker, None]:
    make_tokenizer().save(str(folder / "tokenizer.json"))
    checker = GrammarChecker(folder, 512, [0], folder)
    try:
        yield checker
    finally:
        await checker.close()
        assert not workers()


def workers() -> list[psutil.Process]:
    return [p for p in psutil.Process().children() if "chiasm.grammar.worker" in p.cmdline()]


async def refusal(checker: GrammarChecker, form: StructuredOutputs) -> str:
    with pytest.raises(UserError) as caught:
        await checker.check(form)
    assert caught.value.param == form.param
    return caught.value.message


def test_verdicts(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as checker:
            assert not workers(), "a server that is asked for no form has no such process"
            await asyncio.gather(*(checker.check(GOOD) for _ in range(3)))
            assert (await refusal(checker, BAD)).startswith("guided_regex can't be followed: ")
            assert len(workers()) == 1

    asyncio.run(scenario())


def test_a_form_is_tried_out_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as checker:
            await checker.check(GOOD)
            await refusal(checker, BAD)
            (worker,) = workers()
            worker.kill()
            worker.wait()
            await checker.check(StructuredOutputs(regex="[0-9]+", param="other"))
            await refusal(checker, BAD)
            assert not workers(), "what is known needs no process"

    asyncio.run(scenario())


def test_a_process_that_dies_is_replaced(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as checker:
            await checker.check(GOOD)
            (worker,) = workers()
            pause(worker.pid)
            waiting = asyncio.create_task(checker.check(BAD))
            await asyncio.sleep(0.1)
            worker.kill()
            with pytest.raises(UserError, match="its compiler crashed"):
                await waiting
            await checker.check(StructuredOutputs(regex="b"))
            assert workers()[0].pid != worker.pid

    asyncio.run(scenario())


class _Compiler:
    """Takes some seconds for a form, at work or asleep."""

    def __init__(self, seconds: float, *, works: bool) -> None:
        self._seconds = seconds
        self._clock = time.thread_time if works else time.monotonic

    def compile(self, form: StructuredOutputs) -> None:
        start = self._clock()
        while self._clock() - start < self._seconds:
            time.sleep(0 if self._clock is time.thread_time else self._seconds)


def test_a_form_that_takes_too_much_work() -> None:
    """Threat: schema and regex. A rank compiles what passes again, and all answers may wait for it."""
    busy: Any = _Compiler(0.31, works=True)
    assert refusal_of(GOOD.key, busy) == " takes more than 0.3 s of a processor's time to compile."
    waiting: Any = _Compiler(0.31, works=False)
    assert refusal_of(GOOD.key, waiting) is None, "others may keep the processor from it"


def test_a_form_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threat: schema and regex (CVE-2025-48943, CVE-2026-55574)."""

    async def scenario() -> None:
        async with running(tmp_path) as checker:
            await checker.check(GOOD)
            monkeypatch.setattr(checkers, "COMPILE_SECONDS", 0.2)
            (worker,) = workers()
            pause(worker.pid)
            assert await refusal(checker, BAD) == "guided_regex takes longer than 0.2 s to compile."
            monkeypatch.undo()
            await checker.check(StructuredOutputs(regex="c"))

    asyncio.run(scenario())


def _rules(depth: int) -> StructuredOutputs:
    """Each leads to the next."""
    rules = ["start: r0", *(f'r{i}: "a" r{i + 1}' for i in range(depth)), f'r{depth}: "b"']
    return StructuredOutputs(grammar="\n".join(rules))


def _references(depth: int) -> StructuredOutputs:
    arrays = {f"a{i}": {"type": "array", "items": {"$ref": f"#/$defs/a{i + 1}"}} for i in range(depth)}
    return StructuredOutputs(json={"$ref": "#/$defs/a0", "$defs": {**arrays, f"a{depth}": {"const": 1}}})


@pytest.mark.parametrize("make", [_rules, _references])
def test_what_passes_has_much_room_where_it_is_followed(tmp_path: Path, make: Callable[[int], Any]) -> None:
    """Threat: schema and regex. Compiling recurses, and running out of stack there would end the server."""
    too_deep, deep = make(2000), make(100)

    async def scenario() -> None:
        async with running(tmp_path) as checker:
            await checker.check(deep)
            (worker,) = workers()
            assert "its compiler crashed" in await refusal(checker, too_deep)
            assert not worker.is_running()
            assert "its compiler crashed" in await refusal(checker, too_deep)
            assert not workers(), "what broke the process is not tried again soon"

    asyncio.run(scenario())
    guides = Guides(lambda: GrammarCompiler(tmp_path, 512, [0]))
    guides.start("a", SamplingParams(structured_outputs=too_deep))  # as little room would end this process
    assert guides.masks([SamplingRow("a", SamplingParams(), [1], 1)]).allowed


def test_what_broke_the_process_is_tried_again_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as checker:
            await checker.check(GOOD)
            monkeypatch.setattr(checkers, "COMPILE_SECONDS", 0.1)
            pause(workers()[0].pid)
            form = StructuredOutputs(regex="e")
            await refusal(checker, form)
            monkeypatch.undo()
            now = time.monotonic()
            for seconds in (0.0, 0.9 * checkers._BROKEN_SECONDS):
                monkeypatch.setattr(checkers, "time", SimpleNamespace(monotonic=lambda s=seconds: now + s))
                await refusal(checker, form)
            monkeypatch.setattr(checkers, "time", SimpleNamespace(monotonic=lambda: now + checkers._BROKEN_SECONDS))
            await checker.check(form)

    asyncio.run(scenario())


def test_a_request_that_is_given_up_takes_nothing_from_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as checker:
            await checker.check(GOOD)
            (worker,) = workers()
            waiting = [asyncio.create_task(checker.check(BAD)) for _ in range(2)]
            await asyncio.sleep(0)
            waiting[0].cancel()
            with pytest.raises(UserError, match="can't be followed"):
                await waiting[1]
            await checker.check(StructuredOutputs(regex="d"))
            assert workers() == [worker]

    asyncio.run(scenario())


def test_forms_of_those_who_have_gone_are_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would keep others waiting for seconds each. One for which somebody comes back in time is."""
    tried = []
    try_one = GrammarChecker._try

    async def note(checker: GrammarChecker, form: StructuredOutputs) -> str | None:
        tried.append(form.regex)
        return await try_one(checker, form)

    monkeypatch.setattr(GrammarChecker, "_try", note)

    async def scenario() -> None:
        async with running(tmp_path) as checker:
            first = asyncio.create_task(checker.check(GOOD))
            gone = [asyncio.create_task(checker.check(StructuredOutputs(regex=word))) for word in ("a", "[b", "c")]
            await asyncio.sleep(0)
            for task in gone:
                task.cancel()
            await asyncio.gather(*gone, return_exceptions=True)
            await refusal(checker, StructuredOutputs(regex="[b"))
            await first
            assert tried == ["[0-9]+", "[b"]
            await checker.check(StructuredOutputs(regex="c"))
            assert tried == ["[0-9]+", "[b", "c"], "what was not tried is not known"

    asyncio.run(scenario())


def test_closing_ends_what_is_being_tried(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as checker:
            waiting = asyncio.create_task(checker.check(GOOD))
            await asyncio.sleep(0.05)
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(scenario())


def test_a_checkpoint_without_a_tokenizer_is_not_the_requests_fault(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as checker:
            (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
            with pytest.raises(WorkerStartError):
                await checker.check(GOOD)

    asyncio.run(scenario())
