import asyncio
import threading

import numpy as np
import pytest
import tensorflow as tf

from keras_tnattn_serving.batching import Batcher
from keras_tnattn_serving.errors import RequestError


class Function:
    """A signature that notes its batches; `fails` and `blocks` are texts or lengths."""

    name = "serving_default"

    def __init__(self, hints=None, batches=True, spec=None):
        self.inputs = {"x": spec or tf.TensorSpec([None], tf.string)}
        self.batches, self.hints = batches, hints or {}
        self.calls, self.gate = [], threading.Event()
        self.gate.set()

    def hint(self, name, key):
        return self.hints.get(key)

    def __call__(self, arrays):
        self.gate.wait(10)
        x = arrays["x"]
        self.calls.append(x.tolist())
        if x.dtype == object and b"bad" in x:
            raise ValueError("a bad text")
        return {"y": x}


def texts(*values):
    return {"x": np.array([v.encode() for v in values], object)}


def together(function, *requests, **options):
    """Runs requests at the same time; returns their results or errors."""

    async def run():
        options_ = {"max_batch": 8, "batch_wait_ms": 300, "max_queue": 64, "threads": 1, **options}
        batcher = Batcher(**options_, on_batch=lambda *_: None)
        coroutines = [batcher.run(function, r, len(r["x"])) for r in requests]
        results = await asyncio.gather(*coroutines, return_exceptions=True)
        assert batcher.waiting == 0
        batcher.close()
        return results

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("ages", "stuck"),
    [([9.0], False), ([9.0, 0.1], False), ([9.0, 1.1], True), ([1.0, 0.1], False)],
)
def test_a_batcher_is_stuck_when_all_of_its_threads_are(ages, stuck, monkeypatch):
    batcher = Batcher(8, 300, 64, 2, on_batch=lambda *_: None)
    monkeypatch.setattr(batcher, "ages", lambda: ages)
    assert batcher.stuck(1.0) == stuck
    batcher.close()


def test_requests_share_a_batch_and_get_their_own_rows():
    function = Function()
    results = together(function, texts("a"), texts("b", "c"), texts("d"))
    assert [r["y"].tolist() for r in results] == [[b"a"], [b"b", b"c"], [b"d"]]
    assert function.calls == [[b"a", b"b", b"c", b"d"]]


def test_requests_that_come_one_at_a_time_do_not_wait():
    waits = []

    async def run():
        batcher = Batcher(8, 300, 64, 1, lambda signature, rows, wait: waits.append(wait))
        for text in "abc":
            await batcher.run(Function(), texts(text), 1)
        batcher.close()

    asyncio.run(run())
    assert waits[0] >= 0.29
    assert max(waits[1:]) < 0.25


def test_a_batch_has_at_most_its_size():
    function = Function()
    together(function, *(texts(str(i)) for i in range(20)), max_batch=8)
    assert [len(call) for call in function.calls] == [8, 8, 4]


def test_one_bad_text_fails_alone():
    function = Function()
    results = together(function, texts("a"), texts("bad"), texts("b"), texts("c", "bad"))
    assert [type(r) for r in results] == [dict, ValueError, dict, ValueError]
    assert results[2]["y"].tolist() == [b"b"]
    assert len(function.calls) == 5  # together, then one by one


def test_a_large_request_is_cut_and_put_together_in_its_order():
    values = [str(i) * (1 + 40 * (i % 2)) for i in range(19)]
    function = Function({"by_length": True})
    (result,) = together(function, texts(*values), max_batch=4)
    assert result["y"].tolist() == [v.encode() for v in values]
    assert max(len(call) for call in function.calls) <= 4
    # Short and long texts apart, but for the last of both.
    assert sorted(len({len(text) > 20 for text in call}) for call in function.calls) == [1] * 4 + [
        2
    ]


@pytest.mark.parametrize(
    ("max_batch", "max_ratio", "calls"),
    [
        (8, None, [[40, 50, 20, 250]]),
        (3, None, [[40, 50, 20], [250]]),
        (2, None, [[40, 50], [250, 20]]),
        (8, 4, [[40, 50, 20], [250]]),
        (8, 2, [[40, 50], [250], [20]]),
    ],
)
def test_the_nearest_lengths_fill_a_batch(max_batch, max_ratio, calls):
    function = Function({"by_length": True, "max_ratio": max_ratio})
    sizes = (40, 250, 20, 50)  # which round up to 64, 256, 32 and 64
    results = together(function, *(texts("a" * n) for n in sizes), max_batch=max_batch)
    assert [result["y"][0] for result in results] == [b"a" * n for n in sizes]
    assert [[len(text) for text in call] for call in function.calls] == calls


def test_only_rows_of_one_shape_share_a_batch_unless_they_may_be_padded():
    spec = tf.TensorSpec([None, None], tf.int32)
    requests = [{"x": np.ones((1, n), "int32")} for n in (3, 4, 3)]
    function = Function(spec=spec)
    results = together(function, *requests)
    assert sorted(len(call) for call in function.calls) == [1, 2]
    assert [r["y"].shape for r in results] == [(1, 3), (1, 4), (1, 3)]
    function = Function({"padding": 0}, spec=spec)
    together(function, *requests)
    assert function.calls == [[[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 0]]]


def test_a_signature_of_fixed_sizes_takes_requests_one_by_one():
    function = Function(batches=False)
    together(function, texts("a"), texts("b"))
    assert function.calls == [[b"a"], [b"b"]]


def test_a_refused_part_ends_the_request():
    async def run():
        function = Function()
        batcher = Batcher(2, 0, 64, 1, lambda *_: None)
        seen = []

        def check(outputs):
            seen.append(outputs["y"].tolist())
            if len(seen) == 2:
                function.gate.clear()
                raise RequestError("too much", 413)

        with pytest.raises(RequestError, match="too much"):
            await batcher.run(function, texts(*"abcdefghij"), 10, check)
        assert seen == [[b"a", b"b"], [b"c", b"d"]]
        assert batcher.waiting == 0
        function.gate.set()
        batcher.close()
        assert len(function.calls) < 5

    asyncio.run(run())


def test_a_full_queue_refuses_and_an_abandoned_request_is_not_computed():
    async def run():
        function = Function()
        batcher = Batcher(1, 0, 4, 1, lambda *_: None)
        function.gate.clear()
        tasks = [asyncio.create_task(batcher.run(function, texts(str(i)), 1)) for i in range(5)]
        await asyncio.sleep(0.05)  # one is computed, four wait
        assert batcher.waiting == 4
        with pytest.raises(RequestError) as refused:
            await batcher.run(function, texts("too many"), 1)
        assert refused.value.status == 429
        assert int(refused.value.headers["Retry-After"]) >= 1
        tasks[2].cancel()
        await asyncio.sleep(0)
        function.gate.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        batcher.close()
        assert function.calls == [[b"0"], [b"1"], [b"3"], [b"4"]]

    asyncio.run(run())


def test_outputs_without_a_row_for_each_row_are_an_error():
    class Wrong(Function):
        def __call__(self, arrays):
            return {"y": np.zeros(7)}

    results = together(Wrong(), texts("a"), texts("b"))
    assert all(isinstance(r, RuntimeError) for r in results)


def test_a_request_larger_than_the_queue_is_taken_when_nothing_waits():
    batcher = Batcher(4, 0, 2, 1, lambda *_: None)
    batcher._seconds_per_row = 10.0
    batcher.check_room(3)
    batcher.waiting = 2
    with pytest.raises(RequestError, match="2 of 2 rows are waiting") as error:
        batcher.check_room()
    assert (error.value.status, error.value.headers) == (429, {"Retry-After": "20"})
