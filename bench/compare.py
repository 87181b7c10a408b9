"""Hold a checkpoint against Hugging Face's own class, in float32 on the CPU: logits, and 16 greedy tokens.

python -m bench.compare FOLDER

The prompts are: text, one image, three images of different sizes, and where the family takes them one video, and an
image with a video; each alone, then all in one batch, prefilled in chunks. The engines run on one rank, and on two in
every mode of the encoder; with ``auto`` they are told that exchanges cost nothing, so that units are cut wherever
they can be. Logits are compared at every token of a prompt; an engine's log-probabilities, those of the 20 likeliest
tokens, at every step of its answer. The exit status is 1 where a token is another or a difference is above 1e-4.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from unittest.mock import patch

import msgspec
import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForImageTextToText

from chiasm.schema.facts import EncoderRates
from tests.checkpoints.common import SavedModel
from tests.e2e.compare import (
    Case,
    EngineResult,
    Found,
    Setup,
    compare_engine,
    continuations,
    logit_differences,
    make_cases,
)
from tests.e2e.reference import Continuation, Reference

_LIMIT = 1e-4
CUTTING = Setup(2, "auto")
_SETUPS = (Setup(1, "data"), Setup(2, "weights"), Setup(2, "data"), CUTTING)
_SETTINGS = {"kv_cache_memory_bytes": 2**28, "max_num_batched_tokens": 256}
_BATCH = "one batch of all"


class Comparison(NamedTuple):
    """What was found of a checkpoint.

    Attributes:
        model_type: its family.
        num_weights: its parameters.
        logits: prompt -> largest difference at any of its tokens.
        answers: setup -> prompt -> an engine's answer, the batch as a prompt of its own.
        num_cut_plans: of the last setup, how many plans of its encoder cut units.
    """

    model_type: str
    num_weights: int
    logits: dict[str, float]
    answers: dict[Setup, dict[str, Found]]
    num_cut_plans: int

    @property
    def is_good(self) -> bool:
        """Whether all tokens are the same and no difference is above the limit."""
        found = [each for answers in self.answers.values() for each in answers.values()]
        differences = (max(each.difference, each.prompt_difference) for each in found)
        largest = max(*self.logits.values(), *differences)
        return all(each.has_same_tokens for each in found) and largest <= _LIMIT


def compare(folder: Path, setups: Sequence[Setup] = _SETUPS) -> Comparison:
    """Run a checkpoint both ways.

    Args:
        folder: of the checkpoint.
        setups: ways to run the engine; ``CUTTING`` is the last of them.
    """
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    reference = Reference(SavedModel(folder, model.eval()))
    cases = make_cases(reference)
    logits = logit_differences(folder, reference, cases)
    results = _run_engines(folder, setups, cases, continuations(reference, cases))
    return Comparison(
        model_type=reference.facts.model_type,
        num_weights=sum(weight.numel() for weight in model.parameters()),
        logits=logits,
        answers={setup: {**result.alone, _BATCH: _worst(result.batch)} for setup, result in results.items()},
        num_cut_plans=results[CUTTING].num_cut_plans,
    )


def _run_engines(
    folder: Path, setups: Sequence[Setup], cases: Mapping[str, Case], expected: Mapping[str, Continuation]
) -> dict[Setup, EngineResult]:
    results = {}
    with TemporaryDirectory() as cache, patch.dict(os.environ, CHIASM_CACHE=cache):
        for setup in setups:
            if setup == CUTTING:
                _make_exchanges_free(Path(cache))
            results[setup] = compare_engine(folder, setup, cases, expected, **_SETTINGS)
    return results


def _make_exchanges_free(cache: Path) -> None:
    """For later starts of engines that have measured their rates before."""
    for file in cache.iterdir():
        rates = msgspec.json.decode(file.read_bytes(), type=EncoderRates)
        free = msgspec.structs.replace(rates, seconds_per_exchange=0.0, seconds_per_byte=0.0)
        file.write_bytes(msgspec.json.encode(free))


def _worst(found: Mapping[str, Found]) -> Found:
    is_same = all(each.has_same_tokens for each in found.values())
    return Found(
        is_same,
        max(each.difference for each in found.values()),
        max(each.prompt_difference for each in found.values()),
    )


def as_table(found: Comparison) -> Table:
    """One row for each prompt, one column for each setup."""
    table = Table("prompt", "logits", *(f"{setup.ranks}, {setup.mode}" for setup in found.answers))
    table.title = f"{found.model_type}, {found.num_weights / 1e6:.0f} million parameters"
    table.caption = f"Largest differences. With auto on two ranks, {found.num_cut_plans} plans cut units."
    for name in (*found.logits, _BATCH):
        difference = f"{found.logits[name]:.1e}" if name in found.logits else ""
        table.add_row(name, difference, *(_cell(answers[name]) for answers in found.answers.values()))
    return table


def _cell(found: Found) -> str:
    return f"{'same' if found.has_same_tokens else 'OTHER'}, {found.difference:.1e}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    found = compare(parser.parse_args().folder)
    Console(width=110).print(as_table(found))
    sys.exit(0 if found.is_good else 1)


if __name__ == "__main__":
    main()
