"""Virtual environments of the clients, made when they are first asked for, and kept."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).parent
_REQUIREMENTS = _HERE / "requirements"
_SECONDS_TO_RUN = 300


@dataclass(frozen=True)
class Environment:
    """A client that is installed.

    Attributes:
        folder: of the virtual environment.
        outside: file into which it is written what else than this machine its programs tried to reach.
    """

    folder: Path
    outside: Path

    def run(self, program: str, *arguments: str, cwd: Path, **variables: str) -> str:
        """Run a program of the environment and return what it printed; it reaches nothing but this machine.

        Args:
            program: a name in the environment's ``bin``.
            arguments: its arguments.
            cwd: where it runs.
            variables: of its environment, beside ``PATH`` and those that keep its libraries offline.
        """
        command = [str(self.folder / "bin" / program), *arguments]
        settings = {
            "PATH": os.environ["PATH"],
            "HOME": str(cwd),
            "PYTHONPATH": str(_HERE / "offline"),
            "CLIENT_OUTSIDE": str(self.outside),
            "OPENAI_API_KEY": "unused",
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_OFFLINE": "1",
            "DO_NOT_TRACK": "1",
            **variables,
        }
        done = subprocess.run(
            command, cwd=cwd, env=settings, capture_output=True, text=True, timeout=_SECONDS_TO_RUN, check=False
        )
        printed = f"{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
        assert done.returncode == 0, f"{program} {arguments} ended with {done.returncode}:\n{printed}"
        return done.stdout


def make_environment(root: Path, name: str) -> Path:
    """The folder of a client's environment with exactly the versions of its file in ``requirements/``.

    Args:
        root: where environments are kept; one that was made of other versions is made anew.
        name: of the client.
    """
    folder, wanted = root / name, _wanted(name)
    made_of = folder / "made-of.txt"
    root.mkdir(parents=True, exist_ok=True)
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made_of.exists() or made_of.read_text(encoding="utf-8") != wanted:
            shutil.rmtree(folder, ignore_errors=True)
            _install(folder, name)
            made_of.write_text(wanted, encoding="utf-8")
    return folder


def _files(name: str) -> list[tuple[Path, list[str]]]:
    """Files of requirements and how pip is to take them: some packages ask for what their clients don't need."""
    alone = _REQUIREMENTS / f"{name}.no-deps.txt"
    files: list[tuple[Path, list[str]]] = [(_REQUIREMENTS / f"{name}.txt", [])]
    return [*files, (alone, ["--no-deps"])] if alone.exists() else files


def _wanted(name: str) -> str:
    return sys.version + "".join(file.read_text(encoding="utf-8") for file, _ in _files(name))


def _install(folder: Path, name: str) -> None:
    _call([sys.executable, "-m", "venv", str(folder)])
    for file, options in _files(name):
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        _call([*pip, *options, "-r", str(file)])


def _call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
