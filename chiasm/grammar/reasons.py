"""What llguidance says is wrong with a form, in words for those who wrote it."""

from __future__ import annotations

import re

_MAX_CHARS = 300
_EXCERPT = re.compile(r"\n +\d+ \| ")  # lines of the grammar around the fault
_POSITION = re.compile(r"(?:at )?(\d+)\((\d+)\): ")
_REFERENCE = re.compile(r"Resource '(.*)' is not present in a registry", re.DOTALL)
_IN_SCHEMA = "failed to compile JSON schema: "
_IN_EXPRESSION = "regex parse error:\n"


def reason_for_user(said: str, *, has_lines: bool) -> str:
    """One short line.

    Args:
        said: by llguidance.
        has_lines: whether the user wrote the grammar, so that its lines mean something.
    """
    said = _EXCERPT.split(said, maxsplit=1)[0]
    where = ""
    position = _POSITION.match(said)
    if position is not None:
        said = said[position.end() :]
        where = f"line {position[1]}, column {position[2]}: " if has_lines else ""
    return one_line(where + _meaning(said.removeprefix(_IN_SCHEMA)))


def _meaning(said: str) -> str:
    if "NoExtensionBias" in said:
        return "there is no text of this form"
    if "fuel exhausted" in said:
        return "it takes too much work"
    reference = _REFERENCE.match(said)
    if reference is not None:
        return f"$ref {reference[1][:200]} leads out of the schema, where nothing is read"
    if _IN_EXPRESSION in said:
        return "invalid regular expression: " + said.rpartition("\nerror: ")[2]
    return said.partition("; following ")[0].replace("<non-verbose/>", "")


def one_line(text: str) -> str:
    """The beginning of a text, without what isn't printable or would begin another line."""
    shown = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * _MAX_CHARS]).split())
    return shown[:_MAX_CHARS].rstrip(" .")
