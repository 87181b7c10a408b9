"""Train the embedded chart reader: ``python -m training.train_charts --folder FOLDER``. Run it again to go on."""

from __future__ import annotations

import argparse
import multiprocessing
import queue
import signal
import sys
import time
from multiprocessing.context import SpawnContext
from pathlib import Path
from typing import Any

import torch

from training.losses import Losses, losses
from training.stages import STAGES, Stage, cooled, now
from training.state import Run
from training.stream import Batch, train_batch
from training.tokens import Speech
from training.watch import accuracy

_SAVE_EVERY = 150.0  # seconds
_WATCH_EVERY = 250  # steps
_LOG_EVERY = 50
_AHEAD = 6  # batches made in advance


def _feed(batches: Any, tokenizer: str, step: int, stages: tuple[Stage, ...]) -> None:
    from tokenizers import Tokenizer

    speech = Speech(Tokenizer.from_file(tokenizer))
    while (at := now(step, stages)) is not None:
        batches.put(train_batch(step, at.recipe, speech))
        step += 1
    batches.put(None)


class _Means:
    """Running sums of the losses since the last line of the log."""

    def __init__(self) -> None:
        self.sums = [0.0] * len(Losses._fields)
        self.steps = self.images = 0
        self.since = time.monotonic()

    def add(self, parts: Losses, batch: Batch) -> None:
        self.sums = [total + float(part.detach()) for total, part in zip(self.sums, parts, strict=True)]
        self.steps += 1
        self.images += len(batch.pixels)

    def rounded(self) -> dict[str, float]:
        means = {name: round(total / self.steps, 4) for name, total in zip(Losses._fields, self.sums, strict=True)}
        means["images_per_s"] = round(self.images / (time.monotonic() - self.since), 1)
        return means


def train(run: Run, seconds: float, stages: tuple[Stage, ...]) -> None:
    """Train until the stages or the time are over."""
    context: SpawnContext = multiprocessing.get_context("spawn")
    batches: Any = context.Queue(_AHEAD)
    feeder = context.Process(
        target=_feed, args=(batches, str(run.folder / "tokenizer.json"), run.step, stages), daemon=True
    )
    feeder.start()
    means, end, saved = _Means(), time.monotonic() + seconds, time.monotonic()
    try:
        while time.monotonic() < end and (batch := _next(batches, feeder)) is not None:
            at = now(run.step, stages)
            assert at is not None
            parts = losses(run.model, run.heads, batch, run.speech, at.stage.dense_weight, at.help)
            parts.total.backward()
            run.optimiser.step(at.rate)
            run.step += 1
            means.add(parts, batch)
            if run.step % _LOG_EVERY == 0:
                run.log({"step": run.step, "stage": at.stage.name, "time": round(time.time()), **means.rounded()})
                means = _Means()
            if run.step % _WATCH_EVERY == 0 and at.recipe.num_questions:
                run.log({"step": run.step, "stage": at.stage.name, "held_out": accuracy(run, at.recipe, 8)})
            if time.monotonic() - saved > _SAVE_EVERY:
                run.save()
                saved = time.monotonic()
    finally:
        run.save()
        feeder.terminate()


def _next(batches: Any, feeder: Any) -> Batch | None:
    while True:
        try:
            batch: Batch | None = batches.get(timeout=30)
        except queue.Empty:
            if not feeder.is_alive():
                raise RuntimeError("the process that draws the charts has ended") from None
        else:
            return batch


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="of the run: checkpoint, tokenizer and log")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument(
        "--cool", type=int, metavar="STEPS", help="end within so many steps; do it in a copy of the run"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # on the way out the checkpoint is written
    torch.set_num_threads(options.threads)
    run = Run(options.folder, options.seed, getattr(torch, options.dtype))
    train(run, options.minutes * 60, cooled(run.step, options.cool) if options.cool else STAGES)


if __name__ == "__main__":
    main()
