"""A rank's process: ``python -m chiasm.engine.executor.rank_main FOLDER RANK``, started by ``MultiprocExecutor``."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from chiasm.dist.channel import Channel
from chiasm.dist.children import die_with_parent
from chiasm.errors import UserError
from chiasm.logs import configure_logging, get_logger
from chiasm.schema.wire import (
    AllocateBlocks,
    BlocksAllocated,
    EncoderMeasured,
    LoadModel,
    MeasureEncoder,
    ProfileFailed,
    ProfileStarted,
    RankFailed,
    RankProfiled,
    StartProfile,
    Step,
    StepDone,
    StopProfile,
    ToRank,
)

if TYPE_CHECKING:
    from chiasm.engine.runner.profiler import RankProfiler
    from chiasm.engine.runner.runner import Runner

_log = get_logger(__name__)


def main(runtime_dir: Path, rank: int) -> int:
    """Serve the core until it says stop; returns the exit status."""
    channel: Channel[ToRank] = Channel(runtime_dir, f"rank-{rank}", ToRank, is_binding=False)
    try:
        _serve(channel, runtime_dir, rank)
    except UserError as error:
        channel.send(RankFailed(error.message, is_user_error=True))
        return 1
    except Exception as error:
        _log.exception("the rank fails")
        channel.send(RankFailed(f"{type(error).__name__}: {error}"))
        return 1
    finally:
        channel.close()
    return 0


def _serve(channel: Channel[ToRank], runtime_dir: Path, rank: int) -> None:
    # These import torch: after the channel is open.
    from chiasm.engine.runner.spin_guard import SpinGuard
    from chiasm.engine.runner.start import start_runner

    load = channel.receive()
    assert isinstance(load, LoadModel), load
    runner = start_runner(load.config, rank=rank, size=load.size, store=runtime_dir / "ranks")
    channel.send(runner.info())
    with closing(SpinGuard()):
        _obey(channel, runner, rank)


def _obey(channel: Channel[ToRank], runner: Runner, rank: int) -> None:
    while True:
        message = channel.receive()
        if isinstance(message, Step):
            result = runner.execute(message.plan)
            if rank == 0:
                channel.send(StepDone(result))
        elif isinstance(message, MeasureEncoder):
            channel.send(EncoderMeasured(runner.measure_encoder()))
        elif isinstance(message, AllocateBlocks):
            runner.allocate(message.num_blocks)
            channel.send(BlocksAllocated())
        elif isinstance(message, StartProfile):
            runner.profiler.start()
            channel.send(ProfileStarted())
        elif isinstance(message, StopProfile):
            channel.send(_stop_profile(runner.profiler, Path(message.folder)))
        else:
            return


def _stop_profile(profiler: RankProfiler, folder: Path) -> RankProfiled | ProfileFailed:
    try:
        return RankProfiled(profiler.stop(folder))
    except UserError as error:
        return ProfileFailed(error.message)


if __name__ == "__main__":
    die_with_parent()
    configure_logging(f"rank {sys.argv[2]}")
    status = main(Path(sys.argv[1]), int(sys.argv[2]))
    # Not sys.exit: with the peers gone or going, tearing down their process group can block.
    sys.stderr.flush()
    os._exit(status)
