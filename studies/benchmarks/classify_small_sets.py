"""Is the default classifier level with a linear SVM on small training parts?

    python studies/benchmarks/classify_small_sets.py --data-dir DIR --output small_sets.jsonl

Each line is `keras-tnattn classify --dataset SET --test-fraction F --seed SEED`, with F such that
the training part, of which the command holds out a tenth for validation, has so many rows; all
other rows are the test part. The linear SVM is that of the command: scikit-learn's TF-IDF weights
and `LinearSVC` with their defaults, on the whole training part. Runs that are in the output file
are not repeated.
"""

import argparse
import contextlib
import io
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
KEY = ("set", "rows", "seed")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--rows", type=int, nargs="+", default=[300, 1000, 3000])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    options = parser.parse_args()
    done = read(options.output)
    keys = {tuple(result[name] for name in KEY) for result in done}
    for seed in options.seeds:
        for dataset in options.sets:
            for rows in options.rows:
                if (dataset, rows, seed) in keys:
                    continue
                result = measured(dataset, rows, seed, options.data_dir)
                with options.output.open("a") as file:
                    file.write(json.dumps(result) + "\n")
                done.append(result)
    print(table(done))


def read(path):
    """Returns the results that were written before."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def measured(dataset, rows, seed, data_dir):
    """Returns the test accuracies of one run and of the SVM."""
    common = {"dataset": dataset, "data_dir": data_dir, "seed": seed}
    with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as folder:
        data = read_texts(ClassifyConfig(**common))
        config = ClassifyConfig(**common, test_fraction=1 - rows / len(data.labels))
        results = train_classifier(config, Run(Path(folder, "run")), data)
        svm = linear_svms([config], data)[seed]
    result = {
        "set": dataset,
        "rows": rows,
        "seed": seed,
        "classifier": results["test_accuracy"],
        "svm": svm["test_accuracy"],
        "kept": results["kept"]["weights"],
        "seconds": results["seconds"],
        "svm_seconds": svm["seconds"],
    }
    print(result, flush=True)
    return result


def table(results):
    """Returns mean accuracies in % over the seeds, with the standard deviations."""
    lines = [
        "| set | training rows | default classifier | linear SVM | difference | SVM kept |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for dataset, rows in sorted({(result["set"], result["rows"]) for result in results}):
        same = [r for r in results if (r["set"], r["rows"]) == (dataset, rows)]
        ours = [100 * result["classifier"] for result in same]
        svms = [100 * result["svm"] for result in same]
        differences = [a - b for a, b in zip(ours, svms, strict=True)]
        kept = sum(result["kept"] == "svm" for result in same)
        columns = (spread(ours), spread(svms), spread(differences, sign="+"))
        lines.append(f"| {dataset} | {rows:,} | {' | '.join(columns)} | {kept} of {len(same)} |")
    return "\n".join(lines)


def spread(values, sign=""):
    """Returns mean and standard deviation."""
    deviation = stdev(values) if len(values) > 1 else 0.0
    return f"{fmean(values):{sign}.1f} ± {deviation:.1f}"


if __name__ == "__main__":
    main()
