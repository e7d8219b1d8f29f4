"""The named data sets of labeled texts. To add one, add an entry here."""

import dataclasses
import functools
from collections.abc import Callable

from keras_tnattn_train.data.texts.docstrings import load_docstrings
from keras_tnattn_train.data.texts.labeled import LabeledTexts
from keras_tnattn_train.data.texts.libraries import load_newsgroups, load_reuters


@dataclasses.dataclass(frozen=True)
class TextSet:
    """A data set for `--dataset NAME`. It has a file, a loader or both.

    Args:
        description: Its description in `--help`.
        file: The path of its table in the folder of `--data-dir`, which `load_table` reads.
        load: The function that reads it without `--data-dir`.
        drop_repeats: Whether to drop rows of the file that repeat an earlier text and label.
            Default `False`.
        keep_empty: Whether to keep rows of the file without text, so that its rows are those of
            published results. Default `False`.
        class_of: The class that a label of the file belongs to. Default: each has its own.
    """

    description: str
    file: str | None = None
    load: Callable[[], LabeledTexts] | None = None
    drop_repeats: bool = False
    keep_empty: bool = False
    class_of: Callable[[str], str] | None = None


_NEWSGROUPS = TextSet(
    "20 Newsgroups without headers, footers and quotes",
    "twenty_newsgroups/data_stripped.tsv.xz",
    load_newsgroups,
    keep_empty=True,
)
# Reviews appear twice, under the brand name and the generic name of a drug.
_DRUG_REVIEWS = TextSet(
    "Drugs.com reviews by rating (needs --data-dir)", "drug_review/data.tsv.xz", drop_repeats=True
)
TEXT_SETS = {
    "docstrings": TextSet(
        "docstrings of installed Python libraries, no network needed", load=load_docstrings
    ),
    "reuters": TextSet("Reuters newswires by topic", "reuters/data.tsv.xz", load_reuters),
    "newsgroups": _NEWSGROUPS,
    "twenty_newsgroups": dataclasses.replace(_NEWSGROUPS, description="the same"),
    "newsgroups_raw": TextSet(
        "20 Newsgroups with headers and quotes, some of which name the group",
        "twenty_newsgroups/data.tsv.xz",
        functools.partial(load_newsgroups, remove=()),
    ),
    "drug_review": _DRUG_REVIEWS,
    "drug_review_two": dataclasses.replace(
        _DRUG_REVIEWS,
        description="the same, ratings up to 5 and above",
        class_of=lambda rating: "5 or less" if int(rating) <= 5 else "6 or more",
    ),
    "spooky_authors": TextSet(
        "sentences of three authors (needs --data-dir)", "spooky_authors/data.tsv.xz"
    ),
    "ohsumed": TextSet("medical abstracts by disease (needs --data-dir)", "ohsumed/data.tsv.xz"),
    "research_articles": TextSet(
        "Kaggle's abstracts by topic (needs --data-dir)", "research_articles/train.csv"
    ),
}
