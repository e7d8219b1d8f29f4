"""Makes any Keras model smaller in one call."""

import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_small import coding
from keras_small.asked.batches import number_of_inputs, renumber_ids, some_batches
from keras_small.asked.counting import Change, FlipCount, MeanChange, Promising
from keras_small.asked.goals import (
    FLOATS,
    Goal,
    Healing,
    Metric,
    Options,
    Smaller,
    as_tuple,
    check_together,
    finite,
    goal_of,
)
from keras_small.asked.progress import printing, tell
from keras_small.asked.promises import PromisedRows
from keras_small.building.assembly import Assembly, assemble, compile_like, shorten_vectors
from keras_small.building.biases import BiasCorrection
from keras_small.building.healing import heal
from keras_small.building.saving import file_bytes, save_model
from keras_small.formats import FORMATS
from keras_small.formats.candidates import byte_count
from keras_small.planning.choosing import Choice, Chooser
from keras_small.planning.plan import make_plan
from keras_small.reports.peers import keras_quantizations
from keras_small.reports.report import Report
from keras_small.reports.rows import layer_rows, notes_of, report_of
from keras_small.survey import calibration
from keras_small.survey.calibration import Data
from keras_small.survey.comparing import Comparison
from keras_small.survey.copying import check_copy, copy_of, custom_objects, example_inputs
from keras_small.survey.inventory import Inventory
from keras_small.survey.selection import select_layers

_log = logging.getLogger(__name__)
_FORMATS = tuple(name for name in FORMATS if name not in ("dense", "coded"))
_HEALED = "healed; layer errors were measured before healing"
_BROKEN = ", which breaks the promise"
_ENDED = "Healing ended the promise."
_LARGER = (
    "The result is the model itself: a copy with other layers would have {size:,} bytes, more than "
    "{total:,}, because Keras loads a layer that several layers hold once for each of them."
)


class CompressionResult:
    """A compressed model and its report.

    Attributes:
        model: The small model, a normal Keras model; the original itself if none is smaller.
        report: A `Report` of the changes to each layer.
        healed_epochs: The number of epochs of healing, without those that were undone.
        id_orders: With `renumber`, a dict from the path of each embedding whose ids were renumbered
            to an array with the old id of each new id.

    Example:
        >>> import keras, numpy as np
        >>> from keras_small import compress
        >>> model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
        >>> inputs = np.random.default_rng(0).normal(size=(64, 64)).astype("float32")
        >>> result = compress(model, target=3.0, data=inputs, verbose=0)
        >>> losses = result.heal(inputs, epochs=2)
        >>> result.report.ratio > 3
        True
    """

    def __init__(
        self,
        original: Inventory,
        assembly: Assembly,
        report: Report,
        id_orders: Mapping[str, np.ndarray],
        comparison: Comparison,
        data: Data | None,
        options: Options,
        promised: PromisedRows | None = None,
    ) -> None:
        self._original, self._assembly, self._comparison = original, assembly, comparison
        self._data, self._verbose, self._promised = data, options.verbose, promised
        self._suffix = ".tnz" if options.is_coded else ".keras"
        self.model, self.report, self.healed_epochs = assembly.small.model, report, 0
        self.id_orders = dict(id_orders)

    def __repr__(self) -> str:
        return str(self.report)

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

        For integers, floats are trained that are rounded to them whenever the model reads
        them, with the scales that these have; the gradient passes as if they were not rounded.
        Other tables than plain ones are trained as floats, and then quantized again. Both models
        run as at inference, without dropout. If the healed model has a lower value of the metric
        that `compress` was given, or without a metric a larger error of its outputs on the data,
        the small model stays as it was; labels or a loss of one's own may raise this error. A
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
        if any(_hash(weight) != former for weight, former in self._vectors):
            raise ValueError(
                "Expected a model that was not trained since it was compressed, because healing "
                "begins with its floats: heal it before you train it. Received: "
                f"{self.model.name}, which was trained"
            )
        how = Healing(epochs, learning_rate, batch_size, label_weight, loss, as_tuple(outputs))
        floating = self._assembly.floating.model
        before = floating.get_weights()
        try:
            scope = keras.saving.custom_object_scope(custom_objects(self._original))
            with printing(self._verbose), scope:
                teacher, roundings = self._original.model, self._assembly.roundings
                losses = heal(floating, teacher, dataset, how, self.renumber, roundings)
                healed = self._assembly.quantized_again()
                if self._suffix == ".tnz":
                    shorten_vectors(Inventory.of(healed), self._assembly.quantize)
                metric = self._comparison.metric_of(healed)
                error, rows = self._error_of(healed)
        except BaseException:  # also of Ctrl-C
            floating.set_weights(before)
            raise
        worse = self._worse(how, metric, error)
        if worse:
            floating.set_weights(before)
            _log.warning("healing would %s: the model stays as it is", worse)
            notes = (*self.report.notes, f"Healing was undone: it would {worse}.")
            self.report = dataclasses.replace(self.report, notes=notes)
            return []
        if healed is not self.model:
            compile_like(self._original, healed)
        notes = (*self.report.notes, *[_HEALED] * (not self.healed_epochs))
        if self._promised is not None:
            notes, self._promised = (*notes, _ENDED), None
        self._report_model(
            healed, metric_after=metric, error=error, rows=rows, notes=notes, promise=None
        )
        self.model = healed
        self.healed_epochs += epochs
        return losses

    def _worse(self, how: Healing, metric: float | None, error: float | None) -> str:
        """Returns what makes a healed model worse, or nothing."""
        former = self.report.metric_after
        if metric is not None and former is not None:
            change = f"lower the metric from {former:.6g} to {metric:.6g}"
            return change if metric < former else ""
        former = self.report.error
        # Labels, and a loss of one's own, ask for something else than the original's outputs.
        own = how.loss is not None or how.label_weight > 0
        if own or error is None or former is None or error <= former:
            return ""
        return f"raise the error of the outputs from {former:.6g} to {error:.6g}"

    def _check(self, example: Any) -> None:
        """Calls the finished model, and measures its error and metric."""
        if self._data is None and example is not None:
            with keras.StatelessScope():
                self.model(example, training=False)
        error, rows = self._error_of(self.model)
        if self.model is not self._original.model:
            compile_like(self._original, self.model)
        before, after = self._comparison.metric_before, self._comparison.metric_of(self.model)
        self._report_model(
            self.model, metric_before=before, metric_after=after, error=error, rows=rows
        )
        if self.report.file_bytes is not None and self._data is not None:
            peers = keras_quantizations(self._original, self._comparison, self._data)
            self.report = dataclasses.replace(self.report, keras_quantizations=peers)

    def _report_model(self, model: keras.Model, **values: Any) -> None:
        """Notes values of a finished model, and the size of its file."""
        # Of integers what `fit` may change: the weights that are no kernels.
        vectors = model.trainable_weights if self._assembly.quantize else ()
        self._vectors = [(weight, _hash(weight)) for weight in vectors]
        changed = any(row.format != "kept" for row in self.report.layers)
        size = file_bytes(model, self._suffix) if changed else None
        self.report = dataclasses.replace(self.report, file_bytes=size, **values)

    def _error_of(self, model: keras.Model) -> tuple[float | None, int]:
        """Returns the error of a model's outputs on the data, and the number of rows."""
        if self._data is None:
            return None, 0
        return self._comparison.error_of(model, self._data.every(), self.renumber)

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
            ValueError: If the name ends with something else.
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
        that the file does not have as the model stores them, and why. With a promise the rows
        held back are counted again in the runtime, which the report tells, too.

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
        from keras_small.runtimes import file_costs, file_outputs, file_sizes
        from keras_small.runtimes.examples import example_of
        from keras_small.runtimes.exporting import size_note, write_file

        batches = [] if self._data is None else some_batches(self._data.batches)
        data = [self.renumber(batch) for batch in batches]
        if example is None and self._data is not None:
            example = self.renumber(next(iter(self._data.every())))
        changes = write_file(self.model, path, example, length, max_error, data)
        written = Path(path)
        if written.is_dir():
            for file, size in file_sizes(written).items():
                print(f"{size:>12,} bytes  {file}")
            return written
        costs = dataclasses.replace(file_costs(written, self.model, example), changes=changes)
        print(costs)
        notes = self.report.notes
        note = size_note(self.model, written)
        if note:
            notes = (*notes, f"{note}.")
            print(notes[-1])
        if self._promised is not None:
            run = file_outputs(written)
            count = self.count_again(lambda inputs: run(example_of(self.model, inputs)))
            broken = count.bound > self._promised.goal.limit
            notes = (*notes, f"{written.name}: {count}{_BROKEN * broken}.")
            print(notes[-1])
        files = (*self.report.files, costs)
        self.report = dataclasses.replace(self.report, files=files, notes=notes)
        return written

    def count_again(self, predict: Callable[[Any], Any]) -> FlipCount | MeanChange:
        """Counts what a promise is about, flips or changes, elsewhere on the rows held back.

        Args:
            predict: Function from a batch of inputs to the model's output, or to a list of them,
                such as an exported file run by its runtime.

        Returns:
            A `FlipCount` with `flips`, or a `MeanChange` with the `mean`; both with `rows` and
            the `bound`. The bound holds with the confidence
            for a function that was chosen without these rows; what was chosen by its count, among
            several, may exceed it more often.

        Raises:
            ValueError: If no rows were held back, or the model was healed since.
        """
        if self._promised is None:
            raise ValueError(
                "Expected a result with max_flips or max_change that was not healed. Received: "
                f"healed_epochs={self.healed_epochs}"
            )
        return self._promised.count(predict)

    def renumber(self, inputs: Any) -> Any:
        """Converts inputs of the original model to inputs of the small model, with renumbered ids.

        If an embedding was renumbered, every integer array of the inputs is.
        """
        return _renumbered(self.id_orders, inputs)


def compress(
    model: keras.Model,
    target: float | None = None,
    tolerance: float | None = None,
    data: Any = None,
    metric: Metric | None = None,
    max_drop: float | None = None,
    formats: str | Sequence[str] = _FORMATS,
    bits: int | None = None,
    filters: str | Sequence[str] | Callable[[keras.layers.Layer], bool] | None = None,
    min_speed: float | None = None,
    batch_size: int = 32,
    renumber: int | None = None,
    effort: str = "full",
    verbose: int = 1,
    for_runtime: str | None = None,
    max_flips: float | None = None,
    max_change: float | None = None,
    change: Change | None = None,
    confidence: float = 0.95,
    coded: bool = False,
    max_resident: int | None = None,
) -> CompressionResult:
    """Makes a trained Keras model smaller.

    Dense, einsum, convolutional and recurrent layers and embeddings anywhere in the model,
    including those inside `MultiHeadAttention` and other layers, are replaced by layers of low
    rank, tensor trains, blocks of rows, chains of smaller convolutions, or integers. For each layer
    the error of its outputs is computed for many sizes. With `data` this is the error on the inputs
    that the layer really gets: `||C^{1/2} (W - W')||` for a kernel `W` and inputs of second moment
    `C`, of a convolution of their patches. For a table, rows are weighted by the counts of their
    ids, and directions of rows by how much the model's outputs respond to them; a table that also
    returns logits (`ReversibleEmbedding`) counts for both. The errors of each layer are weighted by
    the sensitivity of the model's outputs to them. One budget of bytes is divided among all layers
    so that each byte reduces the error most. With `data`, the biases of replaced layers are then
    moved so that the mean outputs are the original's, and batch normalizations so that mean and
    variance of each channel are, if this reduces the error of the model's outputs (and with a
    `metric` does not lower it).

    The model is copied through Keras' saving, and only the copy is changed. A layer whose weights
    other code reads, of a kind that is not known, or that is quantized already stays as it is; the
    report says why.

    This costs an SVD for each layer and, with `data`, one run of the model over at most 1,024 rows,
    one over a batch for each layer, for each embedding one over a batch for each feature (of at
    most 256; more than these count alike) and two over about 256 rows, three runs of both models
    over 256 to 1,024 rows for the biases, and one of both for the report, over all rows (of arrays
    of more than 4,096 rows, over 1,023 others). For models of long sequences these runs take most
    of the time. For an embedding of `V` rows, 500 or more, it also tries tensor trains of some
    hundred pairs of ranks. Rows move to where they fit best, which costs about `V D min(V, 16,384)`
    FLOPs: once for each of five widths, and six times for each tensor train that is chosen or
    timed. A table of 10,000 rows of 64 features takes about three seconds of one core besides the
    runs, one of 200,000 rows of 256 three minutes, and four times its memory.

    Args:
        model: A built functional, sequential or subclassed model. It is not changed.
        target: How many times smaller the model has to be, in bytes of all weights. With `metric`
            and `max_drop`, the maximum to try. Pass this or `tolerance`, or neither: then nothing
            is replaced, and the report shows errors against sizes.
        tolerance: The maximum relative error of the outputs of each layer, before its activation,
            as estimated before the layers are built. The report has the measured errors: those of
            tensor trains are smaller, because these are fitted, and those with `bits` can be a
            little larger.
        data: Inputs of the model: an array, or a list, tuple or dict with an array for each input;
            or an iterable of such batches, for instance a `tf.data.Dataset`, a `PyDataset` or a
            generator, but not a list. A tuple `(inputs, labels)`, as for `fit`, can stand for
            the inputs; labels are not used.
        metric: A function such that `metric(model)` is a float, higher is better. The report has
            its values before and after.
        max_drop: The maximum decrease of the metric; bisection finds the smallest such model.
        max_flips: The largest share, in (0, 1), of inputs like `data` that may get another top
            class than by the original: a promise. If the rows of `data` are independent draws, then
            with probability at least `confidence` over these draws the share of all such inputs is
            at most `max_flips` for the model that is returned, which is the original if no smaller
            one passes. One half of the rows plans. The other half, drawn at random, is counted: of
            models in an order that was fixed before, from the safest to ever smaller ones, up to
            the first whose bound (Clopper-Pearson, one-sided) exceeds `max_flips`; the last one
            before is returned. This takes `2 ln(1 - confidence) / ln(1 - max_flips)` rows or more,
            as arrays; the more rows, the smaller the model. The top class is the place of the
            largest number on the last axis; of a single probability, whether it is above 0.5. A row
            counts if it differs at any position of any output. Not with `target`, `tolerance`,
            `max_drop` and `renumber`; a `metric` is only reported.
        max_change: The largest mean, in (0, 1), of `change` for inputs like `data`: a promise as
            that of `max_flips`, for models of numbers, too. Its bound is that of Hoeffding and
            Bentkus, which holds for any distribution.
        change: A function such that `change(before, after)`, of a batch of the original's outputs
            and the small model's, lists of arrays, has a number in [0, 1] for each row. Default:
            the relative change of the row's outputs, `min(1, |after - before| / |before|)`.
        confidence: The confidence of a promise, in (0, 1). Defaults to 0.95.
        formats: The allowed formats: `"low_rank"` (a kernel or a table as a product of two thin
            matrices; of a convolution, one with fewer filters and one of size 1), `"tensor_train"`
            (dense layers and embeddings), `"adaptive"` (embeddings in blocks of rows, finer for
            frequent ids), `"tucker"` (a small convolution between two of size 1) and `"spatial"` (a
            convolution along one axis after another). There may be none, for integers alone.
            Default: all.
        bits: The fewest bits of a weight: 8, 4, 3 or 2 for integers of so many bits or more, 32 for
            floats alone. Integers are in groups with a scale and a zero each
            (`keras_small.storage.integer_groups`; tables in factors or blocks by row,
            `LowRankEmbedding` and `TTEmbedding` in 4 or 8 bits). With `data`, the roundings of the
            weights of a unit make up for each other (GPTQ). With a target, each layer has the
            number of bits on which the bytes are best spent, 32 included; with `tolerance` or
            `max_drop`, what the bound allows; other formats are only tried if integers of `bits`
            alone miss the target. With `bits` and no goal, all layers that are selected and become
            smaller have integers. `TTDense` layers stay in floats. Default: integers of 2 bits or
            more, and, if those of 4 miss the target, formats with factors of 8 or 4 bits;
            without a goal the report alone.
        filters: A regular expression, a list of them or a function that selects layers by name, as
            in `keras.Model.quantize(filters=...)`; other layers are not changed.
        min_speed: Minimum speed of a replacement relative to the layer it replaces, measured on a
            batch of `data`: in Keras, or with `for_runtime` there, each layer in a file of its own
            on one thread. 1.0 rejects slower replacements.
        max_resident: The most bytes of memory that loading the model's file and a first call add to
            a process of the runtime that `for_runtime` names, measured there. Without another goal,
            or with a `target`, the largest model within it is searched for, in up to six files; it
            bounds no model of a promise.
        batch_size: Rows per batch, if `data` are arrays. Defaults to 32.
        renumber: The number of leading ids, such as padding and unknown, that do not change; less
            than all, and at least 1 for an embedding that masks padding (`mask_zero`). All other
            ids may be renumbered, which saves the table of positions of an embedding in groups or
            blocks, and of a coded file what its order of rows takes; the caller reorders the
            vocabulary by `result.id_orders`. Needs `data`, no `metric`, and one integer input that
            a single embedding reads; the ids of other models stay. Default: ids stay.
        effort: `"fast"` tries fewer ranks, and tensor trains of tables of one width only. Defaults
            to `"full"`.
        verbose: 1 to print the progress, 0 to be silent. The logger `keras_small`
            reports it at level `INFO` in any case. Defaults to 1.
        for_runtime: `"litert"`, `"onnxruntime"` or `"openvino"`: the layers only get what a file
            for this runtime keeps small, and tables no format whose lookups are slow there
            (`keras_small.formats.runtime_tables`). Default: whatever is best for its bytes.
        coded: Whether the bytes that count are those of the coded file that `result.save("x.tnz")`
            writes, which needs the extra `coded`. Layers then become integers with one step for a
            whole kernel, and tables whose ids `data` counts possibly a `LowRankEmbedding` of full
            rank with finer steps for frequent ids, chosen by bytes and error; `formats` are not
            tried, and there are no `bits`. For a target up to four files are written; if none is
            as small, the model is that of the smallest, and the report says so. Defaults to
            `False`.

    Returns:
        A `CompressionResult` with `model`, `report`, `heal`, `save` and `export`.

    Raises:
        TypeError: If `model` is not a Keras model.
        ValueError: If the model is not built, cannot be copied by saving and loading it or its
            copy has other outputs, if it has no layers to replace or not finite weights, the target
            cannot be reached, the data do not match the model, the metric is not finite, or
            arguments contradict each other.
        RuntimeError: If a layer or the model cannot be measured in the runtime.

    Example:
        >>> import keras, numpy as np
        >>> from keras_small import compress
        >>> model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
        >>> result = compress(model, target=3.0, data=np.ones((8, 64), "float32"), verbose=0)
        >>> result.report.ratio >= 3
        True
    """
    options = Options(
        formats=("coded",) if coded else as_tuple(formats),
        bits=FLOATS if coded else bits,
        filters=filters,
        min_speed=min_speed,
        batch_size=batch_size,
        renumber=renumber,
        effort=effort,
        verbose=verbose,
        for_runtime=for_runtime,
        max_resident=max_resident,
    )
    if coded:
        for name, value in (("bits", bits), ("max_resident", max_resident)):
            if value is not None:
                received = f"coded=True, {name}={value}"
                raise ValueError(f"Expected coded without {name}. Received: {received}")
        coding.arrays.coder()
    _check_model(model)
    original = Inventory.of(model)
    prepare = functools.partial(compile_like, original)
    metric = None if metric is None else finite(metric, prepare)
    goal = goal_of(target, tolerance, metric, max_drop, max_flips, max_change, change, confidence)
    check_together(goal, options, data, metric)
    promised = None
    if isinstance(goal, Promising):
        promised = PromisedRows(goal, data, model, batch_size)
        data = promised.planning_inputs
    with printing(verbose), keras.saving.custom_object_scope(custom_objects(original)):
        read = _read(data, model, options)
        return _compress_model(original, goal, options, read, metric, promised)


def _compress_model(
    original: Inventory,
    goal: Goal,
    options: Options,
    data: Data | None,
    metric: Metric | None,
    promised: PromisedRows | None,
) -> CompressionResult:
    model = original.model
    # Without data an example shows whether a model answers, and what reads its weights.
    example = example_inputs(model) if data is None else data.batches[0]
    copy = copy_of(original, example)
    if example is not None:
        check_copy(model, copy.model, example)
    runs = 0 if data is None else len(data.batches)
    comparison = Comparison(model, metric, runs)
    select_layers(original, copy, options, example)
    plan = make_plan(copy, byte_count(model), data, options, goal)
    chooser = Chooser(plan)
    unchanged = Assembly(original, original, {}, plan.sample)
    assembly, promise = None, None
    remarks: list[str] = []
    if promised is not None:
        build = functools.partial(
            _corrected_model, original, chooser, Comparison(model, None, runs), data
        )
        choice, assembly, promise, remarks = promised.choose(chooser, build, unchanged)
    elif options.is_coded and isinstance(goal, Smaller) and goal.factor > 1:
        build = functools.partial(_corrected_model, original, chooser, comparison, data)
        choice, assembly = chooser.for_coded_file(goal, build)
    else:
        choice = chooser.choice_for(goal, comparison.metric_before)
        size = chooser.size(choice)
        if size > plan.total:
            choice, assembly = chooser.keep_all(), unchanged
            remarks = [_LARGER.format(size=size, total=plan.total)]
    if any(not candidate.keeps_layer for candidate in choice.values()):
        tell("building the small model")
    made_layers = chooser.replacements(choice)
    rows = layer_rows(chooser, choice, made_layers)
    notes = [*notes_of(chooser, rows, made_layers), *remarks]
    correction = None
    if assembly is None:
        correction = BiasCorrection(plan, made_layers, data)
        assembly = assemble(plan, choice, made_layers, in_place=True)
    report = dataclasses.replace(report_of(model, assembly, rows, notes), promise=promise)
    result = CompressionResult(
        original, assembly, report, _id_orders(choice), comparison, data, options, promised
    )
    if correction is not None:
        correction.apply(comparison, assembly, result.renumber)
        if options.is_coded and metric is None:  # whose bound is kept with the vectors as they are
            shorten_vectors(assembly.small, made_layers, options.selects)
    result._check(example)
    return result


def _corrected_model(
    original: Inventory, chooser: Chooser, comparison: Comparison, data: Data | None, choice: Choice
) -> Assembly:
    """Returns the finished model of a choice, with which the plan can be used again."""
    made_layers = chooser.replacements(choice)
    correction = BiasCorrection(chooser.plan, made_layers, data)
    assembly = assemble(chooser.plan, choice, made_layers)
    correction.apply(comparison, assembly, functools.partial(_renumbered, _id_orders(choice)))
    if chooser.plan.options.is_coded:
        shorten_vectors(assembly.small, made_layers, chooser.plan.options.selects)
    compile_like(original, assembly.small.model)  # which takes bytes of a file
    return assembly


def _id_orders(choice: Choice) -> dict[str, np.ndarray]:
    orders = {path: candidate.id_order() for path, candidate in choice.items()}
    return {path: order for path, order in orders.items() if order is not None}


def _renumbered(id_orders: Mapping[str, np.ndarray], inputs: Any) -> Any:
    if not id_orders:
        return inputs
    return renumber_ids(inputs, np.argsort(next(iter(id_orders.values()))))


def _hash(weight: keras.Variable) -> int:
    return hash(ops.convert_to_numpy(weight).tobytes())


def _check_model(model: Any) -> None:
    if not isinstance(model, keras.Model):
        raise TypeError(
            f"Expected a keras.Model of the backend {keras.backend.backend()}. "
            f"Received: model={model!r}"
        )
    if not model.built or not model.weights:
        raise ValueError(
            "Expected a built model with weights: call it on data, or give it an Input. "
            f"Received: model={model.name}"
        )


def _read(data: Any, model: keras.Model, options: Options) -> Data | None:
    if data is None:
        return None
    return calibration.read(data, options.batch_size, number_of_inputs(model))
