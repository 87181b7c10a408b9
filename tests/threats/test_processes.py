"""What the processes of a server have to offer to an attacker: no port, no key, no network, no code of others."""

from __future__ import annotations

import ast
import contextlib
import os
import platform
import re
import socket
import stat
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

import chiasm
from chiasm.dist.children import harmless_variables
from tests.threats.conftest import SECRET, Attacked, pickle_that_touches
from tests.threats.test_media import FLAT, ask, image

_SOURCE = Path(chiasm.__file__).parent
_TREES = {path.relative_to(_SOURCE).as_posix(): ast.parse(path.read_text("utf-8")) for path in _SOURCE.rglob("*.py")}


def _family(attacked: Attacked) -> list[psutil.Process]:
    return [psutil.Process(attacked.server.process.pid), *attacked.server.descendants()]


def _decoders(attacked: Attacked) -> list[psutil.Process]:
    return [process for process in attacked.server.descendants() if "chiasm.multimodal.worker" in process.cmdline()]


def _listening(attacked: Attacked) -> list[tuple[psutil.Process, str, int]]:
    return [
        (process, connection.laddr.ip, connection.laddr.port)
        for process in _family(attacked)
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN or connection.type == socket.SOCK_DGRAM
    ]


def _is_the_api(attacked: Attacked, address: tuple[psutil.Process, str, int]) -> bool:
    return address[2] == urlsplit(attacked.server.url).port


def test_only_the_api_listens(attacked: Attacked) -> None:
    """Threat: pickle and message sockets (CVE-2025-32444, CVE-2025-30202, CVE-2026-7301, CVE-2026-7304).

    Beside it there is what gloo opens for tensors between ranks, on loopback.
    """
    found = _listening(attacked)
    assert [address for address in found if _is_the_api(attacked, address)]
    for process, host, _ in [address for address in found if not _is_the_api(attacked, address)]:
        assert host in ("127.0.0.1", "::1")
        assert "chiasm.engine.executor.rank_main" in process.cmdline()


def test_pickles_on_every_socket_do_nothing(attacked: Attacked) -> None:
    """Threat: pickle and message sockets (CVE-2024-9052, CVE-2024-9053, CVE-2025-29783, CVE-2025-30165,
    CVE-2025-32444, CVE-2025-47277, CVE-2025-30202, CVE-2026-3059, CVE-2026-3060, CVE-2026-3989, CVE-2026-93088)."""
    payload = pickle_that_touches(attacked.imported)
    for _, host, port in _listening(attacked):
        for data in (payload, b"\xff\0\0\0\0\0\0\0\x01\x7f" + payload, bytes(1000)):
            with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1) as sock:
                sock.sendall(data)
    assert ask(attacked, {"type": "text", "text": "Hi"}).status_code == 200
    assert not attacked.imported.exists()


def test_sockets_and_pixels_are_in_a_private_folder(attacked: Attacked) -> None:
    """Threat: pickle and message sockets (CVE-2025-30165)."""
    folders = {
        Path(part) for process in _family(attacked) for part in process.cmdline() if Path(part).name[:7] == "chiasm-"
    }
    assert folders
    for folder in folders:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert folder.stat().st_uid == os.getuid()


def test_a_checkpoints_code_is_never_run(attacked: Attacked) -> None:
    """Threat: remote code and weights (CVE-2025-24357, CVE-2025-66448, CVE-2026-22807, CVE-2026-27893,
    CVE-2026-41523, CVE-2026-90553, GHSA-h3rc-6mm3-gc2m): ``auto_map`` and pickled weights are left alone."""
    assert ask(attacked, image(FLAT[56, 56])).status_code == 200
    assert not attacked.imported.exists()
    for name, tree in _TREES.items():
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            for keyword in call.keywords:
                if keyword.arg == "trust_remote_code":
                    assert isinstance(keyword.value, ast.Constant), name
                    assert keyword.value.value is False, name


def _names(tree: ast.AST) -> set[str]:
    """Modules that are imported and functions that are called."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
        elif isinstance(node, ast.Call):
            found.add(ast.unparse(node.func))
    return found


def test_nothing_unpickles() -> None:
    """Threat: pickle and message sockets (CVE-2025-32444, CVE-2026-3059): nor is there anything that could."""
    forbidden = {
        "pickle",
        "cPickle",
        "dill",
        "cloudpickle",
        "joblib",
        "marshal",
        "shelve",
        "multiprocessing",
        "torch.load",
    }
    for name, tree in _TREES.items():
        assert not _names(tree) & forbidden, name
    for name, tree in _TREES.items():  # what carries messages takes bytes only
        calls = {call.rpartition(".")[2] for call in _names(tree)}
        assert not calls & {
            "recv_pyobj",
            "send_pyobj",
            "broadcast_object_list",
            "all_gather_object",
            "load_pickle",
        }, name


def test_nothing_evaluates_text() -> None:
    """Threat: tool parser eval (CVE-2025-9141)."""
    for name, tree in _TREES.items():
        assert not _names(tree) & {"eval", "exec", "compile", "os.system", "literal_eval", "ast.literal_eval"}, name
        assert "shell=True" not in ast.unparse(tree), name


def test_decoders_are_in_a_sandbox(attacked: Attacked) -> None:
    """Threat: error leaks and decoder RCE (CVE-2026-22778): what a hijacked decoder finds."""
    assert ask(attacked, image(FLAT[1, 1])).status_code == 200
    decoders = _decoders(attacked)
    assert decoders
    for decoder in decoders:
        status = Path(f"/proc/{decoder.pid}/status").read_text()
        assert re.search(r"^Seccomp:\s*2$", status, re.M), "its system calls are filtered"
        assert re.search(r"^NoNewPrivs:\s*1$", status, re.M)
        assert SECRET not in " ".join(decoder.environ().values())
        assert decoder.net_connections(kind="inet") == []
        assert decoder.rlimit(psutil.RLIMIT_CORE) == (0, 0)
        assert decoder.rlimit(psutil.RLIMIT_NOFILE)[1] <= 256


_ATTEMPTS = """
import os, socket, subprocess, sys, threading
from pathlib import Path
from chiasm.dist.sandbox import confine_files, enter_sandbox
mine, other = Path(sys.argv[1]), Path(sys.argv[2])
refused = []
def attempt(call, *args):
    try:
        call(*args)
    except PermissionError:
        refused.append(call.__name__)
print(confine_files(mine, [Path(sys.argv[3]), mine / "none"]))
near, far = socket.socketpair()
go = threading.Event()
def from_another_thread():
    go.wait()
    attempt(socket.socket)
    attempt((other / "new").write_text, "x")
thread = threading.Thread(target=from_another_thread)
thread.start()
print(enter_sandbox())
go.set()
thread.join()
print(refused)
refused.clear()
attempt(socket.socket, socket.AF_UNIX)
attempt(far.connect, "/dev/log")
attempt(subprocess.run, ["true"])
attempt(os.kill, os.getppid(), 0)
attempt(os.execv, "/bin/true", ["true"])
print(refused)
refused.clear()
(mine / "a").write_text("x")
for call, *args in (
    ((other / "there").write_text, "x"), ((other / "there").unlink,), ((other / "new").mkdir,),
    (os.truncate, other / "there", 0), (os.symlink, "/", mine / "b"), (os.open, other / "there", os.O_WRONLY),
):
    attempt(call, *args)
print(refused)
refused.clear()
for path in (other / "there", mine / "a", "/etc/passwd", "/sys/kernel/notes"):
    attempt(open, path)
for pid in ("self", os.getppid()):
    attempt(open, f"/proc/{pid}/environ")
for path in (other, other.parent, "/proc", "/"):
    attempt(os.listdir, path)
print(len(refused), (Path(sys.argv[3]) / "picture").read_text(), os.listdir(mine))
near.sendall(b"x")
(mine / "a").unlink()
mine.rmdir()
print(far.recv(1))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the filter of system calls and Landlock are Linux's")
def test_a_sandboxed_process_reaches_and_changes_nothing(tmp_path: Path) -> None:
    """Threat: error leaks and decoder RCE (CVE-2026-22778): it can't be undone, and holds for all threads."""
    folders = [tmp_path / "mine", tmp_path / "other", tmp_path / "media"]
    for folder in folders:
        folder.mkdir()
    (folders[1] / "there").write_text("untouched")
    (folders[2] / "picture").write_text("picture")
    command = [sys.executable, "-c", _ATTEMPTS, *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    if done.stdout.startswith("False"):
        pytest.skip("this system has no Landlock")
    assert done.stdout.splitlines() == [
        "True",
        "True",
        "['socket', 'write_text']",
        "['socket', 'connect', 'run', 'kill', 'execv']",
        "['write_text', 'unlink', 'mkdir', 'truncate', 'symlink', 'open']",
        "10 picture ['a']",
        "b'x'",
    ]
    assert (folders[1] / "there").read_text() == "untouched"


_ASK_WHETHER_OTHERS_MAY_LOOK = """
import ctypes
from chiasm.config.server import ServerConfig
from chiasm.errors import UserError
from chiasm.server.run import serve
PR_GET_DUMPABLE = 3
async def start_engine():
    print(ctypes.CDLL(None).prctl(PR_GET_DUMPABLE, 0, 0, 0, 0))
    raise UserError("enough")
serve(ServerConfig(model="any", port=0), start_engine, print)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the setting is Linux's")
def test_other_processes_can_not_look_into_the_server() -> None:
    """Threat: error leaks and decoder RCE (CVE-2026-22778): the API's keys are in its memory and environment."""
    command = [sys.executable, "-c", _ASK_WHETHER_OTHERS_MAY_LOOK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "0\n"
    assert done.stderr.endswith("UserError: enough\n")


# Called on a process of somebody else: with a mask of cores, and with a signal of no effect.
_X86_CALLS = {
    "kill": (62, "other, 0"), "tkill": (200, "other, 0"), "tgkill": (234, "other, other, 0"),
    "rt_sigqueueinfo": (129, "other, 0, info"), "rt_tgsigqueueinfo": (297, "other, other, 0, info"),
    "pidfd_open": (434, "other, 0"), "prlimit64": (302, "other, 7, None, ones"),
    "sched_setaffinity": (203, "other, 8, ones"), "sched_setscheduler": (144, "other, 0, info"),
    "sched_setparam": (142, "other, info"), "sched_setattr": (314, "other, info, 0"),
    "setpriority": (141, "0, other, 19"), "ioprio_set": (251, "1, other, 0"),
    "process_madvise": (440, "0, None, 0, 0, 0"),
    "move_pages": (279, "other, 0, None, None, None, 0"), "migrate_pages": (256, "other, 8, ones, ones"),
    "F_SETOWN": (72, "0, 8, other"), "FIOSETOWN": (16, "0, 0x8901, info"), "fork": (57, ""),
    "clone": (56, "17, 0, 0, 0, 0"),
    "shmget": (29, "0, 4096, 0o1600"), "shmat": (30, "0, 0, 0"), "semget": (64, "0, 1, 0o1600"),
    "msgget": (68, "0, 0o1600"), "mq_open": (240, "b'x', 0, 0, None"),
    # High bits that the system does not look at do not help.
    "tgkill of more bits": (234, "other | 1 << 32, other, 0"),
}  # fmt: skip

_CALLS = """
import ctypes, errno, os, resource, signal, sys, threading
from chiasm.dist.sandbox import enter_sandbox
assert enter_sandbox()
libc = ctypes.CDLL(None, use_errno=True)
other, info, ones = os.getppid(), ctypes.create_string_buffer(128), ctypes.create_string_buffer(b"\1" + bytes(127))
info[8:12] = bytes([255] * 4)  # a signal that another process sends
def call(number, *args):
    status = libc.syscall(number, *(ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args))
    return errno.errorcode[ctypes.get_errno()] if status < 0 else "done"
print({name: call(number, *eval(f"[{args}]")) for name, (number, args) in %r.items()})
print(call(435, None, 0))
thread = threading.Thread(target=print, args=("thread",))
thread.start()
thread.join()
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
os.sched_setaffinity(0, os.sched_getaffinity(0))
signal.signal(signal.SIGUSR1, lambda *_: print("signal"))
signal.raise_signal(signal.SIGUSR1)
os.fork()
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of calls are those of x86-64")
def test_a_sandboxed_process_touches_no_other() -> None:
    """Threat: error leaks and decoder RCE (CVE-2026-22778): every way to signal, slow or start a process."""
    done = subprocess.run(
        [sys.executable, "-c", _CALLS % _X86_CALLS], capture_output=True, text=True, timeout=60, check=False
    )
    first, *others = done.stdout.splitlines()
    assert first == str(dict.fromkeys(_X86_CALLS, "EPERM")), done.stderr
    assert others == ["ENOSYS", "thread", "signal"]
    assert done.stderr.endswith("PermissionError: [Errno 1] Operation not permitted\n")


@pytest.mark.parametrize("name", ["PATH", "HOME", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "OMP_NUM_THREADS"])
def test_decoders_inherit_what_they_need(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "x")
    assert harmless_variables()[name] == "x"


@pytest.mark.parametrize(
    "name", ["CHIASM_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "SSH_AUTH_SOCK", "https_proxy"]
)
def test_decoders_inherit_no_secrets(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "x")
    assert name not in harmless_variables()
