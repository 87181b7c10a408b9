"""Thousands of requests, good and bad, from clients patient and not: who asks rightly is answered as if alone.

python -m bench.soak [--requests 2000] [--concurrency 64] [--charts 24] [--seed 0] [--request-timeout 20]
                     [ARGUMENTS OF chiasm serve ...]

A server with the built-in chart reader on two ranks. Each good question is asked once alone; then they come mixed
with requests that are wrong, media hosts that fail, downloads and answers beyond the request timeout, and clients
that go away at any moment. The server must give every good one the answer that it got alone and refuse every bad one
with the right status; afterwards it must hold nothing, have no error in its log, answer again, and end with status 0.
Resident memory of its processes is sampled all the while; its growth after the first third is told, and bounded.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from bench.idle import await_idle
from bench.measure import print_faults, print_table
from bench.media_host import MediaHost
from bench.resident import Resident, print_growth, sample
from bench.serving import BenchServer
from bench.soak_requests import (
    CHAT,
    FETCH_TIMEOUT,
    MAX_BODY_BYTES,
    Body,
    Case,
    Mix,
    good_bodies,
    says,
    text_of,
)
from bench.wire import Target, exchange, leave, post_json
from chiasm.config.built_in import BUILT_IN_EXAMPLE

_PATIENCE = 120.0  # of a client that waits: far beyond all limits of the server
_LEAVES_WITHIN = 2.0
_SAMPLE_SECONDS = 1.0
_SETTINGS = (
    "-tp", "2", "--dtype", "float32", "--max-body-bytes", str(MAX_BODY_BYTES),
    "--fetch-timeout", str(FETCH_TIMEOUT), "--max-media-bytes", str(2 * 2**20),
    # Small, so that they are full soon: what grows after that is no cache.
    "--mm-processor-cache-gb", "0.02", "--mm-encoder-cache-gb", "0.01", "--kv-cache-memory-bytes", str(32 * 2**20),
)  # fmt: skip


@dataclass
class Outcome:
    """What came of it.

    Attributes:
        counts: requests by kind.
        faults: sentences.
        samples: of memory.
        seconds: it took.
    """

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    samples: list[Resident] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def done(self) -> int:
        """Requests so far."""
        return self.counts.total()


def server_settings(host: MediaHost, request_timeout: float) -> list[str]:
    """Arguments of ``chiasm serve``."""
    hosts = ["--allowed-media-hosts", host.address, "--allowed-media-hosts", "127.0.0.1:7"]
    return [*_SETTINGS, *hosts, "--request-timeout", str(request_timeout)]


async def ask_alone(target: Target, bodies: Sequence[Body]) -> list[tuple[Body, str]]:
    """Each body with the answer that it gets when there is no other."""
    return [(body, text_of(await exchange(target, post_json(CHAT, body), _PATIENCE))) for body in bodies]


async def run_case(target: Target, case: Case, rng: random.Random) -> str:
    """Send one; returns what is wrong with the answer."""
    if case.check is None:
        await leave(target, case.request, rng, _LEAVES_WITHIN)
        return ""
    try:
        return case.check(await exchange(target, case.request, _PATIENCE))
    except (TimeoutError, OSError) as error:
        return f"no answer: {error!r}"


async def soak(server: BenchServer, host: MediaHost, options: argparse.Namespace) -> Outcome:
    """Send all requests, so many at a time."""
    target, outcome = Target.of(server.url), Outcome()
    good = await ask_alone(target, good_bodies(options.charts, host))
    mix, rng = Mix(good, host, random.Random(options.seed)), random.Random(options.seed)
    left = iter(range(options.requests))

    async def client() -> None:
        for _ in left:
            case = mix.draw()
            fault = await run_case(target, case, rng)
            outcome.counts[case.kind] += 1
            if fault:
                outcome.faults.append(f"{case.kind}: {fault}")

    watching = asyncio.create_task(_watch(server.pid, outcome))
    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(options.concurrency)))
    outcome.seconds = time.perf_counter() - start
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    outcome.faults += await _look_after(server, target, good[0])
    outcome.samples.append(sample(server.pid, outcome.done))
    return outcome


async def _watch(pid: int, outcome: Outcome) -> None:
    while True:
        outcome.samples.append(sample(pid, outcome.done))
        await asyncio.sleep(_SAMPLE_SECONDS)


async def _look_after(server: BenchServer, target: Target, good: tuple[Body, str]) -> list[str]:
    """What is wrong when all is over."""
    left = await asyncio.to_thread(await_idle, server.metrics)
    faults = [f"{name} is {value:g} at the end" for name, value in left.items()]
    body, answer = good
    wrong = says(answer)(await exchange(target, post_json(CHAT, body), _PATIENCE))
    return [*faults, *([f"a good request afterwards: {wrong}"] if wrong else [])]


def bad_log_lines(printed: str) -> list[str]:
    """What a log should not have."""
    return [line for line in printed.splitlines() if any(word in line for word in ("ERROR", "Traceback", "CRITICAL"))]


def report(outcome: Outcome, limit: float) -> None:
    """Print counts and memory; complains of growth beyond ``limit`` MiB."""
    rate = outcome.done / outcome.seconds
    print(f"{outcome.done} requests in {outcome.seconds:.0f} s, {rate:.1f} a second")
    print_table("Requests", ("kind", "number"), [[kind, str(n)] for kind, n in sorted(outcome.counts.items())])
    outcome.faults += print_growth(outcome.samples, limit)
    print_faults(outcome.faults)


async def run(options: argparse.Namespace, serve_arguments: Sequence[str]) -> Outcome:
    """Start a server, put it through everything, and stop it."""
    async with MediaHost(BUILT_IN_EXAMPLE.picture.read_bytes()) as host:
        with BenchServer(*server_settings(host, options.request_timeout), *serve_arguments) as server:
            outcome = await soak(server, host, options)
            status = await asyncio.to_thread(server.stop)
            outcome.faults += [f"the log has: {line}" for line in bad_log_lines(server.printed())]
            if status:
                outcome.faults.append(f"the server ended with status {status}")
    return outcome


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--charts", type=int, default=24, help="distinct questions about charts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--request-timeout", type=float, default=20, help="of the server, in seconds")
    parser.add_argument("--max-growth", type=float, default=48, help="MiB after the first third, of all processes")
    options, serve_arguments = parser.parse_known_args(arguments)
    outcome = asyncio.run(run(options, serve_arguments))
    report(outcome, options.max_growth)
    return int(bool(outcome.faults))


if __name__ == "__main__":
    sys.exit(main())
