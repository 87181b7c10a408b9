"""Mixtures of experts: a router chooses experts for each token; every rank holds a share of every expert.

Shapes: n tokens, d hidden size, E experts, k experts of a token, I inner size of an expert on this rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chiasm.layers.linear import GatedPair, PackedLayer
from chiasm.layers.mlp import GatedMLP
from chiasm.layers.shards import shard_bounds
from chiasm.layers.weight import Part, Piece, Placement, Weight
from chiasm.ops.matmul import linear, pack

ExpertLayout = Literal["apart", "out_in", "in_out"]
"""How a checkpoint keeps the experts' matrices.

"apart" has them one by one, [out, in], as ``experts.0.gate_proj.weight`` and so on. The others have all of them in
``gate_up_proj`` and ``down_proj``: [E, out, in] or [E, in, out].
"""


_GROUPED_MAJORS = (9, 10)  # major compute capabilities for which torch has a kernel
_GROUPED_STEP = 8


class Routing(NamedTuple):
    """The experts of each token.

    Attributes:
        experts: LongTensor [n, k].
        weights: [n, k], factors of what they give, or of what they are given.
    """

    experts: Tensor
    weights: Tensor


class SoftmaxRouter(nn.Module):
    """The k experts of the highest probability, whose probabilities are scaled to a sum of one. Never sharded."""

    def __init__(self, hidden_size: int, num_experts: int, num_chosen: int, placement: Placement) -> None:
        super().__init__()
        self.num_chosen = num_chosen
        whole = {"": Part.whole(num_experts, hidden_size)}
        self.weight = Weight((num_experts, hidden_size), whole, placement.dtype, placement.device)

    def forward(self, x: Tensor) -> Routing:
        """[n, d] -> experts and weights, each [n, k]; probabilities are in float32 at least."""
        wide = torch.promote_types(x.dtype, torch.float32)
        scores, experts = F.linear(x, self.weight).softmax(-1, dtype=wide).topk(self.num_chosen)
        return Routing(experts, (scores / scores.sum(-1, keepdim=True)).to(x.dtype))


class LogitRouter(nn.Module):
    """The k experts of the highest logits, each with the sigmoid of its own as its weight. Never sharded."""

    def __init__(self, hidden_size: int, num_experts: int, num_chosen: int, placement: Placement) -> None:
        super().__init__()
        self.num_chosen = num_chosen
        whole = {"": Part.whole(num_experts, hidden_size)}
        self.weight = Weight((num_experts, hidden_size), whole, placement.dtype, placement.device)

    def forward(self, x: Tensor) -> Routing:
        """[n, d] -> experts and weights, each [n, k]; sigmoids are in float32 at least."""
        logits, experts = F.linear(x, self.weight).topk(self.num_chosen)
        wide = torch.promote_types(x.dtype, torch.float32)
        return Routing(experts, logits.to(wide).sigmoid().to(x.dtype))


@dataclass(frozen=True)
class GroupedChoice:
    """How experts are chosen by scores where they are in groups of which only the best are looked at.

    Attributes:
        num_chosen: k, experts of a token.
        num_groups: groups that the experts fall into, in order.
        num_groups_kept: groups that a token's experts may be of: those with the highest sum of two scores.
        is_normalised: whether the weights of a token's experts are scaled to a sum of one.
        factor: of the weights, after that.
    """

    num_chosen: int
    num_groups: int
    num_groups_kept: int
    is_normalised: bool
    factor: float


class SigmoidRouter(nn.Module):
    """Scores by a sigmoid, with a learned correction that decides the choice and not the weights. Never sharded.

    It computes in float32 at least, as it was trained: near ties decide which experts a token gets.
    """

    def __init__(self, hidden_size: int, num_experts: int, choice: GroupedChoice, placement: Placement) -> None:
        super().__init__()
        self.choice = choice
        wide = torch.promote_types(placement.dtype, torch.float32)
        whole = {"": Part.whole(num_experts, hidden_size)}
        self.weight = Weight((num_experts, hidden_size), whole, wide, placement.device)
        correction = {"": Part.whole(num_experts)}
        self.e_score_correction_bias = Weight((num_experts,), correction, wide, placement.device)

    def forward(self, x: Tensor) -> Routing:
        """[n, d] -> experts and weights, each [n, k]."""
        choice = self.choice
        scores = F.linear(x.to(self.weight.dtype), self.weight).sigmoid()
        experts = self._keep_best_groups(scores + self.e_score_correction_bias).topk(choice.num_chosen).indices
        weights = scores.gather(1, experts)
        if choice.is_normalised:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return Routing(experts, (weights * choice.factor).to(x.dtype))

    def _keep_best_groups(self, scores: Tensor) -> Tensor:
        """[n, E] -> [n, E], minus infinity in the groups that are left out."""
        choice = self.choice
        if choice.num_groups_kept == choice.num_groups:
            return scores
        grouped = scores.view(len(scores), choice.num_groups, -1)
        kept = grouped.topk(2).values.sum(-1).topk(choice.num_groups_kept).indices  # [n, groups kept]
        is_out = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter_(1, kept, value=False)
        return grouped.masked_fill(is_out[..., None], -torch.inf).flatten(1)


class _PackedExpert(NamedTuple):
    """An expert's matrices, packed."""

    gate_up: GatedPair
    down: Tensor


class Experts(PackedLayer):
    """Gated MLPs, their inner size sharded as that of a ``GatedMLP``.

    ``weighted`` says what the router's weights are factors of.

    Attributes:
        missing_for_grouped: why experts are computed one by one; None where all are at once.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        num_experts: int,
        layout: ExpertLayout,
        placement: Placement,
        *,
        weighted: Literal["inputs", "outputs"] = "outputs",
    ) -> None:
        super().__init__()
        self.weighted = weighted
        self.group = placement.group
        self.num_experts = num_experts
        self.packed: list[_PackedExpert] = []
        start, stop = shard_bounds(intermediate_size, placement.group)
        self.missing_for_grouped = missing_for_grouped(placement.device, placement.dtype, hidden_size, stop - start)
        share = _Share(hidden_size, intermediate_size, num_experts, start, stop - start)
        self.gate_up_proj = _Matrices(2 * share.length, hidden_size, _gate_up_parts(share, layout), share, placement)
        self.down_proj = _Matrices(hidden_size, share.length, _down_parts(share, layout), share, placement)

    def forward(self, x: Tensor, routing: Routing) -> Tensor:
        """[n, d] -> [n, d], this rank's part of the sum over the ranks."""
        chosen = routing.experts.flatten()  # [n * k]
        order = chosen.argsort(stable=True)
        rows = x[order // routing.experts.shape[1]]
        if self.weighted == "inputs":
            rows *= routing.weights.flatten()[order, None]
        run = self._run_grouped if self.missing_for_grouped is None else self._run_apart
        sorted_out = run(rows, chosen)
        # Back by token, so that the sum has the same order in any batch.
        by_token = torch.empty_like(sorted_out).index_copy_(0, order, sorted_out).view(*routing.experts.shape, -1)
        if self.weighted == "outputs":
            by_token *= routing.weights[..., None]
        return by_token.sum(1)

    def _run_apart(self, rows: Tensor, chosen: Tensor) -> Tensor:
        """Sorted rows [m, d] -> [m, d], expert by expert; the host waits for the numbers of their rows."""
        counts = chosen.bincount(minlength=self.num_experts).tolist()
        return torch.cat([self._run(expert, own) for expert, own in enumerate(rows.split(counts)) if len(own)])

    def _run_grouped(self, rows: Tensor, chosen: Tensor) -> Tensor:
        """The same in two products of all experts, of whose rows the host knows nothing."""
        counts = torch.zeros(self.num_experts, dtype=torch.int32, device=rows.device)
        counts.scatter_add_(0, chosen, torch.ones_like(chosen, dtype=torch.int32))
        ends = counts.cumsum(0, dtype=torch.int32)
        gate, up = F.grouped_mm(rows, self.gate_up_proj.weight.mT, offs=ends).chunk(2, dim=-1)
        return F.grouped_mm(F.silu(gate) * up, self.down_proj.weight.mT, offs=ends)

    def _run(self, expert: int, rows: Tensor) -> Tensor:
        """[m, d] -> [m, d], this rank's part of what one expert gives."""
        if self.packed:
            pair, down = self.packed[expert]
            return linear(pair(rows), down)
        gate, up = F.linear(rows, self.gate_up_proj.weight[expert]).chunk(2, dim=-1)
        return F.linear(F.silu(gate).mul_(up), self.down_proj.weight[expert])

    def pack(self) -> None:
        """Pack each expert's matrices, if that gains anything."""
        for gate_up, down in zip(self.gate_up_proj.weight.data, self.down_proj.weight.data, strict=True):
            pair = GatedPair.packed(gate_up)
            if pair is None:
                return
            self.packed.append(_PackedExpert(pair, pack(down)))
        for matrices in (self.gate_up_proj, self.down_proj):
            matrices.weight = nn.Parameter(matrices.weight.new_empty(0), requires_grad=False)


def missing_for_grouped(device: torch.device, dtype: torch.dtype, *sizes: int) -> str | None:
    """Why ``grouped_mm`` isn't used; None if it is.

    It takes any GPU; where torch has no kernel, it goes from expert to expert after it has fetched their numbers of
    rows (``_grouped_mm_cuda`` in ATen): as slow as without it, and not to be recorded.

    Args:
        device: of the experts.
        dtype: of theirs.
        sizes: of a row before and within an expert; it wants whole 16 bytes.
    """
    if device.type != "cuda":
        return f"no grouped products on {device.type}"
    if dtype != torch.bfloat16:
        return f"grouped products take bfloat16, not {str(dtype).removeprefix('torch.')}"
    odd = [size for size in sizes if size % _GROUPED_STEP]
    if odd:
        return f"grouped products take sizes that divide by {_GROUPED_STEP}, not {odd[0]}"
    major, minor = torch.cuda.get_device_capability(device)
    if major not in _GROUPED_MAJORS:
        return f"torch has grouped products for compute capabilities 9 and 10, the GPU has {major}.{minor}"
    return None


class MixtureOfExperts(nn.Module):
    """Experts behind a router, in the place of an MLP.

    Args:
        gate: makes a ``Routing`` of [n, d]; it is the same on every rank.
        experts: that it chooses from.
        shared: one more expert, which every token has, with a weight of one.
    """

    def __init__(self, gate: nn.Module, experts: Experts, shared: GatedMLP | None = None) -> None:
        super().__init__()
        self.gate = gate
        self.experts = experts
        self.shared_experts = shared

    def forward(self, x: Tensor) -> Tensor:
        """[n, d] -> [n, d]."""
        out: Tensor = self.experts(x, self.gate(x))
        if self.shared_experts is not None:
            out += self.shared_experts.own_part(x)
        return self.experts.group.all_reduce(out)


class _Share(NamedTuple):
    """What a rank has of the experts: ``length`` of their inner size, from ``start``."""

    hidden_size: int
    intermediate_size: int
    num_experts: int
    start: int
    length: int


class _Matrices(nn.Module):
    """A matrix of each expert: [E, out, in]."""

    def __init__(
        self, out_features: int, in_features: int, parts: Mapping[str, Part], share: _Share, placement: Placement
    ) -> None:
        super().__init__()
        shape = (share.num_experts, out_features, in_features)
        self.weight: nn.Parameter = Weight(shape, parts, placement.dtype, placement.device)


def _gate_up_parts(share: _Share, layout: ExpertLayout) -> dict[str, Part]:
    """Gate above up, as ``GateUpLinear`` has them."""
    size, inner, num_experts, start, length = share
    if layout == "apart":
        return {
            f"{expert}.{name}": Part((inner, size), (Piece(start, length, target),), index=expert)
            for expert in range(num_experts)
            for name, target in (("gate_proj", 0), ("up_proj", length))
        }
    pieces = (Piece(start, length, 0), Piece(inner + start, length, length))
    if layout == "out_in":
        return {"": Part((num_experts, 2 * inner, size), pieces, dim=1)}
    return {"": Part((num_experts, size, 2 * inner), pieces, dim=2, is_swapped=True)}


def _down_parts(share: _Share, layout: ExpertLayout) -> dict[str, Part]:
    size, inner, num_experts, start, length = share
    pieces = (Piece(start, length, 0),)
    if layout == "apart":
        return {
            f"{expert}.down_proj": Part((size, inner), pieces, dim=1, index=expert) for expert in range(num_experts)
        }
    if layout == "out_in":
        return {"": Part((num_experts, size, inner), pieces, dim=2)}
    return {"": Part((num_experts, inner, size), pieces, dim=1, is_swapped=True)}
