"""Seconds to the first token of a lone request beside vLLM's CPU build, on two ranks of one core each, float32.

python -m bench.peers.vllm_single FOLDER --peer-python PATH [--repeats 5]

One picture of 896x896, one clip of eight frames of 448x336, and that clip with five pictures of other sizes asked
about at the same time (until the last first token). vLLM runs with the tower's weights sharded and with whole items
placed, one after the other in turn with ours, which has ``auto``. Caches are off. Shown too: from the start of each
process until it took calls, once, the others halted; ours measures its encoder's rates in that time, as it does at
its first start on a machine.
"""

from __future__ import annotations

from statistics import median
from tempfile import TemporaryDirectory

from bench.measure import print_table, show
from bench.peers.measure import argument_parser
from bench.peers.offline import answer_in_turn, seconds_of
from bench.peers.requests import Request, image_request, video_request
from bench.peers.sides import MAX_PIXELS, chiasm_worker, vllm_worker

_LIMITS = {
    "max_model_len": 4096,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 8192,
    "limit_mm_per_prompt": {"image": 1, "video": 1},
}
_OUR_LIMITS = {"max_model_len": 4096, "mm_processor_kwargs": {"max_pixels": MAX_PIXELS}}
_PEERS = ("2 ranks data", "2 ranks weights")
_OTHERS = ((448, 448), (896, 896), (640, 480), (224, 224), (800, 600))
_COLUMNS = ("request", "beside vLLM's", "vLLM", "chiasm, 2 ranks, auto", "vLLM over chiasm")


def _one_image(seed: int) -> list[Request]:
    return [image_request(896, 896, seed)]


def _one_video(seed: int) -> list[Request]:
    return [video_request(448, 336, 8, seed)]


def _video_and_images(seed: int) -> list[Request]:
    images = [image_request(*size, seed + 100 + index) for index, size in enumerate(_OTHERS)]
    return [*_one_video(seed), *images]


_WORKLOADS = {
    "1 image 896x896": _one_image,
    "1 video of 8 frames 448x336": _one_video,
    "that video and 5 images": _video_and_images,
}


def main() -> None:
    """Print a row for every request and engine, in turn with each of vLLM's set-ups."""
    options = argument_parser(__doc__).parse_args()
    rows, ready = [], []
    with TemporaryDirectory() as cache, chiasm_worker(options.folder, 2, _OUR_LIMITS, cache) as ours:
        ready.append([ours.name, f"{ours.ready_seconds:.1f}"])
        for setup in _PEERS:
            with vllm_worker(options.peer_python, options.folder, setup, _LIMITS) as peer:
                ready.append([peer.name, f"{peer.ready_seconds:.1f}"])
                for name, make_requests in _WORKLOADS.items():
                    results = answer_in_turn({w.name: w for w in (peer, ours)}, make_requests, 1, options.repeats)
                    theirs, own = (seconds_of(results[worker.name]) for worker in (peer, ours))
                    rows.append([name, setup, show(theirs), show(own), f"{median(theirs) / median(own):.2f}"])
    print_table(f"Seconds to the first token; medians of {options.repeats} in turn", _COLUMNS, rows)
    print_table("From the start of the process until it takes calls, one start", ("engine", "seconds"), ready)


if __name__ == "__main__":
    main()
