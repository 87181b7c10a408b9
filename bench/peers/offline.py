"""Engines that answer the same batches in turn, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from bench.measure import alternate
from bench.peers.requests import Request
from bench.peers.worker import Answers, Worker

_SEEDS = 1000
"""Between the pictures of one run and the next."""

MakeRequests = Callable[[int], Sequence[Request]]
"""Requests whose pictures begin with this seed."""


def answer_in_turn(
    engines: Mapping[str, Worker], make_requests: MakeRequests, max_tokens: int, repeats: int
) -> dict[str, list[Answers]]:
    """Have all engines answer the same requests, new ones in each of so many runs, after one that doesn't count.

    Raises:
        SystemExit: if the prompts were not equally long for all of them, or an answer is of another length.
    """
    sides = {name: partial(_answer, worker, make_requests, max_tokens) for name, worker in engines.items()}
    results = alternate(sides, repeats)
    lengths = {name: [answers["num_prompt_tokens"] for answers in runs] for name, runs in results.items()}
    if len(set(map(tuple, lengths.values()))) > 1:
        raise SystemExit(f"The engines read other prompts; tokens in each run: {lengths}")
    return results


def _answer(worker: Worker, make_requests: MakeRequests, max_tokens: int, number: int) -> Answers:
    answers: Answers = worker.call("generate", requests=make_requests(number * _SEEDS), max_tokens=max_tokens)
    if any(len(tokens) != max_tokens for tokens in answers["token_ids"]):
        raise SystemExit(f"{worker.name} gave an answer that has not {max_tokens} tokens.")
    return answers


def seconds_of(runs: Sequence[Answers]) -> list[float]:
    """Of each run."""
    return [answers["seconds"] for answers in runs]


def shares_that_agree(runs: Sequence[Answers], expected: Sequence[Answers]) -> tuple[float, float]:
    """Shares of tokens that are the expected ones at their place, and of answers of which all are."""
    pairs = [
        (ours, theirs)
        for run, other in zip(runs, expected, strict=True)
        for ours, theirs in zip(run["token_ids"], other["token_ids"], strict=True)
    ]
    same = [a == b for ours, theirs in pairs for a, b in zip(ours, theirs, strict=True)]
    return sum(same) / len(same), sum(ours == theirs for ours, theirs in pairs) / len(pairs)
