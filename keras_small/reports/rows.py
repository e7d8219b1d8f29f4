"""Makes the report of a compression."""

from collections.abc import Mapping

import keras

from keras_small.building.assembly import Assembly, Made
from keras_small.formats.candidates import (
    Candidate,
    applications,
    byte_count,
    dense_flops,
    input_shape,
)
from keras_small.formats.runtime_tables import RUNTIMES
from keras_small.planning.choosing import Chooser
from keras_small.reports.others import rows_of_others
from keras_small.reports.report import LayerReport, Report
from keras_small.storage.adaptive_embedding import AdaptiveEmbedding
from keras_small.survey.errors import layer_error


def layer_rows(
    chooser: Chooser, choice: Mapping[str, Candidate], made_layers: Mapping[str, Made]
) -> tuple[LayerReport, ...]:
    """Returns a row for each layer, before the layers are replaced by those that were made."""
    rows = [
        _row(chooser, path, candidate, made_layers.get(path)) for path, candidate in choice.items()
    ]
    return (*rows, *rows_of_others(chooser.plan))


def _row(chooser: Chooser, path: str, candidate: Candidate, made: Made | None) -> LayerReport:
    plan = chooser.plan
    old, statistics = plan.layers[path], plan.statistics[path]
    changed = made is not None
    new, error = old, 0.0
    if made is not None:
        new = made.finished
        error = layer_error(old, new, statistics, candidate.id_order())
    timed = changed and plan.options.min_speed is not None
    shape = input_shape(old) if statistics.call is None else statistics.call.inputs.shape
    times = applications(old, shape)
    return LayerReport(
        path,
        type(old).__name__,
        candidate.format if changed else "kept",
        candidate.ranks,
        candidate.bits or 32,
        old.count_params(),
        (old if made is None else made.floating).count_params(),
        byte_count(old),
        byte_count(new),
        error,
        times * dense_flops(old),
        times * candidate.flops,
        chooser.milliseconds(path, plan.choices[path][0]) if timed else None,
        chooser.milliseconds(path, candidate) if timed else None,
        "" if changed else chooser.reason_kept(path),
        tuple((c.bytes, c.likely_error, c.format) for c in plan.choices[path]),
    )


def report_of(
    model: keras.Model, assembly: Assembly, rows: tuple[LayerReport, ...], notes: list[str]
) -> Report:
    """Returns the report of a finished model, without the errors of its outputs."""
    return Report(
        rows,
        model.count_params(),
        assembly.floating.model.count_params(),
        byte_count(model),
        byte_count(assembly.small.model),
        notes=tuple(notes),
    )


def notes_of(
    chooser: Chooser, rows: tuple[LayerReport, ...], made_layers: Mapping[str, Made]
) -> list[str]:
    """Returns the remarks of a report."""
    plan = chooser.plan
    notes = [
        "Errors of layers are relative errors of their outputs on the data, before activations."
        if plan.statistics and plan.sample is not None
        else "Errors are relative errors of tables, and of kernels on random inputs, because there "
        "are no data."
    ]
    if plan.options.for_runtime is not None:
        of_tables = RUNTIMES[plan.options.for_runtime].table_bits
        notes.append(
            f"For {plan.options.for_runtime}: tables as floats, of low rank, or of {of_tables} "
            "bits and more, because other formats make lookups slow there, whatever `formats` and "
            "`bits` are."
        )
    if plan.options.min_speed is not None:
        where = "Keras"
        if plan.options.for_runtime is not None:
            where = f"{plan.options.for_runtime}, each layer in a file of its own, on one thread"
        notes.append(f"Times of layers were measured in {where}.")
    if chooser.costs is not None:
        notes.append(f"Measured in {plan.options.for_runtime}: {chooser.costs}.")
    if plan.options.is_coded:
        notes.append(
            "The bytes of a coded file (.tnz) were shared out; those of the layers are what they "
            "take once it is loaded. Ranks are steps, in percent of the root of the mean square."
        )
    if chooser.exceeds_target:
        notes.append("The coded file is larger than asked: no files that were tried are as small.")
    if (fewest := plan.options.fewest_bits) is not None:
        notes.append(
            f"Integers of {fewest} bits and more have a scale for each group of weights. Tables in "
            "blocks, of low rank and of tensor trains have one for each row, the latter two in 4 "
            "or 8 bits. Floats alone: bits=32."
        )
        if any(layer.compute_dtype == "float16" for layer in plan.layers.values()):
            notes.append("Layers that compute in float16 stay in floats: Keras cannot scale them.")
        if all(row.format == "kept" for row in rows):
            notes.append("No layer became smaller.")
    for path, made in made_layers.items():
        layer = made.finished
        if isinstance(layer, AdaptiveEmbedding) and sum(layer.block_rows) < layer.input_dim:
            notes.append(
                f"{path}: {layer.input_dim - sum(layer.block_rows):,} of {layer.input_dim:,} rows "
                "are 0, those of ids that are rare in the data, or not in them at all."
            )
    return notes
