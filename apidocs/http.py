"""``http.md``: endpoints and fields of their bodies, from what a server gives at ``/openapi.json``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast, get_type_hints

import httpx2
import msgspec
from pydantic import BaseModel

from apidocs.docstrings import attributes, parse
from apidocs.markdown import anchor, code, meaning, page, prose, table
from apidocs.schemas import limit_of, type_of
from chiasm.config.server import ServerConfig
from chiasm.schema.sampling import SamplingParams
from chiasm.server.app import create_app
from chiasm.server.errors import ErrorBody, ErrorInfo
from chiasm.server.middleware import OPEN_PATHS
from chiasm.server.state import ServerState

_INTRO = """What clients post and get. How the endpoints behave is told in [serving.md](../serving.md),
[tools.md](../tools.md) and [structured-outputs.md](../structured-outputs.md). `GET /openapi.json` gives OpenAPI's form
of this page.

- With `--api-key`, requests bring `Authorization: Bearer KEY`; {open_paths} need none.
- Every answer has an `X-Request-Id`: the client's, or one of ours.
- Fields that are left out or null take the default. Where none is given here, it is the checkpoint's or the server's.
- Unknown fields are ignored, with a line in the log; those that are known and not served are refused by name."""
_ANSWERS = "The bodies of answers and the events of streams."

Models = Mapping[str, type[BaseModel]]


def http_page() -> str:
    """The page."""
    document = openapi_document()
    models = {kind.__name__: kind for kind in _below(BaseModel) if kind.__module__.startswith("chiasm.server.")}
    operations = [
        (f"{method.upper()} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    parts = [_INTRO.format(open_paths=", ".join(code(path) for path in sorted(OPEN_PATHS)))]
    shared: dict[type[BaseModel], dict[str, Any]] = {}
    for name, operation in operations:
        parts += [f"## {name}", *_operation(operation, models, shared)]
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
    models = [kind for kind in _below(BaseModel) if kind.__module__.startswith("chiasm.server.")]
    return [f"{kind.__name__}.{name}" for kind in models for name in _own(kind) if not _text(kind, name)]


def _below(kind: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for inner in kind.__subclasses__():
        yield inner
        yield from _below(inner)


def _operation(
    operation: Mapping[str, Any], models: Models, shared: dict[type[BaseModel], dict[str, Any]]
) -> Iterator[str]:
    yield prose(operation.get("description", operation["summary"]))
    if parameters := operation.get("parameters"):
        rows = [(code(one["name"]), one["in"], type_of(one["schema"])) for one in parameters]
        yield table(("parameter", "in", "type"), rows)
    body = operation.get("requestBody")
    if body is None:
        return
    schema = body["content"]["application/json"]["schema"]
    model = models.get(schema.get("title", ""))
    if model is None:
        yield _fields(schema["properties"], schema, None)
        return
    yield _fields(_own(model), schema, model)
    for base in model.__mro__[1:]:
        if base in models.values():
            shared.setdefault(base, schema)
            yield f"It also takes the fields of [{base.__name__}]({anchor(base.__name__)})."


def _own(kind: type[BaseModel]) -> list[str]:
    """The fields that a model adds to those that it is derived from."""
    return [name for name in kind.model_fields if name in vars(kind).get("__annotations__", {})]


def _fields(names: Sequence[str], schema: Mapping[str, Any], model: type[BaseModel] | None) -> str:
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


def _default(model: type[BaseModel] | None, name: str, field: Mapping[str, Any]) -> str:
    default = field.get("default")
    if model is not None and name not in attributes(model) and name in SamplingParams.__struct_fields__:
        default = next(one.default for one in msgspec.structs.fields(SamplingParams) if one.name == name)
    return "" if default in (None, [], {}, ()) else code(msgspec.json.encode(default).decode())


def _answer_structs() -> list[type[msgspec.Struct]]:
    """Every public struct in the modules that have those of answers, in their order."""
    names = sorted({kind.__module__ for kind in msgspec.Struct.__subclasses__()})
    modules = [name for name in names if name.startswith("chiasm.server.") and "responses" in name]
    kinds = [kind for kind in msgspec.Struct.__subclasses__() if kind.__module__ in modules]
    return [*(kind for kind in kinds if kind.__name__[0] != "_"), ErrorBody, ErrorInfo]


def _answer_fields(kind: type[msgspec.Struct]) -> str:
    texts, hints = attributes(kind), get_type_hints(kind)
    components = msgspec.json.schema_components((kind,))[1]
    properties = components[kind.__name__]["properties"]
    rows = []
    for field in msgspec.structs.fields(kind):
        schema = properties[field.encode_name]
        shown = type_of(schema, has_null=True)
        missing = "may be missing" if msgspec.UnsetType in getattr(hints[field.name], "__args__", ()) else ""
        default = code(msgspec.json.encode(field.default).decode()) if isinstance(field.default, str) else missing
        rows.append((code(field.encode_name), shown, default, meaning(texts.get(field.name, ""))))
    return table(("field", "type", "value", "meaning"), rows)
