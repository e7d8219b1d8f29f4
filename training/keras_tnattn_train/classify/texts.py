"""The texts of the options of `classify`."""

import re
from collections.abc import Sequence

from keras_tnattn_train.classify.config import ClassifyConfig
from keras_tnattn_train.data.texts import load_texts
from keras_tnattn_train.data.texts.labeled import LabeledTexts, split_rows

# Letters of scripts that are written without spaces: Thai, Lao, Burmese, Khmer, Chinese, Japanese.
_SPACELESS_LETTERS = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]"
)
_SAMPLE_SIZE = 1000  # texts
# Longer than the mean word of languages with spaces, and of words that are separated by hand.
_LONG_WORD = 15
_LONG_UNSPACED = 4


def warning_without_spaces(texts: Sequence[str]) -> str | None:
    """Returns a warning if texts seem to be written without spaces, from a sample of them."""
    step = max(1, len(texts) // _SAMPLE_SIZE)
    sample = " ".join(texts[i] for i in range(0, len(texts), step))
    words = re.findall(r"[^\W_]+(?:'[^\W_]+)*", sample)
    letters = sum(map(len, words))
    mean = letters / max(len(words), 1)
    unspaced = len(_SPACELESS_LETTERS.findall(sample)) > letters / 4
    if mean <= (_LONG_UNSPACED if unspaced else _LONG_WORD):
        return None
    return (
        f"warning: words have {mean:.0f} characters on average, so the texts seem to be written "
        "without spaces. Classify their characters with --split characters, or put spaces between "
        "words"
    )


def read_texts(config: ClassifyConfig) -> LabeledTexts:
    """Reads the data of a config, prints size and notes, and checks that they can be split."""
    data = load_texts(
        config.dataset,
        config.data_dir,
        config.text_column,
        config.label_column,
        config.skip_bad_rows,
    )
    print(f"{config.dataset}: {len(data.texts):,} texts; classes: {len(data.class_names)}")
    for note in data.notes:
        print(f"  {note}")
    if config.split == "words" and (warning := warning_without_spaces(data.texts)):
        print(f"  {warning}")
    split_rows(data.labels, config.test_fraction, config.seed)
    return data
