"""Inference without the routing of a web framework, which takes as long as a small model."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

_log = logging.getLogger(__name__)


class Shortcut:
    """An ASGI application that answers the POST requests of some routes itself."""

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
