"""Seconds to the first token of a lone request beside vLLM's CPU build, on two ranks of one core each, float32.

python -m bench.peers.vllm_single FOLDER --peer-python PATH [--repeats 5]

One picture of 896x896, one clip of eight frames of 448x336, and that clip with five pictures of other sizes asked
about at the same time (until the last first token). vLLM runs with the tower's weights sharded and with whole items
placed, ours with ``auto``. Caches are off. Shown too: from the start of each process until it took calls, once, the
others halted; ours measures its encoder's rates in that time, as it does at its first start on a machine.
"""

from __future__ import annotations

from contextlib import ExitStack
from statistics import median
from tempfile import TemporaryDirectory

from bench.peers.measure import argument_parser, print_table, show
from bench.peers.offline import answer_in_turn, seconds_of
from bench.peers.requests import Request, image_request, video_request
from bench.peers.sides import MAX_PIXELS, chiasm_name, chiasm_worker, vllm_worker

_LIMITS = {
    "max_model_len": 4096,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 8192,
    "limit_mm_per_prompt": {"image": 1, "video": 1},
}
_OUR_LIMITS = {"max_model_len": 4096, "mm_processor_kwargs": {"max_pixels": MAX_PIXELS}}
_PEERS = ("2 ranks data", "2 ranks weights")
_OTHERS = ((448, 448), (896, 896), (640, 480), (224, 224), (800, 600))
_COLUMNS = ("request", "engine", "seconds to first token", "vLLM data over it", "vLLM weights over it")


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
    """Print a row for every request and engine."""
    options = argument_parser(__doc__).parse_args()
    rows = []
    with TemporaryDirectory() as cache, ExitStack() as stack:
        engines = {
            f"vLLM, {setup}": stack.enter_context(vllm_worker(options.peer_python, options.folder, setup, _LIMITS))
            for setup in _PEERS
        }
        ours = stack.enter_context(chiasm_worker(options.folder, 2, _OUR_LIMITS, cache))
        engines[chiasm_name(2)] = ours
        for name, make_requests in _WORKLOADS.items():
            results = answer_in_turn(engines, make_requests, 1, options.repeats)
            middles = {engine: median(seconds_of(runs)) for engine, runs in results.items()}
            for engine, runs in results.items():
                ratios = [f"{middles[f'vLLM, {setup}'] / middles[engine]:.2f}" for setup in _PEERS]
                rows.append([name, engine, show(seconds_of(runs)), *ratios])
        ready = [[name, f"{engine.ready_seconds:.1f}"] for name, engine in engines.items()]
    print_table(f"Lone requests; medians of {options.repeats} in turn", _COLUMNS, rows)
    print_table("From the start of the process until it takes calls, one start", ("engine", "seconds"), ready)


if __name__ == "__main__":
    main()
