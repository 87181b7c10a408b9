"""Windows over one long video, of which each shares 3/4 of its frames with the one before.

python -m bench.sliding_window FOLDER [--frames 16] [--side 224] [--windows 8] [ARGUMENTS OF chiasm serve ...]

A client watches a video: it asks for one token about the window's frames, waits for it, moves on by a quarter. The
windows are cut without encoding anew, as a recorder cuts its segments, so a frame has the same pixels in all of them.
One server has the encoder cache on, another one off, and they differ in nothing else: prefix caching and the cache of
processed videos are off in both. They run in turn, each time anew and with a video that no run had before; the first
window does not count. Without the cache the encoder should take most of the time, so its share is shown: FOLDER is
one that ``bench.make_checkpoint`` wrote, of whose defaults that is true.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import NamedTuple

from bench.asking import ask, question
from bench.measure import alternate, print_table, show
from bench.media import cut_windows, encode_clip, moving_frames, video_url
from bench.serving import BenchServer

_QUESTION = "What happens?"
_FPS = 2  # as frames are taken, so that all of them are
_STEPS = 4  # of a window, from one that shares nothing to the next
_FRAMES_OF_A_SLICE = 2
_SAME = (
    "--no-enable-prefix-caching",
    "--mm-processor-cache-gb",
    "0",
    "--media-io-kwargs",
    '{"video":{"num_frames":-1}}',
)
_SIDES = {"on": (), "off": ("--mm-encoder-cache-gb", "0")}
_COLUMNS = ("encoder cache", "requests/s", "share of the encoder", "units found", "units needed")


class Run(NamedTuple):
    """How one server did.

    Attributes:
        requests_per_second: windows.
        encoder_share: of the time, in [0, 1].
        num_found: units of vision work that the encoder cache had.
        num_needed: units that it was asked for.
        answers: to the windows, in order.
    """

    requests_per_second: float
    encoder_share: float
    num_found: float
    num_needed: float
    answers: tuple[str, ...]


def watch(server: BenchServer, windows: Sequence[str]) -> Run:
    """Ask about the windows one after another; the first one doesn't count.

    A server whose cache is off holds the last step's units until the next step. So a question without a video comes
    between any two windows, and what it takes is not counted either.
    """
    contents = [question(_QUESTION, video=window) for window in windows]
    ask(server.url, contents[0], 1)
    before, seconds, answers = server.metrics(), 0.0, []
    for content in contents[1:]:
        ask(server.url, question(_QUESTION), 1)
        answer = ask(server.url, content, 1)
        seconds += answer.seconds_to_first_token
        answers.append(answer.text)
    after = server.metrics()
    encoding, found, needed = (
        after[name] - before[name]
        for name in (
            "chiasm:encoder_makespan_seconds_total",
            "chiasm:mm_cache_hits_total",
            "chiasm:mm_cache_queries_total",
        )
    )
    return Run(len(answers) / seconds, encoding / seconds, found, needed, tuple(answers))


def _windows(options: argparse.Namespace, seed: int) -> list[str]:
    step = options.frames // _STEPS
    frames = moving_frames(options.frames + options.windows * step, options.side, seed)
    clip = encode_clip(frames, _FPS, keyframe_every=step)
    return [video_url(window) for window in cut_windows(clip, options.frames, step)]


def _serve(options: argparse.Namespace, arguments: Sequence[str], number: int) -> Run:
    windows = _windows(options, number)
    with BenchServer(options.folder, *_SAME, *arguments) as server:
        return watch(server, windows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print both sides, and how many times as fast it is with the cache."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--frames", type=int, default=16, help="of a window, a multiple of 8")
    parser.add_argument("--side", type=int, default=224, help="of a frame in pixels, a multiple of 8")
    parser.add_argument("--windows", type=int, default=8, help="asked about in a run, after the first")
    parser.add_argument("--repeats", type=int, default=5, help="of both sides, in turn; medians are shown")
    options, serve_arguments = parser.parse_known_args(arguments)
    if options.frames % (_STEPS * _FRAMES_OF_A_SLICE):
        parser.error(f"--frames {options.frames} must be a multiple of 8: a quarter is moved on by, in whole slices")
    sides = {name: partial(_serve, options, (*own, *serve_arguments)) for name, own in _SIDES.items()}
    results = alternate(sides, options.repeats, warm=False)
    title = (
        f"{options.windows} windows of {options.frames} frames of {options.side}x{options.side}, moved on by a "
        f"quarter; medians of {options.repeats} in turn"
    )
    print_table(title, _COLUMNS, [_row(name, runs) for name, runs in results.items()])
    pairs = list(zip(results["on"], results["off"], strict=True))
    ratios = [kept.requests_per_second / plain.requests_per_second for kept, plain in pairs]
    same = [kept == plain for pair in pairs for kept, plain in zip(*(run.answers for run in pair), strict=True)]
    print(f"\nthroughput with the cache over without: {show(ratios)}; same answers: {sum(same)} of {len(same)}")


def _row(name: str, runs: Sequence[Run]) -> list[str]:
    speed = show([run.requests_per_second for run in runs])
    share = show([run.encoder_share for run in runs])
    return [
        name,
        speed,
        share,
        *(f"{median(column):.0f}" for column in zip(*(run[2:4] for run in runs), strict=True)),
    ]


if __name__ == "__main__":
    main()
