"""Muon for the matrices of the blocks and AdamW for the rest, over float32 masters of bfloat16 weights."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

_STEPS = 5
_A, _B, _C = 3.4445, -4.7750, 2.0315


def orthogonalised(batch: Tensor) -> Tensor:
    """[k, rows, columns] matrices with their singular values brought near one (Newton-Schulz)."""
    tall = batch.shape[1] > batch.shape[2]
    x = (batch.transpose(1, 2) if tall else batch).bfloat16()
    x = x / (x.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    for _ in range(_STEPS):
        gram = x @ x.transpose(1, 2)
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    update: Tensor = (x.transpose(1, 2) if tall else x).float()
    return update


class Optimiser:
    """One step over all weights.

    Args:
        named: the weights that are trained, by name.
        muon_lr: for matrices of blocks.
        adam_lr: for embeddings, norms, biases, merger and heads.
        decay: decoupled weight decay of matrices.
    """

    def __init__(self, named: dict[str, nn.Parameter], muon_lr: float, adam_lr: float, decay: float) -> None:
        self.named = named
        self.muon_lr, self.adam_lr, self.decay = muon_lr, adam_lr, decay
        self.masters = {name: weight.detach().float().clone() for name, weight in named.items()}
        self.first = {name: torch.zeros_like(master) for name, master in self.masters.items()}
        self.second = {n: torch.zeros_like(m) for n, m in self.masters.items() if not self._is_muon(n, m)}
        self.num_steps = 0

    @staticmethod
    def _is_muon(name: str, weight: Tensor) -> bool:
        return weight.dim() == 2 and (".blocks." in name or ".layers." in name)

    def step(self, scale: float, clip: float = 1.0) -> float:
        """Step with rates times ``scale``; return the gradient's norm."""
        self.num_steps += 1
        gradients = {n: w.grad.float() for n, w in self.named.items() if w.grad is not None}
        norm = float(torch.stack([g.square().sum() for g in gradients.values()]).sum().sqrt())
        groups: dict[tuple[int, ...], list[str]] = defaultdict(list)
        for name, gradient in gradients.items():
            if name in self.second:
                self._adam(name, gradient * min(1.0, clip / (norm + 1e-6)), scale)
            else:
                self.first[name].mul_(0.95).add_(gradient)
                gradient.add_(self.first[name], alpha=0.95)
                groups[tuple(gradient.shape)].append(name)
        for shape, names in groups.items():
            updates = orthogonalised(torch.stack([gradients[name] for name in names]))
            rate = self.muon_lr * scale * max(1.0, shape[0] / shape[1]) ** 0.5
            for name, update in zip(names, updates, strict=True):
                self.masters[name].mul_(1 - self.muon_lr * scale * self.decay).add_(update, alpha=-rate)
        with torch.no_grad():
            for name in gradients:
                self.named[name].copy_(self.masters[name])
                self.named[name].grad = None
        return norm

    def _adam(self, name: str, gradient: Tensor, scale: float) -> None:
        first, second = self.first[name], self.second[name]
        first.lerp_(gradient, 0.1)
        second.mul_(0.98).addcmul_(gradient, gradient, value=0.02)
        correction = (1 - 0.98**self.num_steps) ** 0.5 / (1 - 0.9**self.num_steps)
        self.masters[name].addcdiv_(first, second.sqrt().add_(1e-8), value=-self.adam_lr * scale * correction)

    def state(self) -> dict[str, Any]:
        """Everything to go on from."""
        return {"masters": self.masters, "first": self.first, "second": self.second, "num_steps": self.num_steps}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a saved state; weights that it lacks stay fresh."""
        for mine, saved in (
            (self.masters, state["masters"]),
            (self.first, state["first"]),
            (self.second, state["second"]),
        ):
            for name in mine:
                if name in saved:
                    mine[name].copy_(saved[name])
        self.num_steps = state["num_steps"]
        with torch.no_grad():
            for name, weight in self.named.items():
                weight.copy_(self.masters[name])
