"""Tables of classifiers that were trained on the same splits."""

from collections.abc import Sequence
from statistics import fmean

from keras_tnattn_studies.measuring import Measurements
from keras_tnattn_train.runs.tables import interval, table_of


def paired_table(
    rows: Measurements, classifiers: Sequence[str], shared: float, repeats: str = "splits"
) -> str:
    """Returns a table with a line for each classifier: means and 95 % confidence intervals.

    The last column compares the others with the first, seed by seed; for `shared` see `half_width`.
    """
    header = ("classifier", "weights", repeats, "test %", "lowest", "highest", "seconds")
    first = classifiers[0]
    lines: list[tuple[str, ...]] = [(*header, f"points above {first}")]
    for classifier in classifiers:
        of_line = {seed: row for (name, seed), row in rows.items() if name == classifier}
        if not of_line:
            continue
        accuracies = [100 * row["test_accuracy"] for row in of_line.values()]
        differences = [
            100 * (row["test_accuracy"] - rows[first, seed]["test_accuracy"])
            for seed, row in of_line.items()
            if classifier != first and (first, seed) in rows
        ]
        lines.append(
            (
                classifier,
                f"{fmean(row['weights'] for row in of_line.values()):,.0f}",
                str(len(of_line)),
                interval(accuracies, ".2f"),
                f"{min(accuracies):.2f}",
                f"{max(accuracies):.2f}",
                f"{fmean(row['seconds'] for row in of_line.values()):.1f}",
                interval(differences, ".2f", shared) if differences else "-",
            )
        )
    return table_of(lines)
