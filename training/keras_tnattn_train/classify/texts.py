"""The texts of the options of `classify`."""

from keras_tnattn_train.classify.config import ClassifyConfig
from keras_tnattn_train.data.texts import LabeledTexts, load_texts, split_rows


def read_texts(config: ClassifyConfig) -> LabeledTexts:
    """Reads the data of a config, prints size and notes, and checks that they can be split."""
    data = load_texts(
        config.dataset,
        config.data_dir,
        config.text_column,
        config.label_column,
        config.skip_bad_rows,
    )
    print(f"{config.dataset}: {len(data.texts):,} texts in {len(data.class_names)} classes")
    for note in data.notes:
        print(f"  {note}")
    split_rows(data.labels, config.test_fraction, config.seed)
    return data
