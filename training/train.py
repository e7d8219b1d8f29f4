"""The command line: `python training/train.py COMMAND ...`, or `python -m training.train`."""

import argparse
import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

if not __package__:
    # Run as a script: the project's folder has to head the import path, not training/.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from training.classify.config import TABLE_DIMS, ClassifyConfig
from training.data.texts import LabelledTexts, load_texts
from training.engine.runs import Run
from training.errors import exit_status
from training.images.config import ImagesConfig
from training.options import EXPORTING, add_options, given_options
from training.rules.config import RulesConfig
from training.translate.config import TranslateConfig

CLASSIFY_EXAMPLES = """\
examples:
  the docstrings of the installed libraries, no network needed:
    %(prog)s --attention tsa --epochs 5
  Reuters newswires, then the same with dot-product attention of about as many parameters:
    %(prog)s --dataset reuters
    %(prog)s --dataset reuters --attention dpa --embedding-dim 6
  your own table, kept at its best epoch and exported to saved_models/mine/1/:
    %(prog)s --dataset mine.csv --text-column body --label-column topic \\
        --early-stopping 3 --name mine --export
  go on with a run that was interrupted:
    %(prog)s --name mine --dataset mine.csv --resume
"""
COMPARE_EXAMPLES = """\
example:
    %(prog)s --dataset reuters --attentions tsa dpa ada --seeds 0 1 2
An interrupted comparison goes on when the command is given again.
"""
RULES_EXAMPLES = """\
examples:
  %(prog)s --rule 30
  two steps at once, zeros beside the ends of the row, exported:
    %(prog)s --rule 110 --steps 2 --boundary fixed --export
"""
IMAGES_EXAMPLES = """\
examples:
  scikit-learn's digits, no network needed, each row of pixels a site:
    %(prog)s
  MNIST by Keras' loader, or from DIR/mnist.npz, in patches of 4 by 4 pixels:
    %(prog)s --dataset mnist --patch-size 4
    %(prog)s --dataset mnist --patch-size 4 --data-dir DIR
"""
TRANSLATE_EXAMPLES = """\
examples:
  CLDR's data in Portuguese and English, no network needed, with a small model:
    %(prog)s --model-dim 128 --num-heads 4 --feedforward-dim 512 --residual-units 2 \\
        --residual-dim 64 --dropout 0.1 --warmup-steps 8000
  the paper's model #2, and its rival, on Multi30k:
    %(prog)s --corpus multi30k_pt_en --data-dir DIR --preset plga-2 --epochs 120
    %(prog)s --corpus multi30k_pt_en --data-dir DIR --preset sdpa --epochs 120
  your own files, English to Portuguese, kept at the best epoch:
    %(prog)s --corpus train.pt,train.en --reverse --early-stopping 5 --name mine
  go on with a run that was interrupted; export it, finished, with a beam of 4:
    %(prog)s --name mine --resume
    %(prog)s --name mine --resume --export --export-beam 4
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        arguments: The words of the command line. Default: those of the process.

    Returns:
        The exit status: 0, or 2 if the input was of no use, or 130 if interrupted.
    """
    parsed = _parser().parse_args(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's start-up remarks
    return exit_status(lambda: parsed.run(parsed))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python training/train.py", description="Trains models of keras_tnattn."
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_command(
        commands,
        classify,
        ClassifyConfig,
        "train a text classifier",
        "Trains a text classifier",
        "confusion_matrix.png, psi.png",
        CLASSIFY_EXAMPLES,
    )
    _add_compare(commands)
    _add_command(
        commands,
        rules,
        RulesConfig,
        "train a deep tensor network on an elementary cellular automaton",
        "Trains a network of tensor-network attention to make steps of an elementary cellular "
        "automaton, tests it on rows up to 16 times as long",
        "space_time.png",
        RULES_EXAMPLES,
    )
    _add_command(
        commands,
        images,
        ImagesConfig,
        "train a deep tensor network on images",
        "Trains a network of tensor-network attention to classify images, their rows of pixels, "
        "patches or pixels in a chain",
        "confusion_matrix.png",
        IMAGES_EXAMPLES,
    )
    _add_command(
        commands,
        translate,
        TranslateConfig,
        "train a translator with power law graph attention or its rival",
        "Trains an encoder-decoder translator on a parallel corpus",
        "the tokenised corpus",
        TRANSLATE_EXAMPLES,
    )
    return parser


def _add_command(
    commands: argparse._SubParsersAction,
    run: Callable[[argparse.Namespace], None],
    kind: type,
    text: str,
    description: str,
    pictures: str,
    examples: str,
) -> None:
    """Adds a command that trains one run, with the options of a config class."""
    parser = commands.add_parser(
        run.__name__,
        help=text,
        description=f"{description}, and writes its run folder: config.json, data.json, "
        f"metrics.csv, results.json, learning_curves.png, {pictures}, model.keras and checkpoints.",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    group = parser.add_argument_group("run")
    group.add_argument("--run-dir", metavar="DIR", help="the run's folder (default: runs/NAME)")
    group.add_argument(
        "--resume",
        action="store_true",
        help="go on with the run in that folder; its config.json holds the options, but a finished "
        "run, too, may be given those of the export",
    )
    add_options(parser, kind)


def classify(arguments: argparse.Namespace) -> None:
    """Runs `classify`."""
    found = _run_of(arguments, ClassifyConfig)
    if found is None:
        return
    config, run = found
    data = _load(config)
    # TensorFlow takes seconds to import; what is wrong up to here is answered at once.
    from training.classify.train import train_classifier

    results = train_classifier(config, run, data)
    print(
        f"accuracy: {results['train_accuracy']:.1%} on the training part, "
        f"{results['test_accuracy']:.1%} on the test part\n"
        f"parameters: {results['parameters']}"
    )
    _tell_where(run)


def _run_of(arguments: argparse.Namespace, kind: type) -> tuple[Any, Run] | None:
    """Returns what to train and where, by the options or, continued, by the run's own; says so if
    there is nothing left to do, and returns `None`."""
    given = given_options(arguments, kind)
    run = Run(arguments.run_dir or Path("runs", kind(**given).name))
    if not arguments.resume:
        config = kind(**given)
        run.check_new()
        return config, run
    exporting = {name: given.pop(name) for name in EXPORTING if name in given}
    config = dataclasses.replace(run.read_config(kind, given), **exporting)
    if run.results:
        note = run.export_note or {}
        # Exporting anew is the end of the run once more: nothing is left to train.
        if not (exporting and config.export and note.get("options") != config.export_options):
            print(f"The run in {run.folder} is finished, there is nothing to do.")
            return None
    return config, run


def _tell_where(run: Run) -> None:
    print(f"run folder: {run.folder}")
    if "exported" in run.results:
        print(f"exported to {run.results['exported']}")


def _add_compare(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "compare",
        help="train several attentions over several seeds, and print one table",
        description="Trains each attention with each seed and prints one table of parameters, "
        "accuracies and times: the tensorized attentions at 64 dimensions, the others at 6, "
        "which gives all of them about 300 parameters. Finished runs are not trained again.",
        epilog=COMPARE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=compare)
    group = parser.add_argument_group("comparison")
    group.add_argument(
        "--attentions",
        nargs="+",
        choices=tuple(TABLE_DIMS),
        default=["tsa", "dpa", "ada"],
        help="what to compare (default: tsa dpa ada)",
    )
    group.add_argument(
        "--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N", help="(default: 0 1 2)"
    )
    group.add_argument(
        "--run-dir", metavar="DIR", help="folder of the runs (default: runs/compare-DATASET)"
    )
    of_one_run = {"attention", "embedding_dim", "seed", "name", "export", "saved_models"}
    of_one_layer = {"tt_rank", "damping", "filter_order", "residual_units", "residual_dim"}
    add_options(parser, ClassifyConfig, leave_out=of_one_run | of_one_layer)


def compare(arguments: argparse.Namespace) -> None:
    """Runs `compare`."""
    given = given_options(arguments, ClassifyConfig)
    common = ClassifyConfig(**given)
    data = _load(common)
    from training.classify.compare import compare, table_configs

    configs = table_configs(given, arguments.attentions, arguments.seeds)
    compare(configs, Path(arguments.run_dir or f"runs/compare-{common.source}"), data)


def rules(arguments: argparse.Namespace) -> None:
    """Runs `rules`."""
    found = _run_of(arguments, RulesConfig)
    if found is None:
        return
    config, run = found
    from training.rules.train import summary, train_rule

    print(summary(train_rule(config, run)))
    _tell_where(run)


def images(arguments: argparse.Namespace) -> None:
    """Runs `images`."""
    found = _run_of(arguments, ImagesConfig)
    if found is None:
        return
    config, run = found
    from training.data.images import load_images

    data = load_images(config.dataset, config.data_dir, config.seed)
    from training.images.train import train_images

    results = train_images(config, run, data)
    print(
        f"accuracy: {results['train_accuracy']:.1%} on {len(data.labels):,} training images, "
        f"{results['test_accuracy']:.1%} on {len(data.test_labels):,} test images\n"
        f"parameters: {results['parameters']['all']:,}; training: {results['seconds']:.0f} s"
    )
    _tell_where(run)


def translate(arguments: argparse.Namespace) -> None:
    """Runs `translate`."""
    found = _run_of(arguments, TranslateConfig)
    if found is None:
        return
    config, run = found
    from training.translate.train import train_translator

    results = train_translator(config, run)
    measured = {
        name: results[name]
        for name in ("loss", "accuracy", "val_loss", "val_accuracy")
        if name in results
    }
    print(
        f"best of {results['epochs']} epochs: {results['epoch']:.0f}, "
        + ", ".join(f"{name} {value:.4f}" for name, value in measured.items())
        + f"\nparameters: {results['parameters']:,}; training: {results['seconds']:.0f} s, "
        f"{results['tokens_per_second']:,.0f} tokens per second"
    )
    _tell_where(run)


def _load(config: ClassifyConfig) -> LabelledTexts:
    data = load_texts(config.dataset, config.data_dir, config.text_column, config.label_column)
    print(f"{config.dataset}: {len(data.texts):,} texts in {len(data.class_names)} classes")
    for note in data.notes:
        print(f"  {note}")
    return data


if __name__ == "__main__":
    sys.exit(main())
