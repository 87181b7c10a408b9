"""Fixtures that the whole session shares."""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
import torch

from chiasm.dist import children
from chiasm.vision.fit import Fit
from tests.forked import SECONDS_TO_MEASURE, fork_server, spawn
from tests.ranks import RankPool
from tests.skipped import settings_line, skipped_line

if TYPE_CHECKING:
    from tests.checkpoints.common import SavedModel

# How long an example takes says what else the machine does.
hypothesis.settings.register_profile("chiasm", deadline=None)
hypothesis.settings.load_profile("chiasm")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None]:
    """Say at the end, behind all lists, what was left out."""
    yield
    reports = terminalreporter.stats.get("skipped", [])
    reasons = [report.longrepr[2] for report in reports if isinstance(report.longrepr, tuple | list)]
    for line in (skipped_line(reasons), settings_line()):
        if line:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Small tensors gain nothing from threads, and ranks share the cores."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _brief_measurements() -> Iterator[None]:
    """Engines of tests don't depend on how fast their encoder is; users' measure it for two seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fit, "rates", functools.partialmethod(Fit.rates, seconds=SECONDS_TO_MEASURE))
        yield


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What engines keep between starts stays in the run, where they share it, also those of xdist's other workers."""
    base = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHIASM_CACHE", str((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"))
        yield


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """Commands send the log to standard error; tests after them want it where pytest looks."""
    logger = logging.getLogger("chiasm")
    before = (logger.handlers[:], logger.level, logger.propagate)
    yield
    logger.handlers[:], logger.level, logger.propagate = before


@pytest.fixture(scope="session")
def rank_pool() -> Iterator[RankPool]:
    """Ranks over gloo; the processes live as long as the session."""
    with RankPool() as pool:
        yield pool


@pytest.fixture(scope="session")
def _fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if sys.platform != "linux":  # others don't tell that the process has no threads, which a fork would lose
        yield ""
        return
    with fork_server(tmp_path_factory.mktemp("fork")) as address:
        yield address


@pytest.fixture(scope="module")
def forked_children(_fork_server: str) -> Iterator[None]:
    """Engines of this module's tests get processes that are forked, which saves time (``tests.forked``)."""
    if not _fork_server:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(children, "spawn", functools.partial(spawn, _fork_server))
        yield


@pytest.fixture(scope="session")
def qwen2_5_vl(tmp_path_factory: pytest.TempPathFactory) -> SavedModel:
    """A small random Qwen2.5-VL checkpoint in float32; not to be changed."""
    from tests.checkpoints.qwen2 import save_qwen2_5_vl  # imports transformers' models, which not all runs need

    return save_qwen2_5_vl(tmp_path_factory.mktemp("checkpoints") / "qwen2_5_vl")


@pytest.fixture
def tied_qwen2_5_vl(tmp_path: Path) -> SavedModel:
    """A fresh one whose input and output embeddings are one; may be changed."""
    from tests.checkpoints.qwen2 import save_qwen2_5_vl

    return save_qwen2_5_vl(tmp_path / "tied", tied=True)
