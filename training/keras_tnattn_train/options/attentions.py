"""The names of the attentions in the library, for options."""

import ast
import importlib.util
from pathlib import Path


def registered_attentions(**facts: bool) -> dict[str, str]:
    """Returns the names in the library's registry of attentions, with their descriptions.

    Parses the source of `keras_tnattn/models/attentions.py` instead of importing it. The import
    would load Keras and its backend, which takes seconds; `--help` and errors should not wait.

    Args:
        **facts: Values that boolean fields of the entries must have, for instance
            `has_heads=False`. Default: all entries.
    """
    spec = importlib.util.find_spec("keras_tnattn")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    tree = ast.parse(Path(folders[0], "models", "attentions.py").read_text(encoding="utf-8"))
    (entry_class,) = (
        node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Attention"
    )
    defaults = {
        ast.unparse(field.target): field.value.value
        for field in entry_class.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.value, ast.Constant)
    }
    (registry,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "ATTENTIONS"
    )
    if not isinstance(registry, ast.Dict):
        raise TypeError(f"Expected ATTENTIONS to be a dictionary. Received: {registry}")
    found = {}
    for name, entry in zip(registry.keys, registry.values, strict=True):
        if name is None or not isinstance(entry, ast.Call):
            continue
        known = dict(defaults)
        for keyword in entry.keywords:
            if keyword.arg is not None and isinstance(keyword.value, ast.Constant):
                known[keyword.arg] = keyword.value.value
        if facts.items() <= known.items():
            found[ast.literal_eval(name)] = ast.literal_eval(entry.args[0])
    return found
