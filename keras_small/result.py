"""The result of a compression: the small model, which can be healed, saved and exported."""

import dataclasses
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
from keras import ops

from keras_small.asked.data import as_arrays, spread_batches
from keras_small.asked.inputs import example_of
from keras_small.asked.progress import printing
from keras_small.asked.renumbering import Renumbering
from keras_small.building.assembly import Assembly, shorten_vectors
from keras_small.building.healing import Healing, heal
from keras_small.building.saving import file_bytes, save_model
from keras_small.goals.counting import FlipCount, MeanChange
from keras_small.goals.promise import PromisedRows
from keras_small.planning.options import as_tuple
from keras_small.reports.report import Report
from keras_small.storage.sizes import byte_count
from keras_small.survey.comparing import Comparison
from keras_small.survey.copying import known_objects
from keras_small.survey.inventory import Inventory
from keras_tnattn_runtime.layout import file_sizes

_log = logging.getLogger(__name__)
_HEALED = "healed; layer errors were measured before healing"
_ENDED = "Healing ended the promise."


class CompressionResult:
    """A compressed model and its report.

    Attributes:
        model: The small model, a normal Keras model; the original itself if none is smaller.
        report: A `Report` of the changes to each layer.
        renumbering: Converts inputs of the original to those of the small model:
            `result.renumbering(inputs)`. If ids were renumbered, it is true, and
            `renumbering.old_ids` has the old id of each new id; see `Data`.
        healed_epochs: The number of epochs of healing, without those that were undone.

    Example:
        >>> import keras, numpy as np
        >>> from keras_small import compress
        >>> model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
        >>> inputs = np.random.default_rng(0).normal(size=(64, 64)).astype("float32")
        >>> result = compress(model, 3, data=inputs, verbose=0)
        >>> losses = result.heal(inputs, epochs=2)
        >>> result.report.ratio > 3
        True
    """

    def __init__(
        self,
        assembly: Assembly,
        report: Report,
        comparison: Comparison,
        renumbering: Renumbering,
        promised: PromisedRows | None,
        coded: bool,
        verbose: int,
    ) -> None:
        self._assembly = assembly
        self._comparison = comparison
        self._promised = promised
        self._suffix = ".tnz" if coded else ".keras"
        self._verbose = verbose
        self.model = assembly.small.model
        self.renumbering = renumbering
        self.healed_epochs = 0
        if coded:  # coding has shortened vectors of the small model alone
            self.report = self._measured(report, self.model, self.model)
        else:
            equal = assembly.equal_floats.model
            self.report = self._measured(report, self.model, equal, assembly.error)
        self._trainable = self._trainable_vectors()

    def __repr__(self) -> str:
        return str(self.report)

    @property
    def _original(self) -> Inventory:
        return self._comparison.original

    def heal(
        self,
        dataset: Any,
        epochs: int = 1,
        learning_rate: float = 1e-3,
        batch_size: int = 32,
        label_weight: float = 0.0,
        loss: Any = None,
        outputs: str | Sequence[str] = (),
    ) -> list[float]:
        """Trains the small model with the original's outputs as targets.

        Integers are trained as floats, fake-quantized with the existing scales; gradients pass the
        rounding straight through. Other tables than plain ones are trained as floats, and then
        quantized again. Both models run as at inference, without dropout. If the healed model has a
        lower value of the goal's metric, or without a metric a larger error of its outputs on the
        data, the small model stays as it was; labels or a loss of one's own may raise this error. A
        healing ends a promise.

        Args:
            dataset: Inputs or `(inputs, labels)`, as arrays or as an iterable of batches; the same
                forms as for `data` of `compress`, but a generator works for one epoch only.
            epochs: Passes over the dataset. Defaults to 1.
            learning_rate: Peak learning rate of Adam, which falls to 0. Defaults to 1e-3.
            batch_size: Rows per batch, if `dataset` are arrays. Defaults to 32.
            label_weight: Weight of the labels in the targets, if there are labels. Defaults to 0.
            loss: Another loss, such as `logits_divergence` for a model that returns logits.
                Default: Kullback-Leibler divergence for probabilities, otherwise the mean squared
                error.
            outputs: Names of layers of a functional or sequential model, such as the blocks of an
                encoder, whose outputs are targets beside those of the model. Their loss is the
                squared error relative to the squares of the original's. Default: none.

        Returns:
            The mean loss of each epoch; none if the model stays as it was.

        Raises:
            ValueError: If the result is the original model, a number is not positive, the dataset
                does not fit the model, the model has no layer of a name in `outputs`, labels are
                missing for `label_weight`, the model was trained since or is frozen, or the loss, a
                weight or the metric becomes infinite or NaN. The model then keeps its weights.
        """
        if self.model is self._original.model:
            raise ValueError(f"Expected a model that became smaller. Received: {self.model.name}")
        if any(_hash(weight) != former for weight, former in self._trainable):
            raise ValueError(
                "Expected a model that was not trained since it was compressed, because healing "
                "begins with its floats: heal it before you train it. Received: "
                f"{self.model.name}, which was trained"
            )
        dataset = as_arrays(dataset)
        how = Healing(
            epochs=epochs,
            learning_rate=learning_rate,
            batch_size=batch_size,
            label_weight=label_weight,
            loss=loss,
            outputs=as_tuple(outputs),
        )
        floating = self._assembly.floating.model
        before = floating.get_weights()
        try:
            with printing(self._verbose), known_objects(self._original):
                losses, healed = self._healed(dataset, how)
                report = self._measured(self.report, healed, healed)
        except BaseException:  # also of Ctrl-C
            floating.set_weights(before)
            raise
        worse = _why_worse(how, self.report, report)
        if worse:
            floating.set_weights(before)
            _log.warning("healing would %s: the model stays as it is", worse)
            self._note(f"Healing was undone: it would {worse}.")
            return []
        self.model = healed
        self.report = dataclasses.replace(report, promise=None)
        if not self.healed_epochs:
            self._note(_HEALED)
        if self._promised is not None:
            self._note(_ENDED)
        self._promised = None
        self.healed_epochs += epochs
        self._trainable = self._trainable_vectors()
        return losses

    def _healed(self, dataset: Any, how: Healing) -> tuple[list[float], keras.Model]:
        """Trains the floats; returns the losses and the model that is quantized from them."""
        losses = heal(
            self._assembly.floating.model,
            self._original.model,
            dataset,
            how,
            self.renumbering,
            self._assembly.roundings,
        )
        healed = self._assembly.quantized_again()
        if self._suffix == ".tnz":
            shorten_vectors(Inventory.of(healed), self._assembly.quantize)
        if healed is not self.model:
            self._comparison.compile(healed)
        return losses, healed

    def _measured(
        self,
        report: Report,
        model: keras.Model,
        equal: keras.Model,
        on_calibration: float | None = None,
    ) -> Report:
        """Returns a report with the sizes, the error and the metric of a model.

        The error is that of an equal model, which may be faster because it restores no integers;
        on the calibration it may be known.
        """
        error, rows = self._comparison.report_error(equal, self.renumbering, on_calibration)
        changed = any(row.format != "kept" for row in report.layers)
        return dataclasses.replace(
            report,
            weights_after=self._assembly.floating.model.count_params(),
            bytes_after=byte_count(model),
            metric_before=self._comparison.metric_before,
            metric_after=self._comparison.metric_of(model),
            error=error,
            rows=rows,
            file_bytes=file_bytes(model, self._suffix) if changed else None,
        )

    def _trainable_vectors(self) -> list[tuple[keras.Variable, int]]:
        """Returns the weights that `fit` can change in a quantized model, each with its hash."""
        weights = self.model.trainable_weights if self._assembly.quantize else ()
        return [(weight, _hash(weight)) for weight in weights]

    def _note(self, sentence: str) -> None:
        self.report = dataclasses.replace(self.report, notes=(*self.report.notes, sentence))

    def save(self, path: str | os.PathLike, overwrite: bool = False) -> int:
        """Writes the small model as a `.keras` or `.tnz` file, and prints its bytes.

        The file has the weights, compressed, and no state of an optimizer; of a compiled model the
        loaded one is compiled, too. `keras.models.load_model(path)` reads a `.keras` file after
        `import keras_small`, and `keras_small.load(path)` a `.tnz` file, which is
        smaller, because its integers take as many bits as their frequencies need. The loaded models
        are the same.

        Args:
            path: The file, `.keras` or `.tnz`.
            overwrite: Whether to replace a file that exists. Defaults to `False`.

        Returns:
            The bytes of the file: `report.file_bytes`, unless the model was trained since.

        Raises:
            FileExistsError: If the file exists, without `overwrite`.
            FileNotFoundError: If the folder does not exist.
            ImportError: If `constriction` is missing for a `.tnz` file.
            OSError: If there is no room for the file, or for temporary files.
            ValueError: If the name ends with something else, or a layer saves other things than
                numbers, which no `.tnz` file holds.
        """
        size = save_model(self.model, path, overwrite)
        print(f"{size:>12,} bytes  {Path(path).name}")
        print(f"{byte_count(self.model):>12,} bytes  its weights once it is loaded")
        return size

    def export(
        self,
        path: str | os.PathLike,
        example: Any = None,
        length: int | None = None,
        max_error: float | None = None,
    ) -> Path:
        """Writes the small model as a file, and prints what it costs where it runs.

        Files for a runtime are measured by it, in a process of its own: memory, and time for one
        row and for 32 on one thread. The costs are added to the report, with the kernels and tables
        that the file stores in another form than the model, and why. With a promise the rows held
        back are counted again in the runtime, and the report has this count, too.

        Args:
            path: The new file, `.onnx`, `.tflite` (LiteRT) or `.xml` (OpenVINO), or the new folder
                of a SavedModel.
            example: Inputs with which the file is checked. Default: the first batch of the data;
                without data random numbers, of ids 0 and 1.
            length: As in `keras_small.export`.
            max_error: As in `keras_small.export`.

        Returns:
            The path.

        Raises:
            FileExistsError: If the file exists.
            ImportError: If a package is missing.
            RuntimeError: If the model cannot be converted, or not on this backend.
            ValueError: If the name ends with something else.
        """
        from keras_small.runtimes import file_costs
        from keras_small.runtimes.exporting import size_note, write_file

        written = Path(path)
        data = self._comparison.data
        batches = [] if data is None else spread_batches(data.batches)
        if example is None and data is not None:
            example = self.renumbering(next(data.report_batches()))
        examples = [self.renumbering(batch) for batch in batches]
        changes = write_file(self.model, path, example, length, max_error, examples)
        if written.is_dir():
            for file, size in file_sizes(written).items():
                print(f"{size:>12,} bytes  {file}")
            return written
        costs = dataclasses.replace(file_costs(written, self.model, example), changes=changes)
        print(costs)
        self.report = dataclasses.replace(self.report, files=(*self.report.files, costs))
        note = size_note(self.model, written)
        if note:
            self._note(f"{note}.")
            print(self.report.notes[-1])
        if self._promised is not None:
            self._note(self._count_in_file(written, self._promised))
            print(self.report.notes[-1])
        return written

    def _count_in_file(self, path: Path, promised: PromisedRows) -> str:
        """Counts the rows held back again in a file's runtime; says the count in a sentence."""
        from keras_small.runtimes import file_outputs

        run = file_outputs(path)
        count = promised.count(lambda inputs: run(example_of(self.model, inputs)))
        broken = "; this breaks the promise" if count.bound > promised.limit else ""
        return f"{path.name}: {count}{broken}."

    def count_again(self, predict: Callable[[Any], Any]) -> FlipCount | MeanChange:
        """Counts flips or changes again, of another function, on the rows that a promise held back.

        Args:
            predict: Function from a batch of inputs to the model's output, or to a list of them,
                such as an exported file run by its runtime.

        Returns:
            A `FlipCount` with `flips`, or a `MeanChange` with the `mean`; both with `rows` and
            the `bound`. The bound holds with the confidence for a function that was chosen without
            these rows; if it was chosen among several by its count, they exceed it more often.

        Raises:
            ValueError: If no rows were held back, or the model was healed since.
        """
        if self._promised is None:
            raise ValueError(
                "Expected a result with a Promise that was not healed. Received: "
                f"healed_epochs={self.healed_epochs}"
            )
        return self._promised.count(predict)


def _why_worse(how: Healing, before: Report, after: Report) -> str:
    """Says how a healed model is worse; empty if it is not."""
    if before.metric_after is not None and after.metric_after is not None:
        if after.metric_after >= before.metric_after:
            return ""
        return f"lower the metric from {before.metric_after:.6g} to {after.metric_after:.6g}"
    if before.error is None or after.error is None or not how.imitates_outputs:
        return ""
    if after.error <= before.error:
        return ""
    return f"raise the error of the outputs from {before.error:.6g} to {after.error:.6g}"


def _hash(weight: keras.Variable) -> int:
    return hash(ops.convert_to_numpy(weight).tobytes())
