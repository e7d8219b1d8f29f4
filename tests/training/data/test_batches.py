import numpy as np

from training.data.batches import ArrayBatches


def test_the_order_depends_on_seed_and_epoch():
    def order(seed, epoch):
        batches = ArrayBatches(np.arange(10)[:, None], np.arange(10), 4, seed)
        batches.set_epoch(epoch)
        seen = [batches[i] for i in range(len(batches))]
        assert [len(labels) for _, labels in seen] == [4, 4, 2]
        assert all((ids[:, 0] == labels).all() for ids, labels in seen)
        return np.concatenate([labels for _, labels in seen]).tolist()

    assert order(3, 5) == order(3, 5)
    assert sorted(order(3, 5)) == list(range(10))
    assert len({tuple(order(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9
