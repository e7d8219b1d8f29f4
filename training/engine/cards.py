"""The part of an export's model card that comes from the run."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from training.base.options import ExportConfig, to_json

# Results whose names end like this are the scores on a card.
_SCORES = ("accuracy", "loss", "bleu", "exact")
_NOT_THE_MODEL = ("export", "saved_models")


def describe(
    command: str, config: ExportConfig, data: Mapping[str, Any], results: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the entries of a model card that come from a run.

    Args:
        command: The command's name, such as `classify`.
        config: The options of the run.
        data: The name and, if there is one, the fingerprint of the data that the model was trained
            on.
        results: The measurements.

    Returns:
        A dict of `data`, `seed`, `scores`, `sizes`, `options` and `command`, ready for JSON.
    """
    kind: Any = type(config)
    options = json.loads(to_json(config))
    # A recipe decides the defaults of other options.
    recipe = {name: options[name] for name in ("recipe",) if name in options}
    defaults = json.loads(to_json(kind(**recipe)))
    sizes = {name: results[name] for name in ("rows", "pairs", "parameters") if name in results}
    return {
        "data": dict(data),
        "seed": options["seed"],
        "scores": {name: v for name, v in results.items() if name.endswith(_SCORES)},
        "sizes": sizes,
        "options": {
            name: value
            for name, value in options.items()
            if value is not None and name not in _NOT_THE_MODEL
        },
        "command": _command(command, options, defaults),
    }


def _command(command: str, options: dict[str, Any], defaults: dict[str, Any]) -> str:
    """Returns the command line that trains the same model again."""
    words = ["python", str(Path("training", "train.py")), command]
    for name, value in options.items():
        if value == defaults.get(name) or name in _NOT_THE_MODEL:
            continue
        words.append(f"--{name.replace('_', '-')}")
        if isinstance(value, list):
            words += map(str, value)
        elif value is not True:
            words.append(str(value))
    return shlex.join([*words, "--export"])
