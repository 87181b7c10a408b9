"""What is said when a model or a sequence doesn't fit into memory: the numbers, and the settings that would help."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, NoReturn

import msgspec

from chiasm.config.engine import EngineConfig, MediaConfig
from chiasm.engine.cache.sizing import MemoryPlan, in_units
from chiasm.errors import UserError

_LEAST_PIXEL_BYTES = 2**26  # down to which it is lowered in advice
_PARAMS = {
    "num_tokens": "max_num_batched_tokens",
    "num_patches": "max_num_batched_patches",
    "num_seqs": "max_num_seqs",
}  # by what a step calls them
_UTILIZATIONS = (0.92, 0.95, 0.98)


class _Advice(NamedTuple):
    """A setting to change."""

    param: str
    text: str
    is_enough: bool


def refuse_weights(config: EngineConfig, *, weight_bytes: int, free_bytes: int, total_bytes: int | None) -> None:
    """Refuse a model whose weights alone are too much, before they are read.

    Args:
        config: the engine's settings.
        weight_bytes: of each rank.
        free_bytes: of the rank's GPU, or of the host, which all ranks share.
        total_bytes: of the GPU; None on the host.

    Raises:
        UserError: naming the numbers and what would help.
    """
    ranks = config.tensor_parallel_size
    if total_bytes is None:
        if weight_bytes * ranks > free_bytes:
            _refuse_on_host(config, weight_bytes * ranks, free_bytes)
        return
    room = free_bytes - round(total_bytes * (1 - config.gpu_memory_utilization))
    if weight_bytes > room:
        param, advice = "tensor_parallel_size", f"raise tensor_parallel_size above {ranks}"
        if weight_bytes <= free_bytes:
            param, advice = "gpu_memory_utilization", f"raise gpu_memory_utilization, or {advice}"
        raise UserError(
            f"the model can't fit: its weights take {in_units(weight_bytes)} on each rank, and of the "
            f"{in_units(free_bytes)} that are free on the GPU gpu_memory_utilization="
            f"{config.gpu_memory_utilization:g} leaves {in_units(max(0, room))}; {advice}.",
            param=param,
        )


def _refuse_on_host(config: EngineConfig, weight_bytes: int, free_bytes: int) -> NoReturn:
    """Refuse the weights of all ranks together."""
    ranks = config.tensor_parallel_size
    param, advice = "model", "take a smaller model"
    if config.dtype in ("auto", "float32"):  # on a host they are the same
        is_enough = weight_bytes // 2 <= free_bytes
        param, advice = "dtype", f"dtype=bfloat16 takes half{'' if is_enough else ', which is too much as well'}"
    raise UserError(
        f"the model can't fit: the weights of {ranks} {'rank' if ranks == 1 else 'ranks'} take "
        f"{in_units(weight_bytes)}, and {in_units(free_bytes)} of the host's memory are free; {advice}.",
        param=param,
    )


def refuse_step(config: EngineConfig, *, weight_bytes: int, free_bytes: int) -> NoReturn:
    """Refuse a model beside whose weights the biggest step doesn't fit, whatever the caches.

    Args:
        config: the engine's settings.
        weight_bytes: of each rank.
        free_bytes: beside them.

    Raises:
        UserError: naming the numbers and what would help.
    """
    raise UserError(
        f"the model can't fit: beside its weights, {in_units(weight_bytes)}, {in_units(free_bytes)} are free, and "
        f"the biggest step ({config.max_num_batched_tokens} tokens of {config.max_num_seqs} sequences, "
        f"{config.max_num_batched_patches} patches or one image) takes more. Lower max_num_batched_tokens, "
        "max_num_batched_patches, max_num_seqs, max_model_len or mm_processor_kwargs.max_pixels, or raise "
        "tensor_parallel_size.",
        param="max_num_batched_tokens",
    )


def refuse_sequence(plan: MemoryPlan, *, needed_bytes: int, num_tokens: int, num_fitting: int) -> NoReturn:
    """Say that a sequence doesn't fit, and what would make it fit: what is enough alone first.

    Args:
        plan: what shares the memory.
        needed_bytes: that a sequence takes of the KV cache of the poorest rank.
        num_tokens: that it must be able to have.
        num_fitting: for which there is room.

    Raises:
        UserError: always.
    """
    config = plan.config
    advices = list(_advices(plan, needed_bytes))
    if config.max_model_len is not None and num_fitting > 1:
        advices.insert(0, _Advice("max_model_len", f"lower max_model_len to {num_fitting}", is_enough=True))
    cache_bytes = plan.with_token_bytes(needed_bytes)
    if cache_bytes <= plan.room and (plan.is_on_host or config.kv_cache_memory_bytes is not None):
        verb = "set" if config.kv_cache_memory_bytes is None else "raise"
        text = f"{verb} kv_cache_memory_bytes to {cache_bytes}"
        advices.insert(1, _Advice("kv_cache_memory_bytes", text, is_enough=True))
    advices.sort(key=lambda advice: not advice.is_enough)
    raise UserError(
        f"the KV cache has room for {num_fitting} tokens ({in_units(max(0, plan.token_bytes))}), and {num_tokens} "
        f"must fit ({in_units(needed_bytes)}). Beside the weights {in_units(plan.free_bytes)} are free; "
        f"{plan.in_words()}. {_joined(advices)}.",
        param=advices[0].param if advices else "model",
    )


def _joined(advices: Sequence[_Advice]) -> str:
    enough = "; ".join(advice.text for advice in advices if advice.is_enough)
    others = "; ".join(advice.text for advice in advices if not advice.is_enough)
    sentences = [f"Any of these is enough: {enough}"] if enough else []
    sentences += [f"These help, but not alone: {others}"] if others else []
    return ". ".join(sentences) or "Take a smaller model"


def _advices(plan: MemoryPlan, needed_bytes: int) -> Iterator[_Advice]:
    """Settings of what else takes memory, each changed until that is enough, or else as far as it goes."""
    if plan.config.kv_cache_memory_bytes is None:
        for changes in (*_smaller_steps(plan), _smaller_encoder_cache(plan), _of_device(plan)):
            best: _Advice | None = None
            for param, text, changed in changes:
                had = changed.token_bytes
                if had > plan.token_bytes:
                    best = _Advice(param, text, is_enough=had >= needed_bytes)
                if had >= needed_bytes:
                    break
            if best is not None:
                yield best
    if not plan.is_on_host:
        ranks = plan.config.tensor_parallel_size
        yield _Advice("tensor_parallel_size", f"raise tensor_parallel_size above {ranks}", is_enough=False)


_Changes = Iterator[tuple[str, str, MemoryPlan]]
"""A setting, in words what becomes of it, and the plan then; from little to much."""


def _smaller_steps(plan: MemoryPlan) -> Iterator[_Changes]:
    """Only tokens are tried at numbers that were measured: between these they aren't on a line."""
    step = plan.memories[0].step
    measured = [rows for rows, _ in reversed(step.forward.points) if rows < step.num_tokens]

    def changes(limit: str, values: Iterable[int]) -> _Changes:
        for value in values:
            memories = [
                msgspec.structs.replace(memory, step=msgspec.structs.replace(memory.step, **{limit: value}))
                for memory in plan.memories
            ]
            param = _PARAMS[limit]
            config = msgspec.structs.replace(plan.config, **{param: value})
            yield param, f"lower {param} to {value}", replace(plan, config=config, memories=memories)

    yield changes("num_tokens", measured)
    yield changes("num_patches", _halvings(step.num_patches, step.unit_patches))
    yield changes("num_seqs", _halvings(step.num_seqs, 1))


def _smaller_encoder_cache(plan: MemoryPlan) -> _Changes:
    config = msgspec.structs.replace(plan.config, mm_encoder_cache_gb=0.0)
    yield "mm_encoder_cache_gb", "lower mm_encoder_cache_gb to 0", replace(plan, config=config)


def _of_device(plan: MemoryPlan) -> _Changes:
    config = plan.config
    if not plan.is_on_host:
        for share in _UTILIZATIONS:
            if share > config.gpu_memory_utilization:
                changed = msgspec.structs.replace(config, gpu_memory_utilization=share)
                text = f"raise gpu_memory_utilization to {share}"
                yield "gpu_memory_utilization", text, replace(plan, config=changed)
        return
    for value in _halvings(config.media.max_pixel_bytes_in_flight, _LEAST_PIXEL_BYTES):
        media: MediaConfig = msgspec.structs.replace(config.media, max_pixel_bytes_in_flight=value)
        changed = msgspec.structs.replace(config, media=media)
        text = f"lower max_pixel_bytes_in_flight to {value}"
        yield "max_pixel_bytes_in_flight", text, replace(plan, config=changed)


def _halvings(value: int, least: int) -> Iterator[int]:
    while value > least:
        value = max(least, value // 2)
        yield value
