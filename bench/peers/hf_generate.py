"""Offline answers beside Hugging Face's ``generate``, in float32 on two cores, greedily.

python -m bench.peers.hf_generate FOLDER --peer-python PATH [--repeats 5] [--prompts 16]

One token about each of 16 pictures of eight sizes, and 32 tokens about each of 16 pictures of 448x448. Hugging Face
gets the prompts as one batch, padded, with SDPA and two threads; ours is ``chiasm.LLM`` on one rank and on two. The
whole preprocessing of the decoded pictures is included on both sides. Ours has its caches off.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from statistics import median
from tempfile import TemporaryDirectory

from bench.measure import print_table, show
from bench.peers.measure import argument_parser
from bench.peers.offline import answer_in_turn, seconds_of, shares_that_agree
from bench.peers.requests import MIX, Request, image_request
from bench.peers.sides import chiasm_name, chiasm_worker, hf_worker

_PEER = "transformers, 2 threads"
_COLUMNS = ("prompts", "side", "seconds", "speed over transformers", "same tokens", "same answers")


def _mixed(count: int, seed: int) -> list[Request]:
    return [image_request(*MIX[index % len(MIX)], seed + index) for index in range(count)]


def _alike(count: int, seed: int) -> list[Request]:
    return [image_request(448, 448, seed + index) for index in range(count)]


def main() -> None:
    """Print a row for every workload and side."""
    options = argument_parser(__doc__, ("--prompts", 16, "in a batch")).parse_args()
    count = options.prompts
    workloads = {
        f"{count} mixed, 1 token": (partial(_mixed, count), 1),
        f"{count} of 448x448, 32 tokens": (partial(_alike, count), 32),
    }
    rows = []
    with TemporaryDirectory() as cache, ExitStack() as stack:
        engines = {
            _PEER: stack.enter_context(hf_worker(options.peer_python, options.folder, threads=2)),
            **{
                chiasm_name(ranks): stack.enter_context(chiasm_worker(options.folder, ranks, {}, cache))
                for ranks in (1, 2)
            },
        }
        for name, (make_requests, max_tokens) in workloads.items():
            results = answer_in_turn(engines, make_requests, max_tokens, options.repeats)
            theirs = median(seconds_of(results[_PEER]))
            for side, runs in results.items():
                tokens, answers = shares_that_agree(runs, results[_PEER])
                ratio = theirs / median(seconds_of(runs))
                rows.append([name, side, show(seconds_of(runs)), f"{ratio:.2f}", f"{tokens:.3f}", f"{answers:.3f}"])
    print_table(f"Answers, float32; medians of {options.repeats} in turn", _COLUMNS, rows)


if __name__ == "__main__":
    main()
