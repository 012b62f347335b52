"""Serves a search page for an index, and its two requests; nothing else."""

import base64
import hashlib
import hmac
import ipaddress
import re
import socket
import threading
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware

from revela.common.errors import RevelaError
from revela.search.fusion import Hit
from revela.search.index import Index

MAX_CHARACTERS = 1_000  # of a query
MAX_DEPTH = 50  # hits per list
_PAGE = Path(__file__).with_name("page.html")


def make_app(index: Index, hosts: list[str], token: str | None = None) -> FastAPI:
    """Return the application that searches an index.

    Requests may use the names `hosts` only, which excludes pages of other sites; a secret `token`,
    if any, must first be given as `/?token=`.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts)
    page = _PAGE.read_text(encoding="utf-8")
    policy = _content_policy(page)
    turns = threading.Lock()  # a model encodes one query at a time

    def allowed(request: Request) -> None:
        given = request.query_params.get("token") or request.cookies.get("token") or ""
        if token and not hmac.compare_digest(given.encode(), token.encode()):
            raise HTTPException(401, "token required: open /?token=…")

    def rows(hits: list[Hit]) -> list[dict[str, Any]]:
        return [index.row(hit) for hit in hits]

    @app.exception_handler(RevelaError)
    def _failed(_: Request, error: RevelaError) -> Response:
        return PlainTextResponse(str(error), 500)

    @app.exception_handler(StarletteHTTPException)
    def _refused(_: Request, error: StarletteHTTPException) -> Response:
        return PlainTextResponse(error.detail, error.status_code)

    @app.exception_handler(RequestValidationError)
    def _invalid(_: Request, error: RequestValidationError) -> Response:
        problem = error.errors()[0]
        return PlainTextResponse(f"{problem['loc'][-1]}: {problem['msg']}", 422)

    @app.get("/", dependencies=[Depends(allowed)])
    def show() -> Response:
        response = HTMLResponse(page, headers=policy)
        if token:
            response.set_cookie("token", token, httponly=True, samesite="strict")
        return response

    @app.get("/search", dependencies=[Depends(allowed)])
    def search(
        query: Annotated[str, Query(max_length=MAX_CHARACTERS)],
        depth: Annotated[int, Query(ge=1, le=MAX_DEPTH)] = 10,
    ) -> list[dict[str, Any]]:
        """Return the best documents by BM25, by each model, and by the first model's hybrid."""
        if not query.strip():
            raise HTTPException(422, "the query is empty")
        with turns:
            found = [
                ("BM25", None, index.search([query], depth, "bm25")),
                *(
                    (name, number, index.search([query], depth, "dense", number))
                    for number, name in enumerate(index.labels)
                ),
                ("Hybrid", 0, index.search([query], depth, "hybrid")),
            ]
        return [{"name": name, "model": number, "hits": rows(h)} for name, number, (h,) in found]

    @app.get("/near", dependencies=[Depends(allowed)])
    def near(
        chunk: Annotated[int, Query(ge=0, lt=len(index.chunks))],
        model: Annotated[int | None, Query(ge=0, lt=len(index.models))] = None,
        depth: Annotated[int, Query(ge=1, le=MAX_DEPTH)] = 10,
    ) -> list[dict[str, Any]]:
        """Return the chunks most similar to one: by a model, or by BM25."""
        with turns:
            return rows(index.near(chunk, depth, model))

    return app


def run(index: Index, host: str, port: int, token: str | None) -> None:
    """Serve until interrupted.

    Raises:
        RevelaError: the port is in use, or the host is not loopback and there is no token.
    """
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError as error:
        raise RevelaError(f"--host {host}: expected an address, such as 127.0.0.1") from error
    if not loopback and not token:
        raise RevelaError(
            f"--host {host}: anyone who can reach it can read the texts; set REVELA_TOKEN to a "
            "secret"
        )
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        raise RevelaError(f"--host {host} --port {port}: {error.strerror}") from error
    port = listener.getsockname()[1]
    host = f"[{host}]" if ":" in host else host
    hosts = [host, "127.0.0.1", "localhost", "[::1]"] if loopback else ["*"]
    for model in range(len(index.models)):  # its errors appear now, not with the first query
        index.search(["warm up"], 1, model=model)
    print(f"http://{host}:{port}/{'?token=…' if token else ''} (press Ctrl-C to stop)", flush=True)
    config = uvicorn.Config(make_app(index, hosts, token), log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[listener])


def _content_policy(page: str) -> dict[str, str]:
    """Return headers that allow only the page's own script and style, and no other content."""

    def own(tag: str) -> str:
        (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    policy = (
        f"default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; "
        f"form-action 'none'; frame-ancestors 'none'; script-src 'sha256-{own('script')}'; "
        f"style-src 'sha256-{own('style')}'"
    )
    return {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }
