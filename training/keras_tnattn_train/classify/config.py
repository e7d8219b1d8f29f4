"""The options of `classify`."""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from keras_tnattn_train.data.reading import short_name
from keras_tnattn_train.data.texts.registry import TEXT_SETS
from keras_tnattn_train.options.attentions import fact_of_attentions, registered_attentions
from keras_tnattn_train.options.options import (
    DATA,
    EITHER,
    MODEL,
    TRAINING,
    ExportConfig,
    early_stopping_option,
    epochs_option,
    name_option,
    option,
    skip_bad_rows_option,
)

if TYPE_CHECKING:
    from keras_tnattn.estimator.settings import Settings
    from keras_tnattn.ops.time_graph import TimeGraph

ATTENTIONS = registered_attentions()
TABLE_DIMS = fact_of_attentions("table_dim")
# The options of each argument that not all attentions have.
ARGUMENTS = {
    "time_graph": ("damping", "time_graph", "window", "exponent"),
    **{name: (name,) for name in ("tt_ranks", "filter_order", "residual_units", "residual_dim")},
}
# The most words of a text that are read by default, and with all pairs of them compared, as in
# `keras_tnattn.estimator.settings`, which this file, read for `--help`, must not import.
MOST_WORDS = 4096
PAIRWISE_WORDS = 1024
RECIPES = ("tuned", "paper")
SPLITS = ("words", "characters")
CLASS_WEIGHTS = ("none", "balanced")
INITIAL_WEIGHTS = ("svm", "random")
EMBEDDINGS = ("dense", "tensor_train", "low_rank")
TIME_GRAPHS = ("geometric", "exponential", "window", "power_law")
UNDAMPED_GRAPHS = ("window", "power_law")
HEADLESS = tuple(registered_attentions(has_heads=False))


def _default_name(values: dict[str, Any]) -> str:
    layers = "" if values["num_layers"] == 1 else f"-{values['num_layers']}-layers"
    return f"{short_name(values['dataset'])}-{values['attention']}{layers}-{values['seed']}"


def _by_recipe(tuned: Any, paper: Any, without: Any = None) -> Callable[[dict[str, Any]], Any]:
    """Returns what computes a default from the recipe.

    `without` is that of the tuned recipe without an attention, if the initial weights are random,
    or with a tensor-train embedding.
    """

    def default(values: dict[str, Any]) -> Any:
        if values["recipe"] == "paper":
            return paper
        if without is None:
            return tuned
        plain = values["attention"] == "none" and values["initial_weights"] == "random"
        return without if plain or values["embedding"] == "tensor_train" else tuned

    return default


def _default_initial_weights(values: dict[str, Any]) -> str:
    possible = _can_start_from_svm(values)
    return "svm" if values["recipe"] == "tuned" and possible else "random"


def _can_start_from_svm(values: Mapping[str, Any]) -> bool:
    dense = values["embedding"] == "dense" and values["embedding_dim"] >= 2
    return dense and not values["feedforward_dim"]


def recipe_option(default: str) -> Any:
    """Declares the recipe."""
    return option(
        default,
        MODEL,
        'sets the defaults marked "tuned/paper" below. tuned: chosen on validation parts of five '
        "data sets; paper: the papers' layers, with epochs, batch size and learning rate of our "
        "choice, because the papers name none",
        choices=RECIPES,
        brief="tuned: what our studies found best; paper: the models of the papers",
    )


class ClassifyConfig(ExportConfig):
    """The options of `classify`: data, model, training and output."""

    command = "classify"

    dataset: str = option(
        "docstrings",
        DATA,
        "; ".join(f"{name}: {entry.description}" for name, entry in TEXT_SETS.items())
        + "; tfds:NAME: a set of TensorFlow Datasets; or the path of a .csv, .tsv or .jsonl "
        "file (.gz, .xz, .bz2, .zip), of a .parquet file, or of a folder with one subfolder of "
        ".txt files per class",
        given=EITHER,
        brief="a .csv, .tsv, .jsonl or .parquet file, a folder with one subfolder of .txt files "
        "per class, or a named set such as reuters",
    )
    data_dir: str | None = option(
        None,
        DATA,
        "folder that holds the files of the named data sets ("
        + ", ".join(dict.fromkeys(entry.file for entry in TEXT_SETS.values() if entry.file))
        + "), or TFDS' folder (default: the libraries' own loaders and caches)",
        metavar="DIR",
    )
    text_column: str | None = option(
        None, DATA, "column or feature with the texts (default: by the header, else text)"
    )
    label_column: str | None = option(
        None, DATA, "column or feature with the labels (default: by the header, else label)"
    )
    skip_bad_rows: bool = skip_bad_rows_option()
    recipe: str = recipe_option("tuned")
    test_fraction: float = option(
        _by_recipe(0.2, 0.4),
        DATA,
        "share of the rows for the test (tuned: 0.2; paper: 0.4)",
        gt=0,
        lt=1,
    )
    split: str = option(
        "words",
        DATA,
        "what has an id: words, between white space and punctuation, or characters, for languages "
        "that are written without spaces",
        choices=SPLITS,
    )
    max_words: int | None = option(
        _by_recipe(None, 200),
        DATA,
        "maximum number of words of a text; the rest is cut off (tuned: enough for 99 % of the "
        f"training texts, but at most {MOST_WORDS}, or {PAIRWISE_WORDS} for an attention that "
        "compares all pairs of words; paper: 200)",
        ge=1,
        le=100_000,
    )
    vocabulary_size: int = option(
        20_000,
        DATA,
        "number of ids: padding, unknown and the most frequent words of the training part",
        ge=3,
        le=10_000_000,
    )

    attention: str = option(
        _by_recipe("none", "tsa"),
        MODEL,
        "; ".join(f"{name}: {summary}" for name, summary in ATTENTIONS.items())
        + " (tuned: none; paper: tsa)",
        choices=tuple(ATTENTIONS),
        brief="(tuned: none; paper: tsa)",
    )
    num_layers: int = option(
        1, MODEL, "attention layers; two or more have residual connections", ge=1, le=64
    )
    embedding_dim: int = option(64, MODEL, "size of the word embedding", ge=1, le=65_536)
    embedding: str = option(
        "dense",
        MODEL,
        "dense: a full table; tensor_train, low_rank: a table with far fewer weights",
        choices=EMBEDDINGS,
    )
    embedding_tt_ranks: int = option(
        16, MODEL, "maximum rank of the embedding (tensor_train, low_rank)", ge=1, le=4096
    )
    feedforward_dim: int = option(
        _by_recipe(0, 20),
        MODEL,
        "units of the hidden layer before the output; 0: no such layer (tuned: 0; paper: 20)",
        ge=0,
        le=65_536,
    )
    initial_weights: str = option(
        _default_initial_weights,
        MODEL,
        "svm: the embedding and the last layer start from a linear support vector machine of "
        "TF-IDF weights, fitted to the training part (needs a dense embedding of at least 2 "
        "dimensions and no hidden layer); random (tuned: svm where possible; paper: random)",
        choices=INITIAL_WEIGHTS,
    )
    word_dropout: float = option(
        _by_recipe(0.6, 0.0, without=0.5),
        MODEL,
        "rate at which training drops whole words after the embedding (tuned: 0.6, or 0.5 "
        "with a tensor-train embedding, or --attention none and random initial weights; paper: 0)",
        ge=0,
        lt=1,
    )
    dropout: float = option(
        _by_recipe(0.5, 0.1, without=0.1),
        MODEL,
        "rate of the dropout after the average over the words, and after the hidden layer "
        "(tuned: 0.5, or 0.1 with a tensor-train embedding, or --attention none and random initial "
        "weights; paper: 0.1)",
        ge=0,
        lt=1,
    )
    num_heads: int = option(2, MODEL, f"attention heads (not {', '.join(HEADLESS)})", ge=1, le=256)
    tt_ranks: int = option(2, MODEL, "maximum tensor-train rank (tsa, tga)", ge=1, le=4096)
    damping: float = option(0.9, MODEL, "damping of the time graph (tsa, tga, rgtn)", ge=0, lt=1)
    time_graph: str = option(
        "geometric",
        MODEL,
        "weight of a token at distance d (tsa, tga, rgtn). geometric: damping^d; exponential: "
        "trained, initially as geometric; window: 1 up to distance --window; power_law: "
        "d^-exponent",
        choices=TIME_GRAPHS,
    )
    window: int | None = option(
        None, MODEL, "reach of --time-graph window, in tokens to each side", ge=1, le=100_000
    )
    exponent: float | None = option(None, MODEL, "exponent of the time graph power_law", gt=0)
    filter_order: int = option(2, MODEL, "number of terms of the graph filter (tsa)", ge=2, le=100)
    residual_units: int = option(
        2, MODEL, "residual units that learn the metric (plga)", ge=0, le=256
    )
    residual_dim: int = option(64, MODEL, "width of these units (plga)", ge=1, le=65_536)
    position_encoding: str = option(
        "none",
        MODEL,
        "position encoding added to the embedding, beside the time graph",
        choices=("none", "sinusoidal", "learned"),
    )
    feedforward: str = option(
        "dense",
        MODEL,
        "kernel of the hidden layer before the output (needs --feedforward-dim above 0): dense, or "
        "a tensor train",
        choices=("dense", "tensor_train"),
    )

    epochs: int = epochs_option(
        _by_recipe(8, 10), "passes over the training part (tuned: 8; paper: 10)"
    )
    batch_size: int = option(
        _by_recipe(64, 32),
        TRAINING,
        "rows per step (tuned: 64; paper: 32)",
        ge=1,
        le=1_048_576,
    )
    learning_rate: float = option(
        _by_recipe(2e-3, 1e-3),
        TRAINING,
        "initial learning rate of Adam (tuned: 0.002, which decays to 0 at the end; paper: 0.001)",
        gt=0,
    )
    early_stopping: int | None = early_stopping_option(
        "stop after this many epochs without a better validation loss, or what --monitor names, "
        "and keep the best epoch"
    )
    validation_fraction: float = option(
        lambda values: 0.1 if values["recipe"] == "tuned" or values["early_stopping"] else 0.0,
        TRAINING,
        "share of the training part that is not trained on, but measured after each epoch (tuned, "
        "or with --early-stopping: 0.1; paper: 0)",
        ge=0,
        lt=1,
    )
    monitor: str = option(
        "loss",
        TRAINING,
        "what --early-stopping watches on the validation part: the lowest loss or the highest "
        "accuracy",
        choices=("loss", "accuracy"),
    )
    class_weights: str = option(
        "none",
        TRAINING,
        "balanced: weight each row in the loss by the inverse frequency of its class, so that rare "
        "classes count as much as frequent ones",
        choices=CLASS_WEIGHTS,
    )
    jit_compile: str = option(
        "auto",
        TRAINING,
        "compile with XLA; auto: as Keras decides, but always on for ada, because XLA need not "
        "store its sums over all pairs",
        choices=("auto", "on", "off"),
    )
    name: str = name_option(_default_name, "DATASET-ATTENTION-SEED")

    def check_together(self) -> None:
        reason = f"attention={self.attention!r}, which has none"
        for argument, options in ARGUMENTS.items():
            if argument not in self.attention_arguments:
                self.refuse(reason, *options)
        for name, graph in (("window", "window"), ("exponent", "power_law")):
            if (getattr(self, name) is not None) != (self.time_graph == graph):
                raise ValueError(
                    f"Expected {name} with time_graph={graph!r}, and with no other. Received: "
                    f"time_graph={self.time_graph!r}, {name}={getattr(self, name)}"
                )
        if self.time_graph in UNDAMPED_GRAPHS:
            self.refuse(f"time_graph={self.time_graph!r}, which has none", "damping")
        if self.time_graph == "exponential" and not self.damping:
            raise ValueError(
                "Expected a damping in (0, 1) to start an exponential time graph from. "
                f"Received: damping={self.damping}"
            )
        if self.attention in HEADLESS:
            self.refuse(reason, "num_heads")
        if self.embedding == "dense":
            self.refuse("embedding='dense', which has none", "embedding_tt_ranks")
        if self.initial_weights == "svm" and not _can_start_from_svm(dict(self)):
            raise ValueError(
                "Expected embedding='dense', embedding_dim >= 2 and feedforward_dim=0 with "
                f"initial_weights='svm'. Received: embedding={self.embedding!r}, "
                f"embedding_dim={self.embedding_dim}, feedforward_dim={self.feedforward_dim}"
            )
        if not self.early_stopping:
            self.refuse("early_stopping=None", "monitor")
        elif not self.validation_fraction:
            raise ValueError(
                "Expected validation_fraction > 0 with early_stopping. Received: "
                f"validation_fraction=0, early_stopping={self.early_stopping}"
            )
        if not self.feedforward_dim:
            reason = "feedforward_dim=0 (the default of recipe='tuned'), which has no kernel"
            self.refuse(reason, "feedforward")

    @property
    def settings(self) -> "Settings":
        """What decides how the estimator reads texts, builds the model and trains it."""
        from keras_tnattn.estimator.settings import Settings

        tuned = self.recipe == "tuned"
        return Settings(
            seed=self.seed,
            split=self.split,
            max_words=self.max_words,
            vocabulary_size=self.vocabulary_size,
            attention=self.attention,
            attention_options=self.attention_options,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            embedding_dim=self.embedding_dim,
            embedding=self.embedding,
            embedding_tt_ranks=self.embedding_tt_ranks,
            position_encoding=None if self.position_encoding == "none" else self.position_encoding,
            feedforward_dim=self.feedforward_dim or None,
            feedforward=self.feedforward,
            normalization=tuned,
            word_dropout=self.word_dropout,
            dropout=self.dropout,
            initial_weights=self.initial_weights,
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            decay=tuned,
            validation_fraction=self.validation_fraction,
            class_weight=None if self.class_weights == "none" else self.class_weights,
            jit_compile=self.jit_compile,
        )

    @property
    def source(self) -> str:
        """The data set's name without folders, suffixes, library or version, for file names."""
        return short_name(self.dataset)

    @property
    def attention_arguments(self) -> tuple[str, ...]:
        """The names of the arguments that only the chosen attention layer has."""
        return tuple(fact_of_attentions("arguments").get(self.attention, ()))

    @property
    def attention_options(self) -> dict[str, Any]:
        """The arguments that only the chosen attention layer has."""
        names = self.attention_arguments
        values = {name: getattr(self, name) for name in names if name != "time_graph"}
        return values | ({"time_graph": self._time_graph()} if "time_graph" in names else {})

    def _time_graph(self) -> "TimeGraph":
        from keras_tnattn.ops.time_graph import Exponential, Geometric, PowerLaw, Window

        if self.window is not None:
            return Window(self.window)
        if self.exponent is not None:
            return PowerLaw(self.exponent)
        if self.time_graph == "exponential":
            return Exponential(-math.log(self.damping), trainable=True)
        return Geometric(self.damping)
