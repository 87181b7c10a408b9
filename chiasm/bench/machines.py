"""The tower and the ranks that a simulation is of, where nothing else is given."""

from __future__ import annotations

from chiasm.schema.facts import EncoderRates, EncoderShape

_EMBEDDING = 2 * (3 * 2 * 16 * 16) * 1152
_MERGER = 2 * (4608 * 4608 + 4608 * 4096) // 4  # for each of the four patches of a block

QWEN3_VL_8B = EncoderShape(
    hidden_size=1152,
    intermediate_size=4304,
    mlp_matrices=2,
    num_layers=27,
    full_attention_layers=tuple(range(27)),
    num_heads=16,
    feature_size=4096,
    merge_size=2,
    outer_flops=_EMBEDDING + _MERGER,
)
"""Qwen3-VL-8B's tower and one merger. Its three deepstack outputs, each with a merger and a feature of the same size
of its own, are left out of the work and of the gather."""


def gpu_rates(tflops: float, link_gbs: float, link_us: float) -> EncoderRates:
    """Ranks that compute in bfloat16 and exchange beside it.

    Args:
        tflops: 10^12 floating-point operations in a second, of any work.
        link_gbs: 10^9 bytes received in a second.
        link_us: fixed time of a collective in microseconds.
    """
    return EncoderRates(
        seconds_per_pass=0.0,
        seconds_per_flop=1e-12 / tflops,
        seconds_per_attention_flop=1e-12 / tflops,
        seconds_per_exchange=1e-6 * link_us,
        seconds_per_byte=1e-9 / link_gbs,
        bytes_per_element=2,
        can_overlap=True,
        packs_units=True,
    )
