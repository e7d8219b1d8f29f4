"""Inference requests that pass by the routing."""

import asyncio
import logging

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from keras_tnattn_serving.app import Shortcut
from keras_tnattn_serving.bodies import read_body


class KnownError(Exception):
    pass


async def handled(request, error):
    return PlainTextResponse(f"known: {error}", 418)


async def failed(request, error):
    return PlainTextResponse("failed", 500)


def answered(path, method="POST", kind="http"):
    async def endpoint(request):
        name = request.path_params["name"]
        if name == "known":
            raise KnownError("no tea")
        if name == "unknown":
            raise ZeroDivisionError
        return PlainTextResponse(f"{name} {request.path_params.get('version')}")

    async def others(scope, receive, send):
        sent.append({"others": scope.get("path")})

    async def send(message):
        sent.append(message)

    sent = []
    routes = [Route("/m/{name}/versions/{version}:run", endpoint), Route("/m/{name}:run", endpoint)]
    app = Shortcut(others, routes, {KnownError: handled, Exception: failed})
    scope = {"type": kind, "method": method, "path": path, "headers": []}
    asyncio.run(app(scope, None, send))
    if "others" in sent[0]:
        return "others"
    return sent[0]["status"], sent[1]["body"].decode()


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/m/pets:run", (200, "pets None")),
        ("/m/pets/versions/3:run", (200, "pets 3")),
        ("/m/known:run", (418, "known: no tea")),
        ("/m/pets", "others"),
        ("/m/a/b:run", "others"),
    ],
)
def test_requests_of_its_routes_are_answered_and_others_passed_on(path, answer):
    assert answered(path) == answer


@pytest.mark.parametrize(("method", "kind"), [("GET", "http"), ("POST", "lifespan")])
def test_what_is_no_post_is_passed_on(method, kind):
    assert answered("/m/pets:run", method, kind) == "others"


def test_failures_are_logged(caplog):
    with caplog.at_level(logging.ERROR):
        assert answered("/m/unknown:run") == (500, "failed")
    assert "/m/unknown:run failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("size", [0, 10, 11])
def test_bodies_that_have_arrived_are_not_waited_for(size):
    async def receive():
        chunks.append(1)
        return {"type": "http.request", "body": b"x" * size, "more_body": False}

    chunks = []
    extensions = {"arrived": lambda: b"x" * size}
    scope = {"type": "http", "method": "POST", "headers": [], "extensions": extensions}
    read = read_body(Request(scope, receive), 10, 5.0)
    if size <= 10:
        assert asyncio.run(read) == b"x" * size
        assert not chunks
    else:  # too large: it is read, and refused, as any other
        with pytest.raises(Exception, match="max-body"):
            asyncio.run(read)
        assert chunks
