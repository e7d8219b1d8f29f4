"""What holds for each request, whatever its route."""

import ipaddress
import time
from typing import Any

from keras_tnattn_serving.errors import RequestError
from keras_tnattn_serving.inference import Inference
from keras_tnattn_serving.responses import json_response


class Observed:
    """An ASGI application whose requests are counted and logged, and whose `Host` is checked."""

    def __init__(self, app: Any, inference: Inference) -> None:
        self._app, self.inference = app, inference
        self._hosts = {host.lower() for host in inference.settings.allowed_hosts}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handles one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        client = scope.get("client")
        record = {
            "client": client[0] if client else None,
            "method": scope["method"],
            "path": scope["path"],
            "status": 499,  # nginx's status for a client that hung up
        }
        scope["record"] = record

        async def observed_send(message: Any) -> None:
            if message["type"] == "http.response.start":
                record["status"] = message["status"]
                headers = [*message["headers"], (b"x-content-type-options", b"nosniff")]
                if self.inference.draining:
                    headers.append((b"connection", b"close"))
                message = {**message, "headers": headers}
            await send(message)

        monitoring = self.inference.monitoring
        monitoring.in_flight.inc()
        try:
            self._check_host(scope)
            await self._app(scope, receive, observed_send)
        except RequestError as error:  # the application answers its own
            refusal = json_response({"error": error.message}, error.status, error.headers)
            await refusal(scope, receive, observed_send)
        finally:
            monitoring.in_flight.dec()
            monitoring.request(record, time.perf_counter() - began)

    def _check_host(self, scope: Any) -> None:
        """Refuses a foreign `Host`: a web site whose name leads here would be of one origin."""
        if "*" in self._hosts:
            return
        host = next((value for name, value in scope["headers"] if name == b"host"), b"")
        name = _without_port(host.decode("latin-1").lower())
        if name not in self._hosts and not ("local" in self._hosts and _local(name)):
            raise RequestError(
                f"Expected a Host that --allowed-hosts names. Received: {name[:100]!r}", 421
            )


def _without_port(host: str) -> str:
    if host.startswith("["):  # an IPv6 address
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".")


def _local(name: str) -> bool:
    if ("." not in name and ":" not in name) or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
