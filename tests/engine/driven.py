"""An engine of one rank in this process, given prompts that no frontend has made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from chiasm.config.engine import EngineConfig
from chiasm.engine.core.core import EngineCore
from chiasm.engine.executor.inproc import InprocExecutor
from chiasm.multimodal.pixels import write_rows
from chiasm.schema.media import MediaItem, PixelRef
from chiasm.schema.request import EngineRequest
from chiasm.schema.sampling import SamplingParams
from tests.prompts import Prompt


@contextmanager
def running(config: EngineConfig) -> Iterator[EngineCore]:
    """The engine, for the length of a ``with`` block."""
    core = EngineCore(config, InprocExecutor(config))
    try:
        yield core
    finally:
        core.close()


def request(name: str, prompt: Prompt, folder: Path, **sampling: object) -> EngineRequest:
    """Greedy decoding of a prompt, whose pixels are written to the folder."""
    items = []
    for index, (item, pixels) in enumerate(zip(prompt.items, prompt.pixels, strict=True)):
        file = folder / f"{name}-{index}"
        file.unlink(missing_ok=True)
        ref = write_rows([pixels], file)
        items.append(_with_pixels(item, ref, f"{name}/{index}/"))
    params = msgspec.convert({"temperature": 0.0, "ignore_eos": True, "seed": 0, **sampling}, SamplingParams)
    return EngineRequest(name, prompt.token_ids, tuple(items), params)


def _with_pixels(item: MediaItem, ref: PixelRef, prefix: str) -> MediaItem:
    units = []
    for unit in item.units:
        own = PixelRef(ref.path, unit.pixels.first_row, unit.pixels.num_rows, ref.row_bytes)
        units.append(msgspec.structs.replace(unit, key=prefix + unit.key, pixels=own))
    return msgspec.structs.replace(item, units=tuple(units))


class Answer(NamedTuple):
    """Tokens, and the likeliest ones at the first of them with their log-probabilities, if they were asked for."""

    token_ids: list[int]
    first_top: tuple[tuple[int, float], ...]


def finish(core: EngineCore) -> dict[str, list[int]]:
    """The tokens of each request, once all have ended."""
    return {name: answer.token_ids for name, answer in _finish(core).items()}


def answers(config: EngineConfig, requests: Sequence[EngineRequest]) -> dict[str, Answer]:
    """The answer to each request, all asked at once."""
    with running(config) as core:
        for one in requests:
            core.add(one)
        return _finish(core)


def _finish(core: EngineCore) -> dict[str, Answer]:
    found: dict[str, Answer] = {}
    while core.has_work:
        core.step()
        for delta in core.take_deltas():
            assert delta.error is None, delta.error
            first = delta.logprobs[0].top if delta.logprobs else ()
            answer = found.setdefault(delta.request_id, Answer([], first))
            answer.token_ids.extend(delta.token_ids)
    return found
