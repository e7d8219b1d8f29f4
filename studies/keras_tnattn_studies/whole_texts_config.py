"""The options of one training of the study of whole texts."""

from keras_tnattn_train.classify.config import ClassifyConfig
from keras_tnattn_train.data.reading import short_name
from keras_tnattn_train.options.options import (
    DATA,
    MODEL,
    TRAINING,
    FitConfig,
    Options,
    batch_size_option,
    epochs_option,
    name_option,
    option,
)

# What mixes the words, by the name of the attention in `classify`.
MODELS = {"tsa": "tsa", "mha": "sdpa", "gru": "none", "none": "none"}


class WholeTextsTraining(Options):
    """The options that all trainings of the study share."""

    data_dir: str | None = option(
        None, DATA, "folder that holds the files of the named data sets", metavar="DIR"
    )
    max_words: int = option(4096, DATA, "maximum number of words of a text", ge=1, le=100_000)
    word_dropout: float = option(0.5, MODEL, "share of the words dropped in training", ge=0, lt=1)
    dropout: float = option(
        0.1, MODEL, "rate of the dropout after the average over the words", ge=0, lt=1
    )
    damping: float = option(0.9, MODEL, "damping of the time graph (tsa)", ge=0, lt=1)
    epochs: int = epochs_option(8)
    batch_size: int = batch_size_option(64, "maximum number of rows")
    max_tokens: int = option(
        32_768, TRAINING, "maximum number of tokens in a batch", ge=1, le=2**24
    )
    learning_rate: float = option(
        2e-3, TRAINING, "initial learning rate of Adam, with cosine decay to 0", gt=0
    )
    early_stopping: int = option(
        3,
        TRAINING,
        "stop after this many epochs without a lower validation loss, and keep the best epoch",
        ge=1,
        le=100_000,
    )
    gigabytes: float = option(12.0, TRAINING, "memory that a training may allocate", gt=0)


class WholeTextsConfig(WholeTextsTraining, FitConfig):
    """The options of one training."""

    command = "whole-texts"

    dataset: str = option("ohsumed", DATA, "the data set, as for classify")
    model: str = option("tsa", MODEL, "what mixes the words", choices=tuple(MODELS))
    name: str = name_option(
        lambda values: f"{short_name(values['dataset'])}-{values['model']}-{values['seed']}",
        "DATASET-MODEL-SEED",
    )

    @property
    def classifier(self) -> ClassifyConfig:
        """The options of `classify` for the same texts and model.

        The recipe is the tuned one with random initial weights, and with the dropout that this has
        without an attention.
        """
        names = (
            *("dataset", "data_dir", "max_words", "word_dropout", "dropout", "epochs"),
            *("batch_size", "learning_rate", "early_stopping", "seed"),
        )
        options = {name: getattr(self, name) for name in names}
        options |= {"initial_weights": "random", "test_fraction": 0.4}
        if not self.early_stopping:
            options["validation_fraction"] = 0.0
        if self.model == "tsa":
            options["damping"] = self.damping
        # XLA would compile every length anew.
        return ClassifyConfig(**options, attention=MODELS[self.model], jit_compile="off")
