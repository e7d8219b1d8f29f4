"""Data sets that Keras, scikit-learn and TensorFlow Datasets download and keep in their caches.

The functions import these libraries themselves, so that invalid options are reported at once.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from keras_tnattn_train.data.texts.labeled import LabeledTexts
from keras_tnattn_train.options.errors import InputError


def load_reuters() -> LabeledTexts:
    """Reads Reuters newswires with Keras' loader, and turns its ids back into words."""
    from keras.datasets import reuters as source

    index = load_from_library("reuters", source.get_word_index)
    # Keep all words and add no start marker: then an id is the word's number in the index.
    (rows, labels), _ = load_from_library(
        "reuters",
        lambda: source.load_data(
            num_words=max(index.values()) + 1, test_split=0.0, start_char=None, index_from=0
        ),
    )
    words = {number: word for word, number in index.items()}
    topics = source.get_label_names()
    texts = (" ".join(words[number] for number in row) for row in rows)
    return LabeledTexts.from_rows(zip(texts, (topics[label] for label in labels), strict=True))


def load_newsgroups(remove: Sequence[str] = ("headers", "footers", "quotes")) -> LabeledTexts:
    """Reads 20 Newsgroups with scikit-learn's loader, without some parts of the posts."""
    from sklearn.datasets import fetch_20newsgroups

    posts = load_from_library(
        "newsgroups",
        lambda: fetch_20newsgroups(subset="all", shuffle=False, remove=tuple(remove), n_retries=1),
    )
    names = (posts.target_names[i] for i in posts.target)
    return LabeledTexts.from_rows(zip(posts.data, names, strict=True))


def load_tfds(
    name: str,
    data_dir: str | None = None,
    text_column: str | None = None,
    label_column: str | None = None,
) -> LabeledTexts:
    """Reads all labeled examples of a TensorFlow data set, its splits one after the other.

    By default text and label are its supervised features, or the only ones of their kind. Without a
    network, TFDS keeps trying for some minutes before it gives up.
    """
    import tensorflow_datasets as tfds

    builder = load_from_library(f"tfds:{name}", lambda: tfds.builder(name, data_dir=data_dir))
    features = builder.info.features
    supervised = builder.info.supervised_keys
    text = _feature(name, features, tfds.features.Text, text_column, supervised, "--text-column")
    label = _feature(
        name, features, tfds.features.ClassLabel, label_column, supervised, "--label-column"
    )
    load_from_library(f"tfds:{name}", builder.download_and_prepare)
    names = features[label].names
    return LabeledTexts.from_rows(
        (example[text].decode("utf-8", "replace"), names[example[label]])
        for split in sorted(builder.info.splits)
        for example in tfds.as_numpy(builder.as_dataset(split=split, shuffle_files=False))
        if example[label] >= 0  # -1 marks an example without a label
    )


def _feature(name, features, kind, column, supervised, option) -> str:  # noqa: ANN001
    fitting = sorted(key for key, feature in features.items() if isinstance(feature, kind))
    preferred = [key for key in supervised or () if key in fitting]
    candidates = [column] if column else preferred or fitting
    if len(candidates) != 1 or candidates[0] not in fitting:
        raise InputError(
            f"Expected one {kind.__name__} feature in tfds:{name}. Received: {fitting}. "
            f"Name one with {option}"
        )
    return candidates[0]


def load_tfds_pairs(
    name: str, data_dir: str | None = None
) -> tuple[tuple[str, str], dict[str, Iterator[tuple[str, str]]]]:
    """Returns the languages of a set of TensorFlow Datasets, and iterators over pairs, by split."""
    import tensorflow_datasets as tfds

    alternative = "use --corpus cldr:pt-en"
    dataset = f"tfds:{name}"
    builder = load_from_library(dataset, lambda: tfds.builder(name, data_dir=data_dir), alternative)
    languages = builder.info.supervised_keys
    if not isinstance(builder.info.features, tfds.features.Translation) or not languages:
        raise InputError(f"Expected a translation set. Received: {dataset}")
    load_from_library(dataset, builder.download_and_prepare, alternative)

    def pairs(split: str) -> Iterator[tuple[str, str]]:
        source, target = languages
        for example in tfds.as_numpy(builder.as_dataset(split=split, shuffle_files=False)):
            yield tuple(example[side].decode("utf-8", "replace") for side in (source, target))

    return tuple(languages), {split: pairs(split) for split in builder.info.splits}


def load_from_library(
    dataset: str,
    load: Callable,
    alternative: str = "try keras-tnattn classify with --dataset docstrings",
) -> Any:
    """Returns what `load` returns, and reports any of its errors as an `InputError`."""
    try:
        return load()
    except Exception as error:  # the libraries even raise `Exception` itself
        raise InputError(
            f"The data set {dataset} is not in its library's cache and could not be downloaded "
            f"({type(error).__name__}: {str(error).partition(chr(10))[0]}). Connect to a network, "
            f"give a folder that holds it with --data-dir, or {alternative}, which needs neither"
        ) from error
