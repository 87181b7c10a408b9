"""How fast the encoder is on this machine: measured once, then read from a file of the user's cache folder."""

from __future__ import annotations

import contextlib
import os
import platform
from importlib.metadata import version
from pathlib import Path

import blake3
import msgspec

from chiasm.config.engine import EngineConfig
from chiasm.dist.cores import num_usable_cores
from chiasm.engine.executor.base import Executor
from chiasm.logs import get_logger
from chiasm.schema.facts import EncoderRates
from chiasm.schema.wire import RankInfo

_log = get_logger(__name__)
_FORMAT = "3"  # counts up when rates come to mean something else


def encoder_rates(config: EngineConfig, info: RankInfo, executor: Executor) -> EncoderRates:
    """The rates of a loaded tower; the ranks measure them if no earlier start on such a machine has.

    The file's name covers all that speed depends on: the tower's shape, device, dtype, kernels and graphs,
    ranks and their threads, how the weights are spread, the machine and torch. A file that can't be read or written
    costs a measurement, no more.
    """
    name = f"encoder-{_fingerprint(config, info)}.json"
    with contextlib.suppress(OSError, RuntimeError, msgspec.DecodeError):  # RuntimeError: there is no home folder
        rates = msgspec.json.decode((cache_folder() / name).read_bytes(), type=EncoderRates)
        if rates.are_sane:
            return rates
    rates = executor.measure_encoder()
    try:
        _replace(cache_folder() / name, msgspec.json.encode(rates))
    except (OSError, RuntimeError) as error:
        _log.warning("the encoder's rates can't be kept for the next start: %s", error)
    return rates


def cache_folder() -> Path:
    """``$CHIASM_CACHE``, or ``chiasm`` in ``$XDG_CACHE_HOME`` or ``~/.cache``.

    Raises:
        RuntimeError: if none of them is known.
    """
    own = os.environ.get("CHIASM_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "chiasm"


def _fingerprint(config: EngineConfig, info: RankInfo) -> str:
    parts = (
        _FORMAT,
        msgspec.json.encode(info.facts.encoder).decode(),
        info.device.partition(" (")[0],  # without the reason for it
        info.dtype.partition(" (")[0],
        info.kernels,
        config.tensor_parallel_size,
        config.mm_encoder_tp_mode == "weights",
        os.environ.get("OMP_NUM_THREADS"),
        num_usable_cores(),
        platform.node(),
        platform.processor(),
        version("torch"),
    )
    return blake3.blake3(repr(parts).encode()).hexdigest(16)


def _replace(file: Path, content: bytes) -> None:
    """Write a file so that others see all of it or nothing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(f".{os.getpid()}")
    new.write_bytes(content)
    new.replace(file)
