"""The page at ``/``, where a person asks the model and sees the ranks work: a few files, no other origin."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files

from fastapi import APIRouter
from starlette.responses import Response

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob: data:",
        "media-src 'self' blob: data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",  # no text of the model can become markup, even by a slip of ours
    )
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_FILES: Mapping[str, str] = {
    "/": "index.html",
    "/ui/page.css": "page.css",
    "/ui/icon.svg": "icon.svg",
    "/ui/main.js": "main.js",
    "/ui/chat.js": "chat.js",
    "/ui/conversation.js": "conversation.js",
    "/ui/events.js": "events.js",
    "/ui/markdown.js": "markdown.js",
    "/ui/media.js": "media.js",
    "/ui/ranks.js": "ranks.js",
}

PAGE_PATHS = frozenset(_FILES)
"""What a browser gets without a key; it asks for one."""


def page_router() -> APIRouter:
    """The page's files, read once."""
    router = APIRouter(include_in_schema=False)
    folder = files("chiasm.server") / "ui"
    for path, name in _FILES.items():
        media_type = _TYPES[name.rpartition(".")[2]]
        _add(router, path, (folder / name).read_bytes(), media_type)
    return router


def _add(router: APIRouter, path: str, content: bytes, media_type: str) -> None:
    @router.get(path)
    async def send() -> Response:
        return Response(content, headers=_HEADERS, media_type=media_type)
