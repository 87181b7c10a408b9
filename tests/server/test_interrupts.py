"""What a request held is gone when it is, however it ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Coroutine
from typing import Any, Never

import pytest

from chiasm.server.interrupts import run_unless


class Picture:
    """What a request brought."""


async def fails_after(seconds: float) -> Never:
    await asyncio.sleep(seconds)
    raise ValueError


async def never() -> Never:
    await asyncio.Event().wait()
    raise AssertionError


async def handle(picture: Picture, work: Coroutine[Any, Any, None], *interrupts: Coroutine[Any, Any, Never]) -> None:
    await run_unless(work, *interrupts)
    assert picture


@pytest.mark.parametrize("place", [0, 1, 2])
def test_nothing_waits_for_the_garbage_collector(place: int) -> None:
    async def scenario() -> weakref.ref[Picture]:
        picture = Picture()
        works = [fails_after(0.01) if index == place else never() for index in range(3)]
        with contextlib.suppress(ValueError):  # pytest.raises would hold the error itself
            await handle(picture, *works)
        return weakref.ref(picture)

    async def alive() -> bool:
        reference = await scenario()
        await asyncio.sleep(0.01)  # the loop has a task for one turn more
        return reference() is not None

    gc.collect()
    gc.disable()
    try:
        assert not asyncio.run(alive())
    finally:
        gc.enable()
