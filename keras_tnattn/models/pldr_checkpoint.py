"""Models from the checkpoints of the published PLDR-LLM code."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_tnattn.models.language_model import LanguageModel, language_model
from keras_tnattn.models.state_dicts import read_state_dict

# The name of a weight in a layer, after the prefix, which depends on the version.
_LAYER_KEY = re.compile(r"(?:^|.*\.)(\d+)\.((?:mha1|ffn|layernorm[12])\..+)$")
# Weights outside the layers, by the end of their names.
_OTHER_KEYS = {
    "embedding.weight": ("embedding.weight", "embed_tokens.weight"),
    "layernorm1.weight": ("layernorm1.weight",),
    "layernorm1.bias": ("layernorm1.bias",),
    "final_layer.weight": ("final_layer.weight", "lm_head.weight"),
    "final_layer.bias": ("final_layer.bias", "lm_head.bias"),
}
_METRIC = "mha1.plgatt_layer"


def load_pldr_checkpoint(path: str | Path, **options: Any) -> LanguageModel:
    """Reads a model of the published PLDR-LLM code (https://arxiv.org/abs/2502.13502).

    The sizes are those of the weights. A `config.json` beside the file, as later versions have it,
    tells the form of the rotary positions and the longest sequence. Weights are recognized by the
    ends of their names; a bias that all maps of a kind lack is 0.

    Args:
        path: A state dictionary, `.safetensors` or a `.pth` of `torch.save`; no code in it is run.
        **options: Further arguments of `language_model`, for instance `padding_in_metric=False`,
            so that a padded batch gives what each text alone does, or `causal_metric=True`.

    Returns:
        A `LanguageModel`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is not such a checkpoint: names are missing, a weight has another
            size than the others imply, or `config.json` asks for what this model does not have.

    Example:
        ```python notest
        model = keras_tnattn.models.load_pldr_checkpoint("model.safetensors")
        ```
    """
    path = Path(path)
    weights = read_state_dict(path)
    file = path.with_name("config.json")
    config = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return pldr_model(weights, config, **options)


def pldr_model(
    weights: Mapping[str, np.ndarray], config: Mapping[str, Any] | None = None, **options: Any
) -> LanguageModel:
    """Builds the model of named weights; see `load_pldr_checkpoint`.

    Args:
        weights: Arrays by the names of the published code, linear maps as `(out, in)`.
        config: The content of `config.json`, if there is one.
        **options: Further arguments of `language_model`.

    Returns:
        A `LanguageModel`.

    Example:
        ```python notest
        model = pldr_model({"decoder.embedding.weight": ..., ...})
        ```
    """
    config = {} if config is None else config
    known = _by_known_names(weights)
    sizes = _sizes(known, config)
    rotated = "neighbors" if config.get("reference_rope", True) else "halves"
    arguments = {
        **sizes,
        "attention": "plga",
        "rotary": rotated,
        "feedforward": "swiglu",
        "position_encoding": "rotary",
        "embedding_norm": True,
        "max_length": config.get("max_position_embeddings"),
        "padding_in_metric": True,
        **options,
    }
    model = language_model(**arguments)
    _assign(model, known)
    return model


def _by_known_names(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the weights by names without the prefixes of a version."""
    known = {}
    for name, array in weights.items():
        if "rotary" in name:
            continue
        in_layer = _LAYER_KEY.match(name)
        if in_layer:
            known[f"{in_layer[1]}.{in_layer[2]}"] = array
            continue
        for ours, endings in _OTHER_KEYS.items():
            if any(name == ending or name.endswith(f".{ending}") for ending in endings):
                known[ours] = array
    return known


def _sizes(known: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> dict[str, int]:
    """Reads the arguments of `language_model` off the weights."""
    if config.get("custom_G_type") is not None:
        raise ValueError(
            "Expected a checkpoint with the net of the metric. Received: "
            f"custom_G_type={config['custom_G_type']!r}, whose metric is fixed"
        )
    for name, value in (("layer_norm_eps", 1e-6), ("rope_theta", 10_000.0)):
        if config.get(name, value) != value:
            raise ValueError(f"Expected {name}={value}. Received: {name}={config[name]}")
    units = "0.mha1.reslayerAs"
    needed = ["embedding.weight", f"0.{_METRIC}.Wlst", "0.ffn.gluw1.weight"]
    needed += [f"{units}.0.denseAs.0.gluw1.weight", "final_layer.weight"]
    missing = [name for name in needed if name not in known]
    if missing:
        raise ValueError(
            "Expected the weights of a PLDR-LLM, such as "
            "decoder.dec_layers.0.mha1.plgatt_layer.Wlst. Received: a checkpoint without "
            + ", ".join(missing)
        )

    def count(pattern: str) -> int:
        numbers = {int(m[1]) for name in known if (m := re.match(pattern, name))}
        return len(numbers)

    vocabulary_size, dim = known["embedding.weight"].shape
    return {
        "vocabulary_size": vocabulary_size,
        "num_layers": count(r"(\d+)\."),
        "model_dim": dim,
        "num_heads": known[f"0.{_METRIC}.Wlst"].shape[0],
        "feedforward_dim": known["0.ffn.gluw1.weight"].shape[0],
        "residual_units": count(rf"{re.escape(units)}\.(\d+)\."),
        "residual_dense_layers": count(rf"{re.escape(units)}\.0\.denseAs\.(\d+)\."),
        "residual_dim": known[f"{units}.0.denseAs.0.gluw1.weight"].shape[0],
    }


def named_variables(model: LanguageModel) -> dict[str, tuple[keras.Variable, bool]]:
    """Returns the weights of a model of `pldr_model` by the published names, without their prefix.

    Returns:
        Dict of weights, each with whether it is the transpose of the published one.
    """
    variables: dict[str, tuple[keras.Variable, bool]] = {}

    def dense(name: str, layer: Any) -> None:
        variables[f"{name}.weight"] = (layer.kernel, True)
        variables[f"{name}.bias"] = (layer.bias, False)

    def norm(name: str, layer: Any) -> None:
        variables[f"{name}.weight"] = (layer.gamma, False)
        variables[f"{name}.bias"] = (layer.beta, False)

    def add_gated(name: str, layer: Any) -> None:
        for part, inner in (("gluw1", "hidden"), ("gluw2", "gate"), ("gluw3", "projection")):
            dense(f"{name}.{part}", getattr(layer, inner))

    variables["embedding.weight"] = (model.embedding.embeddings, False)
    norm("layernorm1", model.embedding_norm)
    for i, decoder in enumerate(model.decoders):
        attention = decoder.self_attention
        for ours, theirs in (("query", "wq"), ("key", "wk"), ("value", "wv"), ("output", "dense")):
            dense(f"{i}.mha1.{theirs}", getattr(attention, f"{ours}_dense"))
        norm(f"{i}.mha1.layernorm1", attention.metric_norm)
        for u, unit in enumerate(attention.residuals):
            for j, layer in enumerate(unit.hidden):
                add_gated(f"{i}.mha1.reslayerAs.{u}.denseAs.{j}", layer)
            norm(f"{i}.mha1.reslayerAs.{u}.layernormA", unit.norm)
        for theirs, weight in (("W", "W"), ("b", "b"), ("pw", "P"), ("a", "a"), ("ba", "b_a")):
            variable = getattr(attention, f"power_law_{weight}")
            variables[f"{i}.{_METRIC}.{theirs}lst"] = (variable, False)
        add_gated(f"{i}.ffn", decoder.gated)
        norm(f"{i}.layernorm1", decoder.norms[0])
        norm(f"{i}.layernorm2", decoder.norms[1])
    dense("final_layer", model.logits)
    return variables


def _assign(model: LanguageModel, known: Mapping[str, np.ndarray]) -> None:
    variables = named_variables(model)
    # A version without biases lacks those of all maps of a kind.
    kinds = (r"\d+\.mha1\.(wq|wk|wv|dense)\.bias", r".*\.gluw\d\.bias", r"final_layer\.bias")
    absent = set()
    for kind in kinds:
        biases = {name for name in variables if re.fullmatch(kind, name)}
        if not biases & known.keys():
            absent |= biases
    missing = sorted(variables.keys() - known.keys() - absent)
    if missing:
        raise ValueError(
            "Expected all weights of the model. Received: a checkpoint without "
            + ", ".join(missing[:5])
            + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        )
    for name, (variable, transposed) in variables.items():
        if name in absent:
            variable.assign(np.zeros(variable.shape))
            continue
        array = known[name].T if transposed else known[name]
        if array.shape != tuple(variable.shape):
            raise ValueError(
                "Expected weights of the sizes that the first layer has. Received: "
                f"{name} of {known[name].shape} in place of "
                f"{tuple(variable.shape)[:: -1 if transposed else 1]}"
            )
        variable.assign(array)
