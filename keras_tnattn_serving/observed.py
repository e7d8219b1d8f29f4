"""What holds for each request, whatever its route."""

import ipaddress
import re
import time
from typing import Any

from keras_tnattn_serving.errors import RequestError
from keras_tnattn_serving.inference import Inference
from keras_tnattn_serving.responses import json_response

# An IPv6 address or a name, and a port (RFC 9110, 7.2).
_HOST = re.compile(r"(\[[\w:.%-]+\]|[\w.~!$&'()*+,;=%-]*)(:[0-9]*)?", re.ASCII)


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
        withheld = scope.get("extensions", {}).get("withheld", lambda: False)

        async def observed_send(message: Any) -> None:
            if message["type"] == "http.response.start":
                record["status"] = message["status"]
                headers = [*message["headers"], (b"x-content-type-options", b"nosniff")]
                # After an answer without `100 Continue` a body may follow or not.
                if self.inference.draining or withheld():
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
        """Refuses no or two `Host`s, and foreign ones: the name of a web site may lead here."""
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if not hosts and scope["http_version"] == "1.0":
            hosts = [""]
        if len(hosts) != 1 or not _HOST.fullmatch(hosts[0]):
            shown = ", ".join(repr(host[:100]) for host in hosts[:3]) or "none"
            raise RequestError(f"Expected one Host, as NAME or NAME:PORT. Received: {shown}")
        name = _without_port(hosts[0].lower())
        allowed = {"*", name} & self._hosts or ("local" in self._hosts and _local(name))
        if not allowed:
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
