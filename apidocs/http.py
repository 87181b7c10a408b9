"""``http.md``: endpoints and fields of their bodies, from what a server gives at ``/openapi.json``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import httpx2
import msgspec
from pydantic import BaseModel

from apidocs.docstrings import attributes, parse
from apidocs.markdown import anchor, code, meaning, page, prose, table
from apidocs.schemas import limit_of, type_of
from chiasm.config.server import ServerConfig
from chiasm.schema.sampling import SamplingParams
from chiasm.server import ranks
from chiasm.server.app import create_app
from chiasm.server.middleware import OPEN_PATHS
from chiasm.server.state import ServerState

_INTRO = """What clients post and get; `GET /openapi.json` has it for programs. How the endpoints behave is told in
[serving.md](../serving.md), [tools.md](../tools.md) and [structured-outputs.md](../structured-outputs.md).

- With `--api-key`, requests bring `Authorization: Bearer KEY`; {open_paths} need none.
- Every answer has an `X-Request-Id`: the client's, or one of ours.
- Fields that are left out or null take the default. Where none is given here, it is the checkpoint's or the server's.
- Unknown fields are ignored, with a line in the log; those that are known and not served are refused by name."""
_ANSWERS = "The bodies of answers and the events of streams."

Schema = Mapping[str, Any]
Kind = TypeVar("Kind")


def http_page() -> str:
    """The page."""
    operations = {
        f"{method.upper()} {path}": operation
        for path, methods in openapi_document()["paths"].items()
        for method, operation in methods.items()
    }
    homes = {model: name for name, operation in operations.items() for model, _ in _bodies(operation) if model}
    shared: dict[type[BaseModel], Schema] = {}
    for operation in operations.values():
        for model, _ in _bodies(operation):
            # Its own schema: who is derived from it may give a field another limit.
            shared |= {base: base.model_json_schema() for base in _bases(model) if base not in homes}
    parts = [_INTRO.format(open_paths=", ".join(code(path) for path in sorted(OPEN_PATHS)))]
    for name, operation in operations.items():
        parts += [f"## {name}", *_operation(operation, homes)]
    for kind, schema in shared.items():
        parts += [f"## {kind.__name__}", prose(parse(kind.__doc__).text), _fields(_own(kind), schema, kind)]
    parts += ["## Answers", _ANSWERS]
    for struct in _answer_structs():
        parts += [f"### {struct.__name__}", prose(parse(struct.__doc__).text), _answer_fields(struct)]
    return page("HTTP", *parts)


def openapi_document() -> dict[str, Any]:
    """What a server answers at ``/openapi.json``."""
    # Of a server's state, making the routes reads the settings only; the engine is asked by requests.
    state = cast(ServerState, SimpleNamespace(config=ServerConfig(model="MODEL"), tracing=None))
    transport = httpx2.ASGITransport(create_app(state))

    async def ask() -> Any:
        async with httpx2.AsyncClient(transport=transport, base_url="http://server") as client:
            return (await client.get("/openapi.json")).json()

    return cast(dict[str, Any], asyncio.run(ask()))


def undescribed_fields() -> list[str]:
    """Fields of requests of which the code says nothing, as ``MODEL.field``."""
    return [f"{kind.__name__}.{name}" for kind in _models() for name in _own(kind) if not _text(kind, name)]


def _models() -> list[type[BaseModel]]:
    return [kind for kind in _below(BaseModel) if kind.__module__.startswith("chiasm.server.")]


def _below(kind: type[Kind]) -> Iterator[type[Kind]]:
    for inner in kind.__subclasses__():
        yield inner
        yield from _below(inner)


def _bases(model: type[BaseModel] | None) -> list[type[BaseModel]]:
    """Those of our models that a model is derived from."""
    return [base for base in model.__mro__[1:] if base in _models()] if model else []


def _bodies(operation: Schema) -> Iterator[tuple[type[BaseModel] | None, Schema]]:
    """The forms that an operation's body may have: the model of each, if it has one, and its schema."""
    content = operation.get("requestBody", {"content": {}})["content"]
    schema = content.get("application/json", {}).get("schema")
    models = {kind.__name__: kind for kind in _models()}
    for form in schema.get("anyOf", schema.get("oneOf", [schema])) if schema else ():
        yield models.get(form.get("title", "")), form


def _operation(operation: Schema, homes: Mapping[type[BaseModel], str]) -> Iterator[str]:
    yield prose(operation.get("description", operation["summary"]))
    if parameters := operation.get("parameters"):
        rows = [(code(one["name"]), one["in"], type_of(one["schema"])) for one in parameters]
        yield table(("parameter", "in", "type"), rows)
    bodies = list(_bodies(operation))
    for model, schema in bodies:
        if model and len(bodies) > 1:
            yield f"**{model.__name__}**: {prose(parse(model.__doc__).text)}"
        names = _own(model) if model else list(schema.get("properties", ()))
        yield _fields(names, schema, model) if names else ""
        links = [f"[{base.__name__}]({anchor(homes.get(base, base.__name__))})" for base in _bases(model)]
        yield f"It also takes the fields of {' and '.join(links)}." if links else ""
    rows = [(status, one["description"], _answer_link(one)) for status, one in operation["responses"].items()]
    yield table(("status", "when", "body"), rows)


def _answer_link(response: Schema) -> str:
    """The bodies of an answer, where its schemas name them: whole, and of an event of a stream."""
    contents = response.get("content", {}).values()
    schemas = [content[key] for content in contents for key in ("schema", "x-event-schema") if key in content]
    return ", ".join(f"[{name}]({anchor(name)})" for schema in schemas if (name := schema.get("title")))


def _own(kind: type[BaseModel]) -> list[str]:
    """The fields that a model adds to those that it is derived from."""
    return [name for name in kind.model_fields if name in vars(kind).get("__annotations__", {})]


def _fields(names: Sequence[str], schema: Schema, model: type[BaseModel] | None) -> str:
    rows = []
    for name in names:
        field = schema["properties"][name]
        text = _text(model, name) if model else field.get("description", "")
        default = "required" if name in schema.get("required", ()) else _default(model, name, field)
        rows.append((code(name), type_of(field), default, limit_of(field), meaning(text)))
    return table(("field", "type", "default", "limit", "meaning"), rows)


def _text(model: type[BaseModel], name: str) -> str:
    """What is said of a field: by its model, or by the decoding parameter of that name."""
    own = attributes(model).get(name) or model.model_fields[name].description
    return own or attributes(SamplingParams).get(name, "")


def _default(model: type[BaseModel] | None, name: str, field: Schema) -> str:
    default = field.get("default")
    if model is not None and name not in attributes(model) and name in SamplingParams.__struct_fields__:
        default = next(one.default for one in msgspec.structs.fields(SamplingParams) if one.name == name)
    return "" if default in (None, [], {}, ()) else code(msgspec.json.encode(default).decode())


def _answer_structs() -> list[type[msgspec.Struct]]:
    """Every public struct of the server but those of the page's feed, whose form may change at any time."""
    kinds = [kind for kind in _below(msgspec.Struct) if kind.__module__.startswith("chiasm.server.")]
    public = [kind for kind in kinds if kind.__name__[0] != "_" and kind.__module__ != ranks.__name__]
    return sorted(public, key=lambda kind: kind.__module__)


def _answer_fields(kind: type[msgspec.Struct]) -> str:
    texts = attributes(kind)
    schema = msgspec.json.schema_components((kind,))[1][kind.__name__]
    rows = []
    for name, field in schema["properties"].items():
        value = "" if name in schema["required"] or "default" in field else "may be missing"
        if isinstance(field.get("default"), str):
            value = code(msgspec.json.encode(field["default"]).decode())
        rows.append((code(name), type_of(field, has_null=True), value, meaning(texts.get(name, ""))))
    return table(("field", "type", "value", "meaning"), rows)
