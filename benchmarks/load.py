"""What the serving benchmarks share: a light HTTP client, servers in processes, percentiles.

The client connects to 127.0.0.1 only.
"""

import asyncio
import contextlib
import json
import math
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


class LostError(Exception):
    """A request that was sent and never answered."""


class RefusedError(Exception):
    """A connection that was never made."""


class Connection:
    """A connection that is kept open, and opened again after the server has closed it."""

    def __init__(self, port: int) -> None:
        self._port, self._streams = port, None

    async def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Sends one request; returns the status and the body of the answer.

        Raises:
            LostError: If the connection ended after the request was sent.
            RefusedError: If no connection could be made.
        """
        if self._streams and self._streams[0].at_eof():
            self.close()  # the server closed it while it was idle
        if self._streams is None:
            try:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port)
            except OSError as error:
                raise RefusedError from error
        reader, writer = self._streams
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        try:
            writer.write(head.encode() + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            length = int(re.search(r"content-length: (\d+)", answer).group(1))
            content = await reader.readexactly(length)
        except (OSError, asyncio.IncompleteReadError) as error:
            self.close()
            raise LostError from error
        if "connection: close" in answer:
            self.close()
        return int(answer[9:12]), content

    def close(self) -> None:
        """Closes the connection."""
        if self._streams:
            self._streams[1].close()
        self._streams = None


def describe_machine() -> None:
    """Prints the machine and the versions, without loading TensorFlow."""
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.split(": ")[1] for line in lines if "model name" in line), cpu)
    versions = [f"Python {platform.python_version()}"]
    for name in ("tensorflow", "keras", "fastapi", "uvicorn", "litserve"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions.append(f"{name} {metadata.version(name)}")
    print(f"{os.cpu_count()} cores, {cpu}; {', '.join(versions)}", flush=True)


def free_port() -> int:
    """Returns a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


@contextlib.contextmanager
def running(command: list[str], port: int, path: str) -> Iterator[subprocess.Popen]:
    """Starts a server, waits until GET `path` succeeds, and stops it at the end of the block."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, *command],
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
        try:
            try:
                wait_until_ready(process, port, path)
            except RuntimeError as error:
                errors.seek(0)
                tail = errors.read().decode(errors="replace")[-2000:]
                raise RuntimeError(f"{error}: {tail}") from error
            yield process
        finally:
            process.terminate()
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            with contextlib.suppress(ProcessLookupError):  # LitServe leaves its processes behind
                os.killpg(process.pid, signal.SIGKILL)


def environment() -> dict[str, str]:
    """Returns the environment for processes: it has this package, and TensorFlow logs little."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}


def wait_until_ready(process: subprocess.Popen, port: int, path: str, seconds: float = 300) -> None:
    """Waits until a server answers."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}")
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5).close()
            return
        time.sleep(0.1)
    raise RuntimeError("the server did not become ready")


def percentile(values: list[float], share: float) -> float:
    """Returns the smallest value that is not exceeded by the given share of all values."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else math.nan


def memory(process: subprocess.Popen) -> float:
    """Returns the resident memory of a process in MB."""
    text = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", text).group(1)) / 1024


def processor_seconds(process: subprocess.Popen) -> float:
    """Returns the processor time of all processes that `running` started."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(") ")[2].split()
            if int(fields[2]) == process.pid:  # their group
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def encoded(**body: object) -> bytes:
    """Returns a body in JSON."""
    return json.dumps(body).encode()


def table(lines: list[tuple]) -> str:
    """Returns a Markdown table; the first line is the header."""
    texts = [[str(cell) for cell in line] for line in lines]
    rule = ["---"] * len(texts[0])
    return "\n".join("| " + " | ".join(line) + " |" for line in [texts[0], rule, *texts[1:]])
