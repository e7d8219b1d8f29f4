"""The options of `classify`."""

import dataclasses
from typing import Any

from training.data.reading import short_name
from training.errors import InputError
from training.options import DATA, MODEL, OUTPUT, TRAINING, RunConfig, at_least, one_of, option

ATTENTIONS = ("tsa", "tga", "dpa", "ada", "tn", "plga", "sdpa")
# Table 1 of the paper: attention layers of about 300 parameters (320 against 288 and 300).
TABLE_DIMS = {"tsa": 64, "tga": 64, "dpa": 6, "ada": 6}
TENSORIZED = ("tsa", "tga")  # those with tensor-train maps and a time graph


@dataclasses.dataclass(frozen=True)
class ClassifyConfig(RunConfig):
    """Everything that decides what `classify` trains, on what, and what it writes.

    Raises:
        InputError: If a value is out of its range whatever the data.
    """

    dataset: str = option(
        "docstrings",
        DATA,
        "docstrings, reuters, newsgroups, drug_review, tfds:NAME, the path of a .csv or .tsv "
        "file (.gz, .xz), or of a folder with one sub-folder of .txt files per class",
    )
    data_dir: str | None = option(
        None,
        DATA,
        "folder of data tables (reuters/data.tsv.xz, ...), or TFDS' folder; without it the "
        "libraries' own loaders and caches are used",
        metavar="DIR",
    )
    text_column: str | None = option(
        None, DATA, "column or feature of the texts, if the header is not a known one"
    )
    label_column: str | None = option(
        None, DATA, "column or feature of the labels, if the header is not a known one"
    )
    test_fraction: float = option(0.4, DATA, "share of the rows held back for the test")
    max_words: int = option(200, DATA, "words kept of a text", metavar="N")
    vocabulary_size: int = option(
        20_000, DATA, "most frequent words of the training part that are told apart", metavar="N"
    )

    attention: str = option(
        "tsa",
        MODEL,
        "tsa and tga: tensorized spectral and graph attention; dpa: dot-product; ada: additive; "
        "tn: tensor network; plga: power law graph; sdpa: scaled dot-product with biases",
        choices=ATTENTIONS,
    )
    embedding_dim: int = option(64, MODEL, "size of a word's vector", metavar="N")
    num_heads: int = option(2, MODEL, "attention heads (not tn)", metavar="N")
    tt_rank: int = option(2, MODEL, "greatest tensor-train rank (tsa, tga)", metavar="N")
    damping: float = option(0.9, MODEL, "damping of the time graph, in [0, 1) (tsa, tga)")
    filter_order: int = option(2, MODEL, "terms of the graph filter (tsa)", metavar="N")
    residual_units: int = option(2, MODEL, "units that learn the metric (plga)", metavar="N")
    residual_dim: int = option(64, MODEL, "width of these units (plga)", metavar="N")

    early_stopping: int | None = option(
        None,
        TRAINING,
        "stop after PATIENCE epochs without a lower loss on a tenth that is cut from the "
        "training part, and keep the best epoch",
        type=int,
        metavar="PATIENCE",
    )
    steps_per_execution: int = option(
        1, TRAINING, "steps between two looks at the progress", metavar="N"
    )
    jit_compile: str = option(
        "auto",
        TRAINING,
        "compile the steps with XLA; auto: what Keras does, but on for ada, whose scores take "
        "XLA a fifth of the time on a CPU",
        choices=("auto", "on", "off"),
    )
    name: str | None = option(
        None, OUTPUT, "name of the run and of the exported model (default: DATASET-ATTENTION-SEED)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(ATTENTIONS, attention=self.attention)
        if not 0 < self.test_fraction < 1:
            raise InputError(
                f"Expected a test_fraction in (0, 1). Received: test_fraction={self.test_fraction}"
            )
        at_least(
            1,
            embedding_dim=self.embedding_dim,
            early_stopping=self.early_stopping,
            steps_per_execution=self.steps_per_execution,
        )
        for name in ("tt_rank", "damping") if self.attention not in TENSORIZED else ():
            self._refuse_unless_default(name)
        if self.attention != "tsa":
            self._refuse_unless_default("filter_order")
        for name in ("residual_units", "residual_dim") if self.attention != "plga" else ():
            self._refuse_unless_default(name)
        if self.attention == "tn":
            self._refuse_unless_default("num_heads")

    def _refuse_unless_default(self, name: str) -> None:
        value = getattr(self, name)
        if value != getattr(type(self), name):
            raise InputError(
                f"Expected no {name} with attention={self.attention!r}, which has none. "
                f"Received: {name}={value}"
            )

    @property
    def default_name(self) -> str:
        return f"{self.source}-{self.attention}-{self.seed}"

    @property
    def source(self) -> str:
        """The data set's short name, fit for a file: no folders, suffixes, library or version."""
        return short_name(self.dataset)

    @property
    def attention_options(self) -> dict[str, Any]:
        """The arguments that only the chosen attention layer takes."""
        if self.attention == "plga":
            return {"residual_units": self.residual_units, "residual_dim": self.residual_dim}
        if self.attention not in TENSORIZED:
            return {}
        options = {"tt_ranks": self.tt_rank, "damping": self.damping}
        return options | ({"filter_order": self.filter_order} if self.attention == "tsa" else {})
