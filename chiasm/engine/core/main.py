"""The core's process: ``python -m chiasm.engine.core.main FOLDER``, started by the serving frontend."""

from __future__ import annotations

import os
import sys
import time
from contextlib import closing
from pathlib import Path

from chiasm.dist.channel import Channel
from chiasm.dist.children import die_with_parent
from chiasm.engine.core.core import EngineCore, make_executor
from chiasm.errors import EngineDeadError, UserError
from chiasm.logs import configure_logging, get_logger
from chiasm.schema.wire import (
    AbortRequests,
    AddRequest,
    Failed,
    Outputs,
    ProfileFailed,
    ProfileStarted,
    ProfileTaken,
    StartCore,
    StartProfile,
    StopProfile,
    ToCore,
    WatchSteps,
)

_log = get_logger(__name__)
_IDLE_SECONDS = 0.5
_SIGN_OF_LIFE_SECONDS = 1.0  # between messages, so that the frontend can tell a stuck core


def main(runtime_dir: Path) -> int:
    """Serve the frontend until it says stop; returns the exit status."""
    channel: Channel[ToCore] = Channel(runtime_dir, "core", ToCore, is_binding=False)
    start = channel.receive()
    assert isinstance(start, StartCore), start
    try:
        with closing(make_executor(start.config, runtime_dir)) as executor:
            core = EngineCore(start.config, executor)
            channel.send(core.ready)
            _serve(core, channel)
    except UserError as error:
        channel.send(Failed(error.message, is_user_error=True))
        return 1
    except EngineDeadError as error:
        _log.error("the engine ends: %s", error)
        channel.send(Failed(str(error)))
        return 1
    except Exception as error:
        _log.exception("the engine fails")
        channel.send(Failed(f"{type(error).__name__}: {error}"))
        return 1
    finally:
        channel.close()
    return 0


def _serve(core: EngineCore, channel: Channel[ToCore]) -> None:
    told = time.monotonic()
    while _take_messages(core, channel):
        if core.has_work:
            core.step()
        else:
            core.check()
        deltas = core.take_deltas()
        if deltas or time.monotonic() - told >= _SIGN_OF_LIFE_SECONDS:
            channel.send(Outputs(deltas, core.stats()))
            told = time.monotonic()


def _take_messages(core: EngineCore, channel: Channel[ToCore]) -> bool:
    """Act on what has arrived, waiting a little if there is no work. Returns False on shutdown."""
    message = channel.receive(0 if core.has_work else _IDLE_SECONDS)
    while message is not None:
        if isinstance(message, AddRequest):
            core.add(message.request)
        elif isinstance(message, AbortRequests):
            core.abort(message.request_ids)
        elif isinstance(message, StartProfile | StopProfile):
            channel.send(_profile(core, message))
        elif isinstance(message, WatchSteps):
            core.watch(channel.send if message.is_watching else None)
        else:
            return False
        message = channel.receive(0)
    return True


def _profile(core: EngineCore, message: StartProfile | StopProfile) -> ProfileStarted | ProfileTaken | ProfileFailed:
    try:
        if isinstance(message, StopProfile):
            return ProfileTaken(core.stop_profile(Path(message.folder)))
        core.start_profile()
    except UserError as error:
        return ProfileFailed(error.message)
    return ProfileStarted()


if __name__ == "__main__":
    die_with_parent()
    configure_logging("core")
    status = main(Path(sys.argv[1]))
    sys.stderr.flush()
    os._exit(status)
