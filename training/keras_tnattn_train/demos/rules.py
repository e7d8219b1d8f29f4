"""`make demo-rules`: learns four elementary cellular automata, exports them, prints a table.

If you run the demo again, it keeps finished runs and resumes an interrupted one.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_tnattn_train.commands import run_demo
from keras_tnattn_train.demos.runs import finished
from keras_tnattn_train.system.files import save_text

RUNS = Path("runs/demo-rules")
RULES = (30, 90, 110, 184)
COMMAND = "rules --rule {rule} --export"


def run() -> None:
    """Runs the demo."""
    from keras_tnattn_train.runs.tables import table_of

    results = {}
    for rule in RULES:
        name = f"rule-{rule}"
        command = f"{COMMAND.format(rule=rule)} --name {name}"
        results[rule] = finished(RUNS / name, command)
    text = table_of(lines_of(results))
    save_text(RUNS / "table.md", text)
    lengths = ", ".join(map(str, results[RULES[0]]["trained_lengths"]))
    print(f"\nTrained on rows of {lengths} cells; % of correct cells on new rows:\n\n{text}\n")
    print(f"pictures: space_time.png and learning_curves.png in {RUNS}/rule-*/")
    print(f"exported to {', '.join(result['exported'] for result in results.values())}")


def lines_of(results: Mapping[int, dict[str, Any]]) -> list[tuple[str, ...]]:
    """Returns the cells of the table: the header, then a row for each rule."""
    from keras_tnattn_train.rules.train import percent

    first = next(iter(results.values()))
    longest = max(first["trained_lengths"])
    lengths = [length for length in first["accuracies"] if int(length) >= longest]
    header = ("rule", "all trained lengths", *(f"{n} cells" for n in lengths), "weights", "seconds")
    lines = [header]
    for rule, result in results.items():
        lines.append(
            (
                str(rule),
                percent(result["trained_accuracy"]),
                *(percent(result["accuracies"][length]) for length in lengths),
                f"{result['parameters']['all']:,}",
                f"{result['seconds']:.0f}",
            )
        )
    return lines


if __name__ == "__main__":
    sys.exit(run_demo(run))
