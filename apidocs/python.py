"""``python.md``: the public classes, and those that they hand out."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args, get_type_hints

import msgspec

import chiasm
from apidocs.docstrings import attributes, parse
from apidocs.markdown import anchor, code, meaning, page, prose, sentence, table
from chiasm.errors import EngineDeadError, UserError
from chiasm.schema.facts import ModelFacts

_INTRO = """`from chiasm import LLM, SamplingParams, StructuredOutputs`; the classes below these come out of them. The
settings of `LLM` are those of [the engine](flags.md#the-engine) and of [media](flags.md#media)."""
_ERRORS = (UserError, EngineDeadError)


def python_page() -> str:
    """The page."""
    public = [getattr(chiasm, name) for name in chiasm.__all__ if isinstance(getattr(chiasm, name), type)]
    handed_out = [kind for kind in _reachable(public) if kind not in public]
    kinds = [*public, *handed_out, *_ERRORS]
    parts = [_INTRO]
    for kind in kinds:
        parts += [f"## {kind.__name__}", *_class(kind, kinds)]
    return page("Python", *parts)


def _reachable(kinds: list[type]) -> list[type]:
    """Classes of ours in the annotations of some, and in those of these, in the order in which they are met."""
    found = list(kinds)
    for kind in found:  # grows meanwhile
        for annotation in _annotations(kind) if kind is not ModelFacts else ():  # its parts are the engine's own
            found += [inner for inner in _ours(annotation) if inner not in found]
    return found


def _annotations(kind: type) -> Iterator[Any]:
    if issubclass(kind, msgspec.Struct):
        yield from get_type_hints(kind).values()
    else:
        for _, member in _members(kind):
            yield from get_type_hints(member).values()


def _ours(annotation: Any) -> Iterator[type]:
    if isinstance(annotation, type) and annotation.__module__.startswith("chiasm."):
        yield annotation
    for inner in get_args(annotation):
        yield from _ours(inner)


def _members(kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Public methods, and the functions behind properties."""
    for name, member in vars(kind).items():
        function = member.fget if isinstance(member, property) else member
        if not name.startswith("_") and inspect.isfunction(function):
            yield name, function


def _class(kind: type, linked: Sequence[type]) -> Iterator[str]:
    described = parse(kind.__doc__)
    yield prose(described.text)
    if issubclass(kind, msgspec.Struct):
        yield _fields(kind, linked)
    elif not issubclass(kind, Exception):
        yield f"```python\n{_signature(kind.__name__, kind.__init__)}\n```"
        yield table(("argument", "meaning"), _described(described.entries("Args")))
    else:
        yield table(("attribute", "meaning"), _described(described.entries("Attributes")))
    yield from _raises(described.entries("Raises"))
    for name, function in _members(kind):
        yield from _member(kind, name, function)


def _member(kind: type, name: str, function: Callable[..., Any]) -> Iterator[str]:
    described = parse(function.__doc__)
    is_property = isinstance(vars(kind)[name], property)
    returned = inspect.signature(function).return_annotation
    yield f"### {kind.__name__}.{name}"
    yield f"```python\n{f'{name}: {returned}' if is_property else _signature(name, function)}\n```"
    yield prose(described.text)
    yield table(("argument", "meaning"), _described(described.entries("Args"))) if described.entries("Args") else ""
    yield "".join(f"Returns: {sentence(text)}" for text in described.entries("Returns").values())
    yield from _raises(described.entries("Raises"))


def _fields(kind: type[msgspec.Struct], linked: Sequence[type]) -> str:
    texts, hints = attributes(kind), get_type_hints(kind)
    rows = []
    for field in msgspec.structs.fields(kind):
        shown = code(_written(kind, field.name))
        targets = [inner for inner in _ours(hints[field.name]) if inner in linked]
        if len(targets) == 1:
            shown = f"[{shown}]({anchor(targets[0].__name__)})"
        rows.append((code(field.name), shown, _default(field), meaning(texts.get(field.name, ""))))
    return table(("field", "type", "default", "meaning"), rows)


def _written(kind: type, name: str) -> str:
    """A field's annotation as it stands in the code."""
    return str(next(base.__annotations__[name] for base in kind.__mro__ if name in inspect.get_annotations(base)))


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default_factory is not msgspec.NODEFAULT:
        return code(repr(field.default_factory()))
    return "" if field.default is msgspec.NODEFAULT else code(repr(field.default))


def _signature(name: str, function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    shown, is_keyword = [], False
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword:
            shown.append("*")
            is_keyword = True
        stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        shown.append(f"{stars}{parameter.name}: {parameter.annotation}{default}")
    returned = "" if name[0].isupper() else f" -> {signature.return_annotation}"
    line = f"{name}({', '.join(shown)}){returned}"
    if len(line) <= 100:
        return line
    return "\n".join([f"{name}(", *(f"    {text}," for text in shown), f"){returned}"])


def _described(entries: dict[str, str]) -> list[tuple[str, str]]:
    return [(code(name), meaning(text)) for name, text in entries.items()]


def _raises(entries: dict[str, str]) -> Iterator[str]:
    for name, text in entries.items():
        yield f"Raises [{name}]({anchor(name)}) {sentence(text)}"
