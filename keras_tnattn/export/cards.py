"""Model cards: what an exported model is, and where it comes from."""

import datetime
import platform
from collections.abc import Mapping
from typing import Any

import keras

from keras_tnattn_runtime import __version__

# A limit for servers: the memory of an attention grows with the square of the length.
MAX_IDS = 1000


def technical() -> dict[str, Any]:
    """Returns the entries that every card has: the date and the versions of the software."""
    import tensorflow as tf

    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "date": now.isoformat(timespec="seconds"),
        "versions": {
            "keras_tnattn": __version__,
            "keras": keras.__version__,
            "tensorflow": tf.__version__,
            "python": platform.python_version(),
        },
    }


def extend_card(card: Mapping[str, Any], more: Mapping[str, Any] | None) -> dict[str, Any]:
    """Adds entries to a card and merges their `sizes`."""
    more = dict(more or {})
    sizes = {**card.get("sizes", {}), **more.pop("sizes", {})}
    return {**card, "sizes": sizes, **more}
