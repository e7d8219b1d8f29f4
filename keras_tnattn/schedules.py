"""Learning rate schedules."""

import keras
from keras import ops

from keras_tnattn.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_tnattn")
class WarmupInverseSquareRoot(keras.optimizers.schedules.LearningRateSchedule):
    """`d^-0.5 min(s^-0.5, s w^-1.5)` at step `s`; 0 at step 0 (Vaswani et al., section 5.3).

    The rate rises over `w` steps to its peak `(d w)^-0.5` (3.6e-4 for the paper's PLGA, with
    d = 512 and w = 15,000), then falls; it is scaled if another peak is given. Power law graph
    attention needs a low peak, such as 1e-3 at d = 128.

    With `cooldown_steps`, which the papers do not have, the rate is also multiplied by
    `min(1, (n - s) / c)`, so that it falls to 0 over the last `c` of the `n` steps. With few epochs
    this leads to a lower loss.

    Args:
        model_dim: The `d` of the formula.
        warmup_steps: The `w`. Defaults to 15,000, the paper's value for PLGA (4,000 for SDPA).
        peak: The rate at step `w`. Defaults to `(d w)^-0.5`.
        total_steps: The `n` of the cool-down; required if there is one.
        cooldown_steps: The `c`. Defaults to 0, no cool-down.

    Raises:
        ValueError: If a size or the peak is not positive, or `cooldown_steps` is not between 0
            and `total_steps`.

    Example:
        >>> schedule = WarmupInverseSquareRoot(512, warmup_steps=4000, peak=1e-3)
        >>> [round(float(schedule(step)), 6) for step in (0, 2000, 4000, 16_000)]
        [0.0, 0.0005, 0.001, 0.0005]
        >>> optimizer = keras.optimizers.Adam(schedule)
    """

    def __init__(
        self,
        model_dim: int,
        warmup_steps: int = 15_000,
        peak: float | None = None,
        total_steps: int | None = None,
        cooldown_steps: int = 0,
    ) -> None:
        for name, value in (("model_dim", model_dim), ("warmup_steps", warmup_steps)):
            if value < 1:
                raise ValueError(f"Expected at least 1. Received: {name}={value}")
        self.model_dim = int(model_dim)
        if peak is not None and not peak > 0:
            raise ValueError(f"Expected a rate above 0. Received: peak={peak}")
        if not 0 <= cooldown_steps <= (total_steps or 0):
            raise ValueError(
                "Expected 0 <= cooldown_steps <= total_steps. "
                f"Received: cooldown_steps={cooldown_steps}, total_steps={total_steps}"
            )
        self.total_steps = total_steps
        self.cooldown_steps = int(cooldown_steps)
        self.warmup_steps = int(warmup_steps)
        self.peak = None if peak is None else float(peak)

    def __call__(self, step: Tensor) -> Tensor:
        step = ops.cast(step, "float32")
        falling = 1 / ops.sqrt(ops.maximum(step, 1.0))
        scale = self.model_dim**-0.5
        if self.peak is not None:
            scale = self.peak * self.warmup_steps**0.5
        rate = scale * ops.minimum(falling, step * self.warmup_steps**-1.5)
        if self.cooldown_steps:
            steps_to_go = ops.maximum(self.total_steps - step, 0.0)
            rate = rate * ops.minimum(1.0, steps_to_go / self.cooldown_steps)
        return rate

    def get_config(self) -> dict:
        return {
            "model_dim": self.model_dim,
            "warmup_steps": self.warmup_steps,
            "peak": self.peak,
            "total_steps": self.total_steps,
            "cooldown_steps": self.cooldown_steps,
        }
