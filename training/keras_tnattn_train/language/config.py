"""The options of `language`."""

from typing import Any

from keras_tnattn_train.options.options import (
    DATA,
    EITHER,
    MODEL,
    TRAINING,
    ExportConfig,
    batch_size_option,
    early_stopping_option,
    epochs_option,
    name_option,
    option,
)

DOCSTRINGS = "docstrings"
ATTENTIONS = ("sdpa", "plga", "tsa", "rgtn", "tn", "none")


def _default_name(values: dict[str, Any]) -> str:
    metric = "-causal" if values["causal_metric"] else ""
    return f"language-{values['attention']}{metric}-{values['seed']}"


class LanguageConfig(ExportConfig):
    """The options of `language`: data, model, training and output."""

    command = "language"

    corpus: tuple[str, ...] = option(
        (DOCSTRINGS,),
        DATA,
        "text files, or JSON lines (.jsonl, .ndjson); docstrings are those of the installed "
        "libraries",
        metavar="FILE",
        given=EITHER,
        strict=False,  # JSON has lists
    )
    documents: str = option(
        "paragraphs",
        DATA,
        "what a document of a text file is: the text between empty lines, or the whole file; in "
        "JSON lines it is a line. Parts are made of whole documents",
        choices=("paragraphs", "files"),
    )
    text_column: str = option("text", DATA, "the entry of JSON lines with the text")
    tokens: str = option(
        "characters",
        DATA,
        "what the model reads and writes: characters that occur in the training part; bytes; or "
        "pieces of words that occur often there (byte-pair encoding; needs the pieces extra)",
        choices=("characters", "bytes", "pieces"),
    )
    vocabulary_size: int = option(
        8000, DATA, "maximum number of pieces (--tokens pieces)", ge=259, le=1_000_000
    )
    length: int = option(
        128, DATA, "tokens of a row, and the most the model reads", ge=2, le=65_536
    )
    held_out: float = option(
        0.05, DATA, "share of the documents in each of validation and test part", gt=0, lt=0.4
    )

    attention: str = option("sdpa", MODEL, "the attention", choices=ATTENTIONS)
    num_layers: int = option(2, MODEL, "decoder layers", ge=1, le=1_000)
    model_dim: int = option(128, MODEL, "size of embeddings and layers", ge=2, le=65_536)
    num_heads: int = option(4, MODEL, "attention heads", ge=1, le=256)
    feedforward: str = option("swiglu", MODEL, "the feed-forward nets", choices=("swiglu", "relu"))
    feedforward_dim: int = option(
        lambda v: 4 * v["model_dim"] * (2 if v["feedforward"] == "swiglu" else 3) // 3,
        MODEL,
        "hidden size of the feed-forward nets (default: 4 times the size of the model, times 2/3 "
        "for swiglu)",
        ge=1,
        le=1_048_576,
    )
    position_encoding: str = option(
        "auto",
        MODEL,
        "positions; auto: rotary for sdpa and plga, else sinusoidal",
        choices=("auto", "rotary", "sinusoidal", "none"),
    )
    residual_units: int = option(
        2, MODEL, "residual units that learn the metric (plga)", ge=0, le=256
    )
    residual_dim: int = option(64, MODEL, "width of these units (plga)", ge=1, le=65_536)
    metric_epsilon: float = option(
        1e-9, MODEL, "added to the entries of the metric before their powers (plga)", gt=1e-30, lt=1
    )
    causal_metric: bool = option(
        False,
        MODEL,
        "compute the metric at each token from the tokens up to it (plga); without, it is that of "
        "the whole row, as published, which reads ahead",
    )

    epochs: int = epochs_option(5)
    batches_per_epoch: int | None = option(
        None, TRAINING, "batches of an epoch at most (default: the whole part)", ge=1, le=10_000_000
    )
    batch_size: int = batch_size_option(32)
    learning_rate: float = option(
        1e-3, TRAINING, "largest learning rate of AdamW, with warm-up and cosine decay to 0", gt=0
    )
    dropout: float = option(0.0, TRAINING, "dropout rate", ge=0, lt=1)
    early_stopping: int | None = early_stopping_option(
        "stop after PATIENCE epochs without a lower validation loss, and keep the best epoch"
    )
    freeze_metric: bool = option(
        False,
        TRAINING,
        "after training, replace the net of the metric by its mean over the validation part where "
        "it is the same for all rows (plga)",
    )
    name: str = name_option(_default_name, "language-ATTENTION-SEED")

    def check_together(self) -> None:
        if self.tokens != "pieces":
            self.refuse(f"tokens={self.tokens!r}", "vocabulary_size")
        if self.attention != "plga":
            reason = f"attention={self.attention!r}, which has no metric"
            self.refuse(reason, "residual_units", "residual_dim", "metric_epsilon")
            self.refuse(reason, "causal_metric", "freeze_metric")
        if self.attention in ("sdpa", "plga"):
            if self.model_dim % self.num_heads:
                raise ValueError(
                    "Expected num_heads to divide model_dim. Received: "
                    f"num_heads={self.num_heads}, model_dim={self.model_dim}"
                )
        elif self.position_encoding == "rotary":
            raise ValueError(
                "Expected sdpa or plga for rotary positions. Received: "
                f"attention={self.attention!r}"
            )
