"""The application: both protocols, metrics and the page."""

import contextlib
import logging
import os
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Match, Route

from keras_tnattn_serving import open_inference, tensorflow_serving
from keras_tnattn_serving.batching import Batcher
from keras_tnattn_serving.errors import RequestError
from keras_tnattn_serving.generation import Generation
from keras_tnattn_serving.inference import Inference
from keras_tnattn_serving.monitoring import Monitoring
from keras_tnattn_serving.observed import Observed
from keras_tnattn_serving.repository import Repository
from keras_tnattn_serving.responses import json_response
from keras_tnattn_serving.settings import Settings

_log = logging.getLogger(__name__)
_PAGE = Path(__file__).parent / "page"
_PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-cache",
}


def create_app(saved_models: str | os.PathLike, settings: Settings | None = None) -> Observed:
    """Builds the ASGI application that serves a folder of exported models.

    Args:
        saved_models: The folder with `NAME/VERSION/` for each model. Its versions are loaded, and
            watched for changes, while the application runs.
        settings: The limits. Default: `Settings()`.

    Raises:
        NotADirectoryError: If there is no such folder.

    Example:
        ```python notest
        import uvicorn

        uvicorn.run(create_app("saved_models"), port=8501)
        ```
    """
    if not Path(saved_models).is_dir():
        raise NotADirectoryError(f"Expected a folder of exported models. Received: {saved_models}")
    settings = settings or Settings()

    def batcher() -> Batcher:
        queue = settings.max_batch, settings.batch_wait_ms, settings.max_queue
        return Batcher(*queue, settings.threads, monitoring.batch)

    versions = settings.served_versions, settings.max_batch, settings.load_s
    repository = Repository(saved_models, *versions, batcher, settings.engine)
    monitoring = Monitoring(repository, settings.access_log, settings.log_texts)
    inference = Inference(repository, settings, monitoring)
    generation = Generation(inference)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        stopped = threading.Event()
        # A daemon, so that a version that is still loading does not delay the process's exit.
        threading.Thread(
            target=_watch, args=(inference, settings.poll_s, stopped), name="watcher", daemon=True
        ).start()
        if settings.workers > 1:
            while not inference.draining and (repository.loading() or not repository.scanned):
                await anyio.sleep(0.05)
        yield
        stopped.set()
        generation.close()
        await anyio.to_thread.run_sync(inference.close)

    inferring = [
        *tensorflow_serving.inference_routes(inference),
        *open_inference.inference_routes(inference),
        *generation.routes(),
    ]
    pages = _pages(inference, lifespan)
    app: Any = Shortcut(Methods(pages, pages.routes, inferring), inferring, _HANDLERS)
    if settings.allowed_origins:
        app = CORSMiddleware(
            app,
            allow_origins=settings.allowed_origins,
            allow_methods=("GET", "HEAD", "POST"),
            allow_headers=("*",),
            expose_headers=("Retry-After",),
        )
    return Observed(app, inference)


async def _request_error(request: Request, error: RequestError) -> Response:
    return json_response({"error": error.message}, error.status, error.headers)


async def _http_error(request: Request, error: HTTPException) -> Response:
    return json_response({"error": error.detail}, error.status_code, error.headers)


async def _hung_up(request: Request, error: ClientDisconnect) -> Response:
    return Response(status_code=499)


async def _internal_error(request: Request, error: Exception) -> Response:
    return json_response({"error": f"The server failed: {type(error).__name__}"}, 500)


_HANDLERS: Any = {
    Exception: _internal_error,
    RequestError: _request_error,
    HTTPException: _http_error,
    ClientDisconnect: _hung_up,
}


def _pages(inference: Inference, lifespan: Any) -> FastAPI:
    """Returns what answers requests that compute nothing: descriptions, metrics, the page."""
    app = FastAPI(
        title="keras_tnattn",
        # The documentation pages load scripts from another host.
        docs_url=None,
        redoc_url=None,
        exception_handlers=_HANDLERS,
        lifespan=lifespan,
    )
    app.include_router(open_inference.routes(inference))
    app.include_router(tensorflow_serving.routes(inference))

    @app.get("/metrics")
    @app.get("/monitoring/prometheus/metrics")
    def metrics() -> Response:
        return Response(inference.monitoring.page(), media_type="text/plain; version=0.0.4")

    @app.get("/")
    def page(request: Request) -> Response:
        if "text/html" in request.headers.get("accept", ""):
            return FileResponse(_PAGE / "index.html", headers={**_PAGE_HEADERS, "Vary": "Accept"})
        # What KServe's client of protocol v1 asks to know whether the server lives.
        return json_response({"status": "alive"}, headers={"Vary": "Accept"})

    app.mount("/page", _PageFiles(directory=_PAGE))
    return app


class _PageFiles(StaticFiles):
    """The files of the page, with its headers."""

    def file_response(self, *arguments: Any, **options: Any) -> Response:
        response = super().file_response(*arguments, **options)
        response.headers.update(_PAGE_HEADERS)
        return response


class Shortcut:
    """An ASGI application that answers the POST requests of some routes itself.

    The routing of a web framework takes as long as a small model.
    """

    def __init__(
        self, app: Any, routes: Sequence[Route], handlers: Mapping[type[Exception], Any]
    ) -> None:
        self._app, self._routes, self._handlers = app, routes, handlers

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handles one connection."""
        if scope["type"] == "http" and scope["method"] == "POST":
            for route in self._routes:
                match = route.path_regex.match(scope["path"])
                if match:
                    scope["path_params"] = match.groupdict()
                    await self._answer(route, Request(scope, receive, send), send)
                    return
        await self._app(scope, receive, send)

    async def _answer(self, route: Route, request: Request, send: Any) -> None:
        try:
            response = await route.endpoint(request)
        except Exception as error:
            handler = self._handlers.get(type(error))
            if handler is None:
                _log.exception("%s failed", request.scope["path"])
                handler = self._handlers[Exception]
            response = await handler(request, error)
        await response(request.scope, request.receive, send)


class Methods:
    """An ASGI application that takes of each path the methods that it has.

    HEAD is answered as GET is, and OPTIONS with the methods.

    Args:
        app: What answers the others.
        describing: The routes that take GET.
        inferring: The routes that take POST.
    """

    def __init__(
        self, app: Any, describing: Sequence[BaseRoute], inferring: Sequence[Route]
    ) -> None:
        self._app, self._describing, self._inferring = app, describing, inferring

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handles one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method, path, methods = scope["method"], scope["path"], self._methods(scope)
        allow = {"Allow": ", ".join(methods)}
        if methods and method == "OPTIONS":
            await Response(status_code=204, headers=allow)(scope, receive, send)
        elif path.startswith("/v1/") and method not in methods:
            await tensorflow_serving.malformed(method, path)(scope, receive, send)
        elif methods and method not in methods:
            refusal = json_response({"error": "Method Not Allowed"}, 405, allow)
            await refusal(scope, receive, send)
        else:
            if method == "HEAD":  # the connection leaves out the body
                scope = {**scope, "method": "GET"}
            await self._app(scope, receive, send)

    def _methods(self, scope: Any) -> list[str]:
        """Returns the methods of a path; none if there is no such path."""
        if scope["path"] == "*":  # the server as a whole
            return ["GET", "HEAD", "OPTIONS", "POST"]
        if any(route.path_regex.match(scope["path"]) for route in self._inferring):
            return ["OPTIONS", "POST"]
        asked = {**scope, "method": "GET"}
        if any(route.matches(asked)[0] is Match.FULL for route in self._describing):
            return ["GET", "HEAD", "OPTIONS"]
        return []


def _watch(inference: Inference, seconds: float, stopped: threading.Event) -> None:
    """Checks the folder every `seconds` until `stopped` is set."""
    while not stopped.is_set():
        try:
            inference.repository.refresh()
            inference.monitoring.refresh()
        except Exception:  # keep serving what is loaded; the next check may succeed
            _log.exception("Could not check %s for new versions", inference.repository.root)
        stopped.wait(seconds)
