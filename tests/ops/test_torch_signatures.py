"""Every keyword that is passed to torch is one that the oldest and the newest torch take."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from chiasm.engine.runner.device import OLDEST_TORCH
from chiasm.ops.varlen import VarlenOp
from tests.ops import torch_signatures
from tests.ops.torch_signatures import VARLEN, TorchCall, accepted, read_table, refused, torch_calls

TABLE = read_table()


@pytest.fixture(scope="module")
def our_calls() -> list[TorchCall]:
    """Of the whole package, which takes a moment to read."""
    return list(torch_calls())


def test_the_table_has_the_oldest_torch_and_all_functions(our_calls: list[TorchCall]) -> None:
    oldest = ".".join(map(str, OLDEST_TORCH))
    assert any(version.startswith(f"{oldest}.") for version in TABLE)
    for version, signatures in TABLE.items():
        missing = {call.function for call in our_calls} - signatures.keys()
        assert not missing, f"run python -m tests.ops.torch_signatures with torch {version}: {missing}"


@pytest.mark.parametrize("version", TABLE)
def test_every_keyword_is_taken(version: str, our_calls: list[TorchCall]) -> None:
    wrong = {f"{call.function} at {call.place}": refused(call, TABLE[version]) for call in our_calls}
    assert not {call: keywords for call, keywords in wrong.items() if keywords}


def test_the_installed_torch_takes_them_too(our_calls: list[TorchCall]) -> None:
    signatures = {call.function: accepted(call.function) for call in our_calls}
    assert not [call for call in our_calls if refused(call, signatures)]


@pytest.mark.parametrize("version", TABLE)
def test_the_contract_of_varlen_attn(version: str) -> None:
    passed = [name for name in inspect.signature(VarlenOp.__call__).parameters if name != "self"]
    assert set(passed) <= set(TABLE[version][VARLEN])
    assert set(passed) <= set(accepted(VARLEN))


def test_calls_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way to call torch, and what is none."""
    source = """
        import torch
        import torch.nn.functional as F
        from torch.nn.attention.varlen import varlen_attn as attend
        F.scaled_dot_product_attention(q, k, v, scale=1.0, is_new=True)
        attend(q, k, v, a, b, 1, 1, seqused_k=None)
        torch.cuda.Stream(device=0)
        x.softmax(-1, dtype=torch.float32, is_sharp=True)
        rows.sort(key=len); line.split(maxsplit=1); array.max(initial=0)
        other(seqused_k=None)
    """
    (tmp_path / "chiasm").mkdir()
    (tmp_path / "chiasm" / "some.py").write_text(inspect.cleandoc(source), encoding="utf-8")
    monkeypatch.setattr(torch_signatures, "PACKAGE", tmp_path / "chiasm")
    calls = list(torch_calls())
    found = {call.function: refused(call, {call.function: accepted(call.function)}) for call in calls}
    assert found["torch.nn.functional.scaled_dot_product_attention"] == ["is_new"]
    assert found["torch.Tensor.softmax"] == ["is_sharp"]
    assert found["torch.cuda.Stream"] == []
    assert [name for name in found if name.startswith("torch.Tensor.")] == [
        "torch.Tensor.softmax", "torch.Tensor.sort", "torch.Tensor.split", "torch.Tensor.max",
    ]  # fmt: skip
    assert not any(found[f"torch.Tensor.{name}"] for name in ("sort", "split", "max"))
    [call] = [call for call in calls if call.function == VARLEN]
    assert call == TorchCall(VARLEN, ("seqused_k",), "chiasm/some.py:5")
    [oldest] = [signatures for version, signatures in TABLE.items() if version.startswith("2.11.")]
    assert refused(call, oldest) == ["seqused_k"], "torch 2.11 does not know it"
