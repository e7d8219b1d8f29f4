"""HTTP connections with limits, for uvicorn."""

import asyncio
import collections
import json
import math
import time
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from keras_tnattn_serving.responses import json_response
from keras_tnattn_serving.settings import Settings

_HELD = 32 * 1024  # bytes of a body up to which uvicorn goes on reading while nobody asks for it


class Connection(HttpToolsProtocol):
    """A connection whose requests arrive in bounded size and time.

    uvicorn with httptools limits neither the size of a head nor the time that it takes, and waits
    without end for a client that does not read its answer. It loses the body of a request that
    asks for another protocol, and the answers to those before one that cannot be read.
    """

    def __init__(self, *arguments: Any, settings: Settings, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._settings, self._since = settings, time.monotonic()
        self._too_many = False  # whether this connection exceeds their number
        self._in_head = True  # waits for a head, or for the rest of one
        self._heads = 0  # heads that have arrived
        self._head_bytes = self._header_bytes = 0
        self._plain_head = b""  # that of a request which asks for another protocol, without that
        self._refusal: bytes | None = None  # the last answer; what arrives after it is not read
        self._cycles: collections.deque[Any] = collections.deque()  # of requests not answered yet
        self._timer: asyncio.TimerHandle | None = None
        self._unsent = math.inf
        self._reading_timer: asyncio.TimerHandle | None = None

    @property
    def about_to_ask(self) -> bool:
        """Whether a head has begun, or the client has just connected and asked nothing yet."""
        if self._in_head and self._head_bytes:
            return True
        return self.cycle is None and time.monotonic() - self._since < self._settings.head_s

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the timer for the first request."""
        super().connection_made(transport)
        self._too_many = len(self.connections) > self._settings.max_connections
        self._start_timer(self._settings.keep_alive_s)

    def connection_lost(self, error: Exception | None) -> None:
        """Stops the timers, and tells the requests that nobody waits for their answers."""
        self._stop_timer()
        self.resume_writing()
        super().connection_lost(error)
        self._unset_keepalive_if_required()
        for cycle in self._cycles:  # uvicorn tells the last one alone
            cycle.disconnected = True
            cycle.message_event.set()

    def data_received(self, data: bytes) -> None:
        """Parses what has arrived, and refuses a head that goes on too long."""
        if self._refusal is not None:
            return
        in_head, heads = self._in_head, self._heads
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        if self._refusal is not None or self.transport.is_closing():
            return
        if in_head and self._heads == heads:
            self._head_bytes += len(data)
            if self._head_bytes > self._settings.max_head:
                self._refuse_head()
            elif not self._timer:  # empty lines, with which no head begins
                self._start_timer(self._settings.head_s)

    def _parse(self, data: bytes) -> None:
        rest = memoryview(data)
        while len(rest):
            try:
                self.parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as upgrade:
                # The parser leaves the rest to the other protocol, which is not spoken here.
                (read,) = upgrade.args
                self.parser = httptools.HttpRequestParser(self)
                self.parser.feed_data(self._plain_head)
                rest = rest[read:]

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self._head_bytes, self._header_bytes = 1, 0
        self._start_timer(self._settings.head_s)

    def on_url(self, url: bytes) -> None:
        """A part of the URL."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, of the head or, of a body in chunks, of the end, which is dropped."""
        self._count(len(name) + len(value) + 4)
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Starts to answer, or refuses a connection too many."""
        if self.parser.should_upgrade():
            self._plain_head = self._head_without_upgrade()
            return
        self._stop_timer()
        if self._too_many:
            self.app = self._refuse_connection
        if self.parser.get_http_version() == "1.0":
            self.expect_100_continue = False  # of which HTTP/1.0 knows nothing
        super().on_headers_complete()
        self._in_head, self._head_bytes = False, 0
        self._heads += 1
        while self._cycles and self._cycles[0].response_complete:
            self._cycles.popleft()
        cycle = self.cycle
        self._cycles.append(cycle)
        scope: Any = self.scope
        scope["extensions"] = {
            "disconnected": lambda: cycle.disconnected,
            "arrived": lambda: _whole(cycle),
            "withheld": lambda: cycle.waiting_for_100_continue and cycle.more_body,
        }

    def on_message_complete(self) -> None:
        """Waits for the next head."""
        if self.parser.should_upgrade():
            return
        self._stop_timer()
        self._in_head = True
        super().on_message_complete()
        if self.cycle.response_complete:  # answered before the whole body had arrived
            self._start_timer(self._settings.keep_alive_s)

    def on_response_complete(self) -> None:
        """Limits the time for what the client has still to send or to read."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._start_timer(self._settings.keep_alive_s)
        elif self._refusal is not None:
            self._refuse_after_others()
        elif not self._in_head:  # the rest of the body is dropped
            self._start_timer(self._settings.head_s)

    def send_400_response(self, message: str) -> None:
        """Answers what is no HTTP, and closes the connection."""
        if self._header_bytes > self._settings.max_head:
            self._refuse_head()
        else:
            self._refuse(400, message)

    def timeout_keep_alive_handler(self) -> None:
        """Closes an idle connection, unless the client still reads the last answer."""
        if self._reading_timer:
            self._start_timer(self._settings.keep_alive_s)
        elif self.transport.get_write_buffer_size():
            self.transport.abort()
        elif not self.transport.is_closing():
            self.transport.close()

    def pause_writing(self) -> None:
        """The client reads slowly: starts to watch whether it reads at all."""
        super().pause_writing()
        self._unsent = math.inf
        self._watch_reading()

    def resume_writing(self) -> None:
        """The client has read nearly all."""
        if self._reading_timer:
            self._reading_timer.cancel()
            self._reading_timer = None
        super().resume_writing()

    def _watch_reading(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        if unsent >= self._unsent:
            self.transport.abort()
            return
        self._unsent = unsent
        self._reading_timer = self.loop.call_later(self._settings.keep_alive_s, self._watch_reading)

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self._settings.max_head:
            raise ValueError("the head is too large")  # httptools makes a parser's error of it

    def _start_timer(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, self._timed_out)

    def _stop_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _timed_out(self) -> None:
        if self._in_head and self._head_bytes:
            self._refuse(
                408, f"The head did not arrive within {self._settings.head_s:g} s (--head-s)"
            )
        elif self._in_head:
            self.timeout_keep_alive_handler()
        else:
            self.transport.close()

    def _refuse_head(self) -> None:
        limit = self._settings.max_head
        self._refuse(431, f"Expected a head of at most {limit} bytes (--max-head)")

    def _refuse(self, status: int, message: str) -> None:
        """Answers what is no request, after all requests before it, and closes the connection."""
        self._stop_timer()
        body = json.dumps({"error": message}).encode()
        phrase = HTTPStatus(status).phrase
        self._refusal = (
            f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode()
            + body
        )
        if not self._in_head:
            self._give_up_request()
        self._in_head, self._head_bytes = True, 0
        self._refuse_after_others()

    def _give_up_request(self) -> None:
        """Leaves the last request, whose body cannot be read; if it is answered, that is all."""
        if self.cycle.response_started:
            self._refusal = b""
            return
        self._cycles.remove(self.cycle)
        self.cycle.disconnected = True
        self.cycle.message_event.set()

    def _refuse_after_others(self) -> None:
        if self._refusal is not None and all(cycle.response_complete for cycle in self._cycles):
            self.transport.write(self._refusal)
            self.transport.close()
            self._start_timer(self._settings.keep_alive_s)

    def _head_without_upgrade(self) -> bytes:
        method = self.parser.get_method()
        if method == b"CONNECT":
            raise ValueError("no proxy")  # httptools makes a parser's error of it
        start = b"%b %b HTTP/%b" % (method, self.url, self.parser.get_http_version().encode())
        others = [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([start, *others, b"", b""])

    async def _refuse_connection(self, scope: Any, receive: Any, send: Any) -> None:
        limit = self._settings.max_connections
        message = f"There are more than {limit} connections (--max-connections)"
        headers = {"Connection": "close", "Retry-After": "1"}
        await json_response({"error": message}, 503, headers)(scope, receive, send)


def _whole(cycle: Any) -> bytes | None:
    """Returns the body of a request if it is short and has arrived."""
    return None if cycle.more_body or len(cycle.body) > _HELD else bytes(cycle.body)
