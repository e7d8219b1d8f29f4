"""Initializers: TT-cores with a given kernel variance, near-identities, reflections."""

import math
from collections.abc import Sequence

import keras
from keras import ops

from keras_tnattn.ops.precision import at_least_float32
from keras_tnattn.ops.tensor_train.factors import core_shapes
from keras_tnattn.typing import Seed, Tensor

# The variance of a standard normal distribution truncated at two standard deviations.
_TRUNCATED_VARIANCE = 0.7737


def kernel_variance(
    initializer: keras.initializers.Initializer, fan_in: int, fan_out: int
) -> float:
    """Returns the variance of the entries of a dense kernel drawn by a Keras initializer.

    Args:
        initializer: One of the variance-scaling family (Glorot, He, LeCun), `RandomNormal`,
            `TruncatedNormal` or `RandomUniform`.

        fan_in: Rows of the kernel.
        fan_out: Columns of the kernel.

    Raises:
        ValueError: For any other initializer: a product of constant or orthogonal cores is
            neither constant nor orthogonal.

    Example:
        >>> round(kernel_variance(keras.initializers.GlorotUniform(), 100, 300), 6)
        0.005
    """
    config = initializer.get_config()
    if isinstance(initializer, keras.initializers.VarianceScaling):
        fans = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}
        # Glorot, He and LeCun leave scale and mode out of their config.
        return initializer.scale / fans[initializer.mode]
    if isinstance(initializer, keras.initializers.TruncatedNormal):
        return _TRUNCATED_VARIANCE * config["stddev"] ** 2
    if isinstance(initializer, keras.initializers.RandomNormal):
        return config["stddev"] ** 2
    if isinstance(initializer, keras.initializers.RandomUniform):
        return (config["maxval"] - config["minval"]) ** 2 / 12
    raise ValueError(
        "Expected a kernel initializer of random entries with a known variance: the Glorot, He and "
        "LeCun ones, VarianceScaling, RandomNormal, TruncatedNormal or RandomUniform. "
        f"Received: initializer={initializer}"
    )


class _Orthogonal(keras.initializers.Orthogonal):
    """Draws in float32 if the dtype is shorter, because TensorFlow has no QR of bfloat16."""

    def __call__(self, shape: Sequence[int], dtype: str | None = None) -> Tensor:
        dtype = keras.backend.standardize_dtype(dtype)
        return ops.cast(super().__call__(shape, at_least_float32(dtype)), dtype)


class _Stacked(keras.initializers.Initializer):
    """Initializes each slice along the first axis with its own initializer."""

    def __init__(self, initializers: Sequence[keras.initializers.Initializer]) -> None:
        self.initializers = initializers

    def __call__(self, shape: Sequence[int], dtype: str | None = None) -> Tensor:
        return ops.stack([initializer(shape[1:], dtype) for initializer in self.initializers])


def tt_core_weights(
    kernel_initializer: keras.initializers.Initializer,
    tt_input_shape: Sequence[int],
    tt_output_shape: Sequence[int],
    tt_ranks: Sequence[int],
    num_heads: int | None = None,
    seed_offset: int = 0,
) -> list[tuple[tuple[int, ...], keras.initializers.Initializer]]:
    """Returns shape and initializer of each TT-core, such that `W` has the requested variance.

    An entry of `W` is a sum of `prod(R_n)` products of `N` core entries. Core entries of variance
    `v = (s2 / prod(R_n)) ** (1 / N)` therefore give it, at any rank, the variance `s2` that
    `kernel_initializer` has for a dense kernel of the same shape. With independent entries this
    holds only on average: at rank 2, single draws of 12 cores are off by factors of ten. Here the
    left unfolding `(R_{n-1} I_n J_n, R_n)` of each core is a random orthogonal matrix, scaled to
    variance `v`, so that `||W||_F^2 = I J s2` holds exactly for every draw (provided that
    `R_n <= R_{n-1} I_n J_n`).

    Args:
        kernel_initializer: A Keras initializer that `kernel_variance` supports. From a fixed seed,
            a different seed is derived for every core and head.
        tt_input_shape: The `N` factors `I_n`.
        tt_output_shape: The `N` factors `J_n`.
        tt_ranks: The `N - 1` inner ranks.
        num_heads: If given, cores have a leading axis of this size; each head is drawn separately.
        seed_offset: Added to a fixed seed, if several maps share one initializer. Defaults to 0.

    Example:
        >>> glorot = keras.initializers.GlorotUniform()
        >>> [shape for shape, _ in tt_core_weights(glorot, (2, 3), (4, 5), (6,))]
        [(1, 2, 4, 6), (6, 3, 5, 1)]
    """
    shapes = core_shapes(tt_input_shape, tt_output_shape, tt_ranks)
    variance = kernel_variance(
        kernel_initializer, math.prod(tt_input_shape), math.prod(tt_output_shape)
    )
    entry_variance = (variance / math.prod(tt_ranks)) ** (1 / len(shapes))
    seed = kernel_initializer.get_config()["seed"]

    def core_initializer(shape: tuple[int, ...], index: int) -> keras.initializers.Initializer:
        # One initializer per core and head: a shared instance with a fixed seed repeats its values.
        gain = math.sqrt(entry_variance * max(math.prod(shape[:-1]), shape[-1]))
        if isinstance(seed, int):
            return _Orthogonal(gain, seed + seed_offset + index)
        return _Orthogonal(gain, seed and kernel_initializer.seed)

    weights: list[tuple[tuple[int, ...], keras.initializers.Initializer]] = []
    for n, shape in enumerate(shapes):
        if num_heads is None:
            weights.append((shape, core_initializer(shape, n)))
        else:
            heads = [core_initializer(shape, n * num_heads + h) for h in range(num_heads)]
            weights.append(((num_heads, *shape), _Stacked(heads)))
    return weights


class NearIdentity(keras.initializers.Initializer):
    """Initializes `(..., D, D, features)` with the identity for each feature, plus noise.

    A sum of such matrices with non-negative weights is close to a multiple of the identity, so that
    products of thousands of them stay within the range of floating point.

    Args:
        num_features: Number of feature axes, 1 or 2, after the two axes of the matrices. With two
            feature axes, only the matrices whose two feature indices are equal get the identity.
        stddev: Standard deviation of the noise.
        scale: Factor of the identity. Defaults to 1.
        symmetric: Whether the noise of each matrix is symmetric. Long products then tend to a
            projector onto one vector, not to a map between two vectors that may be orthogonal.
            Defaults to `False`.
        seed: Int or `keras.random.SeedGenerator`, as for the initializers of Keras. Default: drawn
            when the initializer is constructed, so that JAX can call it while it traces.

    Example:
        >>> matrices = NearIdentity(num_features=1, stddev=0.1)((8, 8, 2), "float32")
        >>> tuple(matrices.shape)
        (8, 8, 2)
    """

    def __init__(
        self,
        num_features: int,
        stddev: float,
        scale: float = 1.0,
        symmetric: bool = False,
        seed: Seed = None,
    ) -> None:
        self.num_features = num_features
        self.stddev = stddev
        self.scale = scale
        self.symmetric = symmetric
        self.noise = keras.initializers.RandomNormal(stddev=stddev, seed=seed)

    def __call__(self, shape: Sequence[int], dtype: str | None = None) -> Tensor:
        features = shape[-self.num_features :]
        bond = shape[-self.num_features - 1]
        weight = ops.eye(*features) if len(features) == 2 else ops.ones(features)
        identity = ops.reshape(ops.eye(bond), (bond, bond, *[1] * len(features)))
        noise = self.noise(shape, dtype)
        if self.symmetric:
            rows = len(shape) - self.num_features - 2
            noise = (noise + ops.swapaxes(noise, rows, rows + 1)) / 2**0.5
        return ops.cast(self.scale * identity * weight, dtype) + noise

    def get_config(self) -> dict:
        return {
            "num_features": self.num_features,
            "stddev": self.stddev,
            "scale": self.scale,
            "symmetric": self.symmetric,
            "seed": self.noise.get_config()["seed"],
        }


class UniformReflections(keras.initializers.Initializer):
    """Draws vectors of reflections `(J, r)` whose product is uniformly distributed (Stewart, 1980).

    The vectors are normally distributed; then the first `k - 1` entries of `v_k` are set to zero,
    and `sign(v_kk) |v_k|` is added to `v_kk`. Without this the product of a few reflections would
    stay near the identity.

    Args:
        seed: As for `NearIdentity`.

    Example:
        >>> tuple(UniformReflections()((8, 3), "float32").shape)
        (8, 3)
    """

    def __init__(self, seed: Seed = None) -> None:
        self.normal = keras.initializers.RandomNormal(stddev=1.0, seed=seed)

    def __call__(self, shape: tuple[int, int], dtype: str | None = None) -> Tensor:
        normal = ops.tril(self.normal(shape, dtype))
        norms = ops.sqrt(ops.sum(ops.square(normal), axis=0))
        # Not ops.sign, which is 0 at 0.
        norms = ops.where(ops.diagonal(normal) < 0, -norms, norms)
        return normal + ops.eye(*shape, dtype=dtype) * norms

    def get_config(self) -> dict:
        return {"seed": self.normal.get_config()["seed"]}
