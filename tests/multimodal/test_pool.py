"""The preprocessing pool: answers, refusals, and what happens when a worker or a requester goes away."""

from __future__ import annotations

import asyncio
import base64
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest

from chiasm.config.engine import MediaConfig
from chiasm.errors import UserError
from chiasm.multimodal import pool as pool_module
from chiasm.multimodal import worker_process
from chiasm.multimodal.in_memory import source_of_object
from chiasm.multimodal.jobs import PREFIX, Done
from chiasm.multimodal.pixels import discard_pixels, read_rows
from chiasm.multimodal.pool import PreprocessPool
from chiasm.multimodal.processing import process_image
from chiasm.multimodal.sources import MediaSource, parse_source
from chiasm.multimodal.worker_process import WorkerProcess, WorkerStartError
from chiasm.schema.media import FrameTimes, PatchProcessorSpec, VideoProcessorSpec
from tests.clocks import PATIENCE, pass_time, pause, take_turns, wait_until
from tests.multimodal.encoded import noise, png_bomb
from tests.multimodal.pictures import make_picture
from tests.multimodal.specs import QWEN
from tests.multimodal.videos import ENCODINGS, decode_all, encode_video, make_frames, mp4_bomb

TINY = PatchProcessorSpec(patch_size=2, merge_size=1, temporal_patch_size=1, min_pixels=1, max_pixels=16)


class Running:
    """A pool in an event loop of its own, for tests that are plain functions."""

    def __init__(self, folder, **settings):
        self.pixels = folder / "pixels"
        self.pixels.mkdir()
        self.runtime = folder / "run"
        self.runtime.mkdir(0o700)
        job_timeout = settings.pop("job_timeout", 60.0)
        self.pool = PreprocessPool(
            MediaConfig(**settings), runtime_dir=self.runtime, pixel_folder=self.pixels, job_timeout=job_timeout
        )
        self.runner = asyncio.Runner()
        self.runner.run(self._start())

    async def _start(self):
        self.pool.start()

    def run(self, coroutine):
        return self.runner.run(coroutine)

    def process(self, source, **kwargs):
        return self.run(self.pool.process(source, QWEN, **kwargs))

    def begin(self, data, param=None):
        """A task that processes encoded bytes; call it in the loop."""
        return asyncio.create_task(self.pool.process(MediaSource("bytes", data), QWEN, param))

    def close(self):
        self.run(self.pool.close())
        self.runner.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """One worker that stays for all tests of this module that leave it alive."""
    folder = tmp_path_factory.mktemp("pool")
    running = Running(folder, num_workers=1, allowed_local_media_path=str(folder), max_image_pixels=11_000)
    yield running
    running.close()


@pytest.fixture
def stopped(running):
    """The same with its worker ready but stopped, so that a job sent to it stays under way."""
    item = running.process(MediaSource("bytes", noise()))
    discard_pixels(item)
    (pid,) = running.pool.worker_pids
    pause(pid)
    return running, pid


def expected_key(folder):
    item = process_image(make_picture("noise", 56, 84), QWEN, folder)
    return item.units[0].key


def peak_bytes(pid):
    """Most memory that a process has had so far."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) * 1024


def is_gone(pid):
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


class TestJobs:
    def test_every_kind_of_source_gives_the_same_item(self, running, tmp_path):
        path = running.pixels.parent / "a.png"
        path.write_bytes(noise())
        url = "data:image/png;base64," + base64.b64encode(noise()).decode()
        sources = [
            MediaSource("bytes", noise()),
            parse_source(url, max_bytes=10**6),
            parse_source(f"file://{path}", max_bytes=10**6),
            source_of_object(make_picture("noise", 56, 84), max_pixels=10**6),
        ]
        for source in sources:
            item = running.process(source)
            assert item.num_tokens == 6
            assert item.units[0].key == expected_key(tmp_path)
            assert read_rows(item.units[0].pixels).shape == (24, QWEN.row_bytes)
            discard_pixels(item)
        assert list(running.pixels.iterdir()) == []

    @pytest.mark.parametrize(
        ("source", "message"),
        [
            (MediaSource("bytes", b""), "can't be decoded as an image"),
            (MediaSource("bytes", noise()[:-500]), "can't be decoded as an image"),
            (MediaSource("bytes", noise(200, 60)), "between 1 and 11000 pixels in size, got '60 x 200'"),
            (MediaSource("bytes", png_bomb(20_000, 20_000)), "11000 pixels in size, got '20000 x 20000'"),
            (MediaSource("bytes", noise(1, 201)), "one side may be at most 200 times"),
            (MediaSource("base64", b"!!!!"), "not valid base64"),
            (MediaSource("base64", b"QUI"), "not valid base64"),
            (MediaSource("base64", b"QU JD"), "not valid base64"),
            (MediaSource("base64", b"QUJD"), "can't be decoded as an image"),
            (MediaSource("file", b"/etc/passwd"), "leads out of the folder"),
        ],
    )  # fmt: skip
    def test_refusals_come_back_with_their_field(self, running, source, message):
        with pytest.raises(UserError, match=message) as caught:
            running.process(source, param="x.y")
        assert caught.value.param == "x.y"
        assert "0x" not in caught.value.message
        assert list(running.pixels.iterdir()) == []

    def test_twenty_at_once(self, running):
        async def all_of_them():
            jobs = [running.pool.process(MediaSource("bytes", noise(28, 28 * n)), QWEN) for n in range(4, 14)]
            jobs += [running.pool.process(MediaSource("bytes", b"broken"), QWEN) for _ in range(10)]
            return await asyncio.gather(*jobs, return_exceptions=True)

        outcomes = running.run(all_of_them())
        assert [item.units[0].grid[1] // 2 for item in outcomes[:10]] == list(range(4, 14))
        assert all(isinstance(error, UserError) for error in outcomes[10:])
        for item in outcomes[:10]:
            discard_pixels(item)

    def test_a_worker_is_modest(self, running):
        (pid,) = running.pool.worker_pids
        worker = psutil.Process(pid)
        assert worker.nice() >= 10
        assert worker.environ()["CUDA_VISIBLE_DEVICES"] == ""

    def test_no_socket_is_left_to_connect_to(self, running):
        discard_pixels(running.process(MediaSource("bytes", noise())))
        assert list(running.runtime.iterdir()) == []


class TestVideos:
    SPEC = VideoProcessorSpec(QWEN, fps=5.0)

    def process(self, running, source, param=None):
        return running.run(running.pool.process(source, self.SPEC, param))

    def test_files_and_frames(self, running):
        video = encode_video(make_frames(12), fps=10)
        encoded = self.process(running, MediaSource("bytes", video))
        frames = np.stack(decode_all(video)[::2])
        times = FrameTimes((0, 2, 4, 6, 8, 10), 12, 10.0)
        given = self.process(running, MediaSource("rgb", frames.tobytes(), frames.shape, times))
        assert [unit.key for unit in encoded.units] == [unit.key for unit in given.units]
        assert encoded.frame_seconds == given.frame_seconds == (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
        for item in (encoded, given):
            assert (item.modality, len(item.units)) == ("video", 3)
            discard_pixels(item)

    def test_frames_of_a_rate_that_varies(self, running):
        video = encode_video(make_frames(8), ENCODINGS["h264 with B frames"], times=[0, 1, 2, 3, 10, 20, 30, 40])
        item = self.process(running, MediaSource("bytes", video))
        assert item.frame_seconds == pytest.approx((0, 0.1, 0.2, 0.3, 1, 2, 3, 4))
        discard_pixels(item)

    def test_what_is_refused_leaves_nothing(self, running):
        for data in (noise(), encode_video(make_frames(4))[:-900], b""):
            with pytest.raises(UserError, match=r"can't be decoded as a video|cut short") as caught:
                self.process(running, MediaSource("bytes", data), "field")
            assert caught.value.param == "field"
        assert list(running.pixels.iterdir()) == []

    def test_a_header_that_claims_gigabytes_gets_none(self, tmp_path):
        """FFmpeg would reserve half a gigabyte for its table, and so much again for every further track."""
        running = Running(tmp_path, num_workers=1, max_video_pixels=100_000, max_media_bytes=2**20)
        video = MediaSource("bytes", encode_video(make_frames(4)))
        discard_pixels(self.process(running, video))
        (pid,) = running.pool.worker_pids
        before = peak_bytes(pid)
        with pytest.raises(UserError, match="100000 pixels in the size of a frame"):
            self.process(running, MediaSource("bytes", mp4_bomb(20_000_000)))
        assert running.pool.worker_pids == [pid]
        assert peak_bytes(pid) < before + 2**28
        discard_pixels(self.process(running, video))
        running.close()

    def test_a_video_of_very_many_slices(self, running):
        """Whose reply is longer than those of all others."""
        frames = np.zeros((6000, 2, 2, 3), np.uint8)
        spec = VideoProcessorSpec(TINY, max_frames=6000)
        source = MediaSource("rgb", frames.tobytes(), frames.shape, FrameTimes.of_all(6000, None))
        item = running.run(running.pool.process(source, spec))
        assert len(item.units) == 6000
        discard_pixels(item)


class TestTrouble:
    def test_a_worker_that_dies_takes_only_its_job(self, stopped):
        running, pid = stopped

        async def kill_under_two_jobs():
            first, second = (running.begin(noise(), param) for param in ("first", "second"))
            await take_turns()
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(UserError, match="its decoder crashed") as caught:
                await first
            assert caught.value.param == "first"
            return await second

        discard_pixels(running.run(kill_under_two_jobs()))
        assert running.pool.worker_pids != [pid]
        assert list(running.pixels.iterdir()) == []

    def test_a_worker_that_dies_between_jobs_costs_no_picture(self, running):
        discard_pixels(running.process(MediaSource("bytes", noise())))
        (pid,) = running.pool.worker_pids
        os.kill(pid, signal.SIGKILL)
        # Ended with all its threads, and left for its parent to notice.
        wait_until(lambda: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))
        discard_pixels(running.process(MediaSource("bytes", noise())))
        assert running.pool.worker_pids != [pid]

    def test_what_a_crashed_worker_had_written_is_removed(self, stopped, monkeypatch):
        running, pid = stopped
        monkeypatch.setattr(pool_module, "new_file_name", lambda: "half.pixels")

        async def crash():
            job = running.begin(noise())
            await take_turns()
            (running.pixels / "half.pixels").write_bytes(b"half")
            os.kill(pid, signal.SIGKILL)
            await job

        with pytest.raises(UserError, match="crashed"):
            running.run(crash())
        assert list(running.pixels.iterdir()) == []

    def test_cancelled_jobs_leave_nothing(self, stopped):
        running, pid = stopped

        async def cancel():
            under_way, queued = running.begin(noise()), running.begin(noise())
            await take_turns()
            under_way.cancel()
            queued.cancel()
            await asyncio.gather(under_way, queued, return_exceptions=True)
            os.kill(pid, signal.SIGCONT)
            return await running.begin(noise())

        item = running.run(cancel())
        assert [str(path) for path in running.pixels.iterdir()] == [item.units[0].pixels.path]
        discard_pixels(item)

    def test_a_worker_that_works_for_nobody_is_replaced_after_a_while(self, stopped, monkeypatch):
        """And what waits for it meanwhile, given up as well, holds no memory."""
        running, pid = stopped
        monkeypatch.setattr(pool_module, "_ABANDONED_SECONDS", 0.2)

        async def give_up():
            under_way, queued = running.begin(noise()), running.begin(b"x" * 1_000_000)
            await take_turns()
            (pending,) = running.pool._jobs._queue
            for job in (under_way, queued):
                job.cancel()
            await asyncio.gather(under_way, queued, return_exceptions=True)
            assert pending.payload == b""
            return await running.begin(noise())

        discard_pixels(running.run(give_up()))
        assert is_gone(pid)
        assert list(running.pixels.iterdir()) == []

    def test_a_result_after_a_cancellation_is_not_called_forged(self, running, monkeypatch):
        """The file of a job that was given up is gone when the worker says that it is there."""
        replaced = []

        async def be_replaced(worker):
            replaced.append(worker)

        async def cancel_before_the_result_arrives():
            has_result = asyncio.Event()

            async def run(_worker, job, _payload, _timeout):
                item = process_image(make_picture("noise", 28, 28), QWEN, running.pixels, file_name=job.file_name)
                task.cancel()
                await take_turns()
                has_result.set()
                return Done(item)

            monkeypatch.setattr(WorkerProcess, "run", run)
            monkeypatch.setattr(WorkerProcess, "replace", be_replaced)
            task = running.begin(b"")
            await asyncio.gather(task, return_exceptions=True)
            await has_result.wait()
            await take_turns()

        running.run(cancel_before_the_result_arrives())
        assert not replaced
        assert list(running.pixels.iterdir()) == []

    def test_a_result_that_meets_a_cancellation_leaves_nothing(self, running, monkeypatch):
        async def cancel_as_the_result_arrives():
            async def run(_worker, job, _payload, _timeout):
                item = process_image(make_picture("noise", 28, 28), QWEN, running.pixels, file_name=job.file_name)
                asyncio.get_running_loop().call_soon(task.cancel)
                return Done(item)

            monkeypatch.setattr(WorkerProcess, "run", run)
            task = running.begin(b"")
            await task

        with pytest.raises(asyncio.CancelledError):
            running.run(cancel_as_the_result_arrives())
        assert list(running.pixels.iterdir()) == []

    def test_a_worker_can_not_pass_off_another_file(self, running, monkeypatch, tmp_path):
        victim = process_image(make_picture("noise", 28, 28), QWEN, tmp_path)

        async def run(_worker, _job, _payload, _timeout):
            return Done(victim)

        monkeypatch.setattr(WorkerProcess, "run", run)
        with pytest.raises(UserError, match="crashed"):
            running.process(MediaSource("bytes", noise()))
        assert read_rows(victim.units[0].pixels).size

    def test_a_forged_reply_fails_its_own_request(self, running, monkeypatch):
        """An empty item, which nothing behind the pool expects; the others are in test_replies.py."""
        discard_pixels(running.process(MediaSource("bytes", noise())))
        (pid,) = running.pool.worker_pids

        async def forge(_connection, job, _payload):
            item = process_image(make_picture("noise", 28, 28), QWEN, running.pixels, file_name=job.file_name)
            return Done(msgspec.structs.replace(item, units=()))

        with monkeypatch.context() as patch:
            patch.setattr(worker_process, "_exchange", forge)
            with pytest.raises(UserError, match="its decoder crashed") as caught:
                running.process(MediaSource("bytes", noise()), param="field")
        assert (caught.value.param, caught.value.status) == ("field", 400)
        assert running.pool.worker_pids != [pid]
        assert list(running.pixels.iterdir()) == []
        discard_pixels(running.process(MediaSource("bytes", noise())))

    @pytest.mark.parametrize("reply", [b"\x80", b"\x81\xa4type\xa4Nope", pickle.dumps(Done)])
    def test_a_worker_that_speaks_nonsense_is_replaced(self, stopped, monkeypatch, reply):
        running, pid = stopped

        async def receive(_connection, length):
            return PREFIX.pack(len(reply), 0) if length == PREFIX.size else reply

        with monkeypatch.context() as patch:
            patch.setattr(worker_process, "_receive", receive)
            with pytest.raises(UserError, match="crashed"):
                running.process(MediaSource("bytes", noise()))
        assert is_gone(pid)
        discard_pixels(running.process(MediaSource("bytes", noise())))

    def test_a_hanging_decoder_is_killed(self, tmp_path):
        running = Running(tmp_path, num_workers=1, job_timeout=600)
        discard_pixels(running.process(MediaSource("bytes", noise())))
        (pid,) = running.pool.worker_pids
        pause(pid)

        async def hang():
            job = running.begin(noise())
            await pass_time(600)
            await job

        with pytest.raises(UserError, match=r"longer than 600 seconds"):
            running.run(hang())
        assert is_gone(pid)
        running.close()

    def test_the_loop_runs_on_while_a_killed_worker_dies(self, running, monkeypatch):
        discard_pixels(running.process(MediaSource("bytes", noise())))
        (worker,) = running.pool._workers
        reap, has_ticked = worker_process._reap, threading.Event()

        def reap_late(child):
            assert has_ticked.wait(PATIENCE), "the loop waits for it"
            reap(child)

        monkeypatch.setattr(worker_process, "_reap", reap_late)

        async def tick_while_replacing():
            replacing = asyncio.create_task(worker.replace())
            await take_turns()
            has_ticked.set()
            await replacing

        running.run(tick_while_replacing())

    def test_videos_have_a_time_limit_of_their_own(self, tmp_path):
        running = Running(tmp_path, num_workers=1, video_timeout=0.3)
        discard_pixels(running.process(MediaSource("bytes", noise())))
        (pid,) = running.pool.worker_pids
        pause(pid)
        with pytest.raises(UserError, match=r"the video took longer than 0\.3 seconds") as caught:
            running.run(running.pool.process(MediaSource("bytes", b""), VideoProcessorSpec(QWEN), "field"))
        assert caught.value.param == "field"
        assert is_gone(pid)
        assert list(running.pixels.iterdir()) == []
        running.close()

    def test_closing_is_prompt_and_leaves_no_process(self, tmp_path):
        running = Running(tmp_path, num_workers=2)
        pids = running.pool.worker_pids
        assert len(pids) == 2

        async def close_under_jobs():
            jobs = [running.begin(noise()) for _ in range(5)]
            await take_turns()
            await running.pool.close()
            return await asyncio.gather(*jobs, return_exceptions=True)

        errors = running.run(close_under_jobs())
        assert {str(error) for error in errors} == {"the preprocessing pool is closed"}
        assert all(map(is_gone, pids))
        assert list(running.runtime.iterdir()) == list(running.pixels.iterdir()) == []
        with pytest.raises(RuntimeError, match="not running"):
            running.process(MediaSource("bytes", noise()))
        running.close()

    def test_a_worker_that_can_not_start_is_no_fault_of_the_user(self, tmp_path, monkeypatch):
        monkeypatch.setattr(worker_process, "_MODULE", "chiasm.nothing_here")
        running = Running(tmp_path, num_workers=1)
        for _ in range(2):
            with pytest.raises(WorkerStartError, match="log says why"):
                running.process(MediaSource("bytes", noise()))
        running.close()


SCRIPT = """
import asyncio, sys
from pathlib import Path
from chiasm.config.engine import MediaConfig
from chiasm.multimodal.pool import PreprocessPool

async def main():
    folder = Path(sys.argv[1])
    pool = PreprocessPool(MediaConfig(num_workers=2), runtime_dir=folder, pixel_folder=folder)
    pool.start()
    print(*pool.worker_pids, flush=True)
    await asyncio.sleep(100)

asyncio.run(main())
"""


def test_workers_die_with_their_parent_and_need_no_main_guard(tmp_path):
    script, folder = tmp_path / "script.py", tmp_path / "run"
    script.write_text(SCRIPT)
    folder.mkdir(0o700)
    with subprocess.Popen([sys.executable, str(script), str(folder)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        parent.kill()
    wait_until(lambda: all(map(is_gone, pids)))
    wait_until(lambda: not folder.exists())


def test_the_server_side_needs_no_torch_and_no_http_client():
    modules = "bounds fetch in_memory local_files pixels pool sizes sources"
    code = f"import sys\nfor name in {modules.split()}: __import__('chiasm.multimodal.' + name)\n"
    code += "assert not {'torch', 'httpcore2', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
