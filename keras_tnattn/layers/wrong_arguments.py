"""Errors for wrong arguments of a layer or its call, with the names that were probably meant."""

import difflib
import functools
import inspect
from collections.abc import Collection, Mapping
from typing import Any

import keras

from keras_tnattn.checks import shape_of

# Names that Keras, PyTorch, Transformers and other libraries give to the same thing: first ours.
_SYNONYMS = (
    ("activation", "act", "nonlinearity"),
    ("adjacency", "adj", "adj_matrix"),
    ("attention_mask", "attn_mask"),
    ("bond_dim", "bond_dimension", "chi", "rank", "ranks"),
    ("damping", "decay"),
    ("dropout", "attention_dropout", "attn_drop", "drop_rate", "dropout_rate", "p", "rate"),
    ("edge_weights", "edge_weight"),
    ("edges", "edge_index"),
    ("epsilon", "eps", "layer_norm_eps"),
    ("feedforward_dim", "d_ff", "dim_feedforward", "ffn_dim", "hidden_dim", "intermediate_dim"),
    ("hidden_dim", "intermediate_dim", "intermediate_size", "units"),
    ("input_dim", "num_embeddings", "vocab_size", "vocabulary_size"),
    ("kernel_initializer", "init", "initializer", "weight_initializer"),
    ("kernel_regularizer", "regularizer", "weight_decay"),
    ("key_dim", "d_k", "dim_head", "head_dim", "head_size", "key_size", "size_per_head"),
    ("key_shape", "head_dim", "key_dim"),
    ("mask", "key_padding_mask", "padding_mask"),
    ("max_length", "max_len", "max_positions", "sequence_length"),
    ("memory", "encoder_hidden_states", "encoder_sequence"),
    ("memory_mask", "encoder_attention_mask", "memory_key_padding_mask"),
    ("negative_slope", "alpha", "leaky_relu_slope"),
    ("norm_first", "normalize_first", "pre_norm"),
    ("num_classes", "output_dim", "units"),
    ("num_heads", "heads", "n_head", "n_heads", "nhead", "num_attention_heads"),
    ("output_dim", "embed_dim", "embedding_dim", "units"),
    ("positions", "position_ids"),
    ("propagation_rank", "rank", "ranks"),
    ("rank", "ranks", "tt_rank", "tt_ranks"),
    ("residual_dim", "d_ff", "feedforward_dim", "hidden_dim", "intermediate_dim"),
    ("return_attention_scores", "need_weights", "output_attentions"),
    ("tt_ranks", "bond_dim", "rank", "ranks", "tt_rank"),
    ("units", "filters", "out_channels", "out_features", "output_dim"),
    ("use_bias", "bias"),
    ("use_causal_mask", "causal", "is_causal"),
)
# Names of other libraries for what our layers do not have: no typing errors.
_OTHERS = ("value_dim",)
# What other libraries call the size of the tokens, which our layers take from their inputs.
_TOKEN_SIZES = (
    "d_model",
    "dim",
    "embed_dim",
    "embedding_dim",
    "features",
    "hidden_size",
    "in_features",
    "input_size",
    "model_dim",
)
_SIZES_TO_SET = ("units", "output_dim", "hidden_dim")
_LEGACY = ("input_dim", "input_length", "input_shape")  # which Keras still takes, with a warning
# What has another form than its synonyms.
_FORMS = {
    "edges": "Its rows are (sender, receiver), (E, 2), the transpose of edge_index, (2, E).",
    "key_shape": "It is a shape, whose product is the size of a key.",
}
# What a call may take in place of what it does not have.
_INSTEAD = {
    "attention_mask": {
        "mask": "mask (B, L) for padding",
        "adjacency": "adjacency (L, L) for pairs of tokens",
        "use_causal_mask": "use_causal_mask=True for earlier tokens only",
    },
    "edges": {"adjacency": "adjacency (L, L), the matrix of the graph"},
    "use_causal_mask": {"adjacency": "adjacency (L, L), whose lower triangle is a causal graph"},
}


def check_binding(kind: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raises a `TypeError` unless a layer can be constructed with some arguments, by their names.

    Example:
        >>> from keras_tnattn.layers import TTDense
        >>> check_binding(TTDense, (), {"units": 8})
    """
    try:
        _named_signature(kind).bind(None, *args, **kwargs)
    except TypeError as error:
        raise TypeError(_message(kind, kwargs, str(error))) from None


def check_known(kind: Any, after: Any, kwargs: Mapping[str, Any]) -> None:
    """Raises a `TypeError`, as Python does, if no constructor behind one knows an argument.

    Args:
        kind: The class of the layer.
        after: The base class whose constructor got the arguments.
        kwargs: The arguments.

    Example:
        >>> from keras_tnattn.layers import TTDense
        >>> check_known(TTDense, TTDense, {"name": "map"})
    """
    known = set(_LEGACY)
    for base in kind.__mro__[kind.__mro__.index(after) + 1 :]:
        known |= set(_own_parameters(base))
    if not known.issuperset(kwargs):
        raise TypeError(_message(kind, kwargs, ""))


def _own_parameters(base: Any) -> dict[str, inspect.Parameter]:
    """Returns the parameters that the constructor of a class itself names."""
    if "__init__" not in vars(base) or base is object:
        return {}
    parameters = list(inspect.signature(base.__init__).parameters.values())[1:]
    anything = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {p.name: p for p in parameters if p.kind not in anything}


@functools.cache
def _named_signature(kind: Any) -> inspect.Signature:
    """Returns the signature of the first constructor that does not only hand on its arguments."""
    bases = kind.__mro__[: kind.__mro__.index(keras.layers.Layer) + 1]
    named = [base for base in bases if _own_parameters(base)]
    return inspect.signature(named[0].__init__)


@functools.cache
def _parameters(kind: Any) -> dict[str, inspect.Parameter]:
    """Returns the parameters of a layer and its bases, without those of every Keras layer."""
    parameters: dict[str, inspect.Parameter] = {}
    for base in kind.__mro__[: kind.__mro__.index(keras.layers.Layer)]:
        for name, parameter in _own_parameters(base).items():
            if name not in getattr(kind, "fixed_arguments", ()):
                parameters.setdefault(name, parameter)
    return parameters


def _message(kind: Any, kwargs: Mapping[str, Any], reason: str) -> str:
    """Returns the error for arguments that do not fit, for a reason that Python gives."""
    parameters = _parameters(kind)
    known = {*parameters, *_own_parameters(keras.layers.Layer), *_LEGACY}
    unknown = {name: value for name, value in kwargs.items() if name not in known}
    received = ", ".join(f"{name}={describe(value)}" for name, value in unknown.items())
    problems = [received] if received else []
    if reason.startswith("missing") or not received:
        problems.append(reason)
    hints = "".join(f" {_hint(kind, name)}" for name in unknown)
    takes = [_as_argument(parameter) for parameter in parameters.values()]
    takes += ["name=None", "dtype=None"]
    return (
        f"Expected other arguments for {kind.__name__}. Received: {'; '.join(problems)}.{hints} "
        f"{kind.__name__} takes ({', '.join(takes)})"
    )


def _hint(kind: Any, name: str) -> str:
    """Returns a sentence about what was probably meant by an unknown argument of a constructor."""
    parameters = _parameters(kind)
    meant = _named(name, parameters)
    if name in _TOKEN_SIZES:
        meant += [size for size in _SIZES_TO_SET if size in parameters and size not in meant]
        if not meant:
            return f"The size of the tokens is that of the inputs, so `{name}` is not needed."
    if meant:
        return _did_you_mean(meant, name)
    of_call = _named(name, _call_parameters(kind))
    if of_call:
        return f"Pass {of_call[0]} in the call, layer(inputs, {of_call[0]}=...)."
    similar = _similar(name, [*parameters, *_own_parameters(keras.layers.Layer)])
    return _did_you_mean(similar, name) if similar else f"{kind.__name__} has no {name}."


def _call_hint(kind: Any, name: str) -> str:
    """Returns a sentence about what was probably meant by an unknown argument of a call."""
    parameters = _call_parameters(kind)
    meant = _named(name, parameters)
    if meant:
        return _did_you_mean(meant, name)
    of_constructor = _named(name, _parameters(kind))
    if of_constructor:
        option = of_constructor[0]
        return f"Pass {option} to the constructor, {kind.__name__}({option}=...)."
    similar = _similar(name, parameters)
    if similar:
        return _did_you_mean(similar, name)
    instead = [
        use
        for ours in _our_names(name)
        for parameter, use in _INSTEAD.get(ours, {}).items()
        if parameter in parameters
    ]
    takes = f" It takes {'; '.join(instead)}." if instead else ""
    return f"{kind.__name__} has no {name}.{takes}"


def _named(name: str, parameters: Collection[str]) -> list[str]:
    """Returns the parameters that have a name, or of which it is a synonym."""
    return [each for each in _our_names(name) if each in parameters]


def _our_names(name: str) -> list[str]:
    """Returns a name and those of which it is a synonym."""
    return list(dict.fromkeys([name, *(group[0] for group in _SYNONYMS if name in group)]))


def _similar(name: str, parameters: Collection[str]) -> list[str]:
    """Returns the parameters of which a name, unless it has a meaning, may be a typing error."""
    known = name in _OTHERS or any(name in group for group in _SYNONYMS)
    return [] if known else difflib.get_close_matches(name, parameters, n=2)


def _did_you_mean(meant: list[str], name: str) -> str:
    forms = "".join(f" {_FORMS[each]}" for each in meant if each in _FORMS)
    hint = f"Did you mean {' or '.join(meant)} instead of {name}?{forms}"
    # Some libraries mark what is left out.
    marks = any(each.endswith("mask") and each != "use_causal_mask" for each in meant)
    return f"{hint} In a mask, True is what is attended to." if marks else hint


def _as_argument(parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return parameter.name
    return f"{parameter.name}={parameter.default!r}"


def call_message(kind: Any, kwargs: Mapping[str, Any], reason: str) -> str:
    """Returns the error for arguments of a call that do not fit, for a reason that Python gives."""
    unknown = [name for name in kwargs if name not in (*_call_parameters(kind), "training")]
    received = ", ".join(f"{name}={describe(kwargs[name])}" for name in unknown)
    hints = "".join(f" {_call_hint(kind, name)}" for name in unknown)
    return f"Expected other call arguments. Received: {received or reason}.{hints} {usage(kind)}"


@functools.cache
def usage(kind: Any) -> str:
    """Returns a sentence that lists the arguments of a layer's call."""
    parameters = _call_parameters(kind).values()
    texts = [str(parameter.replace(annotation=inspect.Parameter.empty)) for parameter in parameters]
    return f"{kind.__name__} takes ({', '.join(texts)})"


@functools.cache
def _call_parameters(kind: Any) -> dict[str, inspect.Parameter]:
    """Returns the parameters of a layer's call, without the layer."""
    return dict(list(inspect.signature(kind.call).parameters.items())[1:])


def describe(value: Any) -> str:
    """Returns a value as an error message shows it."""
    shape = shape_of(value)
    return repr(value) if shape is None else f"tensor of shape {shape}"
