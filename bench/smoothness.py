"""Inter-token latency of steady answers, without videos and while videos arrive.

python -m bench.smoothness FOLDER [--frames 32] [--side 224] [--interval 4] [ARGUMENTS OF chiasm serve ...]

FOLDER is one that ``bench.make_checkpoint`` wrote.
"""

from __future__ import annotations

import argparse
import base64
import io
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import av
import httpcore2
import msgspec
import numpy as np

from bench.serving import BenchServer

_NUM_STREAMS = 4
_FPS = 4


def video_url(num_frames: int, side: int, seed: int) -> str:
    """Frames of moving noise, two for each temporal slice, as a data: URL."""
    picture = np.random.default_rng(seed).integers(0, 256, (side // 8, side // 8, 3), dtype=np.uint8).repeat(8, 0)
    picture = picture.repeat(8, 1)
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream: Any = container.add_stream("mpeg4", rate=_FPS)
        stream.height = stream.width = side
        stream.pix_fmt = "yuv420p"
        for index in range(num_frames):
            frame = av.VideoFrame.from_ndarray(np.roll(picture, 4 * index, axis=1), format="rgb24")
            frame.pts = index
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return "data:video/mp4;base64," + base64.b64encode(file.getvalue()).decode()


@dataclass
class Answer:
    """A streamed answer.

    Attributes:
        asked: when it was asked for.
        times: when its parts came.
    """

    asked: float
    times: list[float] = field(default_factory=list)


def ask(url: str, content: list[dict[str, Any]], num_tokens: int, answers: list[Answer]) -> None:
    """Stream an answer of so many tokens, with the times of its parts."""
    body = msgspec.json.encode(
        {
            "messages": [{"role": "user", "content": content}],
            "max_tokens": num_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
        }
    )
    answer = Answer(time.perf_counter())
    answers.append(answer)
    headers = {"Content-Type": "application/json"}
    with httpcore2.stream("POST", f"{url}/v1/chat/completions", headers=headers, content=body) as response:
        if response.status != 200:
            raise SystemExit(response.read().decode())
        for chunk in response.iter_stream():
            answer.times += [time.perf_counter()] * chunk.count(b'"content"')


def run(url: str, num_tokens: int, videos: list[str], interval: float) -> tuple[np.ndarray, list[Answer]]:
    """Gaps between the parts of the steady answers while videos are asked about, and the answers to these."""
    steady: list[Answer] = []
    about: list[Answer] = []
    text = [{"type": "text", "text": "What is the value of Rome?"}]
    threads = [threading.Thread(target=ask, args=(url, text, num_tokens, steady)) for _ in range(_NUM_STREAMS)]
    for thread in threads:
        thread.start()
    time.sleep(1.0)
    begin = time.perf_counter()
    for number, video in enumerate(videos):
        time.sleep(max(0.0, begin + number * interval - time.perf_counter()))
        content = [{"type": "video_url", "video_url": {"url": video}}, *text]
        threads.append(threading.Thread(target=ask, args=(url, content, 1, about)))
        threads[-1].start()
    for thread in threads:
        thread.join()
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
    videos = [video_url(options.frames, options.side, seed) for seed in range(options.videos)]
    with BenchServer(options.folder, *serve_arguments) as server:
        run(server.url, 32, [video_url(4, options.side, 1000)], 0.0)
        quiet, _ = run(server.url, options.tokens // 4, [], 0.0)
        beside, about = run(server.url, options.tokens, videos, options.interval)
    for name, gaps in (("without videos", quiet), ("beside videos", beside)):
        parts = ", ".join(f"p{each} {np.percentile(gaps, each):.0f} ms" for each in (50, 90, 99, 100))
        print(f"{name}: {parts} ({len(gaps)} gaps)")
    first = [answer.times[0] - answer.asked for answer in about]
    print(f"{len(first)} videos: first token after {np.mean(first):.2f} s, {max(first):.2f} s at most")


if __name__ == "__main__":
    main()
