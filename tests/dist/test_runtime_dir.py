"""The private folder: where it is, who may enter, and that a socket's path fits."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from chiasm.dist import runtime_dir
from chiasm.dist.channel import Channel
from chiasm.dist.runtime_dir import create_runtime_dir, remove_runtime_dir
from chiasm.schema.wire import ToRank

_LONGEST_SOCKET = "preprocess-0123abcd.sock"


def test_only_its_owner_may_enter_and_it_goes_when_told() -> None:
    folder = create_runtime_dir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (folder / "x").touch()
    remove_runtime_dir(folder, owner_pid=-1)  # a forked copy of its owner
    assert folder.exists()
    remove_runtime_dir(folder)
    assert not folder.exists()


@pytest.mark.parametrize("length", [61, 62, 90])
def test_a_long_temporary_folder_is_passed_over_if_a_socket_would_not_fit(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory, length: int
) -> None:
    base = Path("/tmp") / f"chiasm-test-{length}"
    parent = base / ("x" * (length - len(str(base)) - 1))
    parent.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(runtime_dir, "_MEMORY_BACKED", Path("/nowhere"))
    monkeypatch.setattr("tempfile.tempdir", str(parent))
    folder = create_runtime_dir()
    try:
        assert (folder.parent == parent) == (length <= 61)
        Channel(folder, _LONGEST_SOCKET.removesuffix(".sock"), ToRank, is_binding=True).close()
    finally:
        remove_runtime_dir(folder)
        remove_runtime_dir(base)
