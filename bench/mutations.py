"""Thousands of broken requests about pictures and videos: each is refused in words, or answered, and nothing stays.

python -m bench.mutations [--requests 5000] [--concurrency 16] [--seed 0] [ARGUMENTS OF chiasm serve ...]

A server with the built-in chart reader on two ranks. Values, fields, parts, bytes of JSON, base64, pictures, videos,
URLs, headers and framing are mutated (``bench.mutants``). No request may get a 5xx, wait for longer than a minute, or
be left without an answer if its end can be known; errors have their shape and are short. Afterwards the server must
hold nothing, answer a good request as before, have no error in its log and end with status 0, and may not have grown.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.idle import await_idle
from bench.measure import print_faults, print_table
from bench.mutants import Mutant, Mutator
from bench.resident import Resident, print_growth, sample
from bench.serving import BenchServer
from bench.soak import bad_log_lines
from bench.soak_requests import CHAT, chat, media, picture_url, says, text, text_of
from bench.wire import Response, Target, exchange, post_json
from chiasm.evals.charts.examples import held_out_seed, make_example

_PATIENCE = 60.0
_PARTIAL_PATIENCE = 1.0
_MAX_ERROR_BYTES = 4096
_SETTINGS = (
    "-tp", "2", "--dtype", "float32", "--fetch-timeout", "1", "--max-body-bytes", str(2 * 2**20),
    "--mm-processor-cache-gb", "0.02", "--mm-encoder-cache-gb", "0.01", "--kv-cache-memory-bytes", str(32 * 2**20),
)  # fmt: skip


@dataclass
class Outcome:
    """What came of it.

    Attributes:
        statuses: by kind, how often each came; 0 where the connection was closed without any.
        faults: sentences, each with the first bytes of the request.
        samples: of memory.
        seconds: it took.
    """

    statuses: dict[str, Counter[int]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    samples: list[Resident] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def done(self) -> int:
        """Requests so far."""
        return sum(counts.total() for counts in self.statuses.values())


def fault_of(mutant: Mutant, response: Response) -> str:
    """What is wrong with an answer; nothing if it is empty."""
    status = response.status
    if status == 0:
        return "no answer" if mutant.is_whole else ""
    if status >= 500:
        return f"status {status}: {response.body[:300]!r}"
    if status < 400 or not response.body:  # answers to HEAD have no body
        return ""
    if len(response.body) > _MAX_ERROR_BYTES:
        return f"an error of {len(response.body)} bytes"
    try:
        error = json.loads(response.body)["error"]
    except (ValueError, KeyError, TypeError):
        return f"status {status} with a body that is no error: {response.body[:300]!r}"
    return "" if set(error) == {"message", "type", "param", "code"} else f"a strange error: {error}"


async def try_one(target: Target, mutant: Mutant, outcome: Outcome) -> None:
    """Send it and look at the answer."""
    status = 0
    try:
        response = await exchange(target, mutant.request, _PATIENCE if mutant.is_whole else _PARTIAL_PATIENCE)
        status, fault = response.status, fault_of(mutant, response)
    except TimeoutError:
        fault = f"no answer within {_PATIENCE:g} s" if mutant.is_whole else ""
    except OSError as error:
        fault = f"no connection: {error!r}"
    outcome.statuses.setdefault(mutant.kind, Counter())[status] += 1
    if fault:
        outcome.faults.append(f"{mutant.kind}: {fault} for {mutant.request[:400]!r} ... {mutant.request[-200:]!r}")


async def mutate(server: BenchServer, options: argparse.Namespace) -> Outcome:
    """Send all of them, so many at a time."""
    target, outcome, mutator = Target.of(server.url), Outcome(), Mutator(options.seed)
    example = make_example(held_out_seed(0))
    good = post_json(CHAT, chat(media("image", picture_url(example.images[0])), text(example.question)))
    answer = text_of(await exchange(target, good, _PATIENCE))
    left = iter(range(options.requests))

    async def client() -> None:
        for number in left:
            await try_one(target, mutator.draw(), outcome)
            if number % max(1, options.requests // 50) == 0:
                outcome.samples.append(sample(server.pid, outcome.done))

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(options.concurrency)))
    outcome.seconds = time.perf_counter() - start
    wrong = says(answer)(await exchange(target, good, _PATIENCE))
    outcome.faults += [f"a good request right afterwards: {wrong}"] if wrong else []
    held = await asyncio.to_thread(await_idle, server.metrics)
    outcome.faults += [f"{name} is {value:g} at the end" for name, value in held.items()]
    outcome.samples.append(sample(server.pid, outcome.done))
    return outcome


def report(outcome: Outcome, limit: float) -> None:
    """Print statuses and memory; complains of growth beyond ``limit`` MiB."""
    print(f"{outcome.done} requests in {outcome.seconds:.0f} s, {outcome.done / outcome.seconds:.1f} a second")
    seen = sorted({status for counts in outcome.statuses.values() for status in counts})
    rows = [
        [kind, *(str(counts[status] or "") for status in seen)] for kind, counts in sorted(outcome.statuses.items())
    ]
    print_table("Statuses; 0 is a connection that ended without any", ("mutated", *map(str, seen)), rows)
    outcome.faults += print_growth(outcome.samples, limit)
    print_faults(outcome.faults)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-growth", type=float, default=48, help="MiB after the first third, of all processes")
    options, serve_arguments = parser.parse_known_args(arguments)
    with BenchServer(*_SETTINGS, *serve_arguments) as server:
        outcome = asyncio.run(mutate(server, options))
        status = server.stop()
        outcome.faults += [f"the log has: {line}" for line in bad_log_lines(server.printed())]
        if status:
            outcome.faults.append(f"the server ended with status {status}")
    report(outcome, options.max_growth)
    return int(bool(outcome.faults))


if __name__ == "__main__":
    sys.exit(main())
