"""The command line `keras-tnattn predict RUN_OR_SAVED_MODEL`."""

import contextlib
import csv
import functools
import importlib.util
import itertools
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from keras_tnattn_runtime.extras import installation
from keras_tnattn_runtime.layout import READER_RUNTIMES, RUNTIMES, portable_folder
from keras_tnattn_train.commands import Command
from keras_tnattn_train.data.sentences import COLUMNS, Row, from_file, from_strings
from keras_tnattn_train.options.apps import Program
from keras_tnattn_train.options.errors import InputError, input_errors
from keras_tnattn_train.options.options import (
    DATA,
    EITHER,
    OUTPUT,
    SEARCH,
    Options,
    argument,
    option,
)
from keras_tnattn_train.options.search import LARGEST_BEAM, check_n_best, search_batch_option
from keras_tnattn_train.processes.backend import start_backend
from keras_tnattn_train.runs.counter import Counter
from keras_tnattn_train.runs.packaged import packaged_models
from keras_tnattn_train.runs.predictions import (
    CONTINUATION_COLUMNS,
    TRANSLATION_COLUMNS,
    Prediction,
    Predictor,
    Problem,
    continuation,
    label_columns,
    labels,
    probability_column,
    share_out_tokens,
    translation,
)
from keras_tnattn_train.system.files import read_object, replacing
from keras_tnattn_train.tasks import command_of, task_commands

FORMATS = ("csv", "jsonl", "lines")
BATCHES = 32  # that are read and sorted by length together
EXAMPLES = """\
examples:
  predict with a model that comes with the package:
    keras-tnattn predict docstrings "Draws a line." --format lines
    keras-tnattn predict dates-and-names "16:52 e 17 de dezembro de 1963" --format lines
  predict for sentences on the command line, with an exported model or with a run:
    keras-tnattn predict saved_models/docstrings "Draws a line." "Fits the classifier."
    keras-tnattn predict runs/mine "uma frase" --format lines
  read a text file with one sentence per line, and write JSON lines:
    keras-tnattn predict runs/mine --input sentences.txt --format jsonl \\
        --output predictions.jsonl
  read a column of a table, compressed or not, and write the probability of every class:
    keras-tnattn predict runs/mine --input reviews.csv.gz --column review \\
        --output labels.csv
  classify nodes of the graph that a run was trained on:
    keras-tnattn predict runs/graph --input names.txt
  read the standard input, and write the three best of four hypotheses:
    cat sentences.txt | keras-tnattn predict runs/pt-en --beam 4 --n-best 3
exit status: 0; 1 if there were bad rows (empty or unreadable), which are left out and reported
with their numbers (--format lines writes an empty line for each); 2 for invalid input; 130 if
interrupted; 141 if the output is closed, as by head. Row 1 of a table is its header.
"""


class PredictOptions(Options):
    """The options of `keras-tnattn predict`."""

    model: str = option(
        ...,
        DATA,
        "the folder of a finished run of classify, translate, language or nodes, or of an "
        "exported model, or the name of a model that comes with the package: docstrings, "
        "dates-and-names (digits and minilm, which read pictures and give vectors, are for "
        "keras_small.load)",
        metavar="MODEL",
        given=EITHER,
    )
    sentences: tuple[str, ...] = argument(
        "sentences or names of nodes to predict for", repeated=True
    )
    input: str | None = option(
        None,
        DATA,
        "a text file with one sentence per line, or a table: .csv, .tsv, .jsonl (.gz, .xz) or "
        ".parquet (default: the standard input, if there are no sentences)",
        metavar="FILE",
    )
    column: str | None = option(
        None,
        DATA,
        "the column with the sentences (default: the --text-column that a classifier was trained "
        "with, text, source, sentence or the only one)",
    )
    beam: int | None = option(
        None,
        SEARCH,
        "number of beams, with a translator's run (default: 1, greedy search)",
        metavar="K",
        ge=1,
        le=LARGEST_BEAM,
    )
    n_best: int | None = option(
        None,
        SEARCH,
        "write the K best translations of each sentence, with a translator's run",
        metavar="K",
        ge=1,
        le=LARGEST_BEAM,
    )
    batch_size: int = search_batch_option()
    output: str | None = option(
        None, OUTPUT, "where to write (default: standard output)", metavar="FILE"
    )
    format: str | None = option(
        None,
        OUTPUT,
        "what to write (default: jsonl if FILE ends with .jsonl, otherwise csv)",
        choices=FORMATS,
    )

    def check_together(self) -> None:
        check_n_best(self.n_best, self.beam or 1)
        if self.sentences and self.input:
            raise ValueError(
                "Expected sentences or --input. Received: both, "
                f"{self.sentences[0]!r} and input={self.input!r}"
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns 1 if there were bad rows, otherwise its `exit_status`."""
    bad: list[int] = []
    program = Program(
        "predict",
        "Classifies or translates sentences, or continues texts, with a finished run or an "
        "exported model, and writes labels with probabilities, translations with scores (lower is "
        "better), or continuations.",
        EXAMPLES,
        PredictOptions,
        lambda options: bad.append(_predict(options)),
    )
    return program(arguments) or int(any(bad))


def _predict(args: PredictOptions) -> int:
    """Writes the predictions; returns the number of bad rows."""
    path = Path(args.model)
    pretrained = not path.exists() and args.model in packaged_models()
    exported = any(any(path.glob(f"{folder}saved_model.pb")) for folder in ("", "[0-9]*/"))
    portable = None if pretrained else _portable(path, exported)
    command = None if pretrained or portable or exported else _command(path)
    if (args.beam or args.n_best) and not (command and command.searches):
        kind = f"a run of {command.name}" if command else "an exported model"
        raise InputError(
            "Expected beam and n_best with the run of a model that searches. Received: "
            f"{kind}, beam={args.beam}, n_best={args.n_best}"
        )
    with contextlib.ExitStack() as stack:
        if args.sentences:
            files = [text for text in args.sentences if Path(text).suffix and os.path.isfile(text)]
            if files:
                raise InputError(f"Expected sentences. Received: {files[0]}, a file: use --input")
            rows = from_strings(args.sentences)
        else:
            columns = _columns(path, command) if command else COLUMNS
            warn = functools.partial(print, file=sys.stderr)
            rows = stack.enter_context(from_file(args.input or "-", args.column, columns, warn))
        # Read the header of a table before loading the model, which takes seconds.
        rows = itertools.chain(list(itertools.islice(rows, 1)), rows)
        if command:
            run = command.load_to_predict(path, few=bool(args.sentences))
            predictor = run.predictor(args.batch_size, args.beam or 1, args.n_best)
        elif pretrained:
            predictor = _predictor_of_pretrained(args.model, few=bool(args.sentences))
        elif portable:
            predictor = _predictor_of_reader(portable)
        else:
            predictor = _predictor_of_export(path)
        if args.output:
            path = stack.enter_context(replacing(Path(args.output)))
            file: TextIO = stack.enter_context(path.open("w", encoding="utf-8", newline=""))
        else:
            file = sys.stdout
        return _write(rows, predictor, args, file)


def _write(rows: Iterator[Row], predictor: Predictor, args: PredictOptions, file: TextIO) -> int:
    by_name = "jsonl" if (args.output or "").endswith(".jsonl") else "csv"
    writer = _Writer(file, args.format or by_name, predictor.columns)
    counter, bad, done = Counter("rows"), 0, 0
    while chunk := list(itertools.islice(rows, BATCHES * args.batch_size)):
        good = [row for row in chunk if row.problem is None]
        # Sentences of similar length need the least padding.
        good.sort(key=lambda row: len(row.text or ""))
        predictions: dict[int, list[Prediction] | Problem] = {}
        for start in range(0, len(good), args.batch_size):
            batch = good[start : start + args.batch_size]
            texts = [row.text or "" for row in batch]
            predictions |= {r.number: p for r, p in zip(batch, predictor(texts), strict=True)}
            done += len(batch)
            if not args.sentences:
                counter.show(done)
        for row in chunk:
            of_row = predictions.get(row.number, [])
            problem = of_row.reason if isinstance(of_row, Problem) else row.problem
            if problem is not None:
                bad += 1
                print(f"row {row.number}: {problem}; left out", file=sys.stderr)
            if isinstance(of_row, Problem):
                of_row = []
            for prediction in of_row:
                if prediction.warning:
                    print(f"row {row.number}: {prediction.warning}", file=sys.stderr)
            writer.write(row, of_row)
        file.flush()
    counter.close()
    writer.finish()
    if bad:
        print(f"bad rows left out: {bad}", file=sys.stderr)
    return bad


class _Writer:
    """Writes predictions; a table has its header even if it has no rows."""

    def __init__(self, file: TextIO, form: str, columns: Sequence[str]) -> None:
        self.file, self.form = file, form
        self._csv = csv.writer(file, lineterminator="\n")
        self._columns, self._header_written = columns, False

    def finish(self) -> None:
        """Writes what has to be there without any prediction."""
        if self.form == "csv" and not self._header_written:
            self._write_header()

    def _write_header(self) -> None:
        self._csv.writerow(["row", "text", *self._columns])
        self._header_written = True

    def write(self, row: Row, predictions: Sequence[Prediction]) -> None:
        """Writes the predictions of a row, if it has any."""
        if self.form == "lines":
            words = [word for prediction in predictions for word in prediction.words]
            print("\t".join(" ".join(word.split()) for word in words), file=self.file)
            return
        for prediction in predictions:
            cells = {"row": row.number, "text": row.text, **prediction.cells}
            if self.form == "jsonl":
                print(json.dumps(cells, ensure_ascii=False), file=self.file)
                continue
            # A column for each class.
            probabilities = cells.pop("probabilities", {})
            cells |= {probability_column(name): p for name, p in probabilities.items()}
            if not self._header_written:
                self._write_header()
            self._csv.writerow(cells.values())


def _predictor_of_pretrained(name: str, few: bool) -> Predictor:
    start_backend(compiles=not few)
    import keras

    from keras_small.pretrained import load

    model = load(name)
    model.model.run_eagerly = few and keras.backend.backend() == "tensorflow"  # traces no graph
    if not any(hasattr(model, reads) for reads in ("n_best", "words", "pieces")):
        raise InputError(
            f"Expected a model of texts. Received: model={name!r}, which reads pictures: use "
            f"keras_small.load({name!r})"
        )
    return _predictor_of_loaded(model)


def _portable(path: Path, exported: bool) -> Path | None:
    """Returns the files of an export that a runtime reads, which the server uses, too.

    They need neither Keras nor TensorFlow, whose imports take seconds. `None` if there are none, or
    if TensorFlow can take the place of a runtime that is not installed.
    """
    folder = portable_folder(path)
    if folder is None:
        return None
    suffixes = {file.suffix for file in folder.iterdir()}
    runtimes = [RUNTIMES[name] for name in READER_RUNTIMES]
    packages = [runtime.package for runtime in runtimes if runtime.suffix in suffixes]
    is_readable = any(map(importlib.util.find_spec, packages))
    return folder if is_readable or not exported else None


def _predictor_of_reader(folder: Path) -> Predictor:
    from keras_tnattn_runtime import reader

    with input_errors((ImportError, OSError, ValueError)):
        return _predictor_of_loaded(reader.load(folder))


def _predictor_of_loaded(model: Any) -> Predictor:
    """Returns what predicts with a model of `keras_tnattn_runtime.reader`."""
    if hasattr(model, "encode"):
        raise InputError(
            "Expected a model that classifies, translates or continues texts. Received: a sentence "
            "encoder. Use its function encode, after keras_small.load or "
            "keras_tnattn_runtime.reader.load"
        )
    if hasattr(model, "tokens"):
        return Predictor(
            lambda texts: [[continuation(_continue(model, text))] for text in texts],
            CONTINUATION_COLUMNS,
        )
    if hasattr(model, "n_best"):
        return Predictor(
            lambda texts: [[translation(*best[0])] for best in model.n_best(texts)],
            TRANSLATION_COLUMNS,
        )
    return Predictor(
        lambda texts: labels(model.probabilities(texts), model.class_names, model.ids(texts)),
        label_columns(model.class_names),
    )


def _continue(model: Any, text: str) -> str:
    """Returns the most probable tokens after a text, as a run of `language` does."""
    from keras_tnattn_train.language.tokens import END

    longest, count = share_out_tokens(model.max_length)
    with input_errors():
        ids = model.prompt(text)[-longest:]
    chosen = (int(logits[1:].argmax()) + 1 for logits in model.logits(ids, count))
    return "".join(map(model.tokens.decoder(), itertools.takewhile(lambda n: n != END, chosen)))


def _command(path: Path) -> Command:
    """Returns the command that trained a run."""
    if not (path / "config.json").is_file():
        raise InputError(
            "Expected the folder of a run or of an exported model, or the name of a model of the "
            f"package: {', '.join(packaged_models())}. Received: {path}, "
            + ("which holds neither" if path.is_dir() else "which is not a folder")
        )
    command = command_of(path)
    if command is None or (command.loading is None and command.predicting is None):
        names = [c.name for c in task_commands() if c.loading is not None or c.predicting]
        raise InputError(
            f"Expected a run of {' or '.join(names)}, which predict. Received: {path}, another run"
        )
    return command


def _columns(path: Path, command: Command) -> tuple[str, ...]:
    """Returns usual names of the column with the texts: the one of the training data first."""
    if command.columns:
        return command.columns
    column = read_object(path / "config.json", "Choose the folder of a run").get("text_column")
    return (column, *COLUMNS) if isinstance(column, str) else COLUMNS


def _predictor_of_export(path: Path) -> Predictor:
    start_backend()
    from keras_tnattn.export.loading import LoadedClassifier, load

    try:
        model = load(path)
    except ImportError as error:
        raise InputError(
            "Expected TensorFlow and tensorflow-text, which run exported models, whatever the "
            f"backend. Received: {error}. {installation('tensorflow_text')}, or "
            "predict with the run's folder"
        ) from error
    except (OSError, ValueError) as error:
        raise InputError(str(error)) from error
    if isinstance(model, LoadedClassifier):
        return Predictor(
            lambda texts: labels(model(texts)["probabilities"], model.class_names),
            label_columns(model.class_names),
        )

    def translate(texts: list[str]) -> list[list[Prediction]]:
        outputs = model.with_scores(texts)
        pairs = zip(outputs["translation"].tolist(), outputs["score"].tolist(), strict=True)
        return [[translation(text, score)] for text, score in pairs]

    return Predictor(translate, TRANSLATION_COLUMNS)
