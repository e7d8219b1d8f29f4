"""Bodies of requests, of bounded size, compressed or not."""

import zlib

import anyio
from starlette.requests import Request

from keras_tnattn_serving.errors import RequestError, too_large

ENCODINGS = ("gzip", "x-gzip", "deflate")
_TIMES_READ = 4  # times `limit` is read and dropped before the connection is closed


async def read_body(request: Request, limit: int, seconds: float) -> bytes:
    """Reads the body of a request, and unpacks it.

    Raises:
        RequestError: With 400 for a body that cannot be unpacked, 408 if it does not arrive in
            time, 413 if it is too large, 415 for another encoding than gzip and deflate.
    """
    unpacking = _unpacking(request)
    arrived = request.scope.get("extensions", {}).get("arrived")
    whole = arrived and arrived()
    if whole is not None and unpacking is None and len(whole) <= limit:
        return whole  # most are there before anybody asks: no timer is needed
    chunks, received, size = [], 0, 0
    try:
        with anyio.fail_after(seconds):
            async for chunk in request.stream():
                received += len(chunk)
                if max(received, size) <= limit:
                    part = unpacking.unpack(chunk, limit - size + 1) if unpacking else chunk
                    size += len(part)
                    chunks.append(part)
                    continue
                # Read on for a while: most clients read no answer before they have sent all.
                chunks.clear()
                if received > _TIMES_READ * limit:
                    break
    except TimeoutError as error:
        raise RequestError(
            f"The body did not arrive within {seconds:g} s (--deadline-s)",
            408,
            {"Connection": "close"},
        ) from error
    if max(received, size) > limit:
        raise too_large(f"a body of {max(received, size)} bytes or more", limit, "--max-body")
    if unpacking:
        unpacking.check_end()
    return b"".join(chunks)


def _unpacking(request: Request) -> "_Unpacking | None":
    headers = request.scope["headers"]
    values = [value.decode("latin-1") for name, value in headers if name == b"content-encoding"]
    if not values:
        return None
    names = [name.strip().lower() for name in ",".join(values).split(",")]
    names = [name for name in names if name not in ("", "identity")]
    if not names:
        return None
    if len(names) > 1 or names[0] not in ENCODINGS:
        raise RequestError(
            f"Expected a body without Content-Encoding, or with gzip or deflate. Received: "
            f"{', '.join(names)[:60]}",
            415,
            {"Accept-Encoding": "gzip, deflate"},
        )
    return _Unpacking(names[0])


class _Unpacking:
    """Unpacks the chunks of a body.

    `deflate` is the format of zlib, but some clients send it without zlib's two bytes at the start.
    A body in gzip may consist of several members.
    """

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._stream = None if encoding == "deflate" else zlib.decompressobj(31)
        self._start = b""

    def unpack(self, data: bytes, most: int) -> bytes:
        """Returns the next bytes, at most `most`; the rest of a chunk that has more is dropped."""
        if self._stream is None:
            data = self._start = self._start + data
            if len(data) < 2:
                return b""
            headed = data[0] & 15 == 8 and int.from_bytes(data[:2], "big") % 31 == 0
            self._stream = zlib.decompressobj(15 if headed else -15)
        parts = []
        try:
            while data and most > 0:
                if self._stream.eof:
                    if self._encoding == "deflate":
                        raise zlib.error("there are bytes after its end")
                    self._stream = zlib.decompressobj(31)
                parts.append(self._stream.decompress(data, most))
                most -= len(parts[-1])
                data = self._stream.unused_data
        except zlib.error as error:
            raise self._error(str(error)) from error
        return b"".join(parts)

    def check_end(self) -> None:
        """Raises `RequestError` if the body breaks off."""
        if self._stream is None or not self._stream.eof:
            raise self._error("it breaks off")

    def _error(self, reason: str) -> RequestError:
        return RequestError(f"Could not unpack the body as {self._encoding}: {reason}")
