"""The server held to its own OpenAPI document, by schemathesis.

python -m bench.contract [--examples 100] [--seed 1] [--schemathesis PROGRAM] [ARGUMENTS OF chiasm serve ...]

A server with the built-in chart reader on two ranks, with a key. schemathesis (``pip install schemathesis``, in an
environment of its own if need be) makes requests that the document allows and such that it forbids: statuses, content
types and bodies must be those that it names, nothing may be a 5xx, what is forbidden must be refused, and nothing may
be had without the key. Afterwards the server must hold nothing.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.idle import await_idle
from bench.serving import BenchServer
from bench.soak import bad_log_lines

KEY = "a-key"
# What a schema allows may still make no sense: a regular expression, a form of answers, fields that contradict each
# other.
_LEFT_OUT = "positive_data_acceptance"


def find_schemathesis() -> str | None:
    """The program beside this Python, or wherever it is."""
    beside = Path(sys.executable).with_name("schemathesis")
    return str(beside) if beside.exists() else shutil.which("schemathesis")


def check_contract(program: str, url: str, *, examples: int, seed: int, folder: str | None = None) -> tuple[int, str]:
    """Run schemathesis against a server that takes ``KEY``; returns its status and what it printed."""
    command = [program, "run", f"{url}/openapi.json", "--header", f"Authorization: Bearer {KEY}", "--seed", str(seed)]
    command += ["--max-examples", str(examples), "--exclude-checks", _LEFT_OUT, "--no-color"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    return done.returncode, done.stdout + done.stderr


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=100, help="of each operation")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--schemathesis", default=find_schemathesis(), help="where the program is")
    options, serve_arguments = parser.parse_known_args(arguments)
    if options.schemathesis is None:
        parser.error("there is no schemathesis; pip install schemathesis, or say where it is with --schemathesis")
    with BenchServer("-tp", "2", "--api-key", KEY, *serve_arguments) as server:
        status, printed = check_contract(
            options.schemathesis, server.url, examples=options.examples, seed=options.seed
        )
        print(printed)
        faults = [f"{name} is {value:g} at the end" for name, value in await_idle(server.metrics).items()]
        faults += [f"the log has: {line}" for line in bad_log_lines(server.printed())]
    print("\n".join(faults))
    return int(bool(status or faults))


if __name__ == "__main__":
    sys.exit(main())
