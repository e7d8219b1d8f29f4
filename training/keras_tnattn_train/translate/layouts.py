"""How `--model-parallel` splits the weights of a translator among devices."""

from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.processes.devices import Layouts
from keras_tnattn_train.translate.config import TranslateConfig

# The hidden sizes are split, so that a device computes its part of a hidden layer with its part of
# the weights on both sides; the tables of the embeddings are split along the vectors.
LAYOUTS: Layouts = {
    r".*_embedding/embeddings": (None, "model"),
    r".*/hidden/kernel": (None, "model"),
    r".*/hidden/bias": ("model",),
    r".*/projection/kernel": ("model", None),
    r".*/residual_\d+_dense_0/kernel": (None, "model"),
    r".*/residual_\d+_dense_0/bias": ("model",),
    r".*/residual_\d+_(dense_1|projection)/kernel": ("model", None),
}


def layouts(config: TranslateConfig, parts: int) -> Layouts:
    """Returns the layouts of a translator in so many parts."""
    from keras_tnattn.models import PRESETS

    for name in ("embedding", "feedforward"):
        if getattr(config, name) != "dense":
            raise InputError(
                f"Expected {name}=dense for model_parallel={parts}: the weights of other forms are "
                f"too small to be split. Received: {name}={getattr(config, name)}"
            )
    sizes = {"model_dim": config.model_dim, "feedforward_dim": config.feedforward_dim}
    if config.attention == "plga":
        preset = PRESETS[config.preset]
        sizes["residual_dim"] = config.residual_dim or preset.get("residual_dim", parts)
    for name, size in sizes.items():
        if size % parts:
            raise InputError(
                f"Expected {name} to be a multiple of model_parallel={parts}. "
                f"Received: {name}={size}"
            )
    return LAYOUTS
