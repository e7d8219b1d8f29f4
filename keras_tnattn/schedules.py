"""Learning rates over the steps of a training."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_tnattn")
class WarmupInverseSquareRoot(keras.optimizers.schedules.LearningRateSchedule):
    """`d^-0.5 min(s^-0.5, s w^-1.5)` at step `s`; 0 at step 0 (Vaswani et al., section 5.3).

    Rises over `w` steps to its peak `(d w)^-0.5` (3.6e-4 for the paper's PLGA, d = 512, w =
    15,000), then falls; scaled to another peak if one is given. Power law graph attention wants a
    low peak: 6e-4 learns at d = 128, 2.8e-3 diverges.

    Args:
        model_dim: The `d` of the formula.
        warmup_steps: The `w`. Defaults to 15,000, the paper's for PLGA; for SDPA it has 4,000.
        peak: The rate at step `w`. Defaults to `(d w)^-0.5`.

    Raises:
        ValueError: If one of them is not positive.
    """

    def __init__(
        self, model_dim: int, warmup_steps: int = 15_000, peak: float | None = None
    ) -> None:
        for name, value in (("model_dim", model_dim), ("warmup_steps", warmup_steps)):
            if value < 1:
                raise ValueError(f"Expected at least 1. Received: {name}={value}")
        self.model_dim = int(model_dim)
        if peak is not None and not peak > 0:
            raise ValueError(f"Expected a rate above 0. Received: peak={peak}")
        self.warmup_steps = int(warmup_steps)
        self.peak = None if peak is None else float(peak)

    def __call__(self, step: object) -> object:
        step = ops.cast(step, "float32")
        falling = 1 / ops.sqrt(ops.maximum(step, 1.0))
        scale = self.model_dim**-0.5
        if self.peak is not None:
            scale = self.peak * self.warmup_steps**0.5
        return scale * ops.minimum(falling, step * self.warmup_steps**-1.5)

    def get_config(self) -> dict:
        return {
            "model_dim": self.model_dim,
            "warmup_steps": self.warmup_steps,
            "peak": self.peak,
        }
