"""Images a second beside vLLM's CPU build: 16 pictures of 448x448, one token each, float32 on two cores.

python -m bench.peers.vllm_offline FOLDER --peer-python PATH [--repeats 5] [--prompts 16]

vLLM runs in its three set-ups (one process on both cores, two ranks with the tower's weights sharded, two ranks with
whole pictures placed), ours as ``chiasm.LLM`` on one rank and on two. Preprocessing is included on both sides;
prefix, processor and encoder caches are off. Each set-up of vLLM takes turns with both of ours, and is gone before
the next is loaded: all together would need more than 24 GiB.
"""

from __future__ import annotations

from contextlib import ExitStack
from statistics import median
from tempfile import TemporaryDirectory

from bench.measure import print_table, show
from bench.peers.measure import argument_parser
from bench.peers.offline import answer_in_turn, seconds_of
from bench.peers.requests import Request, image_request
from bench.peers.sides import MAX_PIXELS, VLLM_SETUPS, chiasm_name, chiasm_worker, vllm_worker

_LIMITS = {
    "max_model_len": 2048,
    "max_num_seqs": 32,
    "max_num_batched_tokens": 4096,
    "limit_mm_per_prompt": {"image": 1, "video": 0},
}
_OUR_LIMITS = {"max_model_len": 2048, "mm_processor_kwargs": {"max_pixels": MAX_PIXELS}}


def main() -> None:
    """Print a row for every engine, in turn with each of vLLM's set-ups."""
    options = argument_parser(__doc__, ("--prompts", 16, "in a batch")).parse_args()
    python, folder = options.peer_python, options.folder

    def requests(seed: int) -> list[Request]:
        return [image_request(448, 448, seed + index) for index in range(options.prompts)]

    rows = []
    with TemporaryDirectory() as cache, ExitStack() as stack:
        ours = {
            chiasm_name(ranks): stack.enter_context(chiasm_worker(folder, ranks, _OUR_LIMITS, cache))
            for ranks in (1, 2)
        }
        for setup in VLLM_SETUPS:
            with vllm_worker(python, folder, setup, _LIMITS) as peer:
                results = answer_in_turn({peer.name: peer, **ours}, requests, 1, options.repeats)
            speeds = {name: [options.prompts / each for each in seconds_of(runs)] for name, runs in results.items()}
            theirs = median(speeds[peer.name])
            rows += [[setup, name, show(speed, 3), f"{median(speed) / theirs:.2f}"] for name, speed in speeds.items()]
    title = f"{options.prompts} pictures of 448x448, 1 token; medians of {options.repeats} in turn"
    print_table(title, ("beside vLLM's", "engine", "images/s", "over vLLM's"), rows)


if __name__ == "__main__":
    main()
