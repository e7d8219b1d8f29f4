import numpy as np
from conformance import assert_same_arrays

from keras_tnattn.estimator.batches import ArrayBatches, GroupedTextBatches, TextBatches


def test_the_order_depends_on_seed_and_epoch():
    def order(seed, epoch):
        batches = ArrayBatches(np.arange(10)[:, None], np.arange(10), 4, seed)
        batches.set_epoch(epoch)
        rows = [batches[i] for i in range(len(batches))]
        assert [len(labels) for _, labels in rows] == [4, 4, 2]
        assert all((ids[:, 0] == labels).all() for ids, labels in rows)
        return np.concatenate([labels for _, labels in rows]).tolist()

    assert order(3, 5) == order(3, 5)
    assert sorted(order(3, 5)) == list(range(10))
    assert len({tuple(order(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9


def test_texts_lose_the_padding_that_a_batch_shares():
    lengths = [3, 9, 65, 17, 0, 64, 300, 70]
    ids = np.zeros((8, 300), "int32")
    for row, length in zip(ids, lengths, strict=True):
        row[:length] = 1 + np.arange(length)
    batches = TextBatches(ids, np.arange(8), 2)
    shapes = [batches[i][0].shape for i in range(4)]
    # Powers of two from 64 on, but no longer than the arrays.
    assert shapes == [(2, 64), (2, 128), (2, 64), (2, 300)]

    weights = np.arange(8) / 8
    for epoch in range(3):
        whole = ArrayBatches(ids, np.arange(8), 3, seed=5, sample_weights=weights)
        short = TextBatches(ids, np.arange(8), 3, seed=5, sample_weights=weights)
        whole.set_epoch(epoch)
        short.set_epoch(epoch)
        for i in range(3):
            (full, *others), (cut, *same) = whole[i], short[i]
            assert not full[:, cut.shape[1] :].any()
            np.testing.assert_array_equal(full[:, : cut.shape[1]], cut)
            assert_same_arrays(others, same)


def test_texts_of_similar_lengths_share_a_batch():
    rng = np.random.default_rng(0)
    ids = np.zeros((40, 300), "int32")
    for row in ids:
        row[: rng.integers(1, 301)] = 1
    orders = set()
    for epoch in (0, 1, 0):
        batches = GroupedTextBatches(ids, np.arange(40), 5, 512, seed=3)
        batches.set_epoch(epoch)
        classes = []
        for index in range(len(batches)):
            texts, labels = batches[index]
            np.testing.assert_array_equal(texts, ids[labels, : texts.shape[1]])
            assert len(texts) <= 5
            assert texts.size <= 512
            lengths = (texts != 0).sum(axis=1)
            assert texts.shape[1] in (64, 128, 256, 300)
            assert lengths.min() > texts.shape[1] / 2 or texts.shape[1] == 64
            classes += labels.tolist()
        assert sorted(classes) == list(range(40))
        orders.add(tuple(classes))
    assert len(orders) == 2
