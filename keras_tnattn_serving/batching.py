"""Concurrent requests gathered into batches."""

import asyncio
import collections
import dataclasses
import itertools
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from starlette.requests import ClientDisconnect

from keras_tnattn_serving.errors import RequestError
from keras_tnattn_serving.servable import Signature
from keras_tnattn_serving.tensors import pad_together

_SHORT = 8 * 1024  # entries that are joined at once, in less than a millisecond
Arrays = dict[str, np.ndarray]
# What the rows of a lane have in common: the signature, the exponent of the power of two that their
# length rounds up to, and the shapes of their arrays.
_Key = tuple[Signature, int, tuple]


@dataclasses.dataclass(eq=False)
class _Item:
    """Rows of one request that are computed in one batch."""

    arrays: Arrays
    rows: int
    since: float
    future: asyncio.Future
    gone: Callable[[], bool] | None
    key: _Key | None  # of the lane that it waits in


@dataclasses.dataclass(eq=False)
class _Lane:
    """Waiting rows that may share a batch: of one signature, with shapes that fit together."""

    signature: Signature
    items: collections.deque[_Item]
    rows: int = 0


class Batcher:
    """Computes the rows of concurrent requests together.

    While a batch is computed, requests wait in a lane for each signature, length (rounded up to a
    power of two) and shape. The lane whose first request has waited longest is next, once it fills
    a batch or that request has waited `batch_wait_ms`; room in the batch is filled from the lanes
    of the nearest lengths, as far apart as the hint `max_ratio` of the signature allows. While
    requests come one at a time, none waits. If a batch fails, its requests are computed one by one,
    so that only those at fault get the error.
    """

    def __init__(
        self,
        max_batch: int,
        batch_wait_ms: float,
        max_queue: int,
        threads: int,
        on_batch: Callable[[Signature, int, float], None],
    ) -> None:
        self._max_batch, self._wait = max_batch, batch_wait_ms / 1000
        self._max_queue, self._on_batch = max_queue, on_batch
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="inference")
        self._threads = self._idle = threads
        self._lanes: dict[_Key, _Lane] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._seconds_per_row = 0.0
        self._alone = False  # whether the last batch was that of one request
        self._begun: dict[int, float] = {}  # when each batch that is computed now began
        self._numbers = itertools.count()
        self.waiting = 0

    async def run(
        self,
        signature: Signature,
        arrays: Arrays,
        rows: int,
        check: Callable[[Arrays], None] | None = None,
        gone: Callable[[], bool] | None = None,
        seconds: float | None = None,
    ) -> Arrays:
        """Computes a signature on the rows of one request, within `seconds`.

        `check` gets the outputs of each part of the rows; after an error of it, the other parts are
        not computed. Rows that wait are not computed either once `gone()`.

        Raises:
            ClientDisconnect: If the client has hung up.
            RequestError: With 429, if too many rows are waiting.
            TimeoutError: If the time is over.
            Exception: Whatever the signature raises for these rows.
        """
        self.check_room(rows)
        parts = _parts(signature, arrays, rows, self._max_batch)
        items = [self._enqueue(key, part, rows_, gone) for part, rows_, key, _ in parts]
        self._advance()
        # A timer costs less than the cancellation of this task, which most requests do not need.
        timer = seconds and asyncio.get_running_loop().call_later(seconds, _expire, items)
        try:
            results = []
            for item in items:
                results.append(await item.future)
                if check:
                    check(results[-1])
        finally:
            if timer:
                timer.cancel()
            for item in items:  # after the deadline or an error, skip those not started
                item.future.cancel()
                self._forget(item)
        if len(parts) == 1:
            return results[0]
        order = np.argsort(np.concatenate([indices for *_, indices in parts]))
        if sum(output.size for result in results for output in result.values()) <= _SHORT:
            return _join(results, order)
        return await asyncio.to_thread(_join, results, order)

    def check_room(self, rows: int = 1) -> None:
        """Raises `RequestError` with 429 if the queue has no room for these rows.

        A request larger than the queue is taken when nothing else waits.
        """
        if self.waiting and self.waiting + rows > self._max_queue:
            seconds = max(1, round(self.waiting * self._seconds_per_row))
            raise RequestError(
                f"The queue is full: {self.waiting} of {self._max_queue} rows are waiting "
                "(--max-queue)",
                429,
                {"Retry-After": str(seconds)},
            )

    def ages(self) -> list[float]:
        """The seconds for which each batch has been computed that is computed now."""
        now = time.monotonic()
        return [now - began for began in list(self._begun.values())]

    def stuck(self, seconds: float) -> bool:
        """Whether every thread has been computing its batch for longer than `seconds`."""
        ages = self.ages()
        return len(ages) == self._threads and min(ages) > seconds

    def close(self) -> None:
        """Ends each thread after its current batch."""
        self._executor.shutdown(wait=False)

    def _enqueue(
        self, key: _Key, arrays: Arrays, rows: int, gone: Callable[[], bool] | None
    ) -> _Item:
        loop = asyncio.get_running_loop()
        item = _Item(arrays, rows, time.monotonic(), loop.create_future(), gone, key)
        lane = self._lanes.setdefault(key, _Lane(key[0], collections.deque()))
        lane.items.append(item)
        lane.rows += rows
        self.waiting += rows
        return item

    def _forget(self, item: _Item) -> None:
        """Takes an item out of the queue, if it still waits."""
        if item.key is not None:
            lane = self._lanes[item.key]
            lane.items.remove(item)
            self._leave(lane, item)

    def _leave(self, lane: _Lane, item: _Item) -> None:
        """Updates the counts after an item has left its lane."""
        lane.rows -= item.rows
        self.waiting -= item.rows
        if not lane.items and item.key is not None:
            del self._lanes[item.key]
        item.key = None

    def _advance(self) -> None:
        """Starts as many batches as there are idle threads, or waits for the next to be due."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        while self._idle and self._lanes:
            key, lane = min(self._lanes.items(), key=lambda entry: self._due(entry[1]))
            delay = self._due(lane) - time.monotonic()
            if delay > 0:
                self._timer = asyncio.get_running_loop().call_later(delay, self._advance)
                return
            items = self._batch(key)
            if items:
                self._start(lane.signature, items)

    def _due(self, lane: _Lane) -> float:
        since = lane.items[0].since
        full = lane.rows >= self._max_batch
        return since if full or self._alone else since + self._wait

    def _batch(self, key: _Key) -> list[_Item]:
        """Takes the rows of a lane, and fills the batch from the lanes of the nearest lengths."""
        signature, power, shapes = key
        items, lowest, highest = self._take(key), power, power
        ratios = [signature.hint(name, "max_ratio") or math.inf for name in signature.inputs]
        # Lengths whose powers are `n` apart differ by less than a factor of `2 ** (n + 1)`.
        farthest = math.log2(max(1, min(ratios, default=math.inf))) - 1
        others = [other for other in self._lanes if other[0] is signature and other[2] == shapes]
        for other in sorted(others, key=lambda other: abs(other[1] - power)):
            low, high = min(lowest, other[1]), max(highest, other[1])
            if other != key and high - low <= farthest:
                taken = self._take(other, sum(item.rows for item in items))
                if taken:
                    items, lowest, highest = items + taken, low, high
        return items

    def _take(self, key: _Key, rows: int = 0) -> list[_Item]:
        """Takes waiting rows of a lane for a batch that already has `rows`."""
        items, lane = [], self._lanes[key]
        while lane.items and (not rows or rows + lane.items[0].rows <= self._max_batch):
            item = lane.items.popleft()
            self._leave(lane, item)
            if item.gone and item.gone() and not item.future.done():
                item.future.set_exception(ClientDisconnect())
            if not item.future.done():
                items.append(item)
                rows += item.rows
            if not lane.signature.batches and items:
                break
        return items

    def _start(self, signature: Signature, items: list[_Item]) -> None:
        loop = asyncio.get_running_loop()
        self._idle -= 1
        number, began = next(self._numbers), time.monotonic()
        self._begun[number] = began
        rows = sum(item.rows for item in items)
        computing = self._threads - self._idle
        self._alone = len(items) == computing == 1 and not self.waiting
        self._on_batch(signature, rows, began - min(item.since for item in items))

        def finished(results: list[Arrays | Exception]) -> None:
            self._idle += 1
            del self._begun[number]
            self._seconds_per_row = (time.monotonic() - began) / rows
            for item, result in zip(items, results, strict=True):
                if item.future.done():
                    continue
                if isinstance(result, Exception):
                    item.future.set_exception(result)
                else:
                    item.future.set_result(result)
            self._advance()

        def compute() -> None:
            results = _compute(signature, items)
            loop.call_soon_threadsafe(finished, results)

        self._executor.submit(compute)


def _expire(items: list[_Item]) -> None:
    for item in items:
        if not item.future.done():
            item.future.set_exception(TimeoutError())
            item.future.exception()  # not all are waited for, which asyncio would report


def _compute(signature: Signature, items: list[_Item]) -> list[Arrays | Exception]:
    """Computes a batch; if it fails, each of its items alone."""
    try:
        if len(items) == 1:
            return [_checked_outputs(signature, signature(items[0].arrays), items[0].rows)]
        padding = {name: signature.hint(name, "padding") or 0 for name in signature.inputs}
        arrays = {
            name: pad_together([item.arrays[name] for item in items], padding[name])
            for name in signature.inputs
        }
        rows = sum(item.rows for item in items)
        outputs = _checked_outputs(signature, signature(arrays), rows)
    except Exception as error:
        if len(items) == 1:
            return [error]
        return [_compute(signature, [item])[0] for item in items]
    results: list[Arrays | Exception] = []
    start = 0
    for item in items:
        stop = start + item.rows
        results.append({name: output[start:stop] for name, output in outputs.items()})
        start = stop
    return results


def _join(results: list[Arrays], order: np.ndarray) -> Arrays:
    """Joins the outputs of the parts of a request, and puts the rows into its order."""
    return {
        name: pad_together(
            [result[name] for result in results], b"" if output.dtype == object else 0
        )[order]
        for name, output in results[0].items()
    }


def _checked_outputs(signature: Signature, outputs: Arrays, rows: int) -> Arrays:
    if signature.batches:
        for name, output in outputs.items():
            if output.shape[:1] != (rows,):
                raise RuntimeError(
                    f"The signature {signature.name} returned {name} of shape {output.shape} for "
                    f"{rows} rows"
                )
    return outputs


def _parts(
    signature: Signature, arrays: Arrays, rows: int, max_batch: int
) -> list[tuple[Arrays, int, _Key, np.ndarray]]:
    """Cuts a request's rows into parts of at most one batch, by length if that saves work.

    Each has its arrays, its number of rows, the key of its lane, and the indices of its rows.
    """
    if not signature.batches:
        return [(arrays, rows, (signature, 0, ()), np.arange(rows))]
    lengths = [1] * rows
    shapes: list[tuple[int, ...] | None] = []
    for name, array in arrays.items():
        if signature.hint(name, "by_length") and array.ndim == 1:
            lengths = [max(length, len(row)) for length, row in zip(lengths, array, strict=True)]
        if signature.hint(name, "padding") is not None and array.ndim == 2:
            lengths = [max(length, array.shape[1]) for length in lengths]
            shapes.append(None)
        else:
            shapes.append(array.shape[1:])
    # Lengths that round up to the same power of two share a lane, as do all lengths up to 16.
    powers = [max(4, (length - 1).bit_length()) for length in lengths]
    if rows <= max_batch and len(set(powers)) == 1:
        return [(arrays, rows, (signature, powers[0], tuple(shapes)), np.arange(rows))]
    parts: list[tuple[Arrays, int, _Key, np.ndarray]] = []
    order = sorted(range(rows), key=lengths.__getitem__)
    for power, group in itertools.groupby(order, key=powers.__getitem__):
        same = list(group)
        for start in range(0, len(same), max_batch):
            indices = np.array(same[start : start + max_batch])
            part = {name: array[indices] for name, array in arrays.items()}
            parts.append((part, len(indices), (signature, power, tuple(shapes)), indices))
    return parts
