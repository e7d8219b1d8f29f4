"""Makes the rows, the totals and the remarks of a report."""

from collections.abc import Mapping, Sequence

from keras_small.building.assembly import Made
from keras_small.formats.candidates import Candidate, applications, input_shape
from keras_small.formats.runtime_tables import RUNTIMES
from keras_small.goals.goal import Chosen
from keras_small.planning.plan import Plan
from keras_small.planning.unreplaced import Unreplaced
from keras_small.reports.report import LayerReport, Report
from keras_small.storage.adaptive_embedding import AdaptiveEmbedding
from keras_small.storage.sizes import byte_count
from keras_small.survey.errors import layer_error

_OF_OUTPUTS = (
    "Errors of layers are relative errors of their outputs on the data, before activations."
)
_OF_TABLES = (
    "Errors are relative errors of tables, and of kernels on random inputs, because there are no "
    "data."
)
_CODED = (
    "The bytes of a coded file (.tnz) were shared out; those of the layers are what they take once "
    "it is loaded."
)
_FLOAT16 = "Layers that compute in float16 stay in floats: Keras cannot scale them."


def report_of(plan: Plan, chosen: Chosen, made_layers: Mapping[str, Made]) -> Report:
    """Returns the report of a choice, before its layers are replaced and the model is measured."""
    replaceable = [_row(plan, path, chosen, made_layers.get(path)) for path in chosen.choice]
    others = [_row_of_unreplaced(entry) for entry in plan.unreplaced]
    rows = (*replaceable, *others)
    weights = plan.survey.original.model.count_params()
    return Report(
        layers=rows,
        weights_before=weights,
        weights_after=weights,
        bytes_before=plan.total,
        bytes_after=plan.total,
        promise=chosen.promise,
        notes=(*_notes(plan, rows, made_layers), *chosen.notes),
    )


def _row(plan: Plan, path: str, chosen: Chosen, made: Made | None) -> LayerReport:
    layer = plan.layers[path]
    kept = plan.choices[path][0]
    candidate = chosen.choice[path]
    curve = tuple(map(_point, plan.choices[path]))
    call = plan.statistics[path].call
    shape = input_shape(layer) if call is None else call.inputs.shape
    times = applications(layer, shape)
    if made is None:
        return LayerReport(
            path=path,
            kind=type(layer).__name__,
            weights_before=layer.count_params(),
            weights_after=layer.count_params(),
            bytes_before=kept.bytes,
            bytes_after=kept.bytes,
            flops_before=times * kept.flops,
            flops_after=times * kept.flops,
            reason=plan.why_not_smaller.get(path, chosen.why_kept),
            curve=curve,
        )
    return LayerReport(
        path=path,
        kind=type(layer).__name__,
        format=candidate.format,
        ranks=_ranks(candidate, plan.options.coded),
        bits=candidate.bits or 32,
        group_size=_group_size(candidate, plan.options.coded),
        step=candidate.ranks[-1] if plan.options.coded else None,
        weights_before=layer.count_params(),
        weights_after=made.floating.count_params(),
        bytes_before=kept.bytes,
        bytes_after=byte_count(made.finished),
        error=_error(plan, path, candidate, made),
        flops_before=times * kept.flops,
        flops_after=times * candidate.flops,
        curve=curve,
        chosen=_point(candidate),
    )


def _point(candidate: Candidate) -> tuple[int, float, str]:
    """Returns a candidate as a point of its layer's curve: bytes, cost and format."""
    return candidate.bytes, candidate.cost, candidate.format


def _ranks(candidate: Candidate, coded: bool) -> tuple[int, ...]:
    """Returns the ranks of a candidate, without a group size or a step."""
    if candidate.format == "dense":
        return ()
    return candidate.ranks[:-1] if coded else candidate.ranks


def _group_size(candidate: Candidate, coded: bool) -> int | None:
    return None if coded or candidate.format != "dense" else candidate.ranks[0]


def _error(plan: Plan, path: str, candidate: Candidate, made: Made) -> float:
    statistics = plan.statistics[path]
    return layer_error(plan.layers[path], made.finished, statistics, candidate.id_order())


def _row_of_unreplaced(entry: Unreplaced) -> LayerReport:
    return LayerReport(
        path=entry.path,
        kind=entry.kind,
        weights_before=entry.weights,
        weights_after=entry.weights,
        bytes_before=entry.bytes,
        bytes_after=entry.bytes,
        reason=entry.reason,
    )


def _notes(plan: Plan, rows: Sequence[LayerReport], made_layers: Mapping[str, Made]) -> list[str]:
    """Returns the remarks of a report."""
    options = plan.options
    has_outputs = plan.statistics and plan.survey.sample is not None
    notes = [_OF_OUTPUTS if has_outputs else _OF_TABLES]
    if options.for_runtime is not None:
        notes.append(
            f"For {options.for_runtime}: tables as floats, of low rank, or of "
            f"{RUNTIMES[options.for_runtime].table_bits} bits and more, because other formats make "
            "lookups slow there, whatever `formats` and `bits` are."
        )
    if options.coded:
        notes.append(_CODED)
    if options.minimum_bits is not None:
        notes.append(
            f"Integers of {options.minimum_bits} bits and more have a scale for each group of "
            "weights. Tables in blocks, of low rank and of tensor trains have one for each row, "
            "the latter two in 4 or 8 bits. Floats alone: bits=32."
        )
        if any(layer.compute_dtype == "float16" for layer in plan.layers.values()):
            notes.append(_FLOAT16)
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
