"""Prints the progress of long work, line by line, for output that is not a terminal."""

import time

import keras

LINES = 10  # printed in one training, at most, besides those within an epoch
SECONDS = 60  # between two lines within an epoch


class EpochLines(keras.callbacks.Callback):
    """Prints the metrics of every epoch or, if there are more than ten, at most ten times in total.

    Within a long epoch a line tells every minute how far it is. Behind the metrics are the seconds
    since this process began to train, and, within an epoch, those that remain to the last epoch.
    The first call of the compiled step, which compiles it, does not count for these: they are
    told once two more have ended.
    """

    def on_train_begin(self, logs: dict | None = None) -> None:
        self._start = self._line = time.perf_counter()
        self._steps = self._calls = 0

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        now, steps, epochs = time.perf_counter(), self.params["steps"], self.params["epochs"]
        self._calls += 1
        # With several steps per call, the last call of an epoch may have fewer.
        step = min(batch + 1, steps or batch + 1)
        if self._calls == 1:
            self._compiled = now
            self._compiled_steps = step
        if now - self._line < SECONDS or not steps:
            return
        self._line = now
        remaining = ""
        if self._calls > 2:
            steps_left = (epochs - self._epoch) * steps - step
            rate = (now - self._compiled) / (self._steps + step - self._compiled_steps)
            remaining = f", about {rate * steps_left:.0f} s remain"
        print(
            f"epoch {self._epoch + 1} of {epochs}, step {step:,} of {steps:,}: {_text(logs)} "
            f"({now - self._start:.0f} s since the start{remaining})",
            flush=True,
        )

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        self._epoch = epoch

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        number = epoch + 1
        epochs = self.params["epochs"]
        self._steps += self.params["steps"] or 0
        if number % -(-epochs // LINES) == 0 or number == epochs or self.model.stop_training:
            self._line = time.perf_counter()
            print(
                f"epoch {number} of {epochs}: {_text(logs)} "
                f"({self._line - self._start:.0f} s since the start)",
                flush=True,
            )


def _text(metrics: dict | None) -> str:
    return ", ".join(f"{name} {float(value):.4g}" for name, value in (metrics or {}).items())
