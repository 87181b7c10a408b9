"""Tables for operators hold against the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from chiasm.cli.main import app
from chiasm.errors import UserError
from chiasm.layers.shards import check_text_heads
from chiasm.server.requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    ResponsesRequest,
    TokenizeChatRequest,
    TokenizeTextRequest,
)
from chiasm.server.unserved import UNSERVED, WITHOUT_EFFECT, refuse_unserved_fields
from tests.server.vllm_fields import FIELDS

_DOCS = Path(__file__).parents[2] / "docs"
_FLAG = re.compile(r"`(--?[\w-]+)`")


def rows(page: str, heading: str, level: int = 2, *, after: str = "") -> list[list[str]]:
    """The cells of all tables below a heading, and behind the line ``after``, without their heads."""
    text = (_DOCS / page).read_text(encoding="utf-8")
    [part] = re.findall(rf"^{'#' * level} {heading}\n(.*?)(?=^#{{1,{level}}} |\Z)", text, re.M | re.S)
    part = part[part.index(after) :]
    found = [line.strip("|").split("|") for line in part.splitlines() if line.startswith("| ")]
    lines = [
        [cell.strip() for cell in row]
        for row in found
        if row[0].strip() not in ("vLLM", "field", "checkpoint", "refused")
    ]
    assert lines
    return lines


def _flags(*names: str) -> set[str]:
    command = typer.main.get_command(app)
    for name in names:
        command = command.commands[name]  # type: ignore[attr-defined]
    return {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}


REFUSED = rows("from-vllm.md", "Requests", after="| refused | harmless |")
FLAGS = _flags("serve")
FLAGS_OF_BENCH = _flags("bench", "serve")


@pytest.mark.parametrize("row", rows("from-vllm.md", "Flags"), ids=lambda row: row[0])
def test_flags_of_vllm(row: list[str]) -> None:
    theirs, here = _FLAG.findall(row[0]), row[1]
    named = set(_FLAG.findall(here))
    assert here in ("same", "no", "always", "`MODEL`") or named
    assert named <= FLAGS
    assert [flag for flag in theirs if (flag in FLAGS) != (here == "same")] == []


@pytest.mark.parametrize("row", rows("from-vllm.md", "Benchmarks"), ids=lambda row: row[0])
def test_flags_of_vllms_benchmark(row: list[str]) -> None:
    theirs, is_same = _FLAG.findall(row[0]), row[1].startswith("same")
    assert is_same or row[1].startswith("no") or "always" in row[1] or _FLAG.findall(row[1])
    assert set(_FLAG.findall(row[1])) <= FLAGS_OF_BENCH
    assert [flag for flag in theirs if (flag in FLAGS_OF_BENCH) != is_same] == []


@pytest.mark.parametrize("row", rows("from-vllm.md", "Environment"), ids=lambda row: row[0])
def test_environment_of_vllm(row: list[str]) -> None:
    assert set(_FLAG.findall(row[1])) <= FLAGS


SERVED = {
    name
    for model in (
        ChatRequest,
        CompletionRequest,
        ResponsesRequest,
        TokenizeChatRequest,
        TokenizeTextRequest,
        DetokenizeRequest,
    )
    for name in model.model_fields
}


@pytest.mark.parametrize("row", rows("from-vllm.md", "Requests"), ids=lambda row: row[0])
def test_fields_of_vllm(row: list[str]) -> None:
    names = [name for name in re.findall(r"`(\w+)`", row[0].partition(": `")[0]) if "part" not in row[0]]
    is_refused = row in REFUSED
    for name in names:
        if name in ("background", "prompt", "echo"):
            continue  # of some endpoints, as tests of the server have it
        if is_refused:
            with pytest.raises(UserError, match=name):
                refuse_unserved_fields({name: 7})
        elif not is_refused:
            assert name in SERVED


def _names(text: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", text))


def test_every_field_that_is_refused_or_without_effect_is_named() -> None:
    page = (_DOCS / "from-vllm.md").read_text(encoding="utf-8")
    assert _names("".join(row[0] for row in REFUSED)) >= UNSERVED - SERVED
    [listed] = re.findall(r"^Without effect, and without a warning: (.*?)\. All other fields", page, re.M | re.S)
    assert _names(listed) == WITHOUT_EFFECT
    told = _names(page) | SERVED
    assert [name for fields in FIELDS.values() for name in fields if name not in told] == []


def test_metrics_of_vllm() -> None:
    page = (_DOCS / "from-vllm.md").read_text(encoding="utf-8")
    kept = re.findall(
        r"`(\w+)`", page[page.index("## Metrics") : page.index("| vLLM | here |", page.index("## Metrics"))]
    )
    renamed = [name for row in rows("from-vllm.md", "Metrics") for name in re.findall(r"`(\w+)`", row[1])]
    known = re.findall(r"^\| `(\w+)`", (_DOCS / "observability.md").read_text(encoding="utf-8"), re.M)
    assert len(kept) > 10
    assert set(kept + renamed) <= set(known)


@pytest.mark.parametrize("row", rows("several-gpus.md", "How many ranks"), ids=lambda row: row[0])
def test_ranks_that_fit(row: list[str]) -> None:
    num_heads, num_kv_heads = map(int, row[1].split(", "))

    def can_share(size: int) -> bool:
        try:
            check_text_heads(num_heads, num_kv_heads, size)
        except UserError:
            return False
        return True

    assert row[2] == ", ".join(str(size) for size in range(1, 17) if can_share(size))
