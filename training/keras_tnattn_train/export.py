"""The command line `keras-tnattn export`: the model of a run, with its text, for other runtimes."""

import shlex
from pathlib import Path
from typing import Any

from keras_tnattn_train.options.apps import Program
from keras_tnattn_train.options.errors import InputError, input_errors
from keras_tnattn_train.options.options import OUTPUT, Options, argument, option
from keras_tnattn_train.processes.backend import start_backend, without_noise
from keras_tnattn_train.runs.packaged import load_packaged, packaged_models
from keras_tnattn_train.tasks import command_of_texts

KINDS = ("onnx", "litert", "web")
EXAMPLES = """\
examples:
  a folder for onnxruntime with all that turns a text into a label, and its reader.py:
    keras-tnattn export runs/reuters-none-0 --onnx portable/reuters
  the same for phones, of a compressed run:
    keras-tnattn export runs/reuters-none-0/compressed --litert portable/reuters
  a translator, whose folder searches greedily or with a beam:
    keras-tnattn export runs/pt-en --onnx portable/pt-en
  a language model, whose folder continues texts:
    keras-tnattn export runs/language-sdpa-0 --onnx portable/language
  a page that classifies or translates in the browser, from any static server:
    keras-tnattn export runs/reuters-none-0/compressed --web page
    python -m http.server --directory page
  the sentence encoder that comes with the package, for onnxruntime:
    keras-tnattn export minilm --onnx portable/minilm
  the classifier that comes with the package, for the server:
    keras-tnattn export docstrings --saved-models saved_models
    python -m keras_tnattn_serving saved_models
"""


class ExportOptions(Options):
    """The options of `keras-tnattn export`."""

    run: str = argument(
        "the folder of a finished run of classify, translate or language, or of a compressed one; "
        "or docstrings or minilm, a classifier and a sentence encoder that come with the package"
    )
    onnx: str | None = option(
        None, OUTPUT, "write this new folder for onnxruntime", metavar="FOLDER"
    )
    litert: str | None = option(
        None, OUTPUT, "write this new folder for LiteRT (ai-edge-litert)", metavar="FOLDER"
    )
    web: str | None = option(
        None, OUTPUT, "write this new folder with a page for any static server", metavar="FOLDER"
    )
    saved_models: str | None = option(
        None, OUTPUT, "export docstrings to DIR/docstrings/VERSION/, for the server", metavar="DIR"
    )
    onnxruntime_web: str | None = option(
        None,
        OUTPUT,
        "onnxruntime-web for --web: a folder or the .tgz of npm (default: npm fetches it once)",
        metavar="PATH",
    )

    def check_together(self) -> None:
        if not any(getattr(self, kind) for kind in (*KINDS, "saved_models")):
            raise ValueError(
                "Expected --onnx, --litert, --web or --saved-models. Received: none of them"
            )
        if self.onnxruntime_web and not self.web:
            raise ValueError(
                "Expected --onnxruntime-web only with --web. "
                f"Received: onnxruntime_web={self.onnxruntime_web}"
            )


def _export(args: ExportOptions) -> None:
    path = Path(args.run)
    packaged = not path.exists() and args.run in packaged_models()
    if not packaged and not path.is_dir():
        raise InputError(f"Expected the folder of a run. Received: {path}, which does not exist")
    command = None if packaged else command_of_texts(path)
    if command and args.saved_models:
        raise InputError(
            "Expected --saved-models with docstrings; a run is exported by its own command with "
            f"--resume --export. Received: {path}"
        )
    folders = {kind: Path(getattr(args, kind)) for kind in KINDS if getattr(args, kind)}
    for folder in folders.values():
        if folder.exists():
            raise InputError(f"Expected a new folder. Received: {folder}, which exists")
    start_backend()
    run: Any = command.load(path) if command else load_packaged(args.run)
    with input_errors((ImportError, FileNotFoundError, RuntimeError, ValueError)):
        from keras_tnattn_train.exports import Form, Page, Portable, export

        forms: dict[str, Form] = {
            "onnx": Portable("onnxruntime"),
            "litert": Portable("litert"),
            "web": Page(args.onnxruntime_web),
        }
        task = run.task()
        if "web" in folders and "Page" not in task.forms:
            raise InputError(
                f"Expected --onnx or --litert of {task.kind}, which has no page. "
                f"Received: --web of {path}"
            )
        if args.saved_models and "Version" not in task.forms:
            raise InputError(
                f"Expected --onnx or --litert of {task.kind}, which the server does not take. "
                f"Received: --saved-models of {args.run}"
            )
        if args.saved_models:
            print(f"exported to {run.export(Path(args.saved_models, args.run))}")
        for kind, folder in folders.items():
            with without_noise():
                export(task, folder, forms[kind])
            print(f"wrote {folder}:")
            for file in sorted(folder.iterdir()):
                print(f"{file.stat().st_size:>12,} bytes  {file.name}")
            if kind == "web":
                print(f"look at it: python -m http.server --directory {shlex.quote(str(folder))}")


main = Program(
    "export",
    "Writes the model of a run with its vocabulary, classes and rules for splitting text, for "
    "runtimes that need neither Keras nor TensorFlow.",
    EXAMPLES,
    ExportOptions,
    _export,
)
