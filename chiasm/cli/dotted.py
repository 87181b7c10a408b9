"""Dotted options: ``--limit-mm-per-prompt.image 4`` for ``--limit-mm-per-prompt '{"image": 4}'``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from chiasm.errors import UserError

_DOTTED = re.compile(r"(--(?:limit[-_]mm[-_]per[-_]prompt|mm[-_]processor[-_]kwargs))\.([^=]+)(?:=(.*))?", re.DOTALL)


def join_dotted(arguments: Sequence[str]) -> list[str]:
    """The same command line with the keys of each dotted option gathered in one JSON value, after the command's name.

    Raises:
        UserError: if an option is given both ways, or a key has no value.
    """
    plain: list[str] = []
    gathered: dict[str, dict[str, object]] = {}
    rest = iter(arguments)
    for argument in rest:
        match = _DOTTED.fullmatch(argument)
        if argument == "--":
            plain += [argument, *rest]
        elif match is None:
            plain.append(argument)
        else:
            option = match[1].replace("_", "-")
            gathered.setdefault(option, {})[match[2]] = _value(match, rest)
    for option in gathered:
        if any(argument.partition("=")[0].replace("_", "-") == option for argument in plain):
            raise UserError(f"{option} is given both whole and by dotted keys.", param=option)
    joined = [text for option, value in gathered.items() for text in (option, json.dumps(value))]
    return [*plain[:1], *joined, *plain[1:]]


def _value(match: re.Match[str], rest: Iterator[str]) -> object:
    text = match[3] if match[3] is not None else next(rest, None)
    if text is None:
        raise UserError(f"{match[0]} needs a value.", param=match[1])
    try:
        return json.loads(text)
    except ValueError:
        return text
