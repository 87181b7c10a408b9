"""Time to the first token and between tokens under a mixed load, in each mode of the encoder on two ranks.

python -m bench.mixed_load FOLDER [--requests 24] [--rounds 5] [--rate PER_SECOND] [ARGUMENTS OF chiasm serve ...]

Of each ten requests one is about a video, the others are about pictures whose sides are drawn from 200 to 1500 pixels
(the server shrinks them to 602,112 pixels, as a CPU's encoder is slow); answers of 16 tokens are streamed. First the
capacity: all requests, eight at a time, in each mode; the best rate counts. Then requests come at 80 % of it, at
random (exponential gaps). In a round each mode gets the same requests at the same times, one mode after another; the
next round has others, and begins with another mode. All caches are off; servers that have to wait are idle. FOLDER is
one that ``bench.make_checkpoint`` wrote; a round takes about four minutes on two cores.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np

from bench.asking import Answer, ask, question
from bench.measure import print_table, show
from bench.media import encode_clip, moving_frames, picture_url, video_url
from bench.serving import BenchServer

_MODES = ("weights", "data", "auto")
_SAME = (
    "-tp", "2", "--no-enable-prefix-caching", "--mm-encoder-cache-gb", "0", "--mm-processor-cache-gb", "0",
    "--media-io-kwargs", '{"video":{"num_frames":-1}}',
)  # fmt: skip
_QUESTION = "What is this?"
_FPS = 2
_REQUESTS_TO_A_VIDEO = 10
_CAPACITY_SEED = 1000  # of requests that no round has
_WARM_SEED = 2000

Content = list[dict[str, Any]]


class Latencies(NamedTuple):
    """Of the requests of one run.

    Attributes:
        first: seconds to the first token of each.
        gaps: seconds between tokens, of all.
    """

    first: Sequence[float]
    gaps: Sequence[float]

    @classmethod
    def of(cls, answers: Sequence[Answer]) -> Latencies:
        """Of streamed answers."""
        gaps = [float(gap) for answer in answers for gap in np.diff(answer.times)]
        return cls([answer.seconds_to_first_token for answer in answers], gaps)

    def first_p99(self) -> float:
        """99th percentile of the seconds to the first token."""
        return float(np.percentile(self.first, 99))


_FIGURES: dict[str, Callable[[Latencies], float]] = {
    "mean TTFT, s": lambda run: fmean(run.first),
    "median TTFT, s": lambda run: median(run.first),
    "p99 TTFT, s": Latencies.first_p99,
    "median ITL, s": lambda run: median(run.gaps),
}
_LAST = "median ITL, s"  # held against ``weights`` alone, which shares every image evenly


class MixedLoad:
    """Requests and when they come.

    Args:
        options: of the command.
        seed: another one gives other requests.

    Attributes:
        contents: of the messages.
        times: from the beginning, in mean gaps.
    """

    def __init__(self, options: argparse.Namespace, seed: int) -> None:
        self._options = options
        rng = np.random.default_rng(seed)
        count = options.requests
        groups = range(0, count, _REQUESTS_TO_A_VIDEO)
        videos = {start + int(rng.integers(min(_REQUESTS_TO_A_VIDEO, count - start))) for start in groups}
        sides = rng.integers(options.min_side, options.max_side + 1, (count, 2))
        self.contents = [
            self._video(seed * count + index)
            if index in videos
            else self._picture(*sides[index], seed * count + index)
            for index in range(count)
        ]
        self.times = np.cumsum(rng.exponential(size=count))

    def _picture(self, width: int, height: int, seed: int) -> Content:
        return question(_QUESTION, image=picture_url(width, height, seed))

    def _video(self, seed: int) -> Content:
        frames = moving_frames(self._options.frames, self._options.frame_side, seed)
        return question(_QUESTION, video=video_url(encode_clip(frames, _FPS)))


class Client:
    """Puts loads on servers, of which each has another mode.

    Args:
        servers: by mode.
        num_tokens: of each answer.
    """

    def __init__(self, servers: Mapping[str, BenchServer], num_tokens: int) -> None:
        self._servers = servers
        self._num_tokens = num_tokens

    def warm_up(self) -> None:
        """Ask each about a small picture."""
        for mode in self._servers:
            self._ask(mode, question(_QUESTION, image=picture_url(224, 224, _WARM_SEED)))

    def capacity(self, mode: str, load: MixedLoad, concurrency: int) -> float:
        """Requests in a second when there are always some waiting."""
        with ThreadPoolExecutor(concurrency) as threads:
            start = time.perf_counter()
            list(threads.map(lambda content: self._ask(mode, content), load.contents))
            return len(load.contents) / (time.perf_counter() - start)

    def latencies(self, mode: str, load: MixedLoad, rate: float) -> Latencies:
        """Of requests that come ``rate`` a second."""
        start = time.perf_counter()

        def ask_at(content: Content, at: float) -> Answer:
            time.sleep(max(0.0, start + at / rate - time.perf_counter()))
            return self._ask(mode, content)

        with ThreadPoolExecutor(len(load.contents)) as threads:
            return Latencies.of(list(threads.map(ask_at, load.contents, load.times)))

    def _ask(self, mode: str, content: Content) -> Answer:
        return ask(self._servers[mode].url, content, self._num_tokens)


def _start_servers(stack: ExitStack, options: argparse.Namespace, arguments: Sequence[str]) -> dict[str, BenchServer]:
    limit = ["--mm-processor-kwargs", f'{{"max_pixels":{options.max_pixels}}}'] if options.max_pixels else []
    same = [options.folder, *_SAME, *limit, *arguments, "--mm-encoder-tp-mode"]
    return {mode: stack.enter_context(BenchServer(*same, mode)) for mode in _MODES}


def run_rounds(client: Client, options: argparse.Namespace, rate: float) -> dict[str, list[Latencies]]:
    """By mode, those of each round."""
    found: dict[str, list[Latencies]] = {mode: [] for mode in _MODES}
    for number in range(options.rounds):
        load, first = MixedLoad(options, number), number % len(_MODES)
        for mode in (*_MODES[first:], *_MODES[:first]):
            found[mode].append(client.latencies(mode, load, rate))
    return found


def print_figures(found: Mapping[str, Sequence[Latencies]]) -> None:
    """Medians over the rounds, and what ``auto`` is held against."""
    by_figure = {
        name: {mode: [figure(run) for run in runs] for mode, runs in found.items()}
        for name, figure in _FIGURES.items()
    }
    num_rounds = len(found["auto"])
    rows = [[mode, *(show(values[mode], 3) for values in by_figure.values())] for mode in found]
    print_table(f"Medians of {num_rounds} rounds (range)", ("mode", *_FIGURES), rows)
    together = {mode: Latencies([each for run in runs for each in run.first], ()) for mode, runs in found.items()}
    of_all = (f"{mode} {run.first_p99():.3f}" for mode, run in together.items())
    print(f"\np99 TTFT of all rounds together, s: {', '.join(of_all)}")
    rows = []
    for name, values in by_figure.items():
        rivals = ("weights",) if name == _LAST else ("weights", "data")
        rival = min(rivals, key=lambda mode: median(values[mode]))
        ratio = median(values["auto"]) / median(values[rival])
        pairs = [own / other for own, other in zip(values["auto"], values[rival], strict=True)]
        rows.append([name, rival, f"{ratio:.3f}", show(pairs, 3)])
    columns = ("figure", "auto over", "of the medians", "median of the rounds' ratios (range)")
    print_table("auto over the better of weights and data; between tokens, over weights", columns, rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    for name, default, text in (
        ("--requests", 24, "in a round"),
        ("--rounds", 5, "of every mode"),
        ("--tokens", 16, "of each answer"),
        ("--concurrency", 8, "requests at a time while the capacity is measured"),
        ("--min-side", 200, "of a picture, in pixels"),
        ("--max-side", 1500, "likewise"),
        ("--max-pixels", 602112, "to which the server shrinks a picture; 0 for the checkpoint's own limit"),
        ("--frames", 16, "of a video, all of which are taken"),
        ("--frame-side", 224, "in pixels, a multiple of 8"),
    ):
        parser.add_argument(name, type=int, default=default, help=f"{text} ({default})")
    parser.add_argument("--share", type=float, default=0.8, help="of the capacity that the rounds have (0.8)")
    parser.add_argument("--rate", type=float, help="requests in a second, in place of that share of the capacity")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the capacity of each mode, and the latencies."""
    options, serve_arguments = _parser().parse_known_args(arguments)
    with ExitStack() as stack:
        client = Client(_start_servers(stack, options, serve_arguments), options.tokens)
        client.warm_up()
        rate = options.rate or options.share * _best_capacity(client, options)
        print(f"{options.requests} requests in a round, {rate:.3f} a second", flush=True)
        found = run_rounds(client, options, rate)
    print_figures(found)


def _best_capacity(client: Client, options: argparse.Namespace) -> float:
    load = MixedLoad(options, _CAPACITY_SEED)
    capacities = {mode: client.capacity(mode, load, options.concurrency) for mode in _MODES}
    print(f"capacity, requests/s: {', '.join(f'{mode} {value:.3f}' for mode, value in capacities.items())}")
    return max(capacities.values())


if __name__ == "__main__":
    main()
