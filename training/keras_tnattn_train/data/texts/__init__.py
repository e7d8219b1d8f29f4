"""Loads labeled texts by name or path."""

from pathlib import Path

from keras_tnattn_train.data.reading import TFDS, refuse, unknown_source
from keras_tnattn_train.data.texts.labeled import LabeledTexts
from keras_tnattn_train.data.texts.libraries import load_tfds
from keras_tnattn_train.data.texts.registry import TEXT_SETS
from keras_tnattn_train.data.texts.tables import load_folders, load_table
from keras_tnattn_train.options.errors import InputError


def load_texts(
    dataset: str,
    data_dir: str | None = None,
    text_column: str | None = None,
    label_column: str | None = None,
    skip_bad_rows: bool = False,
) -> LabeledTexts:
    """Reads a data set.

    Args:
        dataset: A name in `keras_tnattn_train.data.texts.registry.TEXT_SETS`; `tfds:NAME`; the path
            of a table, as `open_table` reads it; or the path of a folder with one subfolder of
            `.txt` files per class.
        data_dir: A folder with the files of the named data sets; TFDS' folder for `tfds:NAME`.
            Default: the libraries' own loaders and caches.
        text_column: The column or feature with the texts. Default: recognized from the header, else
            `text`.
        label_column: The column or feature with the labels. Default: recognized from the header,
            else `label`.
        skip_bad_rows: Whether to leave out rows of a file that cannot be read or have no label.
            Default `False`.

    Returns:
        The rows; the same source always gives the same rows in the same order.
    """
    columns = {"text_column": text_column, "label_column": label_column}
    if dataset.startswith(TFDS):
        return load_tfds(dataset.removeprefix(TFDS), data_dir, text_column, label_column)
    if dataset in TEXT_SETS:
        refuse("dataset", dataset, **columns)
        return _load_named(dataset, data_dir, skip_bad_rows)
    path = Path(dataset)
    if path.exists():
        refuse("dataset", dataset, data_dir=data_dir)
    if path.is_dir():
        refuse("dataset", dataset, **columns)
        return load_folders(path, skip_bad_rows)
    if path.is_file():
        return load_table(path, text_column, label_column, skip_bad_rows=skip_bad_rows)
    raise unknown_source("dataset", dataset, [*TEXT_SETS, f"{TFDS}NAME"])


def _load_named(name: str, data_dir: str | None, skip_bad_rows: bool) -> LabeledTexts:
    entry = TEXT_SETS[name]
    if entry.file is None:
        refuse("dataset", name, data_dir=data_dir)
    elif data_dir is not None:
        data = load_table(
            Path(data_dir, entry.file),
            drop_repeats=entry.drop_repeats,
            keep_empty=entry.keep_empty,
            skip_bad_rows=skip_bad_rows,
        )
        return data if entry.class_of is None else data.in_classes(entry.class_of)
    if entry.load is None:
        raise InputError(
            f"Expected --data-dir with dataset={name!r}: a folder that holds {entry.file}. "
            "Alternatively, give the path of a table as --dataset"
        )
    return entry.load()
