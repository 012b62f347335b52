"""Serves a search page for an index, and its two requests; nothing else."""

import hmac
import html
import threading
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware

from revela.common.errors import RevelaError
from revela.search import Ranking
from revela.search.index import Hit, Index

_Depth = Annotated[int, Query(ge=1, le=50)]  # hits per list
_PAGE = Path(__file__).with_name("page")
_HEADERS = {
    # Only the page's own script and style, should a text ever become markup.
    "Content-Security-Policy": (
        "default-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def make_app(index: Index, hosts: list[str], token: str | None = None) -> FastAPI:
    """Return the application that searches an index.

    Requests may name `hosts` only, not other sites; a secret `token` is first given as `/?token=`.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts)
    app.mount("/page", StaticFiles(directory=_PAGE))
    turns = threading.Lock()  # a model encodes one query at a time

    def allowed(request: Request) -> None:
        secret = request.query_params.get("token") or request.cookies.get("token") or ""
        if token and not hmac.compare_digest(secret.encode(), token.encode()):
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
        page = (_PAGE / "index.html").read_text(encoding="utf-8")
        shown = page.format(weight=index.weights[0], model=html.escape(index.labels[0]))
        response = HTMLResponse(shown, headers=_HEADERS)
        if token:
            response.set_cookie("token", token, httponly=True, samesite="strict")
        return response

    @app.get("/search", dependencies=[Depends(allowed)])
    def search(
        query: Annotated[str, Query(max_length=1_000)],
        depth: _Depth = 10,
        weight: Annotated[float | None, Query(ge=0, le=1)] = None,
    ) -> list[dict[str, Any]]:
        """Return the best documents by BM25, by each model, and by the first model's hybrid."""

        def ranked(name: str, ranking: Ranking, model: int | None) -> dict[str, Any]:
            (hits,) = index.search([query], depth, ranking, model or 0, weight)
            return {"name": name, "model": model, "hits": rows(hits)}

        share = index.weights[0] if weight is None else weight
        hybrid = f"BM25 + {index.labels[0]}, weight {share:g}"
        with turns:
            dense = [ranked(name, "dense", model) for model, name in enumerate(index.labels)]
            return [ranked("BM25", "bm25", None), *dense, ranked(hybrid, "hybrid", 0)]

    @app.get("/near", dependencies=[Depends(allowed)])
    def near(
        chunk: Annotated[int, Query(ge=0, lt=len(index.chunks))],
        model: Annotated[int | None, Query(ge=0, lt=len(index.models))] = None,
        depth: _Depth = 10,
    ) -> list[dict[str, Any]]:
        """Return the chunks most similar to one: by a model, or by BM25."""
        with turns:
            return rows(index.near(chunk, depth, model))

    return app


def run(index: Index, host: str, port: int, token: str | None) -> None:
    """Serve until interrupted; uvicorn prints the address, or that it is in use.

    Raises:
        RevelaError: the host is not loopback and there is no token.
    """
    local = ["127.0.0.1", "localhost", "::1"]
    if host not in local and not token:
        danger = "anyone who can reach it can read the texts; set REVELA_TOKEN to a secret"
        raise RevelaError(f"--host {host}: {danger}")
    for model in range(len(index.models)):  # its errors appear now, not with the first query
        index.search(["warm up"], 1, model=model)
    hosts = ["127.0.0.1", "localhost", "[::1]"] if host in local else ["*"]
    uvicorn.run(make_app(index, hosts, token), host=host, port=port, access_log=False)
