"""Preprocessing in other processes, so that no picture or video slows or breaks the server.

Jobs wait in one queue, first come, first served; each worker has one at a time. A worker that dies or hangs takes
only its own job with it and is replaced.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chiasm.config.engine import MediaConfig
from chiasm.dist.cores import num_usable_cores
from chiasm.errors import OverloadedError, UserError, shorten
from chiasm.logs import get_logger
from chiasm.multimodal.jobs import Done, Failed, Full, Job, Refused, Reply
from chiasm.multimodal.pixels import new_file_name
from chiasm.multimodal.replies import ForgedReplyError, check_item, check_message, check_refusal
from chiasm.multimodal.sources import MediaSource
from chiasm.multimodal.worker_process import WorkerProcess, crashed
from chiasm.schema.media import MediaSpec, ProcessedItem, VideoProcessorSpec

_MAX_DEFAULT_WORKERS = 4
# A worker whose job nobody waits for any more is killed only after this long: most are done sooner than a new worker
# would be there.
_ABANDONED_SECONDS = 2.0

_logger = get_logger(__name__)


class PreprocessPool:
    """Worker processes that turn encoded pictures and videos into pixels on disk.

    Args:
        media: limits, the folder of local files and the number of workers.
        runtime_dir: the engine's private folder, for sockets.
        pixel_folder: where files of pixels go.
        job_timeout: seconds after which a picture is given up and its worker killed; for videos ``media`` says.
    """

    def __init__(
        self, media: MediaConfig, *, runtime_dir: Path, pixel_folder: Path, job_timeout: float = 30.0
    ) -> None:
        args = _worker_args(media, pixel_folder)
        num_workers = media.num_workers or default_num_workers()
        self._pixel_folder = pixel_folder
        self._job_timeout = job_timeout
        self._video_timeout = media.video_timeout
        self._workers = [WorkerProcess(args, runtime_dir) for _ in range(num_workers)]
        self._jobs: asyncio.Queue[_PendingJob] = asyncio.Queue()
        self._serving: list[asyncio.Task[None]] = []

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers that run."""
        return [worker.pid for worker in self._workers if worker.pid is not None]

    def start(self) -> None:
        """Start the workers, in a running event loop. Returns at once: they get ready in the background."""
        for worker in self._workers:
            worker.start()
            self._serving.append(asyncio.create_task(self._serve(worker)))

    async def process(self, source: MediaSource, spec: MediaSpec, param: str | None = None) -> ProcessedItem:
        """Decode a picture or a video, as ``spec`` is for the one or the other, and write its pixels.

        Cancelling it leaves no file behind.

        Args:
            source: see ``sources.parse_source``; what ``fetch.MediaFetcher`` downloads is of kind "bytes".
            spec: how it becomes patches.
            param: the request's field that holds it, for errors.

        Returns:
            An item whose file the caller deletes (``pixels.discard_pixels``).

        Raises:
            UserError: if it is broken, too large, too long or too thin, took too long or crashed its decoder.
            OverloadedError: if no space is left for pixels.
            RuntimeError: if the pool is closed or its workers can't do their work.
        """
        if not self._serving:
            raise RuntimeError("the preprocessing pool is not running")
        job = Job(source.kind, source.shape, source.times, spec, new_file_name(), param)
        path = self._pixel_folder / job.file_name
        pending = _PendingJob(job, source.payload, path, asyncio.get_running_loop().create_future())
        self._jobs.put_nowait(pending)
        try:
            return await pending.result
        except asyncio.CancelledError:
            pending.abandon()
            raise

    async def close(self) -> None:
        """Kill the workers; jobs that are not done fail."""
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        self._serving.clear()
        while not self._jobs.empty():
            self._jobs.get_nowait().fail(_closed_error())

    async def _serve(self, worker: WorkerProcess) -> None:
        try:
            while True:
                await self._serve_one(worker)
        finally:
            await worker.stop()

    async def _serve_one(self, worker: WorkerProcess) -> None:
        # A function of its own, so that the last picture is not kept while the worker waits for the next.
        pending = await self._jobs.get()
        if not pending.result.done():  # else whoever asked has gone
            is_video = isinstance(pending.job.spec, VideoProcessorSpec)
            await _do(worker, pending, self._video_timeout if is_video else self._job_timeout)


@dataclass
class _PendingJob:
    job: Job
    payload: bytes
    path: Path
    result: asyncio.Future[ProcessedItem]

    def abandon(self) -> None:
        """Whoever asked has gone: what it sent is not kept until a worker is free to see that."""
        self.payload = b""
        self.path.unlink(missing_ok=True)

    def fail(self, error: Exception) -> None:
        self.path.unlink(missing_ok=True)
        if not self.result.done():
            self.result.set_exception(error)


async def _do(worker: WorkerProcess, pending: _PendingJob, timeout: float) -> None:  # noqa: ASYNC109
    running = asyncio.ensure_future(worker.run(pending.job, pending.payload, timeout))
    either: set[asyncio.Future[Any]] = {running, pending.result}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():  # whoever asked has gone
            await asyncio.wait({running}, timeout=_ABANDONED_SECONDS)
        if not running.done() and worker.is_ready:
            await _give_up(worker, running)
            pending.path.unlink(missing_ok=True)
        else:
            reply = await running
            if pending.result.done():  # abandoned: the file that the reply names may be gone, and isn't missed
                pending.path.unlink(missing_ok=True)
            else:
                pending.result.set_result(_item_of(reply, pending))
    except asyncio.CancelledError:
        running.cancel()
        pending.fail(_closed_error())
        raise
    except ForgedReplyError as error:
        _logger.warning("%s", error)
        await worker.replace()
        pending.fail(crashed(pending.job))
    except Exception as error:
        pending.fail(error)


async def _give_up(worker: WorkerProcess, running: asyncio.Future[Reply]) -> None:
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await worker.replace()


def _item_of(reply: Reply, pending: _PendingJob) -> ProcessedItem:
    match reply:
        case Done(item):
            check_item(item, pending.job, pending.path)
            return item
        case Refused(message, param, status):
            check_refusal(reply, pending.job)
            raise UserError(message, param=param, status=status)
        case Full(message):
            check_message(message)
            raise OverloadedError(message, reason="pixels")
        case Failed(error):
            raise RuntimeError(f"preprocessing failed: {shorten(error, 300)}")


def _closed_error() -> RuntimeError:
    return RuntimeError("the preprocessing pool is closed")


def default_num_workers() -> int:
    """Half of the cores that this process may use, at least one, at most four: the ranks need the others."""
    return min(_MAX_DEFAULT_WORKERS, max(1, num_usable_cores() // 2))


def _worker_args(media: MediaConfig, pixel_folder: Path) -> list[str]:
    args = ["--pixel-folder", str(pixel_folder)]
    args += ["--max-bytes", str(media.max_media_bytes), "--max-pixels", str(media.max_image_pixels)]
    args += ["--max-video-pixels", str(media.max_video_pixels), "--max-video-seconds", str(media.max_video_seconds)]
    if media.allowed_local_media_path:
        args += ["--allowed-folder", media.allowed_local_media_path]
    return args
