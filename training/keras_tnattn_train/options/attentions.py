"""The attentions and the presets of the library, for options."""

import importlib.util
import json
from pathlib import Path
from typing import Any

# What an entry that does not name a fact has.
FLAGS = ("takes_memory", "can_be_causal", "tensor_tokens")
DEFAULTS = {"has_heads": True, **dict.fromkeys(FLAGS, False)}


def registered_attentions(**facts: bool) -> dict[str, str]:
    """Returns the names in the library's registry of attentions, with their summaries.

    Reads `keras_tnattn/models/attentions.json` without importing the library, which would load
    Keras and its backend, which takes seconds; `--help` and errors should not wait.
    """
    return {
        name: entry["summary"]
        for name, entry in _registry("attentions").items()
        if all(entry.get(fact, DEFAULTS[fact]) == value for fact, value in facts.items())
    }


def fact_of_attentions(fact: str) -> dict[str, Any]:
    """Returns the values of a fact, such as `table_dim`, of the entries that name it."""
    return {name: entry[fact] for name, entry in _registry("attentions").items() if fact in entry}


def translator_presets() -> dict[str, dict[str, Any]]:
    """Returns `keras_tnattn.models.PRESETS`."""
    return _registry("presets")["translators"]


def _registry(name: str) -> dict[str, dict[str, Any]]:
    spec = importlib.util.find_spec("keras_tnattn")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    text = Path(folders[0], "models", f"{name}.json").read_text(encoding="utf-8")
    return json.loads(text)
