"""`make demo-search`: a page that searches sentences by meaning, with an encoder of 6 MB.

    python -m keras_tnattn_train.demos.search [FILE]

The encoder is that of `keras_small.load("minilm")`. `FILE` is a text with a sentence in each line;
default: first sentences of docstrings of the installed libraries.
"""

import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_tnattn_runtime.reader import BertPieces
from keras_tnattn_train.commands import run_demo
from keras_tnattn_train.data.opening import open_lines
from keras_tnattn_train.data.tables import undecodable
from keras_tnattn_train.data.texts.docstrings import load_docstrings
from keras_tnattn_train.options.errors import InputError, first_line

FOLDER = Path("runs/demo-search")
SENTENCES = 1000
CARD = {
    "name": "Sentences by meaning",
    "model": "all-MiniLM-L6-v2, Apache-2.0",
    "examples": ["how many elements are there"],
}


def run() -> None:
    """Runs the demo."""
    import keras_small
    from keras_tnattn_train.exports import Page, Search, export
    from keras_tnattn_train.exports.pages import fetch_runtime

    try:  # before minutes of work
        runtime = fetch_runtime()
    except (OSError, RuntimeError) as error:
        raise InputError(f"Expected what the page needs. {first_line(error)}") from error
    if sys.argv[1:]:
        sentences = sentences_of(Path(sys.argv[1]))
    else:
        sentences = first_sentences(load_docstrings().texts)
    encoder = keras_small.load("minilm")
    tokenizer = tokenizer_of(encoder.pieces)
    page = FOLDER / "page"
    shutil.rmtree(page, ignore_errors=True)
    export(Search(encoder.model, tokenizer, sentences, card=CARD), page, Page(runtime))
    print(f"\n{len(sentences):,} sentences in {page}:")
    for file in sorted(page.iterdir()):
        print(f"{file.stat().st_size:12,} bytes  {file.name}")
    print(f"see it: python -m http.server --directory {page}")


def tokenizer_of(pieces: BertPieces) -> Any:
    """Returns the `tokenizers.Tokenizer` that cuts texts into the same pieces."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    ids = {piece: n for n, piece in enumerate(pieces.vocabulary)}
    unknown = pieces.vocabulary[pieces.unknown]
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token=unknown, max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=pieces.case == "lower", strip_accents=not pieces.keep_accents
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    start, end = ((pieces.vocabulary[n], n) for n in (pieces.start, pieces.end))
    tokenizer.post_processor = processors.BertProcessing(end, start)
    return tokenizer


def sentences_of(path: Path) -> list[str]:
    """Returns the lines of a file with text, each once."""
    with open_lines(path, "text file") as lines:
        sentences = list(dict.fromkeys(filter(None, map(str.strip, lines))))
    if not sentences or undecodable("".join(sentences)):
        raise InputError(f"Expected UTF-8 with a sentence in each line. Received: {path}")
    return sentences


def first_sentences(texts: Sequence[str]) -> list[str]:
    """Returns first sentences of texts, of 5 to 25 words, in an order that mixes the libraries."""
    firsts = [re.split(r"(?<=\.)\s+(?=[A-Z])|\n\s*\n", text)[0] for text in texts]
    firsts = [" ".join(first.split()) for first in firsts]
    firsts = [first for first in firsts if first.endswith(".") and 5 <= len(first.split()) <= 25]
    sentences = list(dict.fromkeys(firsts))
    rows = np.random.default_rng(0).permutation(len(sentences))[:SENTENCES]
    return [sentences[n] for n in rows]


if __name__ == "__main__":
    sys.exit(run_demo(run))
