"""Deep tensor networks: embedding, layers of tensor-network attention, a head."""

from typing import Any

import keras

from keras_tnattn.layers import LocalEmbedding, MPSClassifier, TNAttention

HEADS = ("mps", "sequence")


def deep_tensor_network(
    num_outputs: int,
    embedding: keras.layers.Layer,
    num_layers: int = 1,
    hidden_dim: int | None = None,
    bond_dim: int = 8,
    head: str = "mps",
    num_sites: int | None = None,
    uniform: bool = True,
    num_features: int | None = None,
    skip: bool = False,
    normalize_features: bool = True,
    initial_deviation: float = 0.1,
    **attention_options: Any,
) -> keras.Model:
    """Builds the network of Žunkovič, "Deep tensor networks with the tensor-network attention".

    Local embedding, `num_layers` times (tensor-network attention, optional skip connection,
    optional normalisation of the features of a site to norm 1), head. Not compiled.

    Args:
        num_outputs: Classes of a chain for the head `"mps"`, of each site for `"sequence"`.
        embedding: A layer from the raw inputs to local embeddings, for instance `LocalEmbedding`.
        num_layers: Number of attentions. Defaults to 1.
        hidden_dim: Size of the features between the layers. Default: that of the embedding.
        bond_dim: Of the attentions and of the matrix product state. Defaults to 8.
        head: `"mps"`, a matrix product state with one output tensor (default), or `"sequence"`: the
            last attention gives one logit for each value a site may have, which inverts a one-hot
            embedding site by site.
        num_sites: Fixes the length of the input. Default: any length.
        uniform: Whether all sites share their tensors. Defaults to `True`; tensors per site need
            `num_sites`.
        num_features: Numbers a site, for embeddings of patches. Default: one number or id a site.
        skip: Whether each attention that keeps the number of features is added to its input.
            Defaults to `False`.
        normalize_features: Whether features are normalised between layers. Defaults to `True`.
        initial_deviation: Standard deviation of the noise on the identity at the start.
        **attention_options: Further arguments of every `TNAttention`.

    Returns:
        A functional model from numbers or ids, `(B, N)` or `(B, N, num_features)`, to logits,
        `(B, num_outputs)` or `(B, N, num_outputs)`, in float32.

    Raises:
        ValueError: For an unknown head, a number of layers that is not positive, or tensors per
            site without `num_sites`.
    """
    if head not in HEADS:
        raise ValueError(f"Expected one of {HEADS}. Received: head={head!r}")
    if num_layers < 1:
        raise ValueError(f"Expected a positive int. Received: num_layers={num_layers}")
    if not uniform and num_sites is None:
        raise ValueError(
            f"Expected num_sites for tensors per site. Received: uniform={uniform}, num_sites=None"
        )
    ids = isinstance(embedding, LocalEmbedding) and embedding.num_ids is not None
    shape = (num_sites,) if num_features is None else (num_sites, num_features)
    inputs = keras.Input(shape, dtype="int32" if ids else "float32", name="sites")
    x = embedding(inputs)
    options = {"bond_dim": bond_dim, "initial_deviation": initial_deviation, "uniform": uniform}
    if not uniform:
        options["num_sites"] = num_sites
    for n in range(num_layers):
        last = n == num_layers - 1
        width = num_outputs if last and head == "sequence" else hidden_dim or x.shape[-1]
        y = TNAttention(width, **options, **attention_options, name=f"attention_{n}")(x)
        if skip and width == x.shape[-1]:
            y = keras.layers.Add(name=f"skip_{n}")([x, y])
        if normalize_features and not (last and head == "sequence"):
            y = keras.layers.UnitNormalization(name=f"unit_{n}")(y)
        x = y
    if head == "mps":
        x = MPSClassifier(num_outputs, **options, name="mps")(x)
    outputs = keras.layers.Activation("linear", dtype="float32", name="logits")(x)
    return keras.Model(inputs, outputs, name="deep_tensor_network")
