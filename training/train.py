"""The command line: `python training/train.py COMMAND ...`, or `python -m training.train`."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

if not __package__:
    # Run as a script: the project's folder has to head the import path, not training/.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from training.config import TABLE_DIMS, ClassifyConfig, add_options, given_options
from training.data import LabelledTexts, load_texts
from training.errors import exit_status
from training.runs import Run

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
    _add_classify(commands)
    _add_compare(commands)
    return parser


def _add_classify(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "classify",
        help="train a text classifier",
        description="Trains a text classifier and writes its run folder: config.json, data.json, "
        "metrics.csv, results.json, learning_curves.png, confusion_matrix.png, psi.png, "
        "model.keras and checkpoints.",
        epilog=CLASSIFY_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=classify)
    group = parser.add_argument_group("run")
    group.add_argument("--run-dir", metavar="DIR", help="the run's folder (default: runs/NAME)")
    group.add_argument(
        "--resume",
        action="store_true",
        help="go on with the run in that folder; its config.json holds the options",
    )
    add_options(parser, ClassifyConfig)


def classify(arguments: argparse.Namespace) -> None:
    """Runs `classify`."""
    given = given_options(arguments, ClassifyConfig)
    run = Run(arguments.run_dir or Path("runs", ClassifyConfig(**given).name))
    if arguments.resume:
        config = run.read_config(ClassifyConfig, given)
        if run.results:
            print(f"The run in {run.folder} is finished, there is nothing to do.")
            return
    else:
        config = ClassifyConfig(**given)
        run.check_new()
    data = _load(config)
    # TensorFlow takes seconds to import; what is wrong up to here is answered at once.
    from training.classification import train_classifier

    results = train_classifier(config, run, data)
    print(
        f"accuracy: {results['train_accuracy']:.1%} on the training part, "
        f"{results['test_accuracy']:.1%} on the test part\n"
        f"parameters: {results['parameters']}\n"
        f"run folder: {run.folder}"
    )
    if "exported" in results:
        print(f"exported to {results['exported']}")


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
    of_one_layer = {"tt_rank", "damping", "filter_order"}
    add_options(parser, ClassifyConfig, leave_out=of_one_run | of_one_layer)


def compare(arguments: argparse.Namespace) -> None:
    """Runs `compare`."""
    given = given_options(arguments, ClassifyConfig)
    common = ClassifyConfig(**given)
    data = _load(common)
    from training.compare import compare, table_configs

    configs = table_configs(given, arguments.attentions, arguments.seeds)
    compare(configs, Path(arguments.run_dir or f"runs/compare-{common.source}"), data)


def _load(config: ClassifyConfig) -> LabelledTexts:
    data = load_texts(config.dataset, config.data_dir, config.text_column, config.label_column)
    print(f"{config.dataset}: {len(data.texts):,} texts in {len(data.class_names)} classes")
    for note in data.notes:
        print(f"  {note}")
    return data


if __name__ == "__main__":
    sys.exit(main())
