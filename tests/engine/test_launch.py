"""How a GPU's rank works, with everything but the GPU: kernels emulated, graphs and streams that only say so."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from chiasm.config.engine import EngineConfig
from chiasm.engine.runner import launch, runner
from chiasm.engine.runner.decode_graphs import DecodeGraphs, bucket_sizes, padded_step
from chiasm.engine.runner.device import check_torch
from chiasm.engine.runner.graphs import Recorded
from chiasm.engine.runner.launch import Launch, choose_launch
from chiasm.engine.runner.start import start_runner
from chiasm.engine.runner.steps import HostStep, KernelInputs
from chiasm.errors import UserError
from chiasm.models.loader import load_model
from chiasm.ops.paged_attention import SequenceRows
from chiasm.ops.paged_kernels import ChosenBackends, SpanBackend
from tests.checkpoints.common import SavedModel
from tests.checkpoints.llama4 import save_llama4
from tests.checkpoints.mllama import save_mllama
from tests.checkpoints.qwen2 import save_qwen2_5_vl
from tests.checkpoints.qwen3_vl import save_qwen3_vl
from tests.engine.driven import answers, request
from tests.ops.test_paged_kernels import emulated_attend
from tests.prompts import make_prompt

pytestmark = pytest.mark.usefixtures("forked_children")

CPU = torch.device("cpu")
FAMILIES: dict[str, tuple[Callable[[Path], SavedModel], tuple[int, int, int]]] = {
    "qwen2_5_vl": (save_qwen2_5_vl, (1, 8, 12)),
    "qwen3_vl": (lambda folder: save_qwen3_vl(folder, has_experts=False), (1, 4, 6)),
    "llama4": (save_llama4, (2, 0, 0)),
    "mllama": (lambda folder: save_mllama(folder), (1, 1, 2)),
}


class ReplayingRecorder:
    """Records a call by remembering it; played again it must find its inputs where they were."""

    def __init__(self, device: torch.device = CPU) -> None:
        self.num_replays = 0

    def warm_up(self, call: Callable[[], object]) -> None:
        """Nothing needs it."""

    def record(self, call: Callable[[], Tensor]) -> Recorded[Tensor]:
        output = call()

        def replay() -> None:
            self.num_replays += 1
            output.copy_(call())

        return Recorded(replay, output)


class LoggedStream:
    """Says when the encoder runs, and what it hands over."""

    is_beside = True

    def __init__(self, log: list[str]) -> None:
        self.log = log

    @contextmanager
    def running(self) -> Iterator[None]:
        self.log.append("encoder")
        yield

    def hand_over(self, features: Iterable[Tensor]) -> None:
        self.log.append(f"handed {len(list(features))}")


def emulated_launch(log: list[str], *, has_graphs: bool = True) -> Callable[..., Launch]:
    def choose(model: Any, **given: Any) -> Launch:
        plain = choose_launch(model, **given)
        backend = SpanBackend(emulated_attend, model.num_kv_heads, 4)
        inputs = KernelInputs(backend, plain.shape, CPU)
        return Launch(plain.shape, inputs, backend if has_graphs else None, LoggedStream(log), ("emulated",))

    return choose


def config(folder: Path, **settings: object) -> EngineConfig:
    small = {"dtype": "float32", "block_size": 8, "max_num_seqs": 3, "kv_cache_memory_bytes": 2**22}
    return EngineConfig(model=str(folder), max_num_batched_tokens=16, **small, **settings)


@pytest.mark.parametrize("family", FAMILIES)
def test_kernels_graphs_and_streams_change_no_token(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, grid = FAMILIES[family]
    saved = save(tmp_path / "model")
    facts = load_model(saved.folder, dtype=torch.float32, device=CPU).facts
    side = facts.encoder.tile_side
    grid = (grid[0], side, side) if side else grid
    prompts = [make_prompt(facts, pieces) for pieces in ([9, grid, 3], [21], [2, grid, 5, grid, 2], [5])]
    requests = [request(f"r{i}", prompt, tmp_path, max_tokens=7 + i) for i, prompt in enumerate(prompts)]
    expected = answers(config(saved.folder), requests)
    log: list[str] = []
    recorders = []

    def recorder(device: torch.device) -> ReplayingRecorder:
        recorders.append(ReplayingRecorder())
        return recorders[0]

    monkeypatch.setattr(runner, "choose_launch", emulated_launch(log))
    monkeypatch.setattr(runner, "CudaRecorder", recorder)
    assert answers(config(saved.folder), requests) == expected
    assert recorders[0].num_replays > 5
    assert "encoder" in log
    monkeypatch.setattr(runner, "choose_launch", emulated_launch(log, has_graphs=False))
    assert answers(config(saved.folder), requests) == expected
    assert len(recorders) == 1


def test_what_a_step_reads_is_encoded_before_and_all_else_beside_it(
    qwen2_5_vl: SavedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that can't start yet has its image encoded ahead, while the others decode."""
    log: list[str] = []
    compute = runner.Runner._compute

    def logged(self: runner.Runner, scheduled: Any) -> Tensor | None:
        log.append("language model")
        return compute(self, scheduled)

    monkeypatch.setattr(runner, "choose_launch", emulated_launch(log, has_graphs=False))
    monkeypatch.setattr(runner.Runner, "_compute", logged)
    facts = load_model(qwen2_5_vl.folder, dtype=torch.float32, device=CPU).facts
    image = make_prompt(facts, [2, (1, 4, 6), 3])
    texts = [make_prompt(facts, [5], seed=seed) for seed in range(3)]
    requests = [request(f"t{i}", prompt, tmp_path, max_tokens=8) for i, prompt in enumerate(texts)]
    about_image = request("image", image, tmp_path, max_tokens=3)
    answers(config(qwen2_5_vl.folder), [*requests, about_image])
    at = log.index("handed 1")
    assert log[at - 2 : at] == ["language model", "encoder"], "beside"
    log.clear()
    answers(config(qwen2_5_vl.folder), [about_image])
    assert log[:3] == ["encoder", "handed 1", "language model"], "before"


def test_buckets_are_powers_of_two_and_the_largest_number() -> None:
    assert bucket_sizes(1) == (1,)
    assert bucket_sizes(8) == (1, 2, 4, 8)
    assert bucket_sizes(6) == (1, 2, 4, 6)


def test_added_rows_live_in_the_spare_block() -> None:
    host = HostStep(np.array([5, 6]), np.array([[7, 8]] * 3), np.array([0, 1]), (
        SequenceRows(7, 1, [3]), SequenceRows(8, 1, [4, 1])
    ))  # fmt: skip
    padded = padded_step(host, 4, 9)
    assert padded.token_ids.tolist() == [5, 6, 0, 0]
    assert padded.positions.tolist() == [[7, 8, 0, 0]] * 3
    assert padded.sequences[2:] == (SequenceRows(0, 1, (9,)),) * 2


def decode_graphs(model: Any, forward: Callable[..., Tensor], max_num_seqs: int) -> DecodeGraphs:
    shape = choose_launch(
        model, tower_reason="", block_size=8, enforce_eager=False, device=CPU, dtype=torch.float32
    ).shape
    return DecodeGraphs(
        forward,
        SpanBackend(emulated_attend, model.num_kv_heads, 4),
        shape,
        num_position_dims=3,
        max_num_seqs=max_num_seqs,
        num_columns=4,
        spare_block=20,
        device=CPU,
    )


def test_the_smallest_graph_that_holds_a_step_is_played(qwen2_5_vl: SavedModel) -> None:
    model = load_model(qwen2_5_vl.folder, dtype=torch.float32, device=CPU).model
    seen: list[list[int]] = []

    def forward(step: Any) -> Tensor:
        seen.append(step.token_ids.tolist())
        return step.token_ids[:, None].float()

    graphs = decode_graphs(model, forward, 6)
    graphs.record(ReplayingRecorder())
    assert [len(ids) for ids in seen] == [6, 4, 2, 1]
    rows = tuple(SequenceRows(3, 1, [i]) for i in range(7))
    assert graphs.can_run(rows[:6])
    assert not graphs.can_run(rows)
    assert not graphs.can_run((*rows[:2], SequenceRows(0, 2, [3])))
    for count, bucket in ((1, 1), (3, 4), (5, 6), (2, 2)):
        host = HostStep(np.arange(1, count + 1), np.zeros((3, count), np.int64), np.arange(count), rows[:count])
        assert graphs.run(host)[:, 0].tolist() == list(range(1, count + 1))
        assert seen[-1] == [*range(1, count + 1), *[0] * (bucket - count)]


def test_what_cannot_be_recorded_names_the_flag(qwen2_5_vl: SavedModel) -> None:
    model = load_model(qwen2_5_vl.folder, dtype=torch.float32, device=CPU).model

    def forward(step: Any) -> Tensor:
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(UserError, match=r"of 2 sequences .* not permitted .* Start with enforce_eager") as caught:
        decode_graphs(model, forward, 2).record(ReplayingRecorder())
    assert caught.value.param == "enforce_eager"


def test_a_cpu_keeps_to_what_it_has(qwen2_5_vl: SavedModel) -> None:
    model = load_model(qwen2_5_vl.folder, dtype=torch.float32, device=CPU).model
    chosen = choose_launch(model, tower_reason="", block_size=8, enforce_eager=False, device=CPU, dtype=torch.float32)
    assert chosen.lines == ()
    assert chosen.decoding is None
    assert not chosen.encoder_stream.is_beside


@pytest.mark.parametrize(
    ("has_experts", "enforce_eager", "has_kernel", "words"),
    [
        (False, False, True, "decode steps: CUDA graphs"),
        (False, True, True, "launched anew (enforce_eager)"),
        (False, False, False, "launched anew (no kernel that a graph may hold)"),
        (True, False, True, "launched anew (for the experts' numbers of rows the host waits in every layer: no "),
    ],
)
def test_a_gpu_says_what_it_chose(
    has_experts: bool, enforce_eager: bool, has_kernel: bool, words: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    saved = save_qwen3_vl(tmp_path, has_experts=has_experts)
    model = load_model(saved.folder, dtype=torch.float32, device=CPU).model
    own = SpanBackend(emulated_attend, model.num_kv_heads, 4) if has_kernel else None
    monkeypatch.setattr(launch, "choose_backends", lambda shape, device: ChosenBackends(own, own, "as emulated"))
    monkeypatch.setattr(launch, "SideStream", lambda device: LoggedStream([]))
    monkeypatch.setattr(launch, "KernelInputs", lambda backend, shape, device: None)
    chosen = choose_launch(
        model, tower_reason="one call", block_size=16, enforce_eager=enforce_eager, device=torch.device("cuda"),
        dtype=torch.float32,
    )  # fmt: skip
    assert chosen.lines[:2] == ("encoder attention: one call", "attention: as emulated")
    assert words in chosen.lines[2]
    assert (chosen.decoding is not None) == (words == "decode steps: CUDA graphs")


@pytest.mark.parametrize("version", ["2.11.0", "2.11.0a0+0123abc.nv26.1", "2.13.0+cpu", "3.0.0"])
def test_a_torch_that_is_supported(version: str) -> None:
    check_torch(version)


@pytest.mark.parametrize("version", ["2.10.1+cu130", "2.9.0", "1.13.1"])
def test_a_torch_that_is_too_old_is_refused_before_anything_is_loaded(
    version: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(UserError, match=re.escape(f"torch {version} is installed; chiasm needs 2.11 or newer")):
        start_runner(EngineConfig(model=str(tmp_path)), rank=0, size=1)
