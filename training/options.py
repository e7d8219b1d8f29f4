"""The options of the commands: a frozen dataclass each, whose fields become the command line's."""

import abc
import argparse
import dataclasses
import json
import math
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


def to_json(config: Any) -> str:
    """Writes a config as `from_json` reads it."""
    return json.dumps(dataclasses.asdict(config), indent=2) + "\n"


def from_json(kind: type, text: str) -> Any:
    """Reads a config of the given class; an unknown or malformed option is an `InputError`."""
    try:
        return kind(**json.loads(text))
    except (TypeError, json.JSONDecodeError) as error:
        raise InputError(f"Expected the options of a {kind.__name__}. Received: {error}") from error
