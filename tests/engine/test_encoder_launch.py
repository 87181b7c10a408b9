"""Which encoder passes a GPU records, and what its recorder asks of torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from chiasm.config.engine import EngineConfig
from chiasm.engine.runner.encoder_graphs import filling, pass_sizes
from chiasm.engine.runner.graphs import CudaRecorder
from chiasm.engine.runner.launch import EncoderLaunch, choose_encoder_launch
from chiasm.errors import UserError
from chiasm.models.loader import load_model
from chiasm.ops.varlen import RUN_BY_RUN, SegmentKernel
from chiasm.schema.facts import EncoderShape
from chiasm.vision.units import Piece
from tests.checkpoints.common import SavedModel
from tests.checkpoints.mllama import save_mllama
from tests.engine.tape import TAPED_KERNEL
from tests.invariants import CPU


def shape(**changes: Any) -> EncoderShape:
    sizes = {"hidden_size": 8, "intermediate_size": 8, "mlp_matrices": 2, "num_layers": 1, "num_heads": 1}
    return EncoderShape(full_attention_layers=(0,), feature_size=8, **{"merge_size": 2, **sizes, **changes})


@pytest.mark.parametrize(
    ("max_rows", "changes", "sizes"),
    [
        (4096, {}, (256, 512, 768, 1024, 1536, 2048, 3072, 4096)),
        (1400, {}, (256, 512, 768, 1024, 1280)),
        (256, {}, (256,)),
        (255, {}, ()),
        (0, {}, ()),
        (600, {"merge_size": 3}, (261, 522)),
        (4096, {"tile_side": 24}, (576, 1152, 1728, 2304, 3456, 4032)),
        (500, {"tile_side": 24}, ()),
    ],
)
def test_sizes(max_rows: int, changes: dict[str, int], sizes: tuple[int, ...]) -> None:
    assert pass_sizes(max_rows, shape(**changes)) == sizes


def test_a_pass_is_filled_up_with_few_units_of_few_sizes() -> None:
    for merge in (1, 2, 3):
        grids = set()
        for num_blocks in range(400):
            pieces = filling(num_blocks * merge**2, shape(merge_size=merge))
            assert sum(piece.num_rows for piece in pieces) == num_blocks * merge**2
            assert len(pieces) <= 9
            assert all(side % merge == 0 for piece in pieces for side in piece.grid)
            grids |= {piece.grid for piece in pieces}
        assert len(grids) == 9
    assert filling(3 * 36, shape(tile_side=6)) == [Piece.whole((6, 6))] * 3


def test_each_recorder_has_a_pool_and_a_stream_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked of torch; a graph itself is never made here."""
    log: list[tuple[str, object, object]] = []
    numbers = iter(range(9))

    class Stream:
        def __init__(self, *_: object) -> None:
            self.number = next(numbers)

        def wait_stream(self, other: Stream) -> None:
            log.append(("wait", self.number, other.number))

    @contextmanager
    def graph(made: object, *, pool: object, stream: Stream) -> Iterator[None]:
        log.append(("record", pool, stream.number))
        yield

    @contextmanager
    def stream(used: Stream) -> Iterator[None]:
        log.append(("on", used.number, None))
        yield

    main = Stream()
    changes = {
        "Stream": Stream, "graph": graph, "stream": stream, "current_stream": lambda _: main,
        "graph_pool_handle": lambda: f"pool {next(numbers)}", "CUDAGraph": lambda: SimpleNamespace(replay=log.clear),
    }  # fmt: skip
    for name, value in changes.items():
        monkeypatch.setattr(torch.cuda, name, value)
    calls = []
    for pool, number in (("pool 1", 2), ("pool 3", 4)):
        recorder = CudaRecorder(torch.device("cuda"))
        recorder.warm_up(lambda: calls.append("warm"))
        recorded = recorder.record(lambda: 7)
        assert recorded.output == 7
        assert log == [
            ("wait", number, 0), ("on", number, None), ("wait", 0, number), ("record", pool, number)
        ]  # fmt: skip
        recorded.replay()
        assert log == []
    assert calls == ["warm"] * 4


@pytest.mark.parametrize(
    ("kernel", "settings", "words"),
    [
        (TAPED_KERNEL, {}, "CUDA graphs of 256 to 4096 patches"),
        (TAPED_KERNEL, {"max_num_batched_patches": 1000}, "CUDA graphs of 256 to 768 patches"),
        (TAPED_KERNEL, {"encoder_graph_max_patches": 0}, "launched anew (encoder_graph_max_patches=0 and"),
        (TAPED_KERNEL, {"max_num_batched_patches": 99}, "max_num_batched_patches=99 leave none)"),
        (TAPED_KERNEL, {"enforce_eager": True}, "launched anew (enforce_eager)"),
        (TAPED_KERNEL, {"mm_encoder_tp_mode": "weights"}, "CUDA graphs of"),
        (TAPED_KERNEL, {"mm_encoder_tp_mode": "weights", "tensor_parallel_size": 2}, "spread over the ranks)"),
        (TAPED_KERNEL, {"tensor_parallel_size": 2}, "CUDA graphs of"),
        (RUN_BY_RUN, {}, "launched anew (without varlen_attn"),
    ],
)
def test_a_gpu_says_what_it_records(
    qwen2_5_vl: SavedModel, kernel: SegmentKernel, settings: dict[str, Any], words: str
) -> None:
    loaded = load_model(qwen2_5_vl.folder, dtype=torch.float32, device=CPU)
    config = EngineConfig(model="m", **settings)
    chosen = choose_encoder_launch(loaded.model, kernel, loaded.facts.encoder, config, torch.device("cuda"))
    [line] = chosen.lines
    assert words in line
    assert bool(chosen.sizes) == (chosen.tower is not None) == ("CUDA graphs" in line)


def test_a_family_whose_launches_depend_on_its_pictures_is_not_recorded(tmp_path: Path) -> None:
    loaded = load_model(save_mllama(tmp_path).folder, dtype=torch.float32, device=CPU)
    config = EngineConfig(model="m")
    arguments = (loaded.model, TAPED_KERNEL, loaded.facts.encoder, config)
    chosen = choose_encoder_launch(*arguments, torch.device("cuda"))
    assert chosen.lines == (
        "encoder passes: launched anew (what this family's tower computes depends on the tiles of each picture)",
    )
    assert choose_encoder_launch(*arguments, CPU) == EncoderLaunch(None, (), ())


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(UserError, match="encoder_graph_max_patches"):
        EngineConfig(model="m", encoder_graph_max_patches=-1)
