"""A training run on disk: weights, optimiser, place in the stream. Everything to go on from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import nn

from training.losses import Heads
from training.model import build, raw_config
from training.muon import Optimiser
from training.tokens import Speech, make_tokenizer

MUON_RATE, ADAM_RATE, DECAY = 0.02, 3e-3, 0.01


class Run:
    """A model in training.

    Args:
        folder: where the run lives; its latest checkpoint is loaded.
        seed: of fresh weights.
        dtype: of the forward and backward pass; masters are float32.
    """

    def __init__(self, folder: Path, seed: int, dtype: torch.dtype) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        saved = folder / "tokenizer.json"
        if not saved.is_file():
            make_tokenizer().save(str(saved))
        self.speech = Speech(Tokenizer.from_file(str(saved)))
        self.raw = raw_config(self.speech.tokenizer)
        self.model = build(self.raw, seed).to(dtype)
        self.heads = Heads(self.speech).to(dtype)
        heads = ((f"heads.{name}", weight) for name, weight in self.heads.named_parameters())
        named: dict[str, nn.Parameter] = dict((*self.model.named_parameters(), *heads))
        self.optimiser = Optimiser(named, MUON_RATE, ADAM_RATE, DECAY)
        self.step = 0
        if self._file.is_file():
            state = torch.load(self._file, weights_only=True)
            self.optimiser.load(state["optimiser"])
            self.step = state["step"]

    @property
    def _file(self) -> Path:
        return self.folder / "checkpoint.pt"

    def save(self) -> None:
        """Replace the checkpoint; the stream needs nothing but the step's number."""
        beside = self._file.with_suffix(".new")
        torch.save({"step": self.step, "optimiser": self.optimiser.state()}, beside)
        beside.rename(self._file)

    def log(self, record: dict[str, Any]) -> None:
        """Add a line to the log."""
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
