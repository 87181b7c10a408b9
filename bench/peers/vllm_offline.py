"""Images a second beside vLLM's CPU build: 16 pictures of 448x448, one token each, float32 on two cores.

python -m bench.peers.vllm_offline FOLDER --peer-python PATH [--repeats 5] [--prompts 16]

vLLM runs in its three set-ups (one process on both cores, two ranks with the tower's weights sharded, two ranks with
whole pictures placed), ours as ``chiasm.LLM`` on one rank and on two. Preprocessing is included on both sides;
prefix, processor and encoder caches are off. All engines stay loaded, and are halted but for their turns.
"""

from __future__ import annotations

from contextlib import ExitStack
from statistics import median
from tempfile import TemporaryDirectory

from bench.peers.measure import argument_parser, print_table, show
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
    """Print a row for every engine."""
    options = argument_parser(__doc__, ("--prompts", 16, "in a batch")).parse_args()
    python, folder = options.peer_python, options.folder

    def requests(seed: int) -> list[Request]:
        return [image_request(448, 448, seed + index) for index in range(options.prompts)]

    with TemporaryDirectory() as cache, ExitStack() as stack:
        peers = {
            f"vLLM, {setup}": stack.enter_context(vllm_worker(python, folder, setup, _LIMITS))
            for setup in VLLM_SETUPS
        }
        ours = {
            chiasm_name(ranks): stack.enter_context(chiasm_worker(folder, ranks, _OUR_LIMITS, cache))
            for ranks in (1, 2)
        }
        results = answer_in_turn({**peers, **ours}, requests, 1, options.repeats)
    speeds = {name: [options.prompts / each for each in seconds_of(runs)] for name, runs in results.items()}
    best = max(median(speeds[name]) for name in peers)
    rows = [[name, show(speed, 3), f"{median(speed) / best:.2f}"] for name, speed in speeds.items()]
    title = f"{options.prompts} pictures of 448x448, 1 token; medians of {options.repeats} in turn"
    print_table(title, ("engine", "images/s", "over vLLM's best"), rows)


if __name__ == "__main__":
    main()
