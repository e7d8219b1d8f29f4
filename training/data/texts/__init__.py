"""Labelled texts by name or path."""

from pathlib import Path

from training.data.reading import TFDS
from training.data.texts.docstrings import load_docstrings
from training.data.texts.labelled import LabelledTexts, split_rows
from training.data.texts.libraries import load_newsgroups, load_reuters, load_tfds
from training.data.texts.tables import load_folders, load_table
from training.errors import InputError

__all__ = ["LabelledTexts", "load_texts", "split_rows"]

# Where a data folder (--data-dir) holds the data sets that have a name.
TABLES = {
    "reuters": "reuters/data.tsv.xz",
    "newsgroups": "twenty_newsgroups/data_stripped.tsv.xz",
    "twenty_newsgroups": "twenty_newsgroups/data_stripped.tsv.xz",
    "drug_review": "drug_review/data.tsv.xz",
}


def load_texts(
    dataset: str,
    data_dir: str | None = None,
    text_column: str | None = None,
    label_column: str | None = None,
) -> LabelledTexts:
    """Reads a data set.

    Args:
        dataset: `docstrings`, `reuters`, `newsgroups` (or `twenty_newsgroups`), `drug_review`,
            `tfds:NAME`, the path of a `.csv` or `.tsv` file (`.gz`, `.xz`), or of a folder with
            one sub-folder of `.txt` files per class.
        data_dir: A folder of tables for the named data sets; TFDS' folder for `tfds:NAME`.
            Default: the libraries' own loaders and caches.
        text_column: The column or feature of the texts. Default: known by the header.
        label_column: The column or feature of the labels. Default: known by the header.

    Returns:
        The rows; always the same in the same order for the same source. Rows that repeat others
        are dropped from `docstrings` and the drug reviews, and kept elsewhere, as published.

    Raises:
        InputError: If there is no such data set, it cannot be read, or an option is given that
            means nothing to it.
    """
    columns = {"text_column": text_column, "label_column": label_column}
    if dataset.startswith(TFDS):
        return load_tfds(dataset.removeprefix(TFDS), data_dir, text_column, label_column)
    if dataset == "docstrings" or dataset in TABLES:
        _refuse(dataset, **columns)
    if dataset == "docstrings":
        _refuse(dataset, data_dir=data_dir)
        return load_docstrings()
    if dataset in TABLES and data_dir is not None:
        path = Path(data_dir, TABLES[dataset])
        return load_table(path, drop_repeats=dataset == "drug_review")
    if dataset == "drug_review":
        raise InputError(
            "Expected --data-dir with drug_review, or the path of its CSV file as --dataset"
        )
    if dataset == "reuters":
        return load_reuters()
    if dataset in TABLES:
        return load_newsgroups()
    path = Path(dataset)
    if path.exists():
        _refuse(dataset, data_dir=data_dir)
    if path.is_dir():
        _refuse(dataset, **columns)
        return load_folders(path)
    if path.is_file():
        return load_table(path, text_column, label_column)
    raise InputError(
        f"Expected docstrings, {', '.join(TABLES)}, {TFDS}NAME, or the path of a table or folder. "
        f"Received: dataset={dataset!r}"
    )


def _refuse(dataset: str, **options: str | None) -> None:
    for name, value in options.items():
        if value is not None:
            raise InputError(
                f"Expected no {name} with dataset={dataset!r}, which has none. "
                f"Received: {name}={value!r}"
            )
