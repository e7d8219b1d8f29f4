"""What Keras reads batches from while it trains."""

import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_tnattn.estimator.batches import ArrayBatches, TextBatches
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.processes.devices import on_all_gpus
from keras_tnattn_train.runs.training import as_dataset

needs_tensorflow = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="other backends read the batches themselves"
)


class Growing(keras.utils.PyDataset):
    """Batches of which each is longer than the one before."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return {"x": np.ones((2, 1 + index, 5), "float32")}, np.arange(2 + index)


@needs_tensorflow
class TestDataset:
    def test_gives_each_epoch_its_order(self):
        batches = ArrayBatches(np.arange(10)[:, None], np.arange(10), 4, seed=0)
        dataset = as_dataset(batches)
        assert len(dataset) == 3
        for epoch in range(2):
            batches.set_epoch(epoch)
            order = np.concatenate([labels for _, labels in dataset.as_numpy_iterator()])
            assert order.tolist() == batches.order.tolist()

    def test_fixes_the_sizes_that_do_not_vary(self):
        inputs, labels = as_dataset(Growing()).element_spec
        assert inputs["x"].shape.as_list() == [None, None, 5]
        assert labels.shape.as_list() == [None]

    def test_takes_texts_that_are_longer_in_a_later_epoch(self):
        ids = np.zeros((4, 100), "int32")
        ids[:, 0] = 1
        batches = TextBatches(ids, np.arange(4), 2, seed=0)
        dataset = as_dataset(batches)
        # As if a later epoch put a long text into a batch that was short in the first one.
        batches.lengths = np.array([64, 64, 100, 64])
        assert sorted(x.shape[1] for x, _ in dataset) == [64, 100]

    def test_takes_a_single_batch(self):
        batches = ArrayBatches(np.zeros((3, 7)), np.arange(3), 4)
        assert [x.shape for x, _ in as_dataset(batches)] == [(3, 7)]

    def test_does_not_tune_itself(self):
        assert not as_dataset(Growing()).options().autotune.enabled


AUTOTUNED = """
import time
import tensorflow as tf

def numbers():
    begin = time.monotonic()
    while time.monotonic() - begin < 3.2:  # the tuner's turns are after 2.6 and 5.1 seconds
        time.sleep(0.01)
        yield 1

options = tf.data.Options()
options.autotune.enabled = AUTOTUNE
dataset = tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec((), tf.int32))
iterator = iter(dataset.prefetch(2).with_options(options))
for _ in iterator:
    pass
begin = time.monotonic()
del iterator
print(time.monotonic() - begin)
"""


@pytest.mark.slow
@needs_tensorflow
def test_why_datasets_do_not_tune_themselves():
    """A minimal reproduction: deleting an autotuned iterator waits for the tuner's next turn."""
    seconds = {}
    for autotune in (True, False):
        code = AUTOTUNED.replace("AUTOTUNE", str(autotune))
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        seconds[autotune] = float(done.stdout)
    assert seconds[False] < 0.2
    assert seconds[True] > 1, "TensorFlow no longer waits: as_dataset may leave autotuning on"


@needs_tensorflow
def test_gpus_share_a_batch_evenly(monkeypatch):
    monkeypatch.setattr("tensorflow.config.list_logical_devices", lambda kind: ["GPU:0", "GPU:1"])
    with pytest.raises(InputError, match="batch_size=27"):
        on_all_gpus(27)


def test_arrays_in_their_own_order():
    batches = ArrayBatches(np.arange(5)[:, None], np.arange(5), 2)
    batches.set_epoch(1)
    parts = [batches[i][1].tolist() for i in range(3)]
    assert parts == [[0, 1], [2, 3], [4]]
