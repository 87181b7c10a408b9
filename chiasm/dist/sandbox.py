"""What a process that meets hostile input gives up before it does, and can't take back.

The network, other programs and other processes go by a filter of system calls (seccomp, Linux on x86-64 and arm64),
writing anywhere but in one folder, and reading anything but libraries, by Landlock (Linux 5.13). Other processes'
environments, which may hold keys, are files too (``/proc``).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_MAX_FILES = 256  # open at a time; the libraries that decode keep some dozens
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_SET_MODE_FILTER = 1
_SECCOMP_FILTER_FLAG_TSYNC = 1
_ALLOW, _DENY, _MISSING = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
_FOREIGN_ABI = 0x40000000  # a bit in the numbers of x32, a second set of calls on x86-64
# Classic BPF: load a word of the call's description; compare with a number (equal, at least, a bit of it); return.
_LOAD, _EQUAL, _AT_LEAST, _HAS_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
# In struct seccomp_data. Of the arguments that are looked at, the system itself reads the low words only.
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_AT, _SECOND_AT = 0, 4, 16, 24
_CLONE_THREAD = 0x10000
# Commands of fcntl and ioctl by which a descriptor's owner gets signals: F_SETOWN, F_SETOWN_EX, FIOSETOWN, SIOCSPGRP.
_SET_OWNER = (8, 15, 0x8901, 0x8902)

_Step = tuple[int, int, int, int]

# Landlock (linux/landlock.h): calls, which have one number on all machines, and what they forbid.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION = 1
_PATH_BENEATH = 1
_WRITE_FILE, _READ_FILE, _READ_FOLDER = 1 << 1, 1 << 2, 1 << 3
_REMOVE_FOLDER, _REMOVE_FILE, _MAKE_FILE = 1 << 4, 1 << 5, 1 << 8
_MAKE_AND_REMOVE = sum(1 << bit for bit in range(4, 13))  # also devices, sockets, pipes and links
_TRUNCATE, _TRUNCATE_SINCE = 1 << 14, 3

# Python and its libraries load parts of themselves late.
_SYSTEM = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_LIBRARIES = ("torch", "numpy", "PIL", "av", "jinja2", "msgspec", "zmq")


class _Architecture(NamedTuple):
    """Numbers of one kind of machine (linux/audit.h, asm/unistd.h).

    Attributes:
        audit: of the machine.
        seccomp: of the call that sets a filter.
        denied: of calls, by purpose.
        on_itself: of calls whose first argument is a process: tgkill, prlimit64, sched_setaffinity,
            sched_setscheduler, sched_setparam, sched_setattr.
        commands: of fcntl and ioctl, whose second argument is what to do.
        clone: of the call that starts threads, and processes.
    """

    audit: int
    seccomp: int
    denied: dict[str, tuple[int, ...]]
    on_itself: tuple[int, ...]
    commands: tuple[int, int]
    clone: int


_CLONE3 = 435  # on all machines; its flags are in memory, which a filter can't read, and libc does without


_ARCHITECTURES = {
    "x86_64": _Architecture(
        0xC000003E,
        317,
        {
            "network": (41, 42, 43, 49, 50, 53, 288),  # socket, connect, accept, bind, listen, socketpair, accept4
            "programs": (57, 58, 59, 322),  # fork, vfork, execve, execveat
            "processes": (62, 101, 129, 141, 200, 251, 256, 279, 297, 310, 311, 312, 424, 434, 438, 440, 448),
            # kill, ptrace, rt_sigqueueinfo, setpriority, tkill, ioprio_set, migrate_pages, move_pages,
            # rt_tgsigqueueinfo, process_vm_*, kcmp, pidfd_*, process_madvise, process_mrelease
            "shared": (29, 30, 64, 68, 240),  # shmget, shmat, semget, msgget, mq_open
            "system": (155, 165, 166, 175, 248, 249, 250, 272, 298, 308, 313, 321, 323, 425),
            # pivot_root, mount, umount2, init_module, add_key, request_key, keyctl, unshare, perf_event_open, setns,
            # finit_module, bpf, userfaultfd, io_uring_setup
        },
        (234, 302, 203, 144, 142, 314),
        (72, 16),
        56,
    ),
    "aarch64": _Architecture(
        0xC00000B7,
        277,
        {
            "network": (198, 199, 200, 201, 202, 203, 242),
            "programs": (221, 281),
            "processes": (30, 117, 129, 130, 138, 140, 238, 239, 240, 270, 271, 272, 424, 434, 438, 440, 448),
            "shared": (180, 186, 190, 194, 196),
            "system": (39, 40, 41, 97, 105, 217, 218, 219, 241, 268, 273, 280, 282, 425),
        },
        (131, 261, 122, 119, 118, 274),
        (25, 29),
        220,
    ),
}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def confine_files(folder: Path, readable: Iterable[Path] = ()) -> bool:
    """From now on, write only in a folder and read only libraries.

    No file is opened for writing, made or removed but in the folder, and nothing is made there but plain files. None
    is read but those of Python, of its libraries and of the system's; those in the folder are listed, not read: they
    are other requests' pixels. The folder itself can be removed, as an engine's is when the engine has died.

    It holds for this thread and those that it starts: call it while there are no others.

    Args:
        folder: to write in.
        readable: further folders to read, all below them too; those that don't exist are left out.

    Returns:
        Whether that is so; False where the system has no Landlock.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE_RULESET, None, 0, _ASK_VERSION) if platform.system() == "Linux" else -1
    if version < 1:
        return False
    truncate = _TRUNCATE if version >= _TRUNCATE_SINCE else 0
    rules = struct.pack("=Q", _READ_FILE | _READ_FOLDER | _WRITE_FILE | _MAKE_AND_REMOVE | truncate)
    ruleset = libc.syscall(_CREATE_RULESET, rules, ctypes.c_size_t(len(rules)), 0)
    if ruleset < 0:
        return False
    try:
        write = _WRITE_FILE | _MAKE_FILE | _REMOVE_FILE | _REMOVE_FOLDER | truncate
        _allow(libc, ruleset, folder, write | _READ_FOLDER)
        _allow(libc, ruleset, folder.parent, _REMOVE_FOLDER)
        for place in {*_libraries(), *readable}:
            with suppress(FileNotFoundError):
                _allow(libc, ruleset, place, _READ_FILE | (_READ_FOLDER if place.is_dir() else 0))
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        return bool(libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _libraries() -> Iterator[Path]:
    """Where Python, what it has loaded and the system's libraries are."""
    yield from map(Path, (*_SYSTEM, *_DEVICES))
    yield Path(__file__).parents[1]
    yield Path(os.__file__).parent
    for prefix in (sys.prefix, sys.base_prefix):
        yield Path(prefix) / "lib"
    for name in _LIBRARIES:  # they may lie elsewhere; others' are beside them
        module = sys.modules.get(name)
        if module is not None and module.__file__:
            yield Path(module.__file__).parents[1]


def _allow(libc: ctypes.CDLL, ruleset: int, place: Path, rights: int) -> None:
    descriptor = os.open(place, os.O_PATH | os.O_CLOEXEC)
    try:
        libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, descriptor), 0)
    finally:
        os.close(descriptor)


def enter_sandbox() -> bool:
    """Give up, for all threads, what decoding doesn't need.

    Returns:
        Whether system calls are filtered; False where the system has no such filter.
    """
    _lower_limits()
    return _filter_calls()


def _lower_limits() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash would write what is in memory to disk
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MAX_FILES if hard == resource.RLIM_INFINITY else min(_MAX_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _filter_calls() -> bool:
    architecture = _ARCHITECTURES.get(platform.machine())
    if platform.system() != "Linux" or architecture is None:
        return False
    code = _program(architecture, os.getpid())
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    buffer = ctypes.create_string_buffer(code)
    program = _Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    status = libc.syscall(
        architecture.seccomp, _SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_TSYNC, ctypes.byref(program)
    )
    return bool(status == 0)


def _program(architecture: _Architecture, own_pid: int) -> bytes:
    """The filter: everything is allowed but what is denied, which fails with EPERM."""
    denied = sorted(number for numbers in architecture.denied.values() for number in numbers)
    steps = [(_LOAD, 0, 0, _ARCHITECTURE_AT), (_EQUAL, 1, 0, architecture.audit), (_RETURN, 0, 0, _DENY)]
    steps += [(_LOAD, 0, 0, _NUMBER_AT)]
    steps += _if(_AT_LEAST, _FOREIGN_ABI, [(_RETURN, 0, 0, _DENY)])
    for number in denied:
        steps += _if(_EQUAL, number, [(_RETURN, 0, 0, _DENY)])
    for number in architecture.on_itself:
        steps += _if(_EQUAL, number, _by_argument(_FIRST_AT, _EQUAL, (0, own_pid), _ALLOW, _DENY))
    for number in architecture.commands:
        steps += _if(_EQUAL, number, _by_argument(_SECOND_AT, _EQUAL, _SET_OWNER, _DENY, _ALLOW))
    steps += _if(_EQUAL, architecture.clone, _by_argument(_FIRST_AT, _HAS_BIT, (_CLONE_THREAD,), _ALLOW, _DENY))
    steps += _if(_EQUAL, _CLONE3, [(_RETURN, 0, 0, _MISSING)])
    return b"".join(struct.pack("HBBI", *step) for step in (*steps, (_RETURN, 0, 0, _ALLOW)))


def _if(test: int, value: int, steps: Sequence[_Step]) -> list[_Step]:
    """Steps that are taken if the word that is loaded is so, and that return."""
    return [(test, 0, len(steps), value), *steps]


def _by_argument(offset: int, test: int, values: Sequence[int], if_any: int, otherwise: int) -> list[_Step]:
    """Return the one thing if an argument is any of some values, else the other."""
    steps: list[_Step] = [(_LOAD, 0, 0, offset)]
    for value in values:
        steps += _if(test, value, [(_RETURN, 0, 0, if_any)])
    return [*steps, (_RETURN, 0, 0, otherwise)]
