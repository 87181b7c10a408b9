"""The cache of processed items: made once, lent to many, and no file without a reason to be there."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from chiasm.errors import OverloadedError, UserError
from chiasm.multimodal.item_cache import ItemCache
from chiasm.multimodal.pixels import new_file_name
from chiasm.schema.media import PixelRef, ProcessedItem, Unit

PAGE = 4096


class Kitchen:
    """Makes items of one page each; a test says when and how an order ends."""

    def __init__(self, folder: Path, capacity: int) -> None:
        self.folder = folder
        self.cache = ItemCache(capacity)
        self.orders: list[tuple[str, asyncio.Future[None]]] = []
        self.num_made: dict[str, int] = {}

    def borrow(self, name: str, digest: str | None = "same") -> asyncio.Task[ProcessedItem]:
        digest = name if digest == "same" else digest
        return asyncio.create_task(self.cache.borrow(digest, lambda: self._make(name)))

    async def _make(self, name: str) -> ProcessedItem:
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.orders.append((name, ready))
        try:
            await ready
        finally:
            self.orders.remove((name, ready))
        path = self.folder / new_file_name()
        path.write_bytes(bytes(10))
        self.num_made[name] = self.num_made.get(name, 0) + 1
        return ProcessedItem("image", 1, (Unit(name, (1, 1), 1, PixelRef(str(path), 0, 1, 10)),))

    async def finish(self, error: Exception | None = None, index: int = 0) -> None:
        """Let an order succeed or fail, and everybody go on."""
        _, ready = self.orders[index]
        if not ready.done():
            if error:
                ready.set_exception(error)
            else:
                ready.set_result(None)
        await settle()

    @property
    def num_files(self) -> int:
        return len(list(self.folder.iterdir()))


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


Scenario = Callable[[Kitchen], Coroutine[Any, Any, None]]


def run(folder: Path, scenario: Scenario, capacity: int = 2 * PAGE) -> Kitchen:
    kitchen = Kitchen(folder, capacity)

    async def bounded() -> None:
        async with asyncio.timeout(10):
            await scenario(kitchen)

    asyncio.run(bounded())
    return kitchen


def path_of(item: ProcessedItem) -> Path:
    return Path(item.units[0].pixels.path)


async def made(kitchen: Kitchen, name: str) -> ProcessedItem:
    task = kitchen.borrow(name)
    await settle()
    if kitchen.orders:
        await kitchen.finish()
    return await task


def test_the_same_again_is_not_made_again(tmp_path: Path) -> None:
    async def scenario(kitchen: Kitchen) -> None:
        first = await made(kitchen, "a")
        kitchen.cache.release(first)
        second = await made(kitchen, "a")
        assert second is first
        assert path_of(second).exists()

    kitchen = run(tmp_path, scenario)
    assert (kitchen.cache.num_queries, kitchen.cache.num_hits, kitchen.num_made) == (2, 1, {"a": 1})


def test_the_least_recently_used_makes_room_but_not_under_a_reader(tmp_path: Path) -> None:
    async def scenario(kitchen: Kitchen) -> None:
        a, b = await made(kitchen, "a"), await made(kitchen, "b")
        kitchen.cache.release(b)
        kitchen.cache.release(await made(kitchen, "a"))
        kitchen.cache.release(await made(kitchen, "c"))
        assert not path_of(b).exists()
        kitchen.cache.release(await made(kitchen, "d"))
        assert kitchen.cache.num_bytes == 2 * PAGE
        assert path_of(a).exists(), "it made room for d in the books, but a request reads it"
        kitchen.cache.release(a)
        assert not path_of(a).exists()

    run(tmp_path, scenario)


@pytest.mark.parametrize("capacity", [0, PAGE - 1])
def test_what_can_not_be_kept_goes_with_its_request(tmp_path: Path, capacity: int) -> None:
    async def scenario(kitchen: Kitchen) -> None:
        for _ in range(2):
            kitchen.cache.release(await made(kitchen, "a"))
            assert kitchen.num_files == 0

    kitchen = run(tmp_path, scenario, capacity)
    assert kitchen.num_made == {"a": 2}
    assert kitchen.cache.num_hits == 0


def test_what_has_no_digest_is_made_each_time(tmp_path: Path) -> None:
    async def scenario(kitchen: Kitchen) -> None:
        tasks = [kitchen.borrow("a", digest=None) for _ in range(2)]
        await settle()
        await kitchen.finish()
        await kitchen.finish()
        for task in tasks:
            kitchen.cache.release(await task)
        assert kitchen.num_files == 0

    assert run(tmp_path, scenario).cache.num_queries == 0


@pytest.mark.parametrize("capacity", [2 * PAGE, PAGE - 1])
def test_what_is_in_the_making_is_waited_for(tmp_path: Path, capacity: int) -> None:
    async def scenario(kitchen: Kitchen) -> None:
        tasks = [kitchen.borrow("a") for _ in range(3)]
        await settle()
        assert len(kitchen.orders) == 1
        await kitchen.finish()
        items = [await task for task in tasks]
        for item in items:
            assert path_of(item).exists()
            kitchen.cache.release(item)

    kitchen = run(tmp_path, scenario, capacity)
    assert (kitchen.num_made, kitchen.cache.num_hits) == ({"a": 1}, 2)
    assert kitchen.num_files == (capacity >= PAGE)


def test_cancelling_one_who_waits_does_not_harm_the_others(tmp_path: Path) -> None:
    async def scenario(kitchen: Kitchen) -> None:
        first, second = kitchen.borrow("a"), kitchen.borrow("a")
        await settle()
        first.cancel()
        await settle()
        await kitchen.finish()
        assert path_of(await second).exists()

    run(tmp_path, scenario)


def test_when_all_have_gone_the_making_stops_and_the_next_begins_anew(tmp_path: Path) -> None:
    async def scenario(kitchen: Kitchen) -> None:
        tasks = [kitchen.borrow("a"), kitchen.borrow("a")]
        await settle()
        for task in tasks:
            task.cancel()
        third = kitchen.borrow("a")  # before those who were cancelled have noticed
        await settle()
        assert [task.cancelled() for task in tasks] == [True, True]
        await kitchen.finish()
        kitchen.cache.release(await third)
        fourth = kitchen.borrow("b")
        await settle()
        fourth.cancel()
        await settle()
        assert kitchen.orders == []

    assert run(tmp_path, scenario).num_files == 1


def test_going_away_in_the_moment_of_the_landing_leaves_nothing(tmp_path: Path) -> None:
    async def scenario(kitchen: Kitchen) -> None:
        tasks = [kitchen.borrow("a"), kitchen.borrow("a")]
        await settle()
        kitchen.orders[0][1].set_result(None)
        for num_turns in range(4):
            await asyncio.sleep(0)
            if num_turns == 1:
                for task in tasks:
                    task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await settle()
        for task in tasks:
            if not task.cancelled():
                kitchen.cache.release(task.result())
        assert kitchen.num_files == kitchen.cache.num_bytes // PAGE

    run(tmp_path, scenario)


def test_each_who_waits_gets_an_error_of_its_own(tmp_path: Path) -> None:
    async def scenario(kitchen: Kitchen) -> None:
        tasks = [kitchen.borrow("a") for _ in range(3)]
        await settle()
        for number in range(3):
            assert len(kitchen.orders) == 1, "one at a time: who sends a bad picture often has no more of the pool"
            await kitchen.finish(UserError(f"bad {number}"))
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert sorted(map(str, outcomes)) == ["bad 0", "bad 1", "bad 2"]
        assert kitchen.num_files == 0

    assert run(tmp_path, scenario).cache.num_hits == 0


def test_what_fails_for_one_may_succeed_for_the_next(tmp_path: Path) -> None:
    async def scenario(kitchen: Kitchen) -> None:
        first, second = kitchen.borrow("a"), kitchen.borrow("a")
        await settle()
        await kitchen.finish(RuntimeError("its worker was killed"))
        await kitchen.finish()
        with pytest.raises(RuntimeError):
            await first
        kitchen.cache.release(await second)
        assert await made(kitchen, "a") is await second

    run(tmp_path, scenario)


def test_what_is_kept_gives_way_when_no_space_is_left(tmp_path: Path) -> None:
    async def scenario(kitchen: Kitchen) -> None:
        read = await made(kitchen, "read")
        kitchen.cache.release(await made(kitchen, "idle"))
        task = kitchen.borrow("new")
        await settle()
        await kitchen.finish(OverloadedError("no space"))
        assert kitchen.num_files == 1
        assert path_of(read).exists()
        await kitchen.finish()
        await task

    run(tmp_path, scenario)


def test_what_somebody_else_has_deleted_is_made_again(tmp_path: Path) -> None:
    async def scenario(kitchen: Kitchen) -> None:
        lost = await made(kitchen, "a")
        kitchen.cache.release(lost)
        path_of(lost).unlink()
        found = await made(kitchen, "a")
        assert path_of(found).exists()
        kitchen.cache.release(found)

    kitchen = run(tmp_path, scenario)
    assert (kitchen.cache.num_hits, kitchen.cache.num_bytes, kitchen.num_files) == (0, PAGE, 1)


_ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["borrow", "borrow", "finish", "fail", "cancel", "release", "turn", "settle"]),
        st.integers(0, 9),
    ),
    max_size=60,
)


@settings(max_examples=200)
@given(actions=_ACTIONS, num_pages=st.integers(0, 3))
def test_files_are_those_that_are_kept_or_lent_whatever_happens(
    actions: list[tuple[str, int]], num_pages: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), lambda kitchen: _act(kitchen, actions, num_pages), num_pages * PAGE)


async def _act(kitchen: Kitchen, actions: list[tuple[str, int]], num_pages: int) -> None:
    waiting: list[asyncio.Task[ProcessedItem]] = []
    lent: list[ProcessedItem] = []
    for action, number in actions:
        if action == "borrow":
            waiting.append(kitchen.borrow("abc"[number % 3]))
        elif action in ("finish", "fail") and kitchen.orders:
            error = UserError("bad") if action == "fail" else None
            await kitchen.finish(error, number % len(kitchen.orders))
        elif action == "cancel" and waiting:
            waiting[number % len(waiting)].cancel()
        elif action == "release" and lent:
            kitchen.cache.release(lent.pop(number % len(lent)))
        elif action == "turn":
            await asyncio.sleep(0)
        elif action == "settle":
            await settle()
            names = [name for name, _ in kitchen.orders]
            assert num_pages == 0 or len(set(names)) == len(names), "made twice at a time"
        _collect(kitchen, waiting, lent)
    await _let_all_end(kitchen, waiting)
    _collect(kitchen, waiting, lent)
    for item in lent:
        kitchen.cache.release(item)
    assert kitchen.num_files * PAGE == kitchen.cache.num_bytes


def _collect(kitchen: Kitchen, waiting: list[asyncio.Task[ProcessedItem]], lent: list[ProcessedItem]) -> None:
    for task in [task for task in waiting if task.done()]:
        waiting.remove(task)
        if not task.cancelled() and task.exception() is None:
            lent.append(task.result())
    assert all(path_of(item).exists() for item in lent)
    assert kitchen.cache.num_bytes <= 3 * PAGE


async def _let_all_end(kitchen: Kitchen, waiting: list[asyncio.Task[ProcessedItem]]) -> None:
    await settle()
    while kitchen.orders:
        await kitchen.finish()
    await asyncio.gather(*waiting, return_exceptions=True)
    await settle()
