"""Rotary positions and normalisation, by their definitions."""

from __future__ import annotations

import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.mllama.configuration_mllama import MllamaTextConfig

from chiasm.ops.norm import rms_norm
from chiasm.ops.rope import (
    LongContext,
    Rotation,
    grid_rotation,
    interleaved_rotation,
    inverse_frequencies,
    multimodal_rotation,
    rotate,
    stretched_frequencies,
    text_rotation,
)
from tests.rounding import assert_equal_but_for_rounding


def test_rotate_is_a_complex_product_of_half_with_half() -> None:
    x = torch.randn(5, 3, 8, dtype=torch.float64)
    angles = torch.randn(5, 4, dtype=torch.float64)
    turned = torch.complex(x[..., :4], x[..., 4:]) * torch.polar(torch.ones_like(angles), angles)[:, None]
    computed = rotate(x, Rotation(angles.cos(), angles.sin()))
    torch.testing.assert_close(computed, torch.cat([turned.real, turned.imag], dim=-1))


def test_rotate_may_pair_neighbours_and_leave_the_rest_of_a_head() -> None:
    x = torch.randn(5, 3, 8, dtype=torch.float64)
    angles = torch.randn(5, 3, dtype=torch.float64)
    neighbours = rotate(x, Rotation(angles.cos(), angles.sin(), "neighbours"))
    pairs = torch.view_as_complex(x[..., :6].unflatten(-1, (3, 2)))
    turned = torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)[:, None]).flatten(-2)
    torch.testing.assert_close(neighbours, torch.cat([turned, x[..., 6:]], dim=-1))
    shuffled = x[..., [0, 2, 4, 1, 3, 5, 6, 7]]
    halves = rotate(shuffled, Rotation(angles.cos(), angles.sin()))
    assert torch.equal(halves, neighbours[..., [0, 2, 4, 1, 3, 5, 6, 7]])


def test_rotate_keeps_the_type_and_rounds_once() -> None:
    x = torch.randn(5, 3, 8).bfloat16()
    angles = torch.randn(5, 4)
    rotation = Rotation(angles.cos(), angles.sin())
    assert torch.equal(rotate(x, rotation), rotate(x.float(), rotation).bfloat16())


def test_frequencies_fall_from_one_by_powers_of_theta() -> None:
    expected = torch.tensor([1.0, 10**-1, 10**-2, 10**-3])
    torch.testing.assert_close(inverse_frequencies(8, 10**4, torch.device("cpu")), expected, rtol=1e-6, atol=0)


def test_stretched_frequencies_equal_hugging_face() -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope = {"rope_type": "llama3", "rope_theta": 5e5, "original_max_position_embeddings": 8192, **scaling}
    config = MllamaTextConfig(hidden_size=256, num_attention_heads=2, rope_parameters=rope)
    expected, factor = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    frequencies = inverse_frequencies(128, 5e5, torch.device("cpu"))
    computed = stretched_frequencies(frequencies, LongContext(8.0, 1.0, 4.0, 8192))
    torch.testing.assert_close(computed, expected, rtol=1e-6, atol=0)
    assert factor == 1.0


def test_text_rotates_by_its_position() -> None:
    frequencies = torch.tensor([1.0, 0.5])
    rotation = text_rotation(torch.tensor([2, 3]), frequencies, "halves")
    torch.testing.assert_close(rotation.cos, torch.tensor([[2.0, 1.0], [3.0, 1.5]]).cos())


def test_sections_of_frequencies_follow_time_height_and_width() -> None:
    positions = torch.tensor([[1, 2], [10, 20], [100, 200]])
    frequencies = torch.tensor([0.1, 0.2, 0.3, 0.4])
    rotation = multimodal_rotation(positions, frequencies, (1, 2, 1))
    angles = torch.tensor([[0.1, 2.0, 3.0, 40.0], [0.2, 4.0, 6.0, 80.0]])
    torch.testing.assert_close(rotation.cos, angles.cos())
    torch.testing.assert_close(rotation.sin, angles.sin())


def test_interleaved_sections_take_turns_as_long_as_they_last() -> None:
    positions = torch.tensor([[1], [10], [100]])
    frequencies = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    rotation = interleaved_rotation(positions, frequencies, (4, 2, 2))
    angles = torch.tensor([[1.0, 20.0, 300.0, 4.0, 50.0, 600.0, 7.0, 8.0]])
    torch.testing.assert_close(rotation.cos, angles.cos())
    torch.testing.assert_close(rotation.sin, angles.sin())


def test_equal_positions_rotate_as_in_one_dimension() -> None:
    frequencies = inverse_frequencies(16, 1e4, torch.device("cpu"))
    rotation = multimodal_rotation(torch.arange(6).expand(3, 6), frequencies, (2, 3, 3))
    torch.testing.assert_close(rotation.cos, (torch.arange(6)[:, None] * frequencies).cos())


def test_patches_rotate_by_row_then_column() -> None:
    frequencies = torch.tensor([1.0, 0.5])
    rotation = grid_rotation(torch.tensor([[2, 3]]), frequencies)
    torch.testing.assert_close(rotation.sin, torch.tensor([[2.0, 1.0, 3.0, 1.5]]).sin())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rms_norm_equals_its_definition(dtype: torch.dtype) -> None:
    x, weight = torch.randn(7, 16).to(dtype), torch.randn(16).to(dtype)
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    most_epsilons = 6 if dtype == torch.bfloat16 else 64
    assert_equal_but_for_rounding(rms_norm(x, weight, 1e-6), expected, most_epsilons)
    assert_equal_but_for_rounding(rms_norm(x, None, 1e-6), expected / weight.double(), most_epsilons)
