"""An engine of which only the core is there, given prompts that no frontend has made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec

from chiasm.config.engine import EngineConfig
from chiasm.engine.core.core import EngineCore
from chiasm.engine.executor.inproc import InprocExecutor
from chiasm.engine.executor.multiproc import MultiprocExecutor
from chiasm.multimodal.pixels import write_rows
from chiasm.schema.media import MediaItem, PixelRef
from chiasm.schema.plan import TokenLogprob
from chiasm.schema.request import EngineRequest
from chiasm.schema.sampling import SamplingParams
from tests.prompts import Prompt


@contextmanager
def running(config: EngineConfig) -> Iterator[EngineCore]:
    """The engine, for the length of a ``with`` block; one rank is in this process, several have their own."""
    with TemporaryDirectory() as folder:
        is_alone = config.tensor_parallel_size == 1
        core = EngineCore(config, InprocExecutor(config) if is_alone else MultiprocExecutor(config, Path(folder)))
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
    """Tokens, and the log-probabilities of each and of the likeliest in its place, if they were asked for."""

    token_ids: list[int]
    logprobs: list[TokenLogprob]


def finish(core: EngineCore) -> dict[str, list[int]]:
    """The tokens of each request, once all have ended."""
    return {name: answer.token_ids for name, answer in _finish(core).items()}


def answers(config: EngineConfig, requests: Sequence[EngineRequest]) -> dict[str, Answer]:
    """The answer to each request, all asked at once."""
    with running(config) as core:
        return ask(core, requests)


def ask(core: EngineCore, requests: Sequence[EngineRequest]) -> dict[str, Answer]:
    """The answer of a running engine to each request, all asked at once."""
    for one in requests:
        core.add(one)
    return _finish(core)


def _finish(core: EngineCore) -> dict[str, Answer]:
    found: dict[str, Answer] = {}
    while core.has_work:
        core.step()
        for delta in core.take_deltas():
            assert delta.error is None, delta.error
            answer = found.setdefault(delta.request_id, Answer([], []))
            answer.token_ids.extend(delta.token_ids)
            answer.logprobs.extend(delta.logprobs or ())
    return found
