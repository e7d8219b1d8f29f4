"""Runs exported files."""

from keras_small.runtimes.computation import outputs_of


def run(path, example):
    """Returns the outputs of a file for inputs as the model takes them."""
    return outputs_of(path, [example])[0]
