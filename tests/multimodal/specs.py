"""Processor settings for tests."""

from __future__ import annotations

from chiasm.schema.media import PatchProcessorSpec

QWEN = PatchProcessorSpec(
    patch_size=14, merge_size=2, temporal_patch_size=2, min_pixels=56 * 56, max_pixels=28 * 28 * 1280
)
"""Qwen2-VL's own."""
