"""``docs/security.md`` and the tests say the same: a threat has tests that name it, and what they name is a row."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

_TESTS = Path(__file__).parents[1]
_TABLE = re.compile(r"^\| (?!threat |-)(.+) \|$", re.M)
_ID = re.compile(r"CVE-\d{4}-\d+|GHSA(?:-[0-9a-z]{4}){3}|vLLM (?:PR|issue) \d+")
_NAMED = re.compile(r"Threat: ([^(.:]+?)(?: \(([^)]*)\))?[.:]")


class Threat(NamedTuple):
    """A row of the table.

    Attributes:
        name: of the threat.
        ids: of advisories.
        default: what is done against it.
        flags: that change this.
        tests: ``file::function``, below ``tests``.
    """

    name: str
    ids: frozenset[str]
    default: str
    flags: str
    tests: tuple[str, ...]


class Mention(NamedTuple):
    """A test that names a threat.

    Attributes:
        threat: its name.
        ids: that are named with it.
        test: ``file::function``.
    """

    threat: str
    ids: frozenset[str]
    test: str


def _rows() -> list[Threat]:
    text = (_TESTS.parent / "docs" / "security.md").read_text("utf-8")
    found = []
    for row in _TABLE.findall(text):
        name, ids, default, flags, tests = (cell.strip() for cell in row.split("|"))
        found.append(Threat(name, frozenset(_ID.findall(ids)), default, flags, tuple(re.findall(r"`(\S+)`", tests))))
    return found


def _mentions() -> list[Mention]:
    found = []
    for path in sorted(_TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                said = " ".join((ast.get_docstring(node) or "").split())
                test = f"{path.relative_to(_TESTS).as_posix()}::{node.name}"
                found += [Mention(threat, frozenset(_ID.findall(ids)), test) for threat, ids in _NAMED.findall(said)]
    return found


ROWS = _rows()
MENTIONS = _mentions()


def test_the_table_is_there() -> None:
    assert len(ROWS) > 30
    assert len({row.name for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_each_threat_has_tests_that_name_it(row: Threat) -> None:
    own = [mention for mention in MENTIONS if mention.threat == row.name]
    assert row.tests
    assert set(row.tests) <= {mention.test for mention in own}, "it is not there, or names another threat"
    named = frozenset().union(*(mention.ids for mention in own))
    assert row.ids <= named, f"no test names {sorted(row.ids - named)}"


def test_each_threat_that_a_test_names_is_in_the_table() -> None:
    listed = {row.name: row.ids for row in ROWS}
    for mention in MENTIONS:
        assert mention.threat in listed, mention
        assert {known for known in mention.ids if not known.startswith("vLLM issue")} <= listed[mention.threat], (
            mention
        )


def test_the_flags_are_there() -> None:
    command = [sys.executable, "-c", "from chiasm.cli.main import main; main()", "serve", "--help"]
    shown = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True, env={**os.environ, "COLUMNS": "250"}
    )
    known = set(re.findall(r"--[a-z-]+", shown.stdout))
    assert "CHIASM_API_KEY" in shown.stdout
    for row in ROWS:
        assert set(re.findall(r"`(--[a-z-]+)`", row.flags)) <= known, row.name
