"""What memory a rank has and what it needs: measured before its weights are loaded, and after."""

from __future__ import annotations

import os
from typing import NamedTuple

import torch

from chiasm.config.engine import EngineConfig
from chiasm.dist.group import Group
from chiasm.engine.cache.shortage import refuse_step, refuse_weights
from chiasm.engine.cache.sizing import CPU_LIMIT, MemoryPlan
from chiasm.engine.runner.biggest_step import BiggestStep, Packing, StepLimits
from chiasm.engine.runner.host_memory import free_host_memory
from chiasm.engine.runner.launch import Launch
from chiasm.models.entry import VisionLanguageModel
from chiasm.schema.facts import ModelFacts
from chiasm.schema.wire import RankMemory, StepMemory

# Resident bytes by bytes of tensors on a CPU, where the C library keeps what is freed in between: 1.1 to 2.3 as
# measured, less with large tensors.
_HEAP_FACTOR = 2


class DeviceMemory(NamedTuple):
    """Bytes of a GPU, or of the host, that this process could still take, and that there are."""

    free: int
    total: int


def device_memory(device: torch.device, group: Group) -> DeviceMemory:
    """What is free, looked at by all ranks while none of them takes more."""
    group.all_reduce(torch.zeros(1, device=device))
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        memory = DeviceMemory(*torch.cuda.mem_get_info(device))
    else:
        memory = DeviceMemory(free_host_memory(), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    group.all_reduce(torch.zeros(1, device=device)).cpu()
    return memory


def check_weights(config: EngineConfig, weight_bytes: int, device: torch.device, group: Group) -> None:
    """Refuse weights that don't fit, before they are read.

    Raises:
        UserError: naming the numbers and what would help.
    """
    memory = device_memory(device, group)
    total = memory.total if device.type == "cuda" else None
    refuse_weights(config, weight_bytes=weight_bytes, free_bytes=memory.free, total_bytes=total)


class LoadedRank(NamedTuple):
    """A rank whose memory is to be measured.

    Attributes:
        model: loaded.
        facts: of it, with the server's own limits on media.
        launch: how it brings work to its device.
        group: of all ranks.
        device: of this one.
        dtype: of weights and activations.
        token_bytes: of a token's keys and values.
        weight_bytes: of all weights.
    """

    model: VisionLanguageModel
    facts: ModelFacts
    launch: Launch
    group: Group
    device: torch.device
    dtype: torch.dtype
    token_bytes: int
    weight_bytes: int


def measure_memory(config: EngineConfig, rank: LoadedRank) -> RankMemory:
    """Run the biggest step, and smaller ones where memory is short; every rank does so at the same time.

    Raises:
        UserError: if it doesn't fit even without caches.
    """
    memory = device_memory(rank.device, rank.group)
    limits = _limits(config, rank, memory.free)
    biggest = BiggestStep(rank.model, rank.facts, rank.launch, limits, rank.device, rank.dtype)
    try:
        measured = _rank_memory(rank, memory, biggest.measure(has_smaller=False))
        if _is_short(config, rank, measured):
            measured = _rank_memory(rank, memory, biggest.measure(has_smaller=True))
    except RuntimeError as error:  # on a CPU torch has no class of its own for it
        if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        refuse_step(config, weight_bytes=rank.weight_bytes, free_bytes=memory.free)
    return measured


def _rank_memory(rank: LoadedRank, memory: DeviceMemory, step: StepMemory) -> RankMemory:
    is_on_host = rank.device.type == "cpu"
    return RankMemory(
        device="cpu" if is_on_host else "cuda",
        total_bytes=memory.total,
        free_bytes=memory.free,
        weight_bytes=rank.weight_bytes,
        step=step.times(_HEAP_FACTOR) if is_on_host else step,
        has_graphs=rank.launch.decoding is not None,
    )


def _is_short(config: EngineConfig, rank: LoadedRank, memory: RankMemory) -> bool:
    """Whether a rank may have too little for one sequence, so that the user must be told what smaller steps save.

    That is decided later, for all ranks together; here it is taken to be so below twice of what is needed.
    """
    if config.kv_cache_memory_bytes is not None:
        return False  # steps take nothing of it
    facts = rank.facts
    longest = config.max_model_len or facts.max_position_embeddings
    item_bytes = min(facts.max_unit_tokens, longest) * facts.encoder.feature_size * rank.dtype.itemsize
    budget = MemoryPlan(config, [memory] * rank.group.size, item_bytes).budget()
    needed = (config.max_model_len or 2) + config.block_size
    is_own = budget.num_bytes < 2 * needed * rank.token_bytes
    return bool(rank.group.all_reduce(torch.full((1,), float(is_own), device=rank.device)).item() > 0)


def _limits(config: EngineConfig, rank: LoadedRank, free_bytes: int) -> StepLimits:
    """How big a step can be.

    No sequence is longer than a cache that took all memory would hold.
    """
    cache_bytes = min(free_bytes, CPU_LIMIT) if rank.device.type == "cpu" else free_bytes
    cache_tokens = (config.kv_cache_memory_bytes or cache_bytes) // rank.token_bytes
    asked = config.max_model_len or rank.facts.max_position_embeddings
    return StepLimits(
        num_tokens=config.max_num_batched_tokens,
        num_seqs=config.max_num_seqs,
        num_patches=config.max_num_batched_patches,
        max_model_len=max(2, min(asked, rank.facts.max_position_embeddings, cache_tokens)),
        block_size=config.block_size,
        num_ranks=rank.group.size,
        packing=_packing(config, rank),
    )


def _packing(config: EngineConfig, rank: LoadedRank) -> Packing:
    if rank.device.type != "cpu" or config.mm_encoder_tp_mode == "weights":
        return "together"
    may_cut = config.mm_encoder_tp_mode == "auto" and not config.mm_encoder_min_units_per_rank
    return "cut" if may_cut and rank.group.size > 1 and rank.facts.encoder.can_cut_rows else "apart"
