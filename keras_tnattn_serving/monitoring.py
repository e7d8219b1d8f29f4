"""Metrics for Prometheus, and one line of JSON for each request."""

import datetime
import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
    multiprocess,
)

from keras_tnattn_serving.repository import Repository, State, Version
from keras_tnattn_serving.servable import Signature
from keras_tnattn_serving.workers import METRICS

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_PREFIX = "keras_tnattn_serving"
_MOST_LINES = 10_000  # that wait


class Monitoring:
    """Counts requests and batches, and logs requests."""

    def __init__(self, repository: Repository, access_log: bool, log_texts: bool) -> None:
        self._repository = repository
        self._log, self.log_texts = Lines(sys.stdout) if access_log else None, log_texts
        self._registry = CollectorRegistry()
        self._counters: dict[tuple, tuple[Counter, Histogram]] = {}
        self._paging = threading.Lock()  # one thread at a time measures
        self._requests = Counter(
            f"{_PREFIX}_requests",
            "Requests by model (empty: none, unknown, or the queue was full), method and code",
            ["model", "method", "code"],
            registry=self._registry,
        )
        text = "Seconds from the head of a request to its answer"
        self._seconds = self._histogram("request_seconds", text, _SECONDS, "model")
        self._batch_rows = self._histogram(
            "batch_rows", "Rows computed together", _ROWS, "signature"
        )
        text = "Longest wait of a row in each batch"
        self._wait_seconds = self._histogram("queue_wait_seconds", text, _SECONDS)
        # Of several processes, the sum, or the largest value.
        self._gauges: list[tuple[Gauge, Callable[[], float]]] = []

        self._gauge(
            "queue_rows",
            "Rows waiting",
            lambda: sum(v.batcher.waiting for v in self._all() if v.batcher),
        )
        self._gauge(
            "oldest_batch_seconds",
            "For how long the oldest batch has been computed",
            lambda: max([0.0, *(age for v in self._all() for age in v.ages())]),
            "livemax",
        )
        self._gauge(
            "access_log_dropped_lines",
            "Lines of the access log that nobody read in time",
            lambda: self._log.dropped if self._log else 0,
        )
        self.in_flight = self._gauge("requests_in_flight", "Requests being answered", None)
        self._versions = Gauge(
            f"{_PREFIX}_versions",
            "Versions by state",
            ["model", "state"],
            registry=self._registry,
            multiprocess_mode="livemax",
        )
        self._counted: set[str] = set()  # the models whose versions have been

    def _histogram(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
        name = f"{_PREFIX}_{name}"
        return Histogram(name, text, labels, buckets=buckets, registry=self._registry)

    def _gauge(
        self, name: str, text: str, value: Callable[[], float] | None, mode: Any = "livesum"
    ) -> Gauge:
        gauge = Gauge(f"{_PREFIX}_{name}", text, registry=self._registry, multiprocess_mode=mode)
        if value:
            self._gauges.append((gauge, value))
        return gauge

    def _all(self) -> list[Version]:
        return [v for name in self._repository.names() for v in self._repository.versions(name)]

    def close(self) -> None:
        """Writes the lines of the access log that wait."""
        if self._log:
            self._log.close()

    def batch(self, signature: Signature, rows: int, wait: float) -> None:
        """Counts a batch that begins."""
        self._batch_rows.labels(signature.name).observe(rows)
        self._wait_seconds.observe(wait)

    def request(self, record: dict[str, Any], seconds: float) -> None:
        """Counts an answered request, and logs it.

        Args:
            record: `client`, `method`, `path`, `status`, and what the route added: `model`,
                `version`, `signature`, `rows`, `body`.
            seconds: How long it took.
        """
        model = record.get("model", "")
        method = record["method"] if record["method"] in _METHODS else "other"
        key = (model, method, record["status"])
        if key not in self._counters:  # looking them up by their labels takes longer
            status = str(record["status"])
            counter = self._requests.labels(model, method, status)
            self._counters[key] = counter, self._seconds.labels(model)
        counter, histogram = self._counters[key]
        counter.inc()
        histogram.observe(seconds)
        if self._log:
            now = datetime.datetime.now(datetime.timezone.utc)
            line = {"time": now.isoformat(timespec="milliseconds"), **record}
            line["ms"] = round(1000 * seconds, 3)
            self._log.write(json.dumps(line))

    def refresh(self) -> None:
        """Measures what is not counted as it happens; other processes show it, too."""
        with self._paging:
            for gauge, value in self._gauges:
                gauge.set(value())
            self._counted.update(self._repository.names())
            for name in self._counted:
                versions = self._repository.versions(name)
                for state in State:
                    count = sum(version.state is state for version in versions)
                    self._versions.labels(name, state.name).set(count)

    def page(self) -> bytes:
        """The metrics of all processes in Prometheus' text format."""
        self.refresh()
        if METRICS not in os.environ:
            return generate_latest(self._registry)
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)
        return generate_latest(registry)


class Lines:
    """Writes lines to a stream in a thread of its own.

    A pipe that nobody reads blocks whoever writes to it. Here it is the thread; while it is
    blocked, up to 10,000 lines wait, and further ones are dropped and counted.

    Attributes:
        dropped: How many lines were dropped.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self.dropped = stream, 0
        self._queue: queue.Queue[str | None] = queue.Queue(_MOST_LINES)
        self._thread = threading.Thread(target=self._run, name="lines", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Adds a line; never waits."""
        try:
            self._queue.put_nowait(line + "\n")
        except queue.Full:
            self.dropped += 1

    def close(self, seconds: float = 1.0) -> None:
        """Ends the thread after the lines that wait, or leaves it behind after `seconds`."""
        try:
            self._queue.put_nowait(None)
        except queue.Full:  # blocked: there is nothing to wait for
            return
        self._thread.join(seconds)

    def _run(self) -> None:
        while (line := self._queue.get()) is not None:
            try:
                self._stream.write(line)
                if self._queue.empty():
                    self._stream.flush()
            except (OSError, ValueError):  # the reader is gone, or the stream was closed
                self.dropped += 1
