"""Attention within the segments of a packed batch: run by run, or all in one call of a variable-length kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from chiasm.ops.segments import Run

_MAX_HEAD_DIM = 256
_HEAD_DIM_STEP = 8
_MIN_CAPABILITY = (8, 0)  # of the flash kernels that come with torch
_KERNEL_DTYPES = (torch.float16, torch.bfloat16)


class SegmentKernel(Protocol):
    """How whole segments attend."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, runs: Sequence[Run], scale: float) -> Tensor:
        """Attend within each segment of ``runs``, which follow one another.

        Args:
            q: [n, H, D] of the whole batch, as are ``k`` and ``v``.
            k: keys.
            v: values.
            runs: at least one; they cover the rows from the first one's start to the last one's stop.
            scale: factor of the scores.

        Returns:
            [rows of the runs, H, D].
        """


class RunByRun:
    """A batched call of SDPA for each run of equal segments; for every device, type and head size."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, runs: Sequence[Run], scale: float) -> Tensor:
        """See ``SegmentKernel``."""
        outputs = [_attend_run(q, k, v, run, scale) for run in runs]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


RUN_BY_RUN = RunByRun()


def _attend_run(q: Tensor, k: Tensor, v: Tensor, run: Run, scale: float) -> Tensor:
    # [n, H, D] -> [count, H, length, D], all views
    shape = (run.count, run.length, *q.shape[1:])
    q, k, v = (rows[run.start : run.stop].view(shape).transpose(1, 2) for rows in (q, k, v))
    return attend_padded(q, k, v, run.length - run.num_padding, 0, scale).transpose(1, 2).flatten(0, 1)


def attend_padded(q: Tensor, k: Tensor, v: Tensor, num_core: int, first_row: int, scale: float) -> Tensor:
    """Rows of segments from ``first_row`` on, whose padding begins at row ``num_core``.

    Args:
        q: [count, H, m, D].
        k: [count, H, n, D], of whole segments.
        v: likewise.
        num_core: rows of a segment that are no padding; see ``Run``.
        first_row: where in the segments the queries begin.
        scale: factor of the scores.

    Returns:
        [count, H, m, D].
    """
    num_seeing = min(max(num_core - first_row, 0), q.shape[2])  # all rows
    outputs = []
    if num_seeing:
        outputs.append(F.scaled_dot_product_attention(q[:, :, :num_seeing], k, v, scale=scale))
    if num_seeing < q.shape[2]:
        core = slice(0, num_core)
        outputs.append(
            F.scaled_dot_product_attention(q[:, :, num_seeing:], k[:, :, core], v[:, :, core], scale=scale)
        )
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)


class VarlenOp(Protocol):
    """The contract of ``torch.nn.attention.varlen.varlen_attn`` as far as it is used here."""

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seq_q: Tensor,
        cu_seq_k: Tensor,
        max_q: int,
        max_k: int,
        *,
        scale: float,
    ) -> Tensor:
        """Attend, in both directions, from each segment of queries to its segment of keys.

        Args:
            query: [nq, H, D].
            key: [nk, H, D].
            value: [nk, H, D].
            cu_seq_q: int32 [segments + 1], the first row of each segment of queries, and their end.
            cu_seq_k: int32 [segments + 1], likewise of the keys.
            max_q: rows of the longest segment of queries, or more.
            max_k: of keys, likewise.
            scale: factor of the scores.

        Returns:
            [nq, H, D].
        """


class _Padding(NamedTuple):
    """The padding rows of segments as a batch of their own, with copies of the rows that they see: see ``Run``.

    The kernel of the oldest torch (2.11) always sees all keys of a segment, so those that are seen are copied.

    Attributes:
        rows: LongTensor, where they are, counted from the first segment.
        borders: int32 [segments + 1], where each segment's begin among them.
        longest: most in a segment.
        core_rows: LongTensor, where those are that they see.
        core_borders: int32 [segments + 1], likewise.
        longest_core: likewise.
    """

    rows: Tensor
    borders: Tensor
    longest: int
    core_rows: Tensor
    core_borders: Tensor
    longest_core: int


class PackedSegments(NamedTuple):
    """What a variable-length kernel is told of segments; on its device.

    Attributes:
        borders: int32 [segments + 1], where each segment begins, counted from the first. Some may be empty.
        longest: rows of the longest segment, or more.
        padding: None where no segment has any.
    """

    borders: Tensor
    longest: int
    padding: _Padding | None

    @classmethod
    def of(cls, runs: Sequence[Run], device: torch.device) -> PackedSegments:
        """Describe the segments of these runs, in one copy to the device, or two where there is padding."""
        counts = [run.count for run in runs]
        lengths = np.repeat([run.length for run in runs], counts)
        num_padding = np.repeat([run.num_padding for run in runs], counts)
        borders = _borders(lengths)
        longest = int(lengths.max())
        if not num_padding.any():
            return cls(_to_device(borders, np.int32, device), longest, None)
        num_core = lengths - num_padding
        packed = _to_device(np.concatenate([borders, _borders(num_padding), _borders(num_core)]), np.int32, device)
        own, padding_borders, core_borders = packed.split(len(borders))
        is_padding = np.arange(borders[-1]) >= np.repeat(borders[1:] - num_padding, lengths)
        rows = _to_device(np.argsort(is_padding, kind="stable"), np.int64, device)
        core_rows, padding_rows = rows.split([int(num_core.sum()), int(num_padding.sum())])
        padding = _Padding(
            padding_rows, padding_borders, int(num_padding.max()), core_rows, core_borders, int(num_core.max())
        )
        return cls(own, longest, padding)


_Ints = np.ndarray[tuple[int], np.dtype[np.int64]]


def _borders(lengths: _Ints) -> _Ints:
    """Where segments of these lengths begin, and where the last one ends."""
    return np.concatenate([[0], lengths.cumsum()])


def _to_device(values: _Ints, dtype: type, device: torch.device) -> Tensor:
    tensor = torch.from_numpy(values.astype(dtype))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


class VarlenKernel:
    """All segments in one call; their description is made once, and kept for when segments of these sizes come again.

    Args:
        op: the kernel; it takes head sizes up to 256 that divide by 8, to which others are filled up with zeros.
        device: where the batches are.
    """

    def __init__(self, op: VarlenOp, device: torch.device) -> None:
        self._op = op
        self._describe = lru_cache(maxsize=256)(lambda runs: PackedSegments.of(runs, device))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, runs: Sequence[Run], scale: float) -> Tensor:
        """See ``SegmentKernel``."""
        own = slice(runs[0].start, runs[-1].stop)
        return self.attend_packed(q[own], k[own], v[own], self._describe(tuple(runs)), scale)

    def attend_packed(self, q: Tensor, k: Tensor, v: Tensor, packed: PackedSegments, scale: float) -> Tensor:
        """Attend within segments that are described already: [n, H, D] each -> [n, H, D]."""
        head_dim = q.shape[2]
        q, k, v = (_fill_head(rows) for rows in (q, k, v))
        borders, longest, padding = packed
        out = self._op(q, k, v, borders, borders, longest, longest, scale=scale)
        if padding is not None:
            seen = self._op(
                q[padding.rows], k[padding.core_rows], v[padding.core_rows], padding.borders, padding.core_borders,
                padding.longest, padding.longest_core, scale=scale,
            )  # fmt: skip
            out.index_copy_(0, padding.rows, seen)
        return out[..., :head_dim]


@dataclass(frozen=True)
class FixedBorders:
    """Segments whose borders are in a fixed place; see ``PlacedSegments``.

    Attributes:
        kernel: attends within them.
        borders: int32 [segments + 1], as ``PackedSegments`` has them; written anew for each pass.
        longest: rows that no segment has more of.
        num_rows: of all segments together.
    """

    kernel: VarlenKernel
    borders: Tensor
    longest: int
    num_rows: int

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """See ``PlacedSegments``."""
        return self.kernel.attend_packed(q, k, v, PackedSegments(self.borders, self.longest, None), scale)


def _fill_head(rows: Tensor) -> Tensor:
    """[n, H, D] with zeros up to the next head size that kernels take."""
    missing = -rows.shape[2] % _HEAD_DIM_STEP
    return F.pad(rows, (0, missing)) if missing else rows


class ChosenKernel(NamedTuple):
    """How segments attend, and why, for the start-up lines."""

    kernel: SegmentKernel
    reason: str


def choose_segment_kernel(device: torch.device, dtype: torch.dtype, head_dim: int) -> ChosenKernel:
    """What towers attend with.

    Args:
        device: of the tower.
        dtype: of its activations.
        head_dim: size of its heads.
    """
    missing = _missing_for_varlen(device, dtype, head_dim)
    if missing is not None:
        return ChosenKernel(RUN_BY_RUN, f"a call of SDPA for each run of equal segments ({missing})")
    from torch.nn.attention.varlen import varlen_attn

    filled = "" if head_dim % _HEAD_DIM_STEP == 0 else f", heads of {head_dim} filled up with zeros"
    return ChosenKernel(
        VarlenKernel(varlen_attn, device),  # type: ignore[arg-type]  # its result is a pair only where one is asked for
        f"torch's varlen_attn, all segments in one call{filled}",
    )


def _missing_for_varlen(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    """Why torch's kernel can't be used; None if it can."""
    if device.type != "cuda":
        return f"no variable-length kernel on {device.type}"
    if dtype not in _KERNEL_DTYPES:
        return f"varlen_attn takes float16 and bfloat16, not {str(dtype).removeprefix('torch.')}"
    if head_dim > _MAX_HEAD_DIM:
        return f"varlen_attn takes heads of at most {_MAX_HEAD_DIM} elements, not {head_dim}"
    capability = torch.cuda.get_device_capability(device)
    if capability < _MIN_CAPABILITY:
        return f"varlen_attn needs compute capability 8.0, the GPU has {capability[0]}.{capability[1]}"
    return None
