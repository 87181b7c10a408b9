"""Mixtures of experts: layouts of checkpoints, shares of ranks, batches of any size."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from chiasm.dist.group import SOLO
from chiasm.layers.mlp import GatedMLP
from chiasm.layers.moe import (
    ExpertLayout,
    Experts,
    GroupedChoice,
    LogitRouter,
    MixtureOfExperts,
    SigmoidRouter,
    SoftmaxRouter,
    missing_for_grouped,
)
from chiasm.layers.weight import Placement
from tests.layers.test_layers import close, fill, placements, random
from tests.rounding import assert_equal_but_for_rounding

NUM_EXPERTS, SIZE, INNER, NUM_CHOSEN = 6, 16, 36, 2
LAYOUTS: tuple[ExpertLayout, ...] = ("apart", "out_in", "in_out")


class Matrices:
    """A router's and the experts' weights."""

    def __init__(self) -> None:
        self.router = random(NUM_EXPERTS, SIZE)
        self.gate_up = random(NUM_EXPERTS, 2 * INNER, SIZE)
        self.down = random(NUM_EXPERTS, SIZE, INNER)

    def mixture(self, layout: ExpertLayout, placement: Placement) -> MixtureOfExperts:
        router = SoftmaxRouter(SIZE, NUM_EXPERTS, NUM_CHOSEN, placement)
        experts = Experts(SIZE, INNER, NUM_EXPERTS, layout, placement)
        fill(router.weight, own=self.router)
        if layout == "apart":
            pairs = [matrix.chunk(2) for matrix in self.gate_up]
            gates = {f"{index}.gate_proj": gate for index, (gate, _) in enumerate(pairs)}
            ups = {f"{index}.up_proj": up for index, (_, up) in enumerate(pairs)}
            fill(experts.gate_up_proj.weight, **gates, **ups)
            fill(experts.down_proj.weight, **{f"{index}.down_proj": down for index, down in enumerate(self.down)})
        else:
            is_swapped = layout == "in_out"
            fill(experts.gate_up_proj.weight, own=self.gate_up.mT if is_swapped else self.gate_up)
            fill(experts.down_proj.weight, own=self.down.mT if is_swapped else self.down)
        return MixtureOfExperts(router, experts)

    def by_definition(self, row: Tensor) -> Tensor:
        """[d] -> [d]."""
        probabilities = (self.router @ row).softmax(0)
        chosen = probabilities.argsort(descending=True)[:NUM_CHOSEN].tolist()
        out = torch.zeros_like(row)
        for expert in chosen:
            gate, up = (self.gate_up[expert] @ row).chunk(2)
            out += probabilities[expert] * (self.down[expert] @ (F.silu(gate) * up))
        return out / probabilities[chosen].sum()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_shares_of_experts_add_up_to_their_definition(layout: ExpertLayout, size: int) -> None:
    """36 does not divide by 5, nor are its thirds multiples of 8."""
    matrices, x = Matrices(), random(11, SIZE)
    computed = torch.stack([matrices.mixture(layout, placement)(x) for placement in placements(size)]).sum(0)
    assert_equal_but_for_rounding(computed, torch.stack([matrices.by_definition(row) for row in x]))


def test_a_token_has_its_result_in_any_batch() -> None:
    matrices, x = Matrices(), random(40, SIZE)
    layer = matrices.mixture("out_in", Placement(SOLO, torch.float64, torch.device("cpu")))
    together = layer(x)
    close(torch.cat([layer(rows) for rows in x.split([1, 7, 32])]), together)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_experts_at_once_give_what_they_give_apart(layout: ExpertLayout) -> None:
    """Some experts have no rows."""
    layer = Matrices().mixture(layout, Placement(SOLO, torch.float32, torch.device("cpu")))
    x = random(3, SIZE).float()
    assert layer.experts.missing_for_grouped is not None
    apart = layer(x)
    layer.experts.missing_for_grouped = None
    assert_equal_but_for_rounding(layer(x), apart)


@pytest.mark.parametrize(
    ("device", "dtype", "inner", "capability", "words"),
    [
        ("cpu", torch.bfloat16, 64, (9, 0), "no grouped products on cpu"),
        ("cuda", torch.float32, 64, (9, 0), "not float32"),
        ("cuda", torch.bfloat16, 36, (9, 0), "divide by 8, not 36"),
        # Elsewhere torch fetches the numbers of rows, which is illegal while a graph is recorded.
        ("cuda", torch.bfloat16, 64, (8, 0), "the GPU has 8.0"),
        ("cuda", torch.bfloat16, 64, (8, 9), "the GPU has 8.9"),
        ("cuda", torch.bfloat16, 64, (12, 0), "the GPU has 12.0"),
        ("cuda", torch.bfloat16, 64, (9, 0), None),
        ("cuda", torch.bfloat16, 64, (10, 0), None),
    ],
)
def test_experts_are_grouped_only_where_torch_has_a_kernel(
    device: str, dtype: torch.dtype, inner: int, capability: tuple[int, int], words: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    missing = missing_for_grouped(torch.device(device), dtype, SIZE, inner)
    assert missing is None if words is None else missing is not None and words in missing


def test_probabilities_are_taken_in_float32() -> None:
    router = SoftmaxRouter(SIZE, NUM_EXPERTS, NUM_CHOSEN, Placement(SOLO, torch.bfloat16, torch.device("cpu")))
    fill(router.weight, own=random(NUM_EXPERTS, SIZE))
    x = random(9, SIZE).bfloat16()
    routing = router(x)
    scores = F.linear(x, router.weight).float().softmax(-1).topk(NUM_CHOSEN)
    assert torch.equal(routing.experts, scores.indices)
    assert torch.equal(routing.weights, (scores.values / scores.values.sum(-1, keepdim=True)).bfloat16())


@pytest.mark.parametrize("num_groups_kept", [1, 2, 4])
@pytest.mark.parametrize("is_normalised", [True, False])
def test_a_sigmoid_router_chooses_within_the_best_groups(num_groups_kept: int, is_normalised: bool) -> None:
    choice = GroupedChoice(2, 4, num_groups_kept, is_normalised, 2.5)
    router = SigmoidRouter(SIZE, 12, choice, Placement(SOLO, torch.float64, torch.device("cpu")))
    matrix, correction = random(12, SIZE), random(12)
    fill(router.weight, own=matrix)
    fill(router.e_score_correction_bias, own=correction)
    x = random(50, SIZE)
    experts, weights = router(x)
    for row, chosen, factors in zip(x, experts.tolist(), weights, strict=True):
        scores = (matrix @ row).sigmoid()
        corrected = (scores + correction).tolist()
        groups = [range(first, first + 3) for first in range(0, 12, 3)]
        groups.sort(key=lambda group: sum(sorted(corrected[expert] for expert in group)[1:]), reverse=True)
        kept = [expert for group in groups[:num_groups_kept] for expert in group]
        assert set(chosen) == set(sorted(kept, key=corrected.__getitem__, reverse=True)[:2])
        own = scores[chosen]
        close(factors, 2.5 * (own / own.sum() if is_normalised else own))


@pytest.mark.parametrize("size", [1, 3, 5])
def test_a_shared_expert_is_added_to_the_chosen_ones(size: int) -> None:
    matrices, x = Matrices(), random(11, SIZE)
    gate, up, down = random(INNER, SIZE), random(INNER, SIZE), random(SIZE, INNER)

    def mixture(placement: Placement) -> MixtureOfExperts:
        shared = GatedMLP(SIZE, INNER, bias=False, placement=placement)
        fill(shared.gate_up_proj.weight, gate_proj=gate, up_proj=up)
        fill(shared.down_proj.weight, own=down)
        chosen = matrices.mixture("out_in", placement)
        return MixtureOfExperts(chosen.gate, chosen.experts, shared)

    computed = torch.stack([mixture(placement)(x) for placement in placements(size)]).sum(0)
    expected = torch.stack([matrices.by_definition(row) for row in x]) + (F.silu(x @ gate.T) * (x @ up.T)) @ down.T
    assert_equal_but_for_rounding(computed, expected)


@pytest.mark.parametrize("num_chosen", [1, 3])
@pytest.mark.parametrize("size", [1, 3])
def test_a_logit_router_scales_what_its_experts_are_given(num_chosen: int, size: int) -> None:
    matrices, x = Matrices(), random(11, SIZE)

    def mixture(placement: Placement) -> MixtureOfExperts:
        router = LogitRouter(SIZE, NUM_EXPERTS, num_chosen, placement)
        experts = Experts(SIZE, INNER, NUM_EXPERTS, "in_out", placement, weighted="inputs")
        fill(router.weight, own=matrices.router)
        fill(experts.gate_up_proj.weight, own=matrices.gate_up.mT)
        fill(experts.down_proj.weight, own=matrices.down.mT)
        return MixtureOfExperts(router, experts)

    computed = torch.stack([mixture(placement)(x) for placement in placements(size)]).sum(0)
    for row, own in zip(x, computed, strict=True):
        logits = matrices.router @ row
        expected = torch.zeros_like(row)
        for expert in logits.argsort(descending=True)[:num_chosen].tolist():
            gate, up = (matrices.gate_up[expert] @ (row * logits[expert].sigmoid())).chunk(2)
            expected += matrices.down[expert] @ (F.silu(gate) * up)
        assert_equal_but_for_rounding(own, expected)
