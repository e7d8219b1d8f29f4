"""The options of the commands: a frozen dataclass each, whose fields become the command line's."""

import abc
import argparse
import dataclasses
import json
import math
import os
import re
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

from training.errors import InputError

DATA, MODEL, TRAINING, OUTPUT = GROUPS = ("data", "model", "training", "output")


def option(default: Any, group: str, text: str, **arguments: Any) -> Any:
    """Returns a dataclass field that `add_options` makes an option of.

    Args:
        default: The default value; its type is the option's, unless `arguments` says otherwise.
        group: The heading under which `--help` shows it.
        text: What `--help` says of it.
        **arguments: Further arguments of `add_argument`.
    """
    if default is not None and "action" not in arguments:
        arguments.setdefault("type", type(default))
    return dataclasses.field(
        default=default, metadata={"group": group, "text": text, "arguments": arguments}
    )


def add_options(
    parser: argparse.ArgumentParser, config: type, leave_out: Set[str] = frozenset()
) -> None:
    """Adds an option for every field of a config class but those to leave out.

    An option that is not given is absent from the parsed namespace: the defaults are the
    config's, and a resumed run can tell what was asked for.
    """
    groups = {}
    # Fields of the class come after those of its base, whatever their group.
    for field in sorted(dataclasses.fields(config), key=_group_order):
        if field.name in leave_out:
            continue
        name = field.metadata["group"]
        if name not in groups:
            groups[name] = parser.add_argument_group(name)
        shown = (
            ""
            if field.default is None or field.default is False
            else f" (default: {field.default})"
        )
        groups[name].add_argument(
            f"--{field.name.replace('_', '-')}",
            default=argparse.SUPPRESS,
            help=field.metadata["text"] + shown,
            **field.metadata["arguments"],
        )


def _group_order(field: dataclasses.Field) -> int:
    return GROUPS.index(field.metadata["group"])


def given_options(arguments: argparse.Namespace, config: type) -> dict[str, Any]:
    """Returns the options of a config class that the command line named."""
    names = {field.name for field in dataclasses.fields(config)}
    return {name: value for name, value in vars(arguments).items() if name in names}


def at_least(low: int, **values: float | None) -> None:
    """Raises `InputError` if a value that is given is not finite or below `low`."""
    for name, value in values.items():
        if value is not None and not low <= value < math.inf:
            raise InputError(f"Expected {name} >= {low}. Received: {name}={value}")


def one_of(allowed: Sequence[str], **values: str) -> None:
    """Raises `InputError` if a value is none of the allowed ones."""
    for name, value in values.items():
        if value not in allowed:
            raise InputError(
                f"Expected {name} to be one of {', '.join(allowed)}. Received: {name}={value!r}"
            )


ATTENTIONS = ("tsa", "tga", "dpa", "ada", "tn", "plga", "sdpa")
# Table 1 of the paper: attention layers of about 300 parameters (320 against 288 and 300).
TABLE_DIMS = {"tsa": 64, "tga": 64, "dpa": 6, "ada": 6}
TENSORIZED = ("tsa", "tga")  # those with tensor-train maps and a time graph
TFDS = "tfds:"


# The options that a run, finished or not, may be given anew.
EXPORTING = ("export", "saved_models", "export_beam")


@dataclasses.dataclass(frozen=True)
class RunConfig(abc.ABC):
    """What every command has options for; a config class adds its own, and says `default_name`.

    Raises:
        InputError: If a value is out of its range whatever the data.
    """

    epochs: int = option(10, TRAINING, "passes over the training part", metavar="N")
    batch_size: int = option(32, TRAINING, "rows in a step", metavar="N")
    learning_rate: float = option(1e-3, TRAINING, "of Adam")
    seed: int = option(0, TRAINING, "of the data or its split, the weights and the order")

    name: str | None = option(None, OUTPUT, "name of the run and of the exported model")
    export: bool = option(
        False, OUTPUT, "export the trained model for serving", action="store_true"
    )
    saved_models: str = option("saved_models", OUTPUT, "where to: DIR/NAME/VERSION/", metavar="DIR")

    def __post_init__(self) -> None:
        if self.name is None:
            object.__setattr__(self, "name", self.default_name)
        if not re.fullmatch(r"\w[\w.-]*", self.name):
            raise InputError(
                "Expected a name of letters, digits, '.', '_' and '-'. "
                f"Received: name={self.name!r}"
            )
        if not 0 < self.learning_rate < math.inf:
            raise InputError(
                f"Expected a finite learning_rate > 0. Received: learning_rate={self.learning_rate}"
            )
        at_least(1, epochs=self.epochs, batch_size=self.batch_size)
        at_least(0, seed=self.seed)

    @property
    @abc.abstractmethod
    def default_name(self) -> str:
        """The name of the run if none is given."""

    @property
    def export_folder(self) -> Path:
        """Where the versions of the exported model are."""
        return Path(self.saved_models, self.name)

    @property
    def export_options(self) -> dict[str, Any]:
        """What makes one exported model differ from another of the same run."""
        return {"folder": str(self.export_folder)}


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


def short_name(data: str) -> str:
    """Shortens what names data to what is fit for a file's name.

    Args:
        data: A name, a TFDS name or a path.

    Returns:
        The name without folders, suffixes, library or version.
    """
    if data.startswith(TFDS):
        name = data.removeprefix(TFDS).partition(":")[0]
    else:
        # Not Path.resolve: a link keeps the name that the user gave it.
        name = Path(os.path.abspath(data)).name.lstrip(".").partition(".")[0]
    return re.sub(r"^-|[^\w-]", "_", name) or "data"


def to_json(config: Any) -> str:
    """Writes a config as `from_json` reads it."""
    return json.dumps(dataclasses.asdict(config), indent=2) + "\n"


def from_json(kind: type, text: str) -> Any:
    """Reads a config of the given class; an unknown or malformed option is an `InputError`."""
    try:
        return kind(**json.loads(text))
    except (TypeError, json.JSONDecodeError) as error:
        raise InputError(f"Expected the options of a {kind.__name__}. Received: {error}") from error
