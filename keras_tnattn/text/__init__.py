"""Converts text to ids and back; needs TensorFlow, whatever the backend.

Only words (`learn_words`, `WordVectorizer`) need no TensorFlow. The classes are imported when they
are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_tnattn.text.word_pieces import WordPieceTokenizer, learn_word_pieces
    from keras_tnattn.text.words import WordVectorizer, learn_words, word_vectorizer

__all__ = [
    "WordPieceTokenizer",
    "WordVectorizer",
    "learn_word_pieces",
    "learn_words",
    "word_vectorizer",
]

_MODULES = {
    "WordPieceTokenizer": "word_pieces",
    "WordVectorizer": "words",
    "learn_word_pieces": "word_pieces",
    "learn_words": "words",
    "word_vectorizer": "words",
}


def __getattr__(name: str) -> Any:
    # Words must not need TensorFlow, which the other modules import.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
