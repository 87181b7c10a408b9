"""What the store of responses keeps, counts and forgets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chiasm.errors import UserError
from chiasm.server.response_store import ResponseStore, Turn


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def turn(num_bytes: int = 0, before: Turn | None = None) -> Turn:
    return Turn(b"x" * num_bytes, b"", before)


def keep(store: ResponseStore, name: str, owner: str, body: bytes, last: Turn) -> bool:
    with store.making(name, owner):
        return store.keep(name, owner, body, last)


def is_kept(store: ResponseStore, name: str, owner: str = "me") -> bool:
    try:
        store.find(name, owner, "id")
    except UserError:
        return False
    return True


def test_who_asks_for_what_is_not_there_gets_a_404() -> None:
    with pytest.raises(UserError, match="no response 'a'") as caught:
        ResponseStore(2, 10**6, 60).find("a", "me", "id")
    assert (caught.value.status, caught.value.param) == (404, "id")


def test_the_oldest_go_by_number() -> None:
    store = ResponseStore(2, 10**6, 60)
    for name in "abc":
        keep(store, name, "me", b"body", turn())
    assert [is_kept(store, name) for name in "abc"] == [False, True, True]


def test_the_oldest_go_by_bytes() -> None:
    store = ResponseStore(100, 10_000, 60)
    for name in "abc":
        keep(store, name, "me", b"x" * 1000, turn(4000))
    assert [is_kept(store, name) for name in "abc"] == [False, False, True]
    held = store.num_bytes
    assert not keep(store, "huge", "me", b"", turn(20_000))
    assert not keep(store, "long", "me", b"", turn(6000, turn(4000)))
    assert not keep(store, "wide", "me", b"x" * 10_000, turn())
    assert is_kept(store, "c"), "what can't be kept drives nothing out"
    assert (len(store), store.num_bytes) == (1, held)


def test_they_go_by_age() -> None:
    clock = Clock()
    store = ResponseStore(100, 10**6, 60, clock)
    keep(store, "a", "me", b"", turn())
    clock.now = 59
    keep(store, "b", "me", b"", turn())
    assert is_kept(store, "a")
    clock.now = 60
    assert [is_kept(store, name) for name in "ab"] == [False, True]
    clock.now = 1000
    assert not is_kept(store, "b")
    assert store.num_bytes == 0


def test_owners_see_their_own() -> None:
    store = ResponseStore(100, 10**6, 60)
    keep(store, "a", "me", b"", turn())
    assert not is_kept(store, "a", "you")
    with pytest.raises(UserError):
        store.delete("a", "you", "id")
    assert is_kept(store, "a")


def test_what_is_deleted_while_it_is_made_is_not_kept() -> None:
    store = ResponseStore(100, 10**6, 60)
    with store.making("a", "me"):
        with pytest.raises(UserError):
            store.delete("a", "you", "id")
        store.delete("a", "me", "id")
        with pytest.raises(UserError):
            store.delete("a", "me", "id")
        assert not store.keep("a", "me", b"", turn())
    assert not is_kept(store, "a")
    with store.making("b", "me"):
        pass
    with pytest.raises(UserError):  # it broke off
        store.delete("b", "me", "id")


def test_a_conversation_outlives_its_first_responses() -> None:
    store = ResponseStore(1, 10**6, 60)
    first = turn(500)
    keep(store, "a", "me", b"", first)
    keep(store, "b", "me", b"", turn(100, first))
    assert len(store) == 1
    assert store.find("b", "me", "id").turn.so_far()[0] is first
    held = store.num_bytes
    assert held > 600
    store.delete("b", "me", "id")
    assert store.num_bytes == 0


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 2000), st.booleans()), max_size=40))
def test_bytes_are_those_of_what_can_be_reached(steps: list[tuple[int, int, int, bool]]) -> None:
    store = ResponseStore(6, 12_000, 60)
    turns: list[Turn] = []
    names: dict[str, tuple[bytes, Turn]] = {}
    for index, (pick, other, size, goes) in enumerate(steps):
        before = turns[pick % len(turns)] if turns and pick else None
        turns.append(turn(size, before))
        name = str(index)
        body = b"y" * other
        names[name] = (body, turns[-1])
        keep(store, name, "me", body, turns[-1])
        if goes and is_kept(store, str(other)):
            store.delete(str(other), "me", "id")
        alive = [names[n] for n in names if is_kept(store, n)]
        reached = {id(one): one for _, own in alive for one in own.so_far()}
        assert store.num_bytes == sum(len(b) for b, _ in alive) + sum(one.num_bytes for one in reached.values())
        assert len(store) <= 6
        assert store.num_bytes <= 12_000
