"""The page's application: its files, and what its script asks for, as JSON.

It is for one person on one machine. It answers no other host name than loopback's, so that a page of the web cannot
reach it through a name that it points here, and takes JSON alone, which such a page may not send.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp import http_exceptions, web

from cli.collector import Collector
from cli.web.asking import Asking, error_as_json
from cli.web.live import live
from cli.web.shelf import Shelf
from genrec.errors import GenrecError, InputError

FILES = ("page.css", "page.js", "common.js", "live.js", "waterfall.js")
STATIC = Path(__file__).resolve().parent / "static"
HOSTS = ("127.0.0.1", "localhost")
MOST_BYTES = 2 << 20  # of a request: the longest history that a server takes
MOST_OF_URL = 8190
# Of a body: bytes or words that are no JSON, a character set that nobody knows, brackets without end, a bad gzip.
BAD_BODY = (ValueError, LookupError, RecursionError, web.RequestPayloadError)
UNREADABLE = (http_exceptions.HttpProcessingError, web.RequestPayloadError)
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
log = logging.getLogger("genrec.web")


@dataclass(frozen=True)
class Page:
    """What the page is about: the server, host:port of HTTP and of the metrics ("": unknown), and its artifact."""

    name: str
    http_url: str
    metrics_url: str
    decoders: tuple[str, ...]
    shelf: Shelf
    collector: Collector | None


def application(page: Page) -> web.Application:
    """The application, to be run on loopback."""
    log.addFilter(_in_one_line)
    # Of a longer line aiohttp says that the request is bad, as of one that is no HTTP
    reading = {"logger": log, "max_line_size": MOST_BYTES}
    app = web.Application(middlewares=[_guard], client_max_size=MOST_BYTES, handler_args=reading)
    views = _Views(page)
    app.cleanup_ctx.append(views.connected)
    app.router.add_routes(
        [
            web.get("/", _file(STATIC / "page.html")),
            *(web.get(f"/{name}", _file(STATIC / name)) for name in FILES),
        ]
    )
    app.router.add_get("/api/about", views.about)
    app.router.add_get("/api/titles", views.titles)
    app.router.add_get("/api/user", views.user)
    app.router.add_get("/api/way", views.way)
    app.router.add_get("/api/live", views.live)
    app.router.add_post("/api/recommend", views.recommend)
    return app


def _in_one_line(record: logging.LogRecord) -> bool:
    """aiohttp logs a traceback for a request that is none, which it has answered with 400."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, UNREADABLE):
        record.msg = " ".join(f"a request is refused: {error}".split())
        record.args, record.exc_info = (), None
    return True


class _Views:
    def __init__(self, page: Page) -> None:
        self._page = page

    async def connected(self, app: web.Application) -> AsyncIterator[None]:
        page = self._page
        self._asking = Asking(page.http_url, page.decoders, page.shelf, page.collector)
        self._session = aiohttp.ClientSession()
        yield
        await self._session.close()
        await self._asking.close()

    async def about(self, request: web.Request) -> web.Response:
        page, shelf = self._page, self._page.shelf
        about = {"name": page.name, "items": shelf.items, "users": shelf.users, "titles": shelf.has_titles}
        about["groups"] = shelf.groups
        return web.json_response(
            {**about, "metrics": bool(page.metrics_url), "traced": page.collector is not None}
        )

    async def titles(self, request: web.Request) -> web.Response:
        return web.json_response(self._page.shelf.search(request.query.get("typed", "")))

    async def user(self, request: web.Request) -> web.Response:
        return web.json_response(self._page.shelf.user(request.query.get("id", "").strip()))

    async def recommend(self, request: web.Request) -> web.Response:
        if request.content_type != "application/json":
            raise InputError("request", f"is {request.content_type}", "application/json")
        try:
            body = await request.json()
        except BAD_BODY as error:
            raise InputError("request", f"is no JSON: {error}", "JSON as the page sends it") from error
        return web.json_response(await self._asking.answers(body))

    async def way(self, request: web.Request) -> web.Response:
        return web.json_response(await self._asking.way(request.query.get("trace", "")))

    async def live(self, request: web.Request) -> web.Response:
        if not self._page.metrics_url:
            raise InputError("metrics", "are not known", "a server.json instead of host:port")
        return web.json_response(await live(self._session, self._page.metrics_url))


@web.middleware
async def _guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    if _host_of(request) not in HOSTS:
        return web.Response(status=403, text=f"this page is at {' and '.join(HOSTS)} alone\n")
    if (length := len(request.raw_path)) > MOST_OF_URL:
        return web.Response(status=414, text=f"the URL has {length} characters, more than {MOST_OF_URL}\n")
    try:
        response = await handler(request)
    except GenrecError as error:
        status = 400 if isinstance(error, InputError) else 500
        response = web.json_response({"error": error_as_json(error)}, status=status)
    response.headers.update(HEADERS)
    return response


def _host_of(request: web.Request) -> str | None:
    """By which name the page is asked for; None of one with a port that is none."""
    try:
        return request.url.host
    except ValueError:
        return None


def _file(path: Path) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.FileResponse(path)

    return answer
