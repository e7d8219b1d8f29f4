"""What a run adds to the model card of its export."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from training.options import RunConfig, to_json

# Of the results, what a card calls scores.
_SCORES = ("accuracy", "loss", "bleu", "exact")
_NOT_THE_MODEL = ("export", "saved_models")


def describe(
    command: str, config: RunConfig, data: Mapping[str, Any], results: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the entries of a model card that a run knows.

    Args:
        command: The command's name, such as `classify`.
        config: The options of the run.
        data: Which data the model was trained on, with their fingerprint if they have one.
        results: The measurements.

    Returns:
        A dict of `data`, `seed`, `scores`, `sizes`, `options` and `command`, ready for JSON.
    """
    kind: Any = type(config)
    options = json.loads(to_json(config))
    defaults = json.loads(to_json(kind()))
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
    """The command line that trains such a model again."""
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
