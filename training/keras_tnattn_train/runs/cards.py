"""The part of an export's model card that comes from the run."""

import contextlib
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.options.options import ExportConfig

# Results whose names end like this are the scores on a card.
_SCORES = ("accuracy", "loss", "bleu", "exact")
DECIMALS = 4  # of a score on a card


def describe(
    config: ExportConfig, data: Mapping[str, Any], results: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the entries of a model card that come from a run.

    Returns:
        A dict of `data`, whose notes count bad rows without quoting them, `seed`, `scores`,
        `sizes`, `options` (those that do not follow from the others) and `command`, ready for JSON.
        Absolute paths are cut to their last part.
    """
    sizes = {name: results[name] for name in ("rows", "pairs", "parameters") if name in results}
    scores = {name: value for name, value in results.items() if name.endswith(_SCORES)}
    data = dict(data)
    if "name" in data:
        data["name"] = without_folders(data["name"])
    if "notes" in data:
        notes = [re.sub(r"(bad rows? left out): .*", r"\1", x) for x in data.pop("notes")]
        data |= {"notes": notes} if notes else {}
    return {
        "data": data,
        "seed": config.seed,
        "scores": {name: round(value, DECIMALS) for name, value in scores.items()},
        "sizes": sizes,
        "options": {name: without_folders(value) for name, value in _options_of(config).items()},
        "command": _command(config),
    }


def without_folders(value: Any) -> Any:
    """Returns an option without the folders of this machine: of absolute paths, the last part."""
    if not isinstance(value, str):
        return list(value) if isinstance(value, tuple) else value
    return ",".join(Path(x).name if Path(x).is_absolute() else x for x in value.split(","))


def _command(config: ExportConfig) -> str:
    """Returns the command line that trains the same model again."""
    words = ["keras-tnattn", str(config.command)]
    for name, value in _options_of(config).items():
        words.append(f"--{name.replace('_', '-')}")
        if isinstance(value, tuple):
            words += map(str, value)
        elif value is not True:
            words.append(str(without_folders(value)))
    return shlex.join([*words, "--export"])


def _options_of(config: ExportConfig) -> dict[str, Any]:
    """Returns the options without those that follow from the others, or do not make the model."""
    kind = type(config)
    # The command exports, and some options are allowed only with that.
    needed = {name: value for name, value in config.replace(export=True) if name != "saved_models"}
    model = kind(**needed)
    # The later ones first, because their defaults depend on the earlier ones.
    for name in reversed([name for name in needed if name != "export"]):
        others = {other: value for other, value in needed.items() if other != name}
        with contextlib.suppress(InputError):  # the others contradict the default
            if kind(**others) == model:
                needed = others
    return {name: value for name, value in needed.items() if name != "export"}
