"""`make demo-rules`: learns four elementary cellular automata, exports them, prints a table.

If you run the demo again, it keeps finished runs and resumes an interrupted one.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_tnattn_train.commands import run_demo
from keras_tnattn_train.rules.config import RulesConfig
from keras_tnattn_train.runs.many import finish_all, save_text

RUNS = Path("runs/demo-rules")
RULES = (30, 90, 110, 184)
OPTIONS: dict[str, Any] = {}


def run() -> None:
    """Runs the demo."""
    from keras_tnattn_train.rules.train import train_rule
    from keras_tnattn_train.runs.tables import table_of

    configs = [
        RulesConfig(rule=rule, name=f"rule-{rule}", export=True, **OPTIONS) for rule in RULES
    ]
    text = table_of(lines_of(configs, finish_all(configs, RUNS, train_rule)))
    save_text(RUNS / "table.md", text)
    lengths = ", ".join(map(str, configs[0].trained_lengths))
    print(f"\nTrained on rows of {lengths} cells; % of correct cells on new rows:\n\n{text}\n")
    print(f"pictures: space_time.png and learning_curves.png in {RUNS}/rule-*/")
    print(f"exported to {', '.join(str(config.export_folder) for config in configs)}")


def lines_of(
    configs: Sequence[RulesConfig], results: Sequence[dict[str, Any]]
) -> list[tuple[str, ...]]:
    """Returns the cells of the table: the header, then one row per rule."""
    from keras_tnattn_train.rules.train import percent

    lengths = configs[0].tested_lengths
    header = ("rule", "all trained lengths", *(f"{n} cells" for n in lengths), "weights", "seconds")
    lines = [header]
    for config, result in zip(configs, results, strict=True):
        lines.append(
            (
                str(config.rule),
                percent(result["trained_accuracy"]),
                *(percent(result["accuracies"][str(length)]) for length in lengths),
                f"{result['parameters']['all']:,}",
                f"{result['seconds']:.0f}",
            )
        )
    return lines


if __name__ == "__main__":
    sys.exit(run_demo(run))
