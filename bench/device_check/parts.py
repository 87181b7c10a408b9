"""The parts of a check, the most important first: those that come later may not be reached."""

from __future__ import annotations

from typing import NamedTuple

_HERE = "bench.device_check"
_FAMILIES = ("qwen3_vl_moe", "qwen2_5_vl", "llama4", "mllama", "glm4v", "glm4v_moe", "qwen2_vl")


class Part(NamedTuple):
    """What runs in a process of its own.

    Attributes:
        name: for ``--only``.
        function: "module:function", called with a ``Probe`` and the arguments.
        arguments: further ones.
        seconds: after which it counts as hung, on a GPU.
    """

    name: str
    function: str
    arguments: tuple[str, ...] = ()
    seconds: float = 60.0


def _family(name: str) -> Part:
    return Part(name, f"{_HERE}.families:check_family", (name,))


PARTS = (
    Part("machine", f"{_HERE}.machine:check_machine"),
    _family("qwen3_vl"),
    Part("speed", f"{_HERE}.text_speed:measure_text", seconds=120.0),
    Part("tower", f"{_HERE}.tower_speed:measure_tower", seconds=90.0),
    Part("attention", f"{_HERE}.attention:check_attention", seconds=120.0),
    Part("sampling", f"{_HERE}.sampling:check_sampling"),
    Part("experts", f"{_HERE}.experts:check_experts"),
    *map(_family, _FAMILIES),
    Part("ranks", f"{_HERE}.ranks:check_ranks", seconds=90.0),
)
