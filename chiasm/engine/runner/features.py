"""Puts features into the rows of a packed batch; n rows, d hidden size."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from chiasm.models.entry import DeepFeatures


def place_features(embeds: Tensor, placed: Sequence[tuple[int, Tensor]]) -> DeepFeatures | None:
    """Overwrite the placeholders' rows of ``embeds`` with the first d columns of features.

    Args:
        embeds: [n, d], changed in place.
        placed: (first row, features [tokens, feature size]) of each run of placeholders.

    Returns:
        The other columns; None where there are none.
    """
    size = embeds.shape[1]
    for first_row, features in placed:
        embeds[first_row : first_row + len(features)] = features[:, :size]
    if not placed or placed[0][1].shape[1] == size:
        return None
    rows = [torch.arange(first, first + len(features), device=embeds.device) for first, features in placed]
    return DeepFeatures(torch.cat(rows), torch.cat([features[:, size:] for _, features in placed]))
