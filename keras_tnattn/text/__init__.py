"""Converts text to ids and back; needs TensorFlow, whatever the backend.

Only words (`learn_words`, `WordVectorizer`) need no TensorFlow. The classes are imported when they
are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_tnattn.text.bert_pieces import BertPieceTokenizer, learn_bert_pieces, load_tokenizer
    from keras_tnattn.text.sentence_translator import SentenceTranslator, Translation
    from keras_tnattn.text.word_pieces import WordPieceTokenizer, learn_word_pieces
    from keras_tnattn.text.words import WordVectorizer, learn_words, word_vectorizer

__all__ = [
    "BertPieceTokenizer",
    "SentenceTranslator",
    "Translation",
    "WordPieceTokenizer",
    "WordVectorizer",
    "learn_bert_pieces",
    "learn_word_pieces",
    "learn_words",
    "load_tokenizer",
    "word_vectorizer",
]

_MODULES = {
    **dict.fromkeys(("BertPieceTokenizer", "learn_bert_pieces", "load_tokenizer"), "bert_pieces"),
    **dict.fromkeys(("SentenceTranslator", "Translation"), "sentence_translator"),
    **dict.fromkeys(("WordPieceTokenizer", "learn_word_pieces"), "word_pieces"),
    **dict.fromkeys(("WordVectorizer", "learn_words", "word_vectorizer"), "words"),
}


def __getattr__(name: str) -> Any:
    # Words must not need TensorFlow, which the other modules import.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
