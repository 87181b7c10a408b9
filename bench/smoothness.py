"""Inter-token latency of steady answers, without videos and while videos arrive.

python -m bench.smoothness FOLDER [--frames 32] [--side 224] [--interval 4] [ARGUMENTS OF chiasm serve ...]

FOLDER is one that ``bench.make_checkpoint`` wrote.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from bench.asking import Answer, ask, question
from bench.media import encode_clip, moving_frames, video_url
from bench.serving import BenchServer

_QUESTION = "What is the value of Rome?"
_NUM_STREAMS = 4
_FPS = 4


def _video(num_frames: int, side: int, seed: int) -> str:
    """Frames of moving noise, two for each temporal slice, as a data: URL."""
    return video_url(encode_clip(moving_frames(num_frames, side, seed), _FPS))


def run(url: str, num_tokens: int, videos: list[str], interval: float) -> tuple[np.ndarray, list[Answer]]:
    """Gaps between the parts of the steady answers while videos are asked about, and the answers to these."""
    with ThreadPoolExecutor(_NUM_STREAMS + len(videos)) as threads:
        text = question(_QUESTION)
        streams = [threads.submit(ask, url, text, num_tokens) for _ in range(_NUM_STREAMS)]
        time.sleep(1.0)
        begin = time.perf_counter()
        asking = []
        for number, video in enumerate(videos):
            time.sleep(max(0.0, begin + number * interval - time.perf_counter()))
            asking.append(threads.submit(ask, url, question(_QUESTION, video=video), 1))
        steady, about = ([task.result() for task in tasks] for tasks in (streams, asking))
    last = max((answer.times[-1] for answer in about), default=float("inf"))
    gaps = [np.diff([at for at in answer.times if begin <= at <= last]) for answer in steady]
    return 1000 * np.concatenate(gaps), about


def main() -> None:
    """Print percentiles of both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--frames", type=int, default=32)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--videos", type=int, default=8)
    parser.add_argument("--interval", type=float, default=4.0, help="seconds from one video to the next")
    parser.add_argument("--tokens", type=int, default=1000, help="of each of the four steady answers")
    options, serve_arguments = parser.parse_known_args()
    videos = [_video(options.frames, options.side, seed) for seed in range(options.videos)]
    with BenchServer(options.folder, *serve_arguments) as server:
        run(server.url, 32, [_video(4, options.side, 1000)], 0.0)
        quiet, _ = run(server.url, options.tokens, [], 0.0)
        beside, about = run(server.url, options.tokens, videos, options.interval)
    for name, gaps in (("without videos", quiet), ("beside videos", beside)):
        parts = ", ".join(f"p{each} {np.percentile(gaps, each):.0f} ms" for each in (50, 90, 99, 100))
        print(f"{name}: {parts} ({len(gaps)} gaps)")
    first = [answer.seconds_to_first_token for answer in about]
    print(f"{len(first)} videos: first token after {np.mean(first):.2f} s, {max(first):.2f} s at most")


if __name__ == "__main__":
    main()
