from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from chiasm.engine.frontend.leases import PixelGauge, PixelLease, pixel_bytes
from chiasm.schema.media import MediaItem, PixelRef, ProcessedItem, Unit

Scenario = Callable[[PixelGauge], Coroutine[Any, Any, None]]


def run(scenario: Scenario, limit: int = 10) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(10):
            await scenario(PixelGauge(limit))

    asyncio.run(bounded())


async def settle() -> None:
    """Let every task go on as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


class Waiter:
    """A reservation in a task of its own."""

    def __init__(self, gauge: PixelGauge, num_bytes: int) -> None:
        self.task = asyncio.create_task(gauge.reserve(num_bytes))

    @property
    def is_in(self) -> bool:
        return self.task.done() and not self.task.cancelled()


async def start(gauge: PixelGauge, *sizes: int) -> list[Waiter]:
    waiters = [Waiter(gauge, size) for size in sizes]
    await settle()
    return waiters


async def is_free(gauge: PixelGauge, num_bytes: int) -> bool:
    """Whether so much could be reserved now; takes and gives it back."""
    (waiter,) = await start(gauge, num_bytes)
    if waiter.is_in:
        gauge.release(num_bytes)
    else:
        waiter.task.cancel()
    await settle()
    return waiter.is_in


def test_reservations_fill_the_limit_and_the_next_waits() -> None:
    async def scenario(gauge: PixelGauge) -> None:
        first, second, third = await start(gauge, 6, 4, 1)
        assert [first.is_in, second.is_in, third.is_in] == [True, True, False]
        gauge.release(4)
        await settle()
        assert third.is_in

    run(scenario)


def test_those_who_wait_move_up_in_order() -> None:
    async def scenario(gauge: PixelGauge) -> None:
        await gauge.reserve(9)
        big, small = await start(gauge, 5, 1)
        assert not small.is_in, "it would fit, but it is not its turn"
        gauge.release(4)
        await settle()
        assert big.is_in
        assert not small.is_in
        gauge.release(1)
        await settle()
        assert small.is_in

    run(scenario)


def test_what_is_larger_than_the_limit_is_let_in_alone() -> None:
    async def scenario(gauge: PixelGauge) -> None:
        await gauge.reserve(1)
        huge, after = await start(gauge, 25, 1)
        assert not huge.is_in
        gauge.release(1)
        await settle()
        assert huge.is_in
        assert not after.is_in
        gauge.release(25)
        await settle()
        assert after.is_in

    run(scenario)


def test_a_partial_release_lets_others_in() -> None:
    async def scenario(gauge: PixelGauge) -> None:
        await gauge.reserve(10)
        (waiter,) = await start(gauge, 7)
        gauge.release(6)
        await settle()
        assert not waiter.is_in
        gauge.release(1)
        await settle()
        assert waiter.is_in

    run(scenario)


def test_who_gives_up_waiting_leaves_nothing_behind() -> None:
    async def scenario(gauge: PixelGauge) -> None:
        await gauge.reserve(6)
        gone, other = await start(gauge, 10, 5)
        gone.task.cancel()
        await settle()
        assert not other.is_in
        gauge.release(6)
        await settle()
        assert other.is_in
        gauge.release(5)
        assert await is_free(gauge, 10)

    run(scenario)


def test_when_the_first_gives_up_the_next_may_fit() -> None:
    """Nobody else may release anything for a long time."""

    async def scenario(gauge: PixelGauge) -> None:
        await gauge.reserve(6)
        gone, other = await start(gauge, 10, 4)
        gone.task.cancel()
        await settle()
        assert other.is_in

    run(scenario)


def test_giving_up_in_the_moment_of_a_release() -> None:
    """The task has been cancelled but has not run yet when room is given."""

    async def scenario(gauge: PixelGauge) -> None:
        await gauge.reserve(10)
        gone, other = await start(gauge, 10, 10)
        gone.task.cancel()
        gauge.release(10)
        await settle()
        assert gone.task.cancelled()
        assert other.is_in

    run(scenario)


def test_giving_up_in_the_moment_after_ones_turn_came() -> None:
    async def scenario(gauge: PixelGauge) -> None:
        await gauge.reserve(10)
        gone, other = await start(gauge, 10, 10)
        gauge.release(10)  # the turn is given, the task has not run yet
        gone.task.cancel()
        await settle()
        assert gone.task.cancelled()
        assert other.is_in
        gauge.release(10)
        assert await is_free(gauge, 10)

    run(scenario)


def test_who_gives_up_in_the_middle_of_the_line_is_passed_over() -> None:
    async def scenario(gauge: PixelGauge) -> None:
        await gauge.reserve(10)
        first, gone, last = await start(gauge, 4, 4, 4)
        gone.task.cancel()
        await settle()
        gauge.release(10)
        await settle()
        assert first.is_in
        assert last.is_in
        assert await is_free(gauge, 2)
        assert not await is_free(gauge, 3)

    run(scenario)


# --- leases


def test_pixels_live_until_the_last_sequence_has_ended() -> None:
    let_go: list[str] = []
    lease = PixelLease(2, lambda: let_go.append("pixels"))
    lease.release()
    assert let_go == []
    lease.release()
    assert let_go == ["pixels"]


def test_bytes_of_pixels_are_those_of_all_units() -> None:
    units = tuple(Unit(f"unit-{rows}", (1, rows), 1, PixelRef("", 0, rows, 10)) for rows in (2, 4))
    assert pixel_bytes([MediaItem("image", 0, 2, units), ProcessedItem("image", 1, units[:1])]) == 80
    assert pixel_bytes([]) == 0
