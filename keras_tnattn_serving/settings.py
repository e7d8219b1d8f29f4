"""The settings of a server."""

import dataclasses
import math

ENGINES = ("auto", "tensorflow", "onnxruntime", "litert")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The limits and times of a server.

    Args:
        max_batch: Maximum number of rows computed together. Defaults to 32.
        batch_wait_ms: Milliseconds that a request waits for others to share its batch. Defaults to
            2.
        max_queue: Maximum number of waiting rows of a model; further requests are refused with
            status 429. Defaults to 512.
        deadline_s: Seconds after which a request is answered with status 504. A server that has
            computed a batch for longer is not ready. Defaults to 30.
        max_body: Maximum size of a request's body in bytes, unpacked if it is compressed. Defaults
            to 4,194,304.
        max_answer: Maximum size of an answer in bytes. Defaults to 67,108,864.
        max_instances: Maximum number of rows in a request. Defaults to 1,024.
        max_text: Maximum size of a string in bytes; a model card may set a lower limit. Defaults to
            20,000.
        max_length: Maximum size of an axis that the model leaves open; a model card may set a lower
            limit. Defaults to 4,096.
        served_versions: How many of the newest versions of each model to serve. Defaults to 1.
        poll_s: Seconds between two checks of the folder for new versions. Defaults to 2.
        load_s: Seconds that a version may take to load. Defaults to 600.
        threads: Number of batches of a model computed at the same time. Defaults to 1.
        workers: Number of processes that share the port, each with all models; with more than 1,
            each accepts connections once its models are loaded. Defaults to 1.
        engine: What computes classifiers: `"tensorflow"`; `"onnxruntime"` or `"litert"`, for
            versions that were exported with it; or `"auto"` (default), one of these that the
            version has and that is installed, else TensorFlow.
        drain_s: Seconds for which new connections are still accepted after SIGTERM, while the
            server already reports that it is not ready. Defaults to 1.
        stop_s: Seconds that running requests then have to finish. Defaults to 30.
        max_head: Maximum size of a request's head in bytes. Defaults to 65,536.
        head_s: Seconds in which a head has to arrive once it has begun; after SIGTERM also for
            clients that have just connected. Defaults to 10.
        keep_alive_s: Seconds after which an idle connection is closed. Defaults to 75.
        max_connections: Maximum number of connections; requests on further ones are refused with
            status 503. Defaults to 1,000.
        allowed_hosts: The names in the header `Host` that are answered: `"*"` stands for any,
            `"local"` for IP addresses and names without a dot, which no web site can point to
            this server. Defaults to `("*",)`.
        access_log: Whether each request is logged as a line of JSON. Defaults to `False`.
        log_texts: Whether the access log includes the bodies of requests. Defaults to `False`.

    The command line also applies what concerns processes and connections: `workers`, `drain_s`,
    `stop_s`, `max_head`, `head_s`, `keep_alive_s` and `max_connections`.

    Raises:
        ValueError: If a value is out of range.

    Example:
        >>> Settings(max_batch=64).max_batch
        64
    """

    max_batch: int = 32
    batch_wait_ms: float = 2.0
    max_queue: int = 512
    deadline_s: float = 30.0
    max_body: int = 4 * 1024 * 1024
    max_answer: int = 64 * 1024 * 1024
    max_instances: int = 1024
    max_text: int = 20_000
    max_length: int = 4096
    served_versions: int = 1
    poll_s: float = 2.0
    load_s: float = 600.0
    threads: int = 1
    workers: int = 1
    engine: str = "auto"
    drain_s: float = 1.0
    stop_s: float = 30.0
    max_head: int = 64 * 1024
    head_s: float = 10.0
    keep_alive_s: float = 75.0
    max_connections: int = 1000
    allowed_hosts: tuple[str, ...] = ("*",)
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
        for name in ("batch_wait_ms", "drain_s", "stop_s"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ValueError(f"Expected a finite number >= 0. Received: {name}={value!r}")
        for name in ("deadline_s", "poll_s", "load_s", "head_s", "keep_alive_s"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"Expected a finite number > 0. Received: {name}={value!r}")
