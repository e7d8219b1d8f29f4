"""Several attentions over several seeds, in one table."""

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from training.classify.config import TABLE_DIMS, ClassifyConfig
from training.classify.train import train_classifier
from training.data.texts import LabelledTexts
from training.engine.runs import finish_all
from training.engine.tables import table_of
from training.files import replacing

HEADER = (
    "attention",
    "dim",
    "attention weights",
    "embedding weights",
    "all weights",
    "train %",
    "test %",
    "ms/step",
)


def table_configs(
    options: dict[str, Any], attentions: Iterable[str], seeds: Iterable[int]
) -> list[ClassifyConfig]:
    """Returns the configs of a table: every attention, at its size, with every seed."""
    seeds = list(seeds)
    return [
        ClassifyConfig(**options, attention=name, embedding_dim=TABLE_DIMS[name], seed=seed)
        for name in attentions
        for seed in seeds
    ]


def train_all(
    configs: Sequence[ClassifyConfig], folder: Path, data: LabelledTexts
) -> list[dict[str, Any]]:
    """Trains each config in `folder/NAME/`; finished runs are taken as they are.

    Returns:
        The results of each run.

    Raises:
        InputError: If a run's folder is there with other options or other data.
    """
    return finish_all(
        configs,
        folder,
        lambda config, run: train_classifier(config, run, data),
        {"fingerprint": data.fingerprint()},
    )


def table(configs: Sequence[ClassifyConfig], results: Sequence[dict[str, Any]]) -> str:
    """Writes a line for each attention, with means and standard deviations over the seeds."""
    lines = [HEADER]
    for name in dict.fromkeys(config.attention for config in configs):
        runs = [r for c, r in zip(configs, results, strict=True) if c.attention == name]
        counts = runs[0]["parameters"]
        lines.append(
            (
                name.upper(),
                str(TABLE_DIMS[name]),
                *(f"{counts[part]:,}" for part in ("attention", "embedding", "all")),
                _spread([100 * r["train_accuracy"] for r in runs]),
                _spread([100 * r["test_accuracy"] for r in runs]),
                _spread([1000 * r["seconds_per_step"] for r in runs]),
            )
        )
    return table_of(lines)


def _spread(values: list[float]) -> str:
    mean = f"{statistics.mean(values):.1f}"
    return f"{mean} ± {statistics.stdev(values):.1f}" if len(values) > 1 else mean


def compare(
    configs: Sequence[ClassifyConfig], folder: Path, data: LabelledTexts
) -> list[dict[str, Any]]:
    """Trains each config, then prints the table and writes it to `folder/table.md`."""
    results = train_all(configs, folder, data)
    text = table(configs, results)
    with replacing(folder / "table.md") as path:
        path.write_text(text + "\n", encoding="utf-8")
    print(f"\n{text}\n")
    return results
