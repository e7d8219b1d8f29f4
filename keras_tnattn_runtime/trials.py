"""Runs model files in a process of its own: `python -m keras_tnattn_runtime.trials`.

A runtime that crashes then ends this process, and not the one that wrote the file. Requests come
from the standard input and answers go to the standard output, both pickled; `None` ends the
process, as the end of the input does. A request is the name of a function below and its arguments.
"""

import functools
import os
import pickle
import signal
import sys
import timeit
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_tnattn_runtime.running import RUNNERS

_CALLS = 10
_SLOWER = 1.1  # the factor up to which times count as the same


def outputs(suffix: str, file: str | bytes, examples: Sequence[Any]) -> list[Any]:
    """Returns the outputs of a file, or of its content, for each example."""
    run = RUNNERS[suffix](file)
    return [run(example) for example in examples]


def samples(suffix: str, file: str | bytes, examples: Sequence[Any], count: int) -> list[Any]:
    """Returns some numbers of each output of a file, and the means of its channels, axis 1.

    The outputs themselves, which may take far more memory than the file, stay in this process.

    Args:
        suffix: The end of the file's name.
        file: The file, or its content.
        examples: The inputs of each call.
        count: How many numbers, at most twice as many, beside the smallest and the largest.

    Returns:
        For each example a list of pairs of arrays, one of each output.
    """
    run = RUNNERS[suffix](file)
    return [[_sample(array, count) for array in run(example)] for example in examples]


def _sample(array: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    step = array.size // count | 1  # odd, so that all channels count
    numbers = np.append(array.ravel()[::step], [array.min(), array.max()])
    channels = np.moveaxis(array, 1, 0).reshape(array.shape[1], -1)
    return numbers, channels.mean(axis=1)


def is_fast(suffix: str, file: str | bytes, other: str | bytes, example: Any) -> bool:
    """Whether a file takes at most a tenth more time than another one, called in turn."""
    runs = [RUNNERS[suffix](each) for each in (file, other)]
    calls = [functools.partial(run, example) for run in runs]
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(_CALLS):
        for call, of_call in zip(calls, times, strict=True):
            of_call.append(timeit.timeit(call, number=1))
    return min(times[0]) <= _SLOWER * min(times[1])


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "outputs": outputs,
    "samples": samples,
    "is_fast": is_fast,
}


def main() -> None:
    """Answers requests until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asks ends this one
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what runtimes print is no answer
    while request := _next_request():
        name, arguments = request
        try:
            answer = (True, _FUNCTIONS[name](*arguments))
        except Exception as error:  # runtimes raise errors of any class
            answer = (False, str(error) or type(error).__name__)
        pickle.dump(answer, answers)
        answers.flush()


def _next_request() -> tuple[str, Sequence[Any]] | None:
    try:
        return pickle.load(sys.stdin.buffer)
    except EOFError:
        return None


if __name__ == "__main__":
    main()
