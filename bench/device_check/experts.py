"""Mixtures of experts on the device, grouped and one by one, against each expert's MLP in float64."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.device_check.probe import Outcome, Probe, Skip
from chiasm.dist.group import SOLO
from chiasm.layers.moe import Experts, Routing
from chiasm.layers.weight import Placement

_LIMIT = 1e-2  # of the outputs' length, in bfloat16


class Mixture(NamedTuple):
    """Sizes of a layer."""

    hidden_size: int
    inner_size: int
    num_experts: int
    num_chosen: int


_PUBLISHED = {
    "Qwen3-VL-30B-A3B": Mixture(2048, 768, 128, 8),
    "GLM-4.5V on 4 ranks": Mixture(4096, 352, 128, 8),
    "Llama 4 Scout on 8 ranks": Mixture(5120, 1024, 16, 1),
}
_SMALL = {
    "like Qwen3-VL": Mixture(128, 48, 16, 4),
    "like Llama 4": Mixture(160, 64, 4, 1),
}
_NUM_ROWS = (1, 7, 64, 1000)


def check_experts(probe: Probe) -> None:
    """Batches of all sizes, and one whose rows all go to the same experts."""
    for name, mixture in (_PUBLISHED if probe.is_gpu else _SMALL).items():
        for is_grouped in (True, False):
            words = f"{name}, {'grouped' if is_grouped else 'one by one'}"
            for num_rows in _NUM_ROWS:
                check = partial(check_mixture, mixture, num_rows, probe.device, is_grouped=is_grouped)
                probe.check(f"{words}, {num_rows} rows", check)
            crowded = partial(check_mixture, mixture, 64, probe.device, is_grouped=is_grouped, is_crowded=True)
            probe.check(f"{words}, 64 rows for the same experts", crowded)


@torch.inference_mode()
def check_mixture(
    mixture: Mixture, num_rows: int, device: torch.device, *, is_grouped: bool, is_crowded: bool = False
) -> Outcome:
    """A layer's output is that of its experts, weighted and added up."""
    torch.manual_seed(0)
    layer = _make_layer(mixture, device)
    if is_grouped and device.type == "cpu":
        layer.missing_for_grouped = None  # torch has the operator there too; it is only not used
    elif is_grouped and layer.missing_for_grouped is not None:
        if "compute capabilities" in layer.missing_for_grouped:
            raise Skip(layer.missing_for_grouped)
        return Outcome(is_good=False, detail=layer.missing_for_grouped)
    elif not is_grouped:
        layer.missing_for_grouped = "compared with it"
    x = torch.randn(num_rows, mixture.hidden_size).to(device, torch.bfloat16)
    routing = _make_routing(mixture, num_rows, device, is_crowded=is_crowded)
    computed, expected = layer(x, routing).double(), _expected(layer, x, routing)
    error = float((computed - expected).norm() / expected.norm())
    return Outcome(error <= _LIMIT, f"differs by {error:.1e} of the output, at most {_LIMIT:.0e}")


def _make_layer(mixture: Mixture, device: torch.device) -> Experts:
    placement = Placement(SOLO, torch.bfloat16, device)
    layer = Experts(mixture.hidden_size, mixture.inner_size, mixture.num_experts, "out_in", placement)
    for matrices in (layer.gate_up_proj, layer.down_proj):
        matrices.weight.data.normal_(std=matrices.weight.shape[-1] ** -0.5)
    return layer


def _make_routing(mixture: Mixture, num_rows: int, device: torch.device, *, is_crowded: bool) -> Routing:
    num_experts, num_chosen = mixture.num_experts, mixture.num_chosen
    scores = torch.rand(num_rows, num_experts)
    if is_crowded:
        scores[:, : num_experts - num_chosen] -= 2
    weights = torch.rand(num_rows, num_chosen) + 0.1
    return Routing(scores.topk(num_chosen).indices.to(device), weights.to(device, torch.bfloat16))


def _expected(layer: Experts, x: Tensor, routing: Routing) -> Tensor:
    out = torch.zeros_like(x, dtype=torch.float64)
    for expert in routing.experts.unique().tolist():
        rows, places = (routing.experts == expert).nonzero(as_tuple=True)
        gate, up = (x[rows].double() @ layer.gate_up_proj.weight[expert].double().mT).chunk(2, dim=-1)
        given = (F.silu(gate) * up) @ layer.down_proj.weight[expert].double().mT
        out.index_add_(0, rows, routing.weights[rows, places, None].double() * given)
    return out
