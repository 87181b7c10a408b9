"""How the memory of the ranks becomes blocks and a length of sequences."""

from __future__ import annotations

import pytest

from chiasm.config.engine import EngineConfig
from chiasm.engine.core.capacity import decide_capacity
from chiasm.errors import UserError
from chiasm.schema.facts import ModelFacts
from chiasm.schema.media import PatchProcessorSpec
from chiasm.schema.wire import Growth, RankInfo, RankMemory, StepMemory
from tests.engine.mirror import SHAPE


def info(cache_bytes: int, *, max_pixels: int = 28 * 28 * 100, encoder_bytes: int = 2**28) -> RankInfo:
    """A rank with so much for its KV cache beside the encoder's; a block takes 10 bytes."""
    facts = ModelFacts(
        model_type="m",
        vocab_size=10,
        max_position_embeddings=1000,
        eos_token_ids=(),
        image_token_id=1,
        media_token_ids=(1,),
        processor=PatchProcessorSpec(14, 2, 2, 1, max_pixels),
        encoder=SHAPE,
    )
    nothing = [Growth(((100, 0),))] * 5
    step = StepMemory(*nothing, is_beside=False, num_tokens=2048, num_seqs=64, num_patches=16384, unit_patches=100)
    memory = RankMemory("cuda", 0, cache_bytes + encoder_bytes, 0, step)
    return RankInfo(facts, 10, 32, memory, "cpu", "float32")


def config(**settings: object) -> EngineConfig:
    return EngineConfig(model="m", **settings)  # type: ignore[arg-type]


def test_the_poorest_rank_decides() -> None:
    capacity = decide_capacity(config(), [info(5000), info(700), info(2000)])
    assert (capacity.num_blocks, capacity.max_model_len) == (70, 1000)
    assert "70 blocks of 16 tokens" in capacity.summary[0]


def test_no_more_blocks_than_can_be_used() -> None:
    capacity = decide_capacity(config(max_num_seqs=2, max_model_len=33), [info(10**6)])
    assert capacity.num_blocks == 2 * 3
    assert "max_num_seqs" in capacity.summary[0]


def test_a_context_that_does_not_fit_is_shortened_and_said() -> None:
    capacity = decide_capacity(config(), [info(100)])
    assert capacity.max_model_len == 160
    assert "160 tokens (what the KV cache holds; the model could take 1000)" in capacity.summary[2]


@pytest.mark.parametrize(
    ("settings", "cache_bytes", "message", "param"),
    [
        (
            {"max_model_len": 161},
            100,
            "room for 160 tokens .* 161 must fit .* enough: lower max_model_len to 160",
            "max_model_len",
        ),
        ({}, 9, "room for 0 tokens .* enough: lower mm_encoder_cache_gb to 0", "mm_encoder_cache_gb"),
        ({"max_model_len": 1001}, 10**6, "1001 is above the 1000 positions", "max_model_len"),
    ],
)
def test_what_cannot_be_is_refused_with_the_flag_to_change(
    settings: dict[str, int], cache_bytes: int, message: str, param: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        decide_capacity(config(**settings), [info(cache_bytes)])
    assert caught.value.param == param


@pytest.mark.parametrize("num_rows", [0, 5, 5000])
def test_the_encoder_cache_holds_the_largest_image_that_a_prompt_can_have(num_rows: int) -> None:
    """As much as a prompt may be long; what is kept beyond a request is what was asked for."""
    large = info(10**6, max_pixels=28 * 28 * 6000)
    capacity = decide_capacity(config(mm_encoder_cache_gb=num_rows * 32 / 2**30), [large])
    assert capacity.encoder_kept_bytes == num_rows * 32
    assert capacity.encoder_cache_bytes == max(num_rows, 1000) * 32
    assert f"{num_rows} tokens" in capacity.summary[1]
    assert ("while one is read" in capacity.summary[1]) == (num_rows < 1000)


def test_the_encoder_cache_need_not_hold_more_than_the_largest_image() -> None:
    small = decide_capacity(config(mm_encoder_cache_gb=0), [info(10**6)])
    assert small.encoder_cache_bytes == info(0).facts.processor.max_tokens * 32
