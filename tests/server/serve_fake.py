"""A server process around a fake engine, for tests of signals and of death: ``python -m tests.server.serve_fake``.

It is steered by its standard input: ``hold N`` lets answers wait after N words, ``wait N`` waits until N prompts are
being answered, ``die`` kills the engine.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading

from chiasm.config.server import ServerConfig
from chiasm.server.run import serve
from tests.clocks import wait_until
from tests.server.fake_engine import FakeEngine


def _obey(engine: FakeEngine) -> None:
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "hold":
            engine.words_before_hold = int(arguments[0])
        elif command == "wait":
            wait_until(lambda: engine.num_generating == int(arguments[0]))  # noqa: B023 - used at once
        elif command == "die":
            engine.die()
        _say(f"did {command}")


def _say(line: str) -> None:
    os.write(1, f"{line}\n".encode())  # whole lines, whatever the other thread says


def main(load_seconds: float, shutdown_timeout: float) -> int:
    """Serve; returns the status to exit with."""
    engine = FakeEngine()

    async def start() -> FakeEngine:
        _say("loading")
        await asyncio.sleep(load_seconds)
        threading.Thread(target=_obey, args=(engine,), daemon=True).start()
        return engine

    config = ServerConfig(model="fake", port=0, shutdown_timeout=shutdown_timeout)
    status = serve(config, start, _say)
    _say(f"engine stopped {engine.stops} times")
    return status


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), float(sys.argv[2])))
