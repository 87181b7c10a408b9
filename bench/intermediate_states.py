"""Peak memory and copied bytes of gathering intermediate states of a tower: one tensor against stacking.

python -m bench.intermediate_states [--rows 6432] [--dtype bfloat16]

The sizes are those of Llama 3.2 Vision's tower; a layer is an addition, so that only the states themselves count.
Each form runs in a process of its own, whose highest resident memory is read from Linux.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_WIDTH, _NUM_LAYERS, _ASKED = 1280, 32, (3, 7, 15, 23, 30)
_COPYING = ("aten::copy_", "aten::cat", "aten::stack", "aten::clone", "aten::_to_copy")


def one_tensor(x: Tensor) -> Tensor:
    """As ``chiasm.models.mllama`` does it: each state goes where it belongs when its layer has run."""
    states = x.new_empty(x.shape[0], _WIDTH * (1 + len(_ASKED)))
    last, inner = states.split([_WIDTH, _WIDTH * len(_ASKED)], dim=1)
    by_layer = inner.unflatten(1, (_WIDTH, len(_ASKED)))
    for index in range(_NUM_LAYERS):
        x = x + 1
        if index in _ASKED:
            by_layer[..., _ASKED.index(index)] = x
    last.copy_(x)
    return states


def asked_states_stacked(x: Tensor) -> Tensor:
    """A list of the states that are asked for, stacked and joined to the last one."""
    kept = []
    for index in range(_NUM_LAYERS):
        x = x + 1
        if index in _ASKED:
            kept.append(x)
    return torch.cat([x, torch.stack(kept, dim=-1).flatten(1)], dim=1)


def all_states_stacked(x: Tensor) -> Tensor:
    """A tuple of the states of all layers, of which those that are asked for are stacked, as in transformers."""
    kept: tuple[Tensor, ...] = ()
    for _ in range(_NUM_LAYERS):
        x = x + 1
        kept = (*kept, x)
    return torch.cat([x, torch.stack([kept[index] for index in _ASKED], dim=-1).flatten(1)], dim=1)


FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    form.__name__: form for form in (one_tensor, asked_states_stacked, all_states_stacked)
}


class _CopyCounter(TorchDispatchMode):
    """Counts the bytes that operators which only move values write."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.name().split(".")[0] in _COPYING:
            self.num_bytes += out.nbytes
        return out


class Result(msgspec.Struct):
    """Bytes of one form."""

    peak: int
    copied: int


def peak_memory() -> int:
    """Highest resident bytes of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def run(form: str, rows: int, dtype: torch.dtype) -> Result:
    """Gather once; what was resident before, the input among it, is taken off the peak."""
    x = torch.ones(rows, _WIDTH, dtype=dtype)
    with _CopyCounter() as counter:  # loads what it needs
        FORMS[form](x[:8])
        counter.num_bytes = 0
        before = peak_memory()
        states = FORMS[form](x)
    assert states[0, _WIDTH :: len(_ASKED)][0] == _ASKED[0] + 2
    return Result(peak_memory() - before, counter.num_bytes)


def main() -> None:
    """Print a row for each form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=6432, help="of a picture, all tiles and padding")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--form", choices=FORMS, help="only this one, as JSON")
    options = parser.parse_args()
    if options.form:
        print(msgspec.json.encode(run(options.form, options.rows, getattr(torch, options.dtype))).decode())
        return
    size = options.rows * _WIDTH * (1 + len(_ASKED)) * getattr(torch, options.dtype).itemsize
    print(f"the result has {size / 2**20:.1f} MiB")
    print("| form | peak, MiB | copied, MiB |")
    print("|---|---|---|")
    for form in FORMS:
        line = [sys.executable, __file__, "--form", form, "--rows", str(options.rows), "--dtype", options.dtype]
        result = msgspec.json.decode(subprocess.run(line, check=True, capture_output=True).stdout, type=Result)
        print(f"| {form.replace('_', ' ')} | {result.peak / 2**20:.1f} | {result.copied / 2**20:.1f} |")


if __name__ == "__main__":
    main()
