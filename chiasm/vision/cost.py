"""What encoding a unit costs, from the shapes of the tower. Pure, no torch."""

from __future__ import annotations

from chiasm.schema.facts import EncoderShape
from chiasm.schema.media import Unit


def unit_cost(shape: EncoderShape, unit: Unit) -> float:
    """Floating-point operations of one unit, merger left out.

    Per layer and patch: query, key, value and output projections take ``8 * d * d``, the MLP ``2 * m * d * ff`` for
    ``m`` matrices, and attention over ``k`` keys ``4 * k * d``. ``k`` is all patches of the unit in a layer with full
    attention and those of one window elsewhere, so a unit's cost is linear in its patches but for its full layers.
    """
    n, d = unit.num_patches, shape.hidden_size
    linear = 8 * d * d + 2 * shape.mlp_matrices * d * shape.intermediate_size
    window = min(n, shape.window_patches)
    num_windowed = shape.num_layers - shape.num_full_attention_layers
    attention = 4 * d * (shape.num_full_attention_layers * n + num_windowed * window)
    return float(n * (shape.num_layers * linear + attention))
