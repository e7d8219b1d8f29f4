"""The command `keras-tnattn compress`: makes a run or any Keras model smaller."""

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from keras_tnattn_train.options.apps import Program
from keras_tnattn_train.options.errors import InputError, first_line, input_errors
from keras_tnattn_train.options.options import (
    DATA,
    MODEL,
    OUTPUT,
    TRAINING,
    Options,
    argument,
    option,
)
from keras_tnattn_train.processes.backend import start_backend, without_noise
from keras_tnattn_train.runs.compressed_folder import check_output, output_folder, write
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.runs.trained import TrainedRun
from keras_tnattn_train.system.files import read_object
from keras_tnattn_train.tasks import command_of

TEXT = (
    "Makes a trained model smaller, and writes FOLDER/model.keras and the reports report.html, "
    "report.txt, report.csv, report.json and curves.png; without any of --target, --tolerance, "
    "--max-drop, --max-flips and --bits only the reports. For the run of a classifier or a "
    "translator, ranks are chosen on its training part, and predict and (translators) evaluate "
    "read FOLDER like a run."
)
EXAMPLES = """\
examples:
  make a classifier's run 8 times smaller, and export it from text to labels:
    keras-tnattn compress runs/reuters-none-0 --target 8 --export saved_model
  find the smallest model with another top class for at most 1 % of new texts:
    keras-tnattn compress runs/reuters-none-0 --max-flips 0.01
  make any Keras model 4 times smaller, with ranks chosen on your own inputs:
    keras-tnattn compress model.keras --data inputs.npy --target 4
  find the smallest ONNX file that loses at most 0.005 of accuracy on a table:
    keras-tnattn compress model.h5 --data rows.csv --label-column class \\
        --max-drop 0.005 --export onnx
"""

# The options that `results.json` keeps besides those of a healing.
RECORDED_OPTIONS = (
    "target",
    "tolerance",
    "max_drop",
    "max_flips",
    "confidence",
    "bits",
    "coded",
    "for_runtime",
    "keep_vocabulary",
    "data",
)
# The files of `--export`.
FILES = {"onnx": "model.onnx", "litert": "model.tflite", "openvino": "model.xml"}


class CompressOptions(Options):
    """The options of `keras-tnattn compress`."""

    model: str = argument(
        "the folder of a run; a .keras or .h5 file; a .weights.h5 file with the model's config as "
        ".json beside it; the folder of a keras-hub preset"
    )
    target: float | None = option(None, MODEL, "make the model X times smaller", metavar="X", ge=1)
    max_drop: float | None = option(
        None,
        MODEL,
        "make a classifier as small as possible with a loss of accuracy of at most D (0.005 is "
        "half a point). Of a run measured on the validation part, if it has one "
        "(--early-stopping), otherwise on a tenth of its training rows, where it may be smaller "
        "than on new texts; of a file on half the rows of --data with --label-column",
        metavar="D",
        ge=0,
        lt=1,
        brief="lose at most D of a classifier's accuracy (0.005 is half a point)",
    )
    tolerance: float | None = option(
        None,
        MODEL,
        "maximum relative error of each layer (of its outputs with data, else of its weights), "
        "below 1; not with --target or --max-drop",
        metavar="E",
        ge=0,
        lt=1,
    )
    max_flips: float | None = option(
        None,
        MODEL,
        "make a classifier as small as possible with another top class than the original's for at "
        "most a share F of new inputs (0.01 is 1 %), a promise with --confidence. Half of the rows "
        "are held back and counted: of --data, or of the texts of a run that were not trained on",
        metavar="F",
        gt=0,
        lt=1,
        brief="another top class for at most a share F of new inputs (0.01 is 1 %)",
    )
    confidence: float | None = option(
        None, MODEL, "of --max-flips (default: 0.95)", metavar="C", gt=0, lt=1
    )
    bits: int | None = option(
        None,
        MODEL,
        "lowest integer width allowed; 32 keeps floats (faster, larger). Default: 2, with factors "
        "of 8 or 4 bits, whatever loses least; without a goal only the reports",
        choices=(32, 8, 4, 3, 2),
    )
    coded: bool = option(
        False,
        MODEL,
        "share out the bytes of a coded file, FOLDER/model.tnz, for keras_small.load: the "
        "smallest download (extra `coded`); not with --bits",
    )
    for_runtime: str | None = option(
        None,
        MODEL,
        "use only what a file for this runtime keeps small, and for tables what it looks up fast",
        choices=("litert", "onnxruntime", "openvino"),
    )
    keep_vocabulary: bool = option(
        False,
        MODEL,
        "do not reorder a run's vocabulary; by default similar words get neighboring ids if the "
        "embedding is replaced by a tensor train",
    )
    data: str | None = option(
        None,
        DATA,
        ".npy file of inputs, .npz file with one array per input, or with --label-column a table",
        metavar="FILE",
    )
    label_column: str | None = option(
        None, DATA, "the column of a table in --data with the number of the class, from 0"
    )
    heal_epochs: int = option(
        0,
        TRAINING,
        "epochs of training the small model to reproduce the original's outputs",
        metavar="N",
        ge=0,
        le=100_000,
    )
    learning_rate: float = option(1e-3, TRAINING, "learning rate for --heal-epochs", gt=0)
    from_logits: bool = option(
        False,
        TRAINING,
        "the outputs of a model without texts are logits: --heal-epochs minimizes the "
        "Kullback-Leibler divergence of their softmax in place of the mean squared error",
    )
    output: str | None = option(
        None,
        OUTPUT,
        "where to write (default: RUN/compressed, or MODEL-compressed for a file; RUN/report, or "
        "MODEL-report, if only the reports)",
        metavar="FOLDER",
    )
    export: str | None = option(
        None,
        OUTPUT,
        "export the small model: saved_model to DIR/NAME-compressed/VERSION/, for the server, "
        "others into FOLDER, of a run of texts with all that turns a text into an answer; onnx "
        "is written on TensorFlow or PyTorch, the others on TensorFlow",
        choices=("saved_model", *FILES),
    )
    saved_models: str = option("saved_models", OUTPUT, "where to export", metavar="DIR")

    @property
    def model_files(self) -> tuple[str, ...]:
        """The files of the small model, none if only a report is asked for."""
        files = ("model.keras", "model.tnz") if self.coded else ("model.keras",)
        return files if self.replaces else ()

    @property
    def replaces(self) -> bool:
        """Whether a smaller model is asked for, and not only a report."""
        goals = (self.target, self.tolerance, self.max_drop, self.max_flips)
        return self.bits not in (None, 32) or any(goal is not None for goal in goals)

    def check_together(self) -> None:
        if not self.replaces and (self.heal_epochs or self.export):
            raise ValueError(
                "--heal-epochs and --export need --target, --tolerance, --max-drop, --max-flips "
                "or --bits, because without them nothing is replaced"
            )
        if not self.heal_epochs and "learning_rate" in self.model_fields_set:
            raise ValueError(
                "Expected --learning-rate only with --heal-epochs, because nothing is trained "
                f"without it. Received: learning_rate={self.learning_rate}"
            )
        if not self.heal_epochs and self.from_logits:
            raise ValueError(
                "Expected --from-logits only with --heal-epochs, because nothing is trained "
                f"without it. Received: from_logits={self.from_logits}"
            )
        names = ("tolerance", "max_flips", "target", "max_drop")
        limits = {name: getattr(self, name) for name in names}
        given = {name: limit for name, limit in limits.items() if limit is not None}
        if {"tolerance", "max_flips"} & set(given) and len(given) > 1:
            raise ValueError(
                "Expected --tolerance or --max-flips alone, or --target and --max-drop. Received: "
                + ", ".join(f"{name}={limit}" for name, limit in given.items())
            )
        if self.label_column and not self.data:
            raise ValueError(
                f"Expected --label-column with --data. Received: label_column={self.label_column}"
            )
        if self.max_flips is None and "confidence" in self.model_fields_set:
            raise ValueError(
                f"Expected --confidence with --max-flips. Received: confidence={self.confidence}"
            )
        if self.max_flips is not None and self.heal_epochs:
            raise ValueError(
                "Expected --max-flips without --heal-epochs, which would end the promise. "
                f"Received: max_flips={self.max_flips}, heal_epochs={self.heal_epochs}"
            )


def _compress(args: CompressOptions) -> None:
    path = Path(args.model)
    if not path.exists():
        raise InputError(
            f"Expected a file or a folder of a model. Received: {path}, which does not exist"
        )
    if (path / "saved_model.pb").is_file():
        raise InputError(
            f"Expected a Keras model. Received: {path}, a SavedModel, which has operations and no "
            "layers. Save the model with model.save"
        )
    if args.data is not None and not Path(args.data).is_file():
        raise InputError(f"Expected a file of inputs. Received: data={args.data}, which is missing")
    if path.is_file():
        _check_max_drop(args)
    start_backend()  # takes seconds, so invalid input is reported first
    if args.export in FILES:
        from keras_small.runtimes.exporting import form_of

        with input_errors((ImportError, RuntimeError)):
            form_of(Path(FILES[args.export]))
    from keras_tnattn_train.runs.saved_models import is_preset

    if path.is_dir() and not is_preset(path):
        folder = Path(args.output or path / ("compressed" if args.replaces else "report"))
        check_output(folder, path / "model.keras", args.replaces)
        with output_folder(folder):
            _compress_run(path, folder, args)
    else:
        suffix = "compressed" if args.replaces else "report"
        name = path.stem.removesuffix(".weights") if path.is_file() else path.resolve().name
        folder = Path(args.output or path.with_name(f"{name}-{suffix}"))
        check_output(folder, path, args.replaces)
        with output_folder(folder):
            _compress_file(path, name, folder, args)
    print(f"wrote {folder}")
    if not args.replaces:
        print("only the report: for a small model add --target 8, --max-drop 0.005 or --bits 8")


main = Program(
    "compress",
    TEXT,
    EXAMPLES,
    CompressOptions,
    _compress,
    (
        "model",
        "target",
        "max_drop",
        "max_flips",
        "bits",
        "coded",
        "data",
        "heal_epochs",
        "export",
        "output",
    ),
)


def _check_max_drop(args: CompressOptions) -> None:
    if args.max_drop is not None and not args.label_column:
        raise InputError(
            "--max-drop needs labels: the folder of a run of classify, or --data TABLE with "
            "--label-column NAME"
        )


def _compress_file(path: Path, name: str, folder: Path, args: CompressOptions) -> None:
    """Compresses a file, or the model of a run without texts."""
    _check_max_drop(args)
    for option_name, asked in (("heal-epochs", args.heal_epochs), ("max-flips", args.max_flips)):
        if asked and args.data is None:
            raise InputError(f"--{option_name} needs --data")
    from keras_small import logits_divergence
    from keras_tnattn_train.runs.saved_models import load_file

    model = load_file(path)
    if (
        args.export == "saved_model"
        and args.data is None
        and getattr(model, "inputs", None) is None
    ):
        raise InputError("--export needs --data for a model that does not say what its inputs are")
    data, metric = _data(model, args)
    result = _call(model, args, data, metric)
    _heal(result, data, args, logits_divergence if args.from_logits else None)
    print(result.report)
    files = _results(result, {}, args) if args.replaces else {}
    write(result, folder, args.model_files, files, (args.model, f"accuracy on half of {args.data}"))
    if args.export in FILES:
        with _errors_of_export(folder), without_noise():
            result.export(folder / FILES[args.export])
    elif args.export:
        from keras_tnattn.export.signatures import next_version

        models = _export_folder(name, args)
        with _errors_of_export(models):
            version = models / str(next_version(models))
            result.export(version)
        print(f"exported to {version}")


def _data(model: Any, args: CompressOptions) -> tuple[Any, Any]:
    """Returns inputs, and a metric of accuracy on others, as far as `--data` has them."""
    if args.data is None:
        return None, None
    if args.label_column is None:
        from keras_tnattn_train.data.tables import SUFFIXES

        if Path(args.data).suffix in SUFFIXES:
            raise InputError(
                "Expected --label-column NAME with a table, the column that is no input; inputs "
                f"without labels are arrays (.npy or .npz). Received: data={args.data}"
            )
        return _read_arrays(Path(args.data)), None
    from keras_tnattn_train.data.numbers import halves, read_numbers

    inputs: Any = getattr(model, "inputs", None) or ()
    if len(inputs) != 1:
        raise InputError(
            f"Expected a model with one input for a table. Received: {len(inputs)} inputs"
        )
    rows = read_numbers(Path(args.data), args.label_column)
    return halves(*rows, inputs[0].shape, inputs[0].dtype)


def _compress_run(path: Path, folder: Path, args: CompressOptions) -> None:
    if not (path / "model.keras").is_file():
        raise InputError(f"Expected a finished run with model.keras. Received: {path}")
    command = command_of(path)
    if command is None or command.loading is None:
        _compress_file(path / "model.keras", path.resolve().name, folder, args)
        return
    if args.data is not None:
        raise InputError("--data is for other models: a run of texts has its own data")
    if args.from_logits:
        raise InputError("--from-logits is for other models: a run of texts has its own loss")
    if "compressed" in (Run(path).results or {}):
        raise InputError(f"Expected the original run. Received: {path}, a compressed one")
    if args.export == "openvino":
        raise InputError(
            "Expected --export saved_model, onnx or litert of a run of texts. Received: openvino"
        )
    _compress_texts(command.load(path), path, folder, args)
    if args.export in FILES:
        from keras_tnattn_train.exports import Portable, export

        runtime = {"onnx": "onnxruntime", "litert": "litert"}[args.export]
        with _errors_of_export(folder), without_noise():
            export(command.load(folder).task(), folder / args.export, Portable(runtime))
        print(f"exported to {folder / args.export}")


def _compress_texts(run: TrainedRun, path: Path, folder: Path, args: CompressOptions) -> None:
    """Compresses the model of a run, with the texts that it was trained on as data."""
    metric = None if args.max_drop is None else run.accuracy()
    if metric is None:
        _check_max_drop(args)
    # Metrics and counts of flips use the original ids, which can then not be renumbered.
    ids_stay = args.keep_vocabulary or metric or args.max_flips is not None
    inputs = run.inputs() if args.max_flips is None else run.new_inputs()
    if inputs is None:
        raise InputError("--max-flips needs the run of classify, or a file with --data")
    from keras_small import Data

    data = Data(inputs, kept_ids=None if ids_stay else run.kept_ids)
    result = _call(run.model, args, data, metric)
    if args.heal_epochs:
        _heal(result, run.healing_inputs(), args, run.loss)
    print(result.report)
    if not args.replaces:
        write(result, folder, (), {}, (args.model,))
        return
    scores = run.scores(result)
    files = {  # which `predict.py` and `evaluate.py` read of a run, besides the model
        "config.json": (path / "config.json").read_text(encoding="utf-8"),
        "data.json": json.dumps(run.description(result), indent=2) + "\n",
        **_results(result, scores, args),
    }
    write(result, folder, args.model_files, files, (args.model, "accuracy on held-out rows"))
    print(run.summary(scores, folder))
    if args.export == "saved_model":
        config = read_object(path / "config.json", "Train again")
        models = _export_folder(config["name"], args)
        with _errors_of_export(models):
            version = run.export(result, scores, models)
        print(f"exported to {version}")


def _export_folder(name: str, args: CompressOptions) -> Path:
    return Path(args.saved_models, f"{name}-compressed")


@contextlib.contextmanager
def _errors_of_export(models: Path) -> Iterator[None]:
    try:
        yield
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        raise InputError(f"Could not export to {models}: {error}") from error


def _call(model: Any, args: CompressOptions, data: Any, metric: Any) -> Any:
    from keras_small import compress

    with input_errors((ImportError, ValueError, TypeError)):
        return compress(
            model,
            _goal(args, metric),
            data=data,
            bits=args.bits,
            for_runtime=args.for_runtime,
            coded=args.coded,
        )


def _goal(args: CompressOptions, metric: Any) -> Any:
    """Returns the goal that the options describe."""
    from keras_small import Keeping, Promise, Smaller, Within

    if args.max_flips is not None:
        confidence = args.confidence or Promise.confidence
        return Promise(max_flips=args.max_flips, confidence=confidence, metric=metric)
    if args.max_drop is not None:
        return Keeping(metric, args.max_drop, args.target)
    if args.tolerance is not None:
        return Within(args.tolerance, metric)
    return Smaller(args.target or 1.0, metric)


def _heal(result: Any, inputs: Any, args: CompressOptions, loss: Any = None) -> None:
    """Trains the small model, if asked for."""
    if not args.heal_epochs:
        return
    with input_errors():
        result.heal(inputs, args.heal_epochs, args.learning_rate, loss=loss)


def _results(result: Any, scores: dict[str, Any], args: CompressOptions) -> dict[str, str]:
    """Returns `results.json`: options, how many epochs of healing were kept, sizes and scores."""
    names = [*RECORDED_OPTIONS, "heal_epochs"]
    names += ["learning_rate", "from_logits"] if args.heal_epochs else []
    options = {name: getattr(args, name) for name in names}
    options["healed_epochs"] = result.healed_epochs
    report = result.report
    sizes = {
        f"{name}_{when}": getattr(report, f"{name}_{when}")
        for name in ("weights", "bytes")
        for when in ("before", "after")
    }
    promise = None if report.promise is None else dataclasses.asdict(report.promise)
    content = {"compressed": options, **sizes, "times_smaller": report.ratio, **scores}
    content |= {"promise": promise} if promise else {}
    return {"results.json": json.dumps(content, indent=2) + "\n"}


def _read_arrays(path: Path) -> Any:
    from keras_tnattn_train.runs.checkpoints import ARCHIVE_ERRORS

    try:
        with path.open("rb") as file:  # NumPy does not close a file that is damaged
            content = np.load(file)
            return content if isinstance(content, np.ndarray) else dict(content)
    except ARCHIVE_ERRORS as error:
        raise InputError(f"Could not read the inputs {path}: {first_line(error)}") from error
