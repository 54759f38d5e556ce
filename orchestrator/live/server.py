"""The server of `campaign serve`: one user's own page of a store, on this machine alone. It only reads."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from secrets import compare_digest, token_urlsafe
from typing import Any, Final
from urllib.parse import urlencode

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dscampaign.db.errors import AWAY, StoreError
from dscampaign.db.store import Store
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.formatting import clean

from . import documents
from .model import EVENTS, LiveStore

LOOPBACK: Final = "127.0.0.1"
POLL_S: Final = 2.0
_HOSTS: Final = (LOOPBACK, "localhost")
_MOST_IDS: Final = 400
_SEALED: Final = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_ENTER: Final = '<!doctype html><meta http-equiv="refresh" content="0;url=/{}"><title>campaign</title>'
"""Not a redirect: after a link from another site it would come without the cookie, which is strict."""


class _Guard:
    """Lets through what has the token or the cookie that it became; seals every answer."""

    def __init__(self, app: ASGIApp, token: str, cookie: str, first: str | None) -> None:
        self._app, self._token, self._name, self._cookie = app, token, cookie, token_urlsafe(32)
        self._enter = _ENTER.format(f"?{urlencode({'campaign': first})}" if first else "")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _SEALED.items():
                    headers.setdefault(name, value)
            await send(message)

        await (self._refused(Request(scope)) or self._app)(scope, receive, sealed)

    def _refused(self, request: Request) -> Response | None:
        if request.method != "GET":
            return PlainTextResponse("this page only shows", 405)
        if request.url.path == "/" and _same(request.query_params.get("token"), self._token):
            entered = HTMLResponse(self._enter)
            entered.set_cookie(self._name, self._cookie, httponly=True, samesite="strict")
            return entered
        if not _same(request.cookies.get(self._name), self._cookie):
            return PlainTextResponse("open the link that `campaign serve` printed", 403)
        return None


def _same(given: str | None, expected: str) -> bool:
    return given is not None and compare_digest(given.encode(), expected.encode())


class Pages:
    """The answers to requests. Reads happen in threads: a slow store stops no other answer."""

    def __init__(self, live: LiveStore) -> None:
        self._live = live

    def index(self, request: Request) -> Response:
        """The page of a campaign; of all, if none is named and there are several."""
        listed = self._live.campaigns()
        chosen = request.query_params.get("campaign", listed[0].name if len(listed) == 1 else None)
        data: dict[str, Any] = {
            "live": True,
            "home": "/",
            "campaign": chosen,
            "campaigns": documents.campaigns_document(listed),
        }
        if chosen is not None:
            data |= self.news(chosen, 0, 0)
        html, policy = documents.page_of(clean(chosen or "campaigns"), data)
        return HTMLResponse(html, headers={"Content-Security-Policy": f"{policy}; frame-ancestors 'none'"})

    def news(self, campaign: str, since: int, event: int) -> dict[str, Any]:
        """Return what changed in a campaign since a version and an event."""
        changes = self._live.runs(campaign, since)
        events = self._live.events(campaign, event, EVENTS)
        return {**documents.changes_document(changes, events), "head": documents.head_document(changes.status)}

    def draw(self, request: Request) -> Response:
        """Curves, of the rows in sight and of the chart."""
        ids = (
            [int(one) for one in request.query_params.get(name, "").split(",") if one][:_MOST_IDS]
            for name in ("rows", "chart")
        )
        return _json(documents.draw_document(self._live, _campaign(request), *ids))

    def verdict(self, request: Request) -> Response:
        """The answer so far."""
        return _json(documents.verdict_document(self._live, _campaign(request)))

    def run(self, request: Request) -> Response:
        """A run."""
        return _json(documents.run_document(self._live, _campaign(request), int(request.query_params["run"])))

    def log(self, request: Request) -> Response:
        """A part of a log, found as `campaign logs` does: a request names no path."""
        asked = request.query_params
        found = documents.log_document(
            self._live,
            _campaign(request),
            int(asked["run"]),
            rank=int(asked.get("rank", 0)),
            launcher="launcher" in asked,
            attempt=int(asked["attempt"]) if "attempt" in asked else None,
            file=asked.get("file", ""),
            at=int(asked.get("at", 0)),
        )
        return _json(found)

    async def stream(self, request: Request) -> Response:
        """Changes as server-sent events, until the browser leaves."""
        asked = request.query_params
        since = request.headers.get("last-event-id") or f"{asked.get('since', 0)}-{asked.get('event', 0)}"
        version, event = map(int, since.split("-"))
        headers = {"X-Accel-Buffering": "no"}
        return StreamingResponse(
            self._follow(_campaign(request), version, event), media_type="text/event-stream", headers=headers
        )

    async def _follow(self, campaign: str | None, version: int, event: int) -> AsyncIterator[str]:
        before = ""
        while True:
            try:
                if campaign is None:
                    now = documents.dumps(
                        {"campaigns": documents.campaigns_document(await run_in_threadpool(self._live.campaigns))}
                    )
                else:
                    news = await run_in_threadpool(self.news, campaign, version, event)
                    version = news.pop("version")
                    event = news["events"][-1][0] if news["events"] else event
                    now = documents.dumps(news)
            except (UserError, *AWAY) as error:
                now = documents.dumps({"trouble": str(error)})
            yield ": still here\n\n" if now == before else f"id: {version}-{event}\ndata: {now}\n\n"
            before = now
            await asyncio.sleep(POLL_S)


def _campaign(request: Request) -> str | None:
    return request.query_params.get("campaign")


def _json(document: Any) -> Response:
    return Response(documents.dumps(document), media_type="application/json")


def _failed(status: int) -> Callable[[Request, Exception], Response]:
    return lambda _request, error: PlainTextResponse(clean(str(error)), status)


def make_app(live: LiveStore, token: str, first: str | None = None, cookie: str = "campaign") -> Starlette:
    """Return the application; `first` is the campaign that it shows first. Ports of one machine share cookies."""
    pages = Pages(live)
    routes = [
        Route("/", pages.index),
        *(Route(f"/{name}", getattr(pages, name)) for name in ("draw", "verdict", "run", "log", "stream")),
    ]
    codes = {UserError: 404, LookupError: 404, ValueError: 400, OverflowError: 400, StoreError: 503}
    handlers: dict[Any, Any] = {kind: _failed(code) for kind, code in codes.items()}
    guards = [
        Middleware(TrustedHostMiddleware, allowed_hosts=list(_HOSTS), www_redirect=False),
        Middleware(_Guard, token=token, cookie=cookie, first=first),
        Middleware(GZipMiddleware, compresslevel=1),
    ]
    return Starlette(routes=routes, middleware=guards, exception_handlers=handlers)


def serve(store: Store, port: int, first: str | None, tell: Callable[[str, int], None]) -> None:
    """Serve a store on this machine until the user interrupts it; call `tell` with the link and the port.

    Raises UserError if the port is taken.
    """
    store.forbid_writes()
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise UserError(f"cannot listen on port {port}: {error.strerror}", "name another --port, or none") from error
    token, port = token_urlsafe(32), listener.getsockname()[1]
    app = make_app(LiveStore(store), token, first, f"campaign-{port}")
    config = uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=1, server_header=False)
    tell(f"http://{LOOPBACK}:{port}/?token={token}", port)
    with listener:
        uvicorn.Server(config).run([listener])
