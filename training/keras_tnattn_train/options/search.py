"""The options of the search for translations, which several programs share."""

from typing import Any

from keras_tnattn_train.options.options import MODEL, SEARCH, option

LARGEST_BEAM = 1024


def beam_option() -> Any:
    """Declares the number of beams."""
    text = "number of beams; 1: greedy search"
    return option(1, SEARCH, text, metavar="K", ge=1, le=LARGEST_BEAM)


def search_batch_option() -> Any:
    """Declares the number of sentences of a batch."""
    return option(32, SEARCH, "sentences per batch", metavar="N", ge=1, le=1_048_576)


def checkpoint_option() -> Any:
    """Declares the weights to translate with."""
    text = "best_loss, best_accuracy, epoch_0010, ... (default: the finished model)"
    return option(None, MODEL, text, metavar="NAME")


def check_n_best(n_best: int | None, beam: int) -> None:
    """Raises `ValueError` if `n_best` is greater than the number of beams."""
    if n_best is not None and n_best > beam:
        raise ValueError(f"Expected n_best <= beam. Received: n_best={n_best}, beam={beam}")
