"""Is the default classifier level with a linear SVM on small sets, and is attention worth it?

    python studies/benchmarks/classify_small_sets.py --data-dir DIR --output small_sets.jsonl \\
        --rows 300 1000 3000 10000 --attentions none tsa --plot small_sets.png

Each line is `keras-tnattn classify --dataset SET --attention ATTENTION --test-fraction F --seed
SEED`, with F such that the training part, of which the command holds out a tenth for validation,
has so many rows; all other rows are the test part. The linear SVM is that of the command:
scikit-learn's TF-IDF weights and `LinearSVC` with their defaults, on the whole training part. Runs
that are in the output file are not repeated; sets that have too few rows are left out.
"""

import argparse
import contextlib
import functools
import io
import itertools
import json
import os
import tempfile
from pathlib import Path
from statistics import fmean, stdev

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from keras_tnattn_train.classify.baseline import linear_svms
from keras_tnattn_train.classify.config import ClassifyConfig
from keras_tnattn_train.classify.texts import read_texts
from keras_tnattn_train.classify.train import train_classifier
from keras_tnattn_train.runs.run import Run

SETS = ("newsgroups", "ohsumed", "reuters", "spooky_authors", "drug_review")
KEY = ("set", "rows", "seed", "attention")
LEAST_TEST = 500  # rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--rows", type=int, nargs="+", default=[300, 1000, 3000])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--attentions", nargs="+", default=["none"])
    parser.add_argument("--plot", type=Path, help="a picture of all that is in the output file")
    options = parser.parse_args()
    done = read(options.output)
    keys = {tuple(result[name] for name in KEY) for result in done}
    wanted = (options.seeds, options.sets, options.rows, options.attentions)
    for seed, dataset, rows, attention in itertools.product(*wanted):
        if (dataset, rows, seed, attention) in keys:
            continue
        data = texts(dataset, options.data_dir)
        if len(data.labels) < rows + LEAST_TEST:
            continue
        result = measured(data, dataset, rows, seed, attention, options.data_dir)
        with options.output.open("a") as file:
            file.write(json.dumps(result) + "\n")
        done.append(result)
    print(table(done))
    if options.plot:
        draw(done, options.plot)


def read(path):
    """Returns the results that were written before."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


@functools.cache
def texts(dataset, data_dir):
    """Returns the texts of a set, and their labels."""
    with contextlib.redirect_stdout(io.StringIO()):
        return read_texts(ClassifyConfig(dataset=dataset, data_dir=data_dir))


def measured(data, dataset, rows, seed, attention, data_dir):
    """Returns the test accuracies of one run and of the SVM."""
    config = ClassifyConfig(
        dataset=dataset,
        data_dir=data_dir,
        seed=seed,
        attention=attention,
        test_fraction=1 - rows / len(data.labels),
    )
    with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as folder:
        results = train_classifier(config, Run(Path(folder, "run")), data)
        svm = linear_svms([config], data)[seed]
    result = {
        "set": dataset,
        "rows": rows,
        "seed": seed,
        "attention": attention,
        "classifier": results["test_accuracy"],
        "svm": svm["test_accuracy"],
        # Only models without an attention can be the SVM.
        "kept": results["kept"]["weights"] if attention == "none" else "trained",
        "seconds": results["seconds"],
        "svm_seconds": svm["seconds"],
    }
    print(result, flush=True)
    return result


def table(results):
    """Returns mean accuracies in % over the seeds, with the standard deviations."""
    lines = [
        "| set | training rows | attention | classifier | linear SVM | difference | SVM kept |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for (dataset, rows, attention), same in groups(results).items():
        ours = [100 * result["classifier"] for result in same]
        svms = [100 * result["svm"] for result in same]
        differences = [a - b for a, b in zip(ours, svms, strict=True)]
        kept = sum(result["kept"] == "svm" for result in same)
        columns = (spread(ours), spread(svms), spread(differences, sign="+"))
        lines.append(
            f"| {dataset} | {rows:,} | {attention} | {' | '.join(columns)} "
            f"| {kept} of {len(same)} |"
        )
    return "\n".join(lines)


def groups(results):
    """Returns the results of each set, number of rows and attention, in this order."""
    names = ("set", "rows", "attention")
    keys = sorted({tuple(result[name] for name in names) for result in results})
    return {key: [r for r in results if tuple(r[n] for n in names) == key] for key in keys}


def draw(results, path):
    """Draws how far each classifier is ahead of the SVM, by the rows of the training part."""
    from matplotlib.figure import Figure

    from keras_tnattn_train.runs.plots import distinct_colors

    grouped = groups(results)
    sets = list(dict.fromkeys(result["set"] for result in results))
    attentions = sorted({result["attention"] for result in results})
    figure = Figure(figsize=(2.4 * len(sets), 2.8), layout="constrained")
    panels = figure.subplots(1, len(sets), sharey=True, squeeze=False)[0]
    for axes, dataset in zip(panels, sets, strict=True):
        for attention, color in zip(attentions, distinct_colors(len(attentions)), strict=True):
            points = [
                (rows, [100 * (result["classifier"] - result["svm"]) for result in same])
                for (of, rows, by), same in grouped.items()
                if (of, by) == (dataset, attention)
            ]
            axes.errorbar(
                [rows for rows, _ in points],
                [fmean(differences) for _, differences in points],
                [stdev(differences) if len(differences) > 1 else 0 for _, differences in points],
                marker="o",
                color=color,
                label=attention,
            )
        axes.axhline(0, color="gray", linestyle=":")
        axes.set(title=dataset, xscale="log", xlabel="training rows")
        sizes = sorted({result["rows"] for result in results})
        axes.set_xticks(sizes, [f"{rows:,}" for rows in sizes])
        axes.minorticks_off()
    panels[0].set_ylabel("accuracy minus the SVM's, points")
    panels[0].legend(title="attention")
    figure.savefig(path, dpi=120)


def spread(values, sign=""):
    """Returns mean and standard deviation."""
    deviation = stdev(values) if len(values) > 1 else 0.0
    return f"{fmean(values):{sign}.1f} ± {deviation:.1f}"


if __name__ == "__main__":
    main()
