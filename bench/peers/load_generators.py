"""Our load generator beside vLLM's, ``chiasm bench serve`` and ``vllm bench serve``, on the built-in model's server.

python -m bench.peers.load_generators --peer-python PATH [--repeats 3] [--prompts 64] [ARGUMENTS OF chiasm serve ...]

Both read one file of charts, with the pictures in it, and send the same bytes in the same order at the same moments.
Each load is put in turn by the one and by the other. Counts must be the same; latencies are shown with the ratio of
their medians. Caches of the server are off, so that no run is helped by the one before.

Four at a time, with answers of one length, is a load with two states: requests that begin together also end
together, or each begins while another is answered. Either may last for a whole run, with either client, and has
latencies of its own; the time of an answer as a whole is the same.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from bench.measure import alternate, print_table, show
from bench.peers.client import bench_serve
from bench.peers.measure import argument_parser
from bench.serving import BenchServer
from chiasm.bench.datasets.choose import Dataset
from chiasm.config.built_in import BUILT_IN_FOLDER

_NAME = "chart-reader"
_SAME = (
    "--temperature", "0", "--num-warmups", "2", "--seed", "7", "--ignore-eos",
    "--percentile-metrics", "ttft,tpot,itl,e2el",
)  # fmt: skip
_NO_CACHES = ("--no-enable-prefix-caching", "--mm-encoder-cache-gb", "0", "--mm-processor-cache-gb", "0")
_OUTPUT_LEN = 24
_LOADS: Mapping[str, Sequence[str]] = {
    "1 at a time": ("--max-concurrency", "1"),
    "4 a second": ("--request-rate", "4"),
    "all at once": (),
    "4 at a time": ("--max-concurrency", "4"),
}
_COUNTS = ("completed", "failed", "total_input_tokens", "total_output_tokens")
_LATENCIES = (
    "duration", "mean_ttft_ms", "mean_tpot_ms", "mean_itl_ms", "mean_e2el_ms", "median_ttft_ms", "median_tpot_ms",
    "p99_ttft_ms",
)  # fmt: skip

Result = dict[str, Any]


def _write_charts(file: Path, count: int) -> None:
    lines = [msgspec.json.encode({"content": sample.content}) for sample in Dataset("charts").take(count, 0)]
    file.write_bytes(b"\n".join(lines) + b"\n")


def _ours(url: str, file: Path, load: Sequence[str], _number: int) -> Result:
    with TemporaryDirectory() as folder:
        kept = ("--save-result", "--result-dir", folder, "--result-filename", "result.json", "--disable-tqdm")
        given = ("--dataset-name", "custom", "--dataset-path", str(file), "--output-len", str(_OUTPUT_LEN))
        command = [sys.executable, "-m", "chiasm.cli", "bench", "serve", "--base-url", url, "--model", _NAME]
        subprocess.run([*command, *given, *_SAME, *load, *kept], stdout=subprocess.DEVNULL, check=True)
        found: Result = json.loads(Path(folder, "result.json").read_text())
    return found


def _theirs(python: str, url: str, file: Path, load: Sequence[str], _number: int) -> Result:
    given = ("--dataset-name", "custom_image", "--dataset-path", str(file), "--custom-output-len", str(_OUTPUT_LEN))
    more = ("--disable-shuffle", "--tokenizer", str(BUILT_IN_FOLDER), "--model", _NAME)
    return bench_serve(python, url, *given, *more, *_SAME, *load)


def _rows(ours: Sequence[Result], theirs: Sequence[Result]) -> list[list[str]]:
    counts = [
        [key, *(", ".join(sorted({str(run[key]) for run in runs})) for runs in (ours, theirs)), ""] for key in _COUNTS
    ]
    return counts + [_latency(key, [run[key] for run in ours], [run[key] for run in theirs]) for key in _LATENCIES]


def _latency(key: str, ours: Sequence[float], theirs: Sequence[float]) -> list[str]:
    return [key, show(ours), show(theirs), f"{median(ours) / median(theirs):.3f}"]


def main() -> None:
    """Print a table for each load."""
    options, serve_arguments = argument_parser(
        __doc__, ("--prompts", 64, "of each load"), needs_folder=False
    ).parse_known_args()
    with TemporaryDirectory() as folder, BenchServer(*_NO_CACHES, "--no-ui", *serve_arguments) as server:
        file = Path(folder, "charts.jsonl")
        _write_charts(file, options.prompts)
        count = ("--num-prompts", str(options.prompts))
        for name, load in _LOADS.items():
            sides: dict[str, Callable[[int], Result]] = {
                "ours": partial(_ours, server.url, file, (*count, *load)),
                "vLLM's": partial(_theirs, options.peer_python, server.url, file, (*count, *load)),
            }
            found = alternate(sides, options.repeats)
            columns = ("", *sides, "ratio of medians")
            print_table(f"{options.prompts} requests, {name}", columns, _rows(*found.values()))


if __name__ == "__main__":
    main()
