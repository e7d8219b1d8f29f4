"""Makes any Keras model smaller in one call."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_small.asked.data import as_data
from keras_small.asked.inputs import check_model, check_shapes
from keras_small.asked.progress import printing, tell
from keras_small.building.builder import Builder, renumbering_of
from keras_small.building.saving import check_codable
from keras_small.goals.argument import as_goal
from keras_small.goals.goal import Goal, choose
from keras_small.goals.promise import PromisedRows
from keras_small.goals.search import Search
from keras_small.planning.options import OPTIONAL_FORMATS, Filters, Options
from keras_small.planning.plan import make_plan
from keras_small.reports.rows import report_of
from keras_small.result import CompressionResult
from keras_small.storage.latest import remembering
from keras_small.survey.copying import check_lambdas, known_objects
from keras_small.survey.inventory import Inventory
from keras_small.survey.survey import survey_of


def compress(
    model: keras.Model,
    goal: Goal | float | None = None,
    data: Any = None,
    bits: int | None = None,
    formats: str | Sequence[str] = OPTIONAL_FORMATS,
    filters: Filters | None = None,
    for_runtime: str | None = None,
    coded: bool = False,
    verbose: int = 1,
) -> CompressionResult:
    """Makes a trained Keras model smaller.

    Dense, einsum, convolutional and recurrent layers and embeddings anywhere in the model,
    including those inside `MultiHeadAttention` and other layers, are replaced by layers of low
    rank, tensor trains, blocks of rows, chains of smaller convolutions, or integers. A layer whose
    weights other code reads, of a kind that is not known, or that is quantized already stays as it
    is; the report says why. The model is copied through Keras' saving, and only the copy is
    changed.

    For each layer the error of its outputs is computed for many sizes. With `data` this is the
    error on the inputs that the layer really gets: `||C^{1/2} (W - W')||` for a kernel `W` and
    inputs of second moment `C`, of a convolution of their patches. Rows of a table are weighted by
    the counts of their ids, and directions of rows by how much the model's outputs respond to them;
    a table that also returns logits (`ReversibleEmbedding`) counts for both. The errors of each
    layer are weighted by the sensitivity of the model's outputs to them, and the goal chooses among
    all sizes: `Smaller` divides one budget of bytes among the layers so that each byte reduces the
    error most.

    With `data`, the biases of replaced layers are then moved so that the mean outputs are the
    original's, and batch normalizations so that mean and variance of each channel are, if this
    reduces the error of the model's outputs, and does not lower the goal's metric.

    Args:
        model: A built functional, sequential or subclassed model. It is not changed.
        goal: A `Smaller`, `Within`, `Keeping` or `Promise`; a number means `Smaller(number)`.
            Default: nothing is asked for, so that layers only become integers if `bits` are given,
            and otherwise stay; `report.plot` then draws the errors of all sizes of each layer.
        data: Inputs of the model: an array, or a list, tuple or dict with an array for each input;
            or an iterable of such batches, for instance a `tf.data.Dataset`, a `PyDataset` or a
            generator, but not a list. A tuple `(inputs, labels)`, as for `fit`, can stand for the
            inputs; labels are not used. Or a `Data` with these inputs. Default: no data.
        bits: The minimum bits of a weight: 8, 4, 3 or 2 for integers of `bits` and more, among
            them 6, which is no minimum; 32 for floats alone. Integers are in groups with a scale
            and a zero each (`keras_small.storage.integer_groups`; tables in factors or blocks by
            row, `QuantizedLowRankEmbedding` and `QuantizedTTEmbedding` in 4 or 8 bits). With
            `data`, the roundings of the weights of a unit make up for each other (GPTQ). With
            `Smaller`, each layer has the number of bits on which the bytes are best spent, 32
            included, and other formats are only tried if integers of `bits` alone miss the factor.
            Without a goal, all layers that become smaller have integers. `TTDense` layers stay in
            floats. Default: integers of 8, 6, 4, 3 or 2 bits, and, if those of 4 miss the factor,
            formats with factors of 8 or 4 bits; without a goal the report alone.
        formats: The formats that are tried: `"low_rank"` (a kernel or a table as a product of two
            thin matrices; of a convolution, one with fewer filters and one of size 1),
            `"tensor_train"` (dense layers and embeddings), `"adaptive"` (embeddings in blocks of
            rows, finer for frequent ids), `"tucker"` (a small convolution between two of size 1)
            and `"spatial"` (a convolution along one axis after another). There may be none, for
            integers alone. Default: all.
        filters: A regular expression, a list of them or a function that selects layers by name, as
            in `keras.Model.quantize(filters=...)`; other layers are not changed. Default: all.
        for_runtime: `"litert"`, `"onnxruntime"` or `"openvino"`: the layers only get what a file
            for this runtime keeps small, and tables no format whose lookups are slow there
            (`keras_small.formats.runtime_tables`). Default: whatever is best for its bytes.
        coded: Whether the bytes that count are those of the coded file that `result.save("x.tnz")`
            writes, which needs the extra `coded`. Layers then become integers with one step for a
            whole kernel, and tables whose ids `data` counts possibly a `QuantizedLowRankEmbedding`
            of full rank with finer steps for frequent ids; `formats` are not tried, and there are
            no `bits`. Defaults to `False`.
        verbose: 1 to print the progress, 0 to be silent. The logger `keras_small` reports it at
            level `INFO` in any case. Defaults to 1.

    Returns:
        A `CompressionResult` with `model`, `report`, `heal`, `save` and `export`.

    Raises:
        ImportError: If `constriction` is missing for `coded`.
        TypeError: If `model` is not a Keras model.
        ValueError: If the model is not built, cannot be copied by saving and loading it or its
            copy has other outputs, if it has no layers to replace or not finite weights, the goal
            cannot be reached, the data do not match the model, a metric is not finite, or
            arguments contradict each other; a `filters` that selects nothing, and a `Lambda` layer
            that Keras cannot load, are refused before any work.

    Example:
        >>> import keras, numpy as np
        >>> from keras_small import compress
        >>> model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
        >>> result = compress(model, 3, data=np.ones((8, 64), "float32"), verbose=0)
        >>> result.report.ratio >= 3
        True
    """
    if verbose not in (0, 1):
        raise ValueError(f"Expected 0 (silent) or 1. Received: verbose={verbose!r}")
    goal = as_goal(goal)
    data = as_data(data)
    options = Options(
        bits=bits, formats=formats, filters=filters, for_runtime=for_runtime, coded=coded
    )
    check_model(model)
    check_shapes(model, data)
    goal.check(options, data)
    original = Inventory.of(model)
    options.check_selection(original)
    check_lambdas(original)
    with printing(verbose), known_objects(original) as known, remembering():
        if coded:
            check_codable(model, known)
        survey = survey_of(original, data, goal.metric, options.selects)
        survey, prepared = goal.prepare(survey)
        plan = make_plan(survey, options, goal.planned_factor)
        builder = Builder(plan, survey.comparison)
        chosen = choose(goal, Search(builder, prepared))
        if any(not candidate.keeps_layer for candidate in chosen.choice.values()):
            tell("building the small model")
        made_layers = builder.replacements(chosen.choice)
        report = report_of(plan, chosen, made_layers)
        assembly = chosen.assembly or builder.finish(chosen.choice, made_layers)
        survey.check_call(assembly.small.model)
        return CompressionResult(
            assembly=assembly,
            report=report,
            comparison=survey.comparison,
            renumbering=renumbering_of(chosen.choice),
            promised=prepared if isinstance(prepared, PromisedRows) else None,
            coded=coded,
            verbose=verbose,
        )
