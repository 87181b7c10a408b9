"""Batched forward passes over the weights of Hugging Face's model.

Its own tower takes every window of attention in a loop, which is slow for many small pictures. Here all pictures of a
batch have one size, so that windows are a mask. ``check.py`` compares both.

Shapes: B pictures, n patches each, m = n / 4 tokens each, L tokens of text and picture, d width.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from training.model import FULL_ATTENTION, HEADS, KV_HEADS, PATCH, TOWER_HEADS, WINDOW

_SIDE = WINDOW // PATCH


class Thought(NamedTuple):
    """What the language model made of a batch.

    Attributes:
        hidden: [B, L, d] after the last norm.
        pointing: [B, L, L] the scores of each head that points.
        carried: [B, L, d] after the layer in which words of a question point.
        compared: [B, L, d] after the layer in which two elements are compared.
    """

    hidden: Tensor
    pointing: list[Tensor]
    carried: Tensor
    compared: Tensor


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, 1e-6)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    one, other = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-other, one), dim=-1) * sin


NUM_POINTING = 3
"""The first heads of so many text layers are taught to point: from an element to its entry in a legend, from a word
of a question to its like in the picture, and from the answer to that word."""
CARRYING, COMPARING = 1, 2
"""The layers after which that word must know what it points to, and the second of two how they compare."""


def _attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    # On CPUs, and for so few and so small rows, several times as fast as PyTorch's fused one with its backward pass.
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
    if mask is not None:
        scores = scores + mask
    return torch.softmax(scores, -1) @ v, scores


@lru_cache(maxsize=256)
def patch_places(rows: int, columns: int) -> Tensor:
    """[n, 2] row and column of each patch, in the order of merge blocks."""
    row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    places = torch.stack((row, column), -1).view(rows // 2, 2, columns // 2, 2, 2)
    return places.permute(0, 2, 1, 3, 4).reshape(-1, 2)


@lru_cache(maxsize=256)
def _tower_tables(rows: int, columns: int, head: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    places = patch_places(rows, columns)
    frequencies = 1.0 / 10000.0 ** (torch.arange(0, head // 2, 2).float() / (head // 2))
    angles = (places[:, :, None].float() * frequencies).flatten(1)
    angles = torch.cat((angles, angles), -1)
    window = places[:, 0] // _SIDE * columns + places[:, 1] // _SIDE
    mask = torch.zeros(len(places), len(places)).masked_fill(window[:, None] != window[None], float("-inf"))
    return angles.cos().to(dtype), angles.sin().to(dtype), mask.to(dtype)


def tower(model: Any, pixels: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Encode pictures.

    Args:
        model: Hugging Face's.
        pixels: [B, n, 3 * 14 * 14], normalised, in the order of merge blocks.
        rows: of patches.
        columns: of patches.

    Returns:
        [B, n, d] patches before they are merged, and [B, m, d] tokens.
    """
    visual = model.model.visual
    weight = visual.patch_embed.proj.weight
    x = pixels @ weight.sum(2).flatten(1).T  # both frames of a still picture are the same
    b, n, d = x.shape
    cos, sin, mask = _tower_tables(rows, columns, d // TOWER_HEADS, x.dtype)
    one_window = rows <= _SIDE and columns <= _SIDE
    for index, block in enumerate(visual.blocks):
        qkv = block.attn.qkv(_norm(x, block.norm1.weight)).view(b, n, 3, TOWER_HEADS, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        is_full = one_window or index in FULL_ATTENTION
        mixed, _ = _attention(q, k, v, None if is_full else mask)
        x = x + block.attn.proj(mixed.transpose(1, 2).reshape(b, n, d))
        h = _norm(x, block.norm2.weight)
        x = x + block.mlp.down_proj(F.silu(block.mlp.gate_proj(h)) * block.mlp.up_proj(h))
    merger = visual.merger
    return x, merger.mlp(_norm(x, merger.ln_q.weight).view(b, n // 4, 4 * d))


def _text_tables(model: Any, places: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    rotary = model.model.language_model.rotary_emb
    angles = places[..., None].float() * rotary.inv_freq  # [3, B, L, head / 2]
    sections = model.config.text_config.rope_parameters["mrope_section"]
    mixed = torch.cat([part[axis] for axis, part in enumerate(angles.split(sections, dim=-1))], dim=-1)
    mixed = torch.cat((mixed, mixed), -1)[:, None]  # [B, 1, L, head]
    return mixed.cos().to(dtype), mixed.sin().to(dtype)


def text(model: Any, x: Tensor, places: Tensor, mask: Tensor) -> Thought:
    """Run the language model.

    Args:
        model: Hugging Face's.
        x: [B, L, d] embeddings, pictures in place.
        places: [3, B, L] rotary positions.
        mask: [B, 1, L, L] added to the scores.
    """
    b, length, d = x.shape
    cos, sin = _text_tables(model, places, x.dtype)
    pointing: list[Tensor] = []
    carried = compared = x
    for index, layer in enumerate(model.model.language_model.layers):
        attention, mlp = layer.self_attn, layer.mlp
        h = _norm(x, layer.input_layernorm.weight)
        q = attention.q_proj(h).view(b, length, HEADS, -1).transpose(1, 2)
        k = attention.k_proj(h).view(b, length, KV_HEADS, -1).transpose(1, 2)
        v = attention.v_proj(h).view(b, length, KV_HEADS, -1).transpose(1, 2)
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        k, v = (part.repeat_interleave(HEADS // KV_HEADS, dim=1) for part in (k, v))
        mixed, scores = _attention(q, k, v, mask)
        if index < NUM_POINTING:
            pointing.append(scores[:, 0])
        x = x + attention.o_proj(mixed.transpose(1, 2).reshape(b, length, d))
        h = _norm(x, layer.post_attention_layernorm.weight)
        x = x + mlp.down_proj(F.silu(mlp.gate_proj(h)) * mlp.up_proj(h))
        if index == CARRYING:
            carried = x
        if index == COMPARING:
            compared = x
    return Thought(_norm(x, model.model.language_model.norm.weight), pointing, carried, compared)
