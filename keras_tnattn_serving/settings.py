"""The settings of a server."""

import dataclasses
import math
import re
from typing import Any

from keras_tnattn_runtime.layout import READER_RUNTIMES

ENGINES = ("auto", "tensorflow", *READER_RUNTIMES)
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/?#@*\s]+")


def _limit(default: Any, text: str) -> Any:
    """A number of the command line, described by `text`."""
    return dataclasses.field(default=default, metadata={"help": text})


@dataclasses.dataclass(frozen=True)
class Settings:
    """The limits and times of a server.

    The command line also applies what concerns processes and connections: `workers`, `drain_s`,
    `stop_s`, `max_head`, `head_s`, `keep_alive_s` and `max_connections`.

    Raises:
        ValueError: If a value is out of range.

    Example:
        >>> Settings(max_batch=64).max_batch
        64
    """

    max_batch: int = _limit(32, "maximum number of rows computed together")
    batch_wait_ms: float = _limit(
        2.0, "milliseconds that a request waits for others to share its batch"
    )
    max_queue: int = _limit(
        512, "maximum number of waiting rows of a model; further requests get status 429"
    )
    # A server that has computed a batch for longer is not ready.
    deadline_s: float = _limit(30.0, "seconds after which a request is answered with status 504")
    max_body: int = _limit(
        4 * 1024 * 1024, "maximum size of a request's body in bytes, unpacked if it is compressed"
    )
    max_answer: int = _limit(64 * 1024 * 1024, "maximum size of an answer in bytes")
    max_instances: int = _limit(1024, "maximum number of rows in a request")
    # A model card may set lower limits of these two.
    max_text: int = _limit(20_000, "maximum size of a text in bytes")
    max_length: int = _limit(4096, "maximum size of an axis that the model leaves open")
    served_versions: int = _limit(1, "how many of the newest versions of each model to serve")
    poll_s: float = _limit(2.0, "seconds between two checks for new versions")
    load_s: float = _limit(600.0, "seconds that a version may take to load")
    threads: int = _limit(1, "number of batches of a model computed at the same time")
    # With more than 1, each accepts connections once its models are loaded.
    workers: int = _limit(1, "number of processes that share the port, each with all models")
    engine: str = "auto"
    drain_s: float = _limit(
        1.0, "seconds for which new connections are still accepted after SIGTERM"
    )
    stop_s: float = _limit(30.0, "seconds that running requests then have to finish")
    max_head: int = _limit(64 * 1024, "maximum size of a request's head in bytes")
    # After SIGTERM also for clients that have just connected.
    head_s: float = _limit(10.0, "seconds in which a head has to arrive once it has begun")
    keep_alive_s: float = _limit(75.0, "seconds after which an idle connection is closed")
    max_connections: int = _limit(
        1000, "maximum number of connections; requests on others get status 503"
    )
    # "*" is any name, "local" IP addresses and names without a dot, to which no web site leads.
    allowed_hosts: tuple[str, ...] = ("*",)
    # Of the web pages whose scripts may ask: "https://example.org"; "*" is any.
    allowed_origins: tuple[str, ...] = ()
    access_log: bool = False
    log_texts: bool = False

    def __post_init__(self) -> None:
        for name in (
            *("max_batch", "max_queue", "max_body", "max_instances", "max_text", "max_length"),
            *("max_answer", "max_head", "max_connections", "served_versions", "threads"),
            "workers",
        ):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"Expected a positive int. Received: {name}={value!r}")
        if self.engine not in ENGINES:
            raise ValueError(f"Expected one of {ENGINES}. Received: engine={self.engine!r}")
        for origin in self.allowed_origins:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    "Expected origins such as https://example.org or http://localhost:3000, "
                    f"without a path, or * for any. Received: allowed_origins={origin!r}"
                )
        for name in ("batch_wait_ms", "drain_s", "stop_s"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ValueError(f"Expected a finite number >= 0. Received: {name}={value!r}")
        for name in ("deadline_s", "poll_s", "load_s", "head_s", "keep_alive_s"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"Expected a finite number > 0. Received: {name}={value!r}")
