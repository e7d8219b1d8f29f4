"""Deep tensor networks: an embedding, layers of tensor-network attention, and a head."""

from typing import Any

import keras

from keras_tnattn.layers import LocalEmbedding, MPSClassifier, TNAttention

HEADS = ("mps", "sequence", "decoder")


def deep_tensor_network(
    num_outputs: int | None,
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

    The model consists of a local embedding, `num_layers` layers of tensor-network attention (each
    with an optional skip connection and an optional normalization of the features of a site to norm
    1), and a head. It is not compiled.

    Args:
        num_outputs: Int, the number of classes: of a chain for the head `"mps"`, of each site for
            `"sequence"`. `None` for `"decoder"`.
        embedding: A layer from the raw inputs to local embeddings, for instance `LocalEmbedding`;
            with `LocalEmbedding(order=2)` the features are `phi x phi`.
        num_layers: Number of attentions. Defaults to 1.
        hidden_dim: Size of the features between the layers. Default: that of the embedding.
        bond_dim: Bond dimension of the attentions and of the matrix product state. Defaults to 8.
        head: `"mps"` (default), a matrix product state with one output tensor; `"sequence"`, the
            last attention returns `num_outputs` logits per site; `"decoder"`, the last attention
            returns features in the size of the embedding, and the embedding, which must be a
            `LocalEmbedding`, decodes them to numbers or to logits of ids.
        num_sites: Fixes the length of the input. Default: any length.
        uniform: Whether all sites share their tensors. Defaults to `True`; tensors per site need
            `num_sites`.
        num_features: Numbers per site, for embeddings of patches. Default: one number or id.
        skip: Whether each attention that keeps the number of features is added to its input.
            Defaults to `False`.
        normalize_features: Whether features are normalized between layers. Defaults to `True`.
        initial_deviation: Standard deviation of the noise added to the initial identity matrices.
            Defaults to 0.1.
        **attention_options: Further arguments of every `TNAttention`, for instance
            `normalize="each"`.

    Returns:
        A functional model from numbers or ids, `(B, N)` or `(B, N, num_features)`, to logits,
        `(B, num_outputs)` or `(B, N, num_outputs)`, or to what the decoder returns, in float32.

    Raises:
        ValueError: For an unknown head, a number of layers that is not positive, tensors per site
            without `num_sites`, or a decoder without a `LocalEmbedding`.

    Example:
        >>> from keras_tnattn.layers import LocalEmbedding
        >>> model = deep_tensor_network(10, LocalEmbedding(), num_layers=2, bond_dim=4)
        >>> tuple(model(keras.ops.ones((3, 20))).shape)
        (3, 10)
    """
    if head not in HEADS:
        raise ValueError(f"Expected one of {HEADS}. Received: head={head!r}")
    if num_layers < 1:
        raise ValueError(f"Expected a positive int. Received: num_layers={num_layers}")
    if not uniform and num_sites is None:
        raise ValueError(
            f"Expected num_sites for tensors per site. Received: uniform={uniform}, num_sites=None"
        )
    decoded = head == "decoder"
    if decoded != (num_outputs is None) or (decoded and not isinstance(embedding, LocalEmbedding)):
        raise ValueError(
            "Expected num_outputs=None and a LocalEmbedding for head='decoder', and num_outputs "
            f"for any other head. Received: head={head!r}, num_outputs={num_outputs}, "
            f"embedding={embedding!r}"
        )
    ids = isinstance(embedding, LocalEmbedding) and embedding.num_ids is not None
    shape = (num_sites,) if num_features is None else (num_sites, num_features)
    inputs = keras.Input(shape, dtype="int32" if ids else "float32", name="sites")
    x = embedding(inputs)
    output_dim = x.shape[-1] if num_outputs is None else num_outputs
    options: dict[str, Any] = {
        "bond_dim": bond_dim,
        "initial_deviation": initial_deviation,
        "uniform": uniform,
    }
    if not uniform:
        options["num_sites"] = num_sites
    for n in range(num_layers):
        last = n == num_layers - 1
        # The last attention has the features of the logits or of the decoder; "mps" needs none.
        width = output_dim if last and head != "mps" else hidden_dim or x.shape[-1]
        y = TNAttention(width, **options, **attention_options, name=f"attention_{n}")(x)
        if skip and width == x.shape[-1]:
            y = keras.layers.Add(name=f"skip_{n}")([x, y])
        if normalize_features and not (last and head == "sequence"):
            y = keras.layers.UnitNormalization(name=f"unit_{n}")(y)
        x = y
    if head == "mps":
        x = MPSClassifier(output_dim, **options, name="mps")(x)
    if decoded:
        x = embedding(x, reverse=True)
    outputs = keras.layers.Activation("linear", dtype="float32", name="logits")(x)
    return keras.Model(inputs, outputs, name="deep_tensor_network")
