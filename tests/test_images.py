import pytest

from training.images import DigitsTask, digits, learn_digits


def test_parts_of_the_digits():
    images, test_images, labels, test_labels = digits()
    assert images.shape == (1347, 8, 8)
    assert test_images.shape == (450, 8, 8)
    assert (len(labels), len(test_labels)) == (1347, 450)
    assert images.min() == 0
    assert images.max() == 1


@pytest.mark.slow
def test_learns_the_digits():
    _, accuracy = learn_digits(DigitsTask())
    assert accuracy >= 0.97
