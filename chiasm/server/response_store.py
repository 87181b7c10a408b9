"""Responses that are kept for a while: clients ask for them again, and go on from them."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from chiasm.errors import UserError, shorten

_OVERHEAD = 1024  # bytes of a response beside its texts


class Turn:
    """What a conversation has in one response: its input and its output, and the turn before.

    Args:
        items: JSON of a list: what was given.
        answer: JSON of a list: what was answered.
        before: the turn from which it goes on.

    Attributes:
        chain_bytes: of this turn and all before.
        num_users: responses that are kept and end with this turn, and turns that go on from it.
    """

    def __init__(self, items: bytes, answer: bytes, before: Turn | None) -> None:
        self.items = items
        self.answer = answer
        self.before = before
        self.chain_bytes: int = self.num_bytes + (0 if before is None else before.chain_bytes)
        self.num_users = 0

    @property
    def num_bytes(self) -> int:
        """Of this turn alone."""
        return len(self.items) + len(self.answer) + _OVERHEAD

    def so_far(self) -> list[Turn]:
        """All turns of the conversation up to this one, the oldest first."""
        turns = list(self._back())
        turns.reverse()
        return turns

    def _back(self) -> Iterator[Turn]:
        turn: Turn | None = self
        while turn is not None:
            yield turn
            turn = turn.before


class Stored:
    """A response that is kept.

    Args:
        owner: who may see it.
        body: as it was answered, as JSON.
        turn: what it adds to its conversation.
        since: when it was kept, by the store's clock.
    """

    def __init__(self, owner: str, body: bytes, turn: Turn, since: float) -> None:
        self.owner = owner
        self.body = body
        self.turn = turn
        self.since = since


class ResponseStore:
    """Keeps responses in memory: the latest, within limits on number, bytes and age.

    A turn that several conversations share is held, and counted, once; it stays for as long as one of them does.

    Args:
        max_responses: most that are kept; 0 keeps none.
        max_bytes: of their bodies and turns together.
        max_seconds: that each is kept.
        clock: in seconds.

    Attributes:
        num_bytes: held now.
    """

    def __init__(
        self, max_responses: int, max_bytes: int, max_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._max_seconds = max_seconds
        self._clock = clock
        self._kept: OrderedDict[str, Stored] = OrderedDict()  # oldest first
        self._making: dict[str, str] = {}  # owners of those that will be kept, by id
        self.num_bytes = 0

    def __len__(self) -> int:
        """Responses that are kept."""
        return len(self._kept)

    @property
    def is_on(self) -> bool:
        """Whether it keeps any."""
        return self._max_responses > 0

    @contextmanager
    def making(self, response_id: str, owner: str) -> Iterator[None]:
        """A response that is to be kept once it is whole: until then it can be deleted. As many as are answered."""
        self._making[response_id] = owner
        try:
            yield
        finally:
            self._making.pop(response_id, None)

    def keep(self, response_id: str, owner: str, body: bytes, turn: Turn) -> bool:
        """Keep a response that is being made; the oldest go where there is no room.

        Returns:
            False if it isn't kept, and nothing goes: it was deleted meanwhile, or would not fit if it were alone.
        """
        if not self.is_on or response_id not in self._making or len(body) + turn.chain_bytes > self._max_bytes:
            return False
        self._kept[response_id] = Stored(owner, body, turn, self._clock())
        self.num_bytes += len(body)
        self._hold(turn)
        self._drop_old()
        while self._kept and (len(self._kept) > self._max_responses or self.num_bytes > self._max_bytes):
            self._drop(next(iter(self._kept)))
        return True

    def find(self, response_id: str, owner: str, param: str) -> Stored:
        """A response of this owner's.

        Raises:
            UserError: 404, if there is none, or it is somebody else's, which is no other answer.
        """
        self._drop_old()
        stored = self._kept.get(response_id)
        if stored is None or stored.owner != owner:
            raise UserError(
                f"There is no response {shorten(response_id)}, or none any more.", param=param, status=404
            )
        return stored

    def delete(self, response_id: str, owner: str, param: str) -> None:
        """Forget a response, or don't keep one that is being made.

        Raises:
            UserError: as ``find``.
        """
        if self._making.get(response_id) == owner:
            del self._making[response_id]
            return
        self.find(response_id, owner, param)
        self._drop(response_id)

    def _drop_old(self) -> None:
        since = self._clock() - self._max_seconds
        while self._kept and next(iter(self._kept.values())).since <= since:
            self._drop(next(iter(self._kept)))

    def _drop(self, response_id: str) -> None:
        stored = self._kept.pop(response_id)
        self.num_bytes -= len(stored.body)
        self._let_go(stored.turn)

    def _hold(self, turn: Turn | None) -> None:
        while turn is not None:
            turn.num_users += 1
            if turn.num_users > 1:
                return
            self.num_bytes += turn.num_bytes
            turn = turn.before

    def _let_go(self, turn: Turn | None) -> None:
        while turn is not None:
            turn.num_users -= 1
            if turn.num_users > 0:
                return
            self.num_bytes -= turn.num_bytes
            turn = turn.before
