"""The study `grokking`: do networks that fit a few rows learn the rule later?"""

import math
from pathlib import Path
from typing import Any

from keras_tnattn_studies.grokking_config import (
    BASE,
    KEYS,
    MEASURED,
    MOST_BONDS,
    MOST_ROWS,
    NETWORKS,
    GrokkingTraining,
    Setting,
    place,
    settings_of,
)
from keras_tnattn_studies.measuring import measure_missing, read_measurements
from keras_tnattn_train.commands import Command, pop_options
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.options.options import RUN, Options, Seeds, option
from keras_tnattn_train.processes.backend import start_backend
from keras_tnattn_train.rules.config import BOUNDARIES
from keras_tnattn_train.runs.run import Run


class GrokkingStudyOptions(Options):
    """The options that only the study has."""

    networks: tuple[str, ...] = option(
        tuple(NETWORKS), RUN, "networks to compare", choices=tuple(NETWORKS)
    )
    boundaries: tuple[str, ...] = option(BOUNDARIES, RUN, "ends of the rows", choices=BOUNDARIES)
    rows: tuple[int, ...] = option((2, 3, 4, 8, 16), RUN, "numbers of training rows")
    bond_dims: tuple[int, ...] = option(
        (4, 6, 12), RUN, f"bond dimensions, with {BASE.rows} rows that are rings (tn)"
    )
    weight_decays: tuple[float, ...] = option(
        (0.0, 0.1, 1.0), RUN, f"weight decays of AdamW, with {BASE.rows} rows that are rings (tn)"
    )
    seeds: Seeds = option(tuple(range(20)), RUN, "seeds to train each network with")
    run_dir: str = option("runs/study-grokking", RUN, "folder of the study", metavar="DIR")

    def check_together(self) -> None:
        for name, values, least, most in (
            ("rows", self.rows, 1, MOST_ROWS),
            ("bond_dims", self.bond_dims, 1, MOST_BONDS),
            ("weight_decays", self.weight_decays, 0, math.inf),
        ):
            if not all(least <= value <= most for value in values):
                raise ValueError(
                    f"Expected {name} from {least} to {most}. Received: {name}="
                    f"{' '.join(map(str, values))}"
                )


def start(values: dict[str, Any]) -> None:
    """Runs the study with the options that the user typed."""
    options = GrokkingStudyOptions(**pop_options(values, GrokkingStudyOptions))
    common = GrokkingTraining(**values)
    start_backend()  # takes seconds, so invalid input is reported first
    import keras

    if keras.backend.backend() != "jax":
        raise InputError(
            "Expected KERAS_BACKEND=jax for grokking, which trains all seeds of a setting at once. "
            f"Received: {keras.backend.backend()}"
        )
    from keras_tnattn_studies.grokking_report import measurements_of, report
    from keras_tnattn_studies.grokking_training import train_seeds

    folder = Path(options.run_dir)
    path = folder / "results.csv"
    Run(folder).start_study(common, {})
    trained: dict[tuple, dict[str, Any]] = {}

    def measure(*key: Any) -> dict[str, Any]:
        if key not in trained:
            setting = Setting(*key[:-1])
            known = read_measurements(path, KEYS, MEASURED, blanks=True)
            seeds = [seed for seed in options.seeds if (*setting, seed) not in known]
            print(f"{len(seeds)} seeds of {setting.title}", flush=True)
            curves = train_seeds(common, setting, seeds)
            trained.update(measurements_of(common, setting, seeds, curves, folder))
        return trained.pop(key)

    wanted = [
        (*setting, seed)
        for setting in settings_of(
            options.networks,
            options.boundaries,
            options.rows,
            options.bond_dims,
            options.weight_decays,
        )
        for seed in options.seeds
    ]
    rows = measure_missing(path, KEYS, MEASURED, wanted, measure, place, blanks=True)
    print(f"\n{report(rows, common, folder)}\n")


COMMAND = Command(
    "grokking",
    "Train networks on few rows of a cellular automaton, and look for delayed generalization",
    "All epochs see the same rows. The delay of a training is the number of epochs from the first "
    "measurement with 99 % of the training cells correct to the first with 99 % of the test cells. "
    "The number of rows is varied with every network; bond dimension and weight decay with "
    "tensor-network attention on rings; --rows, --bond-dims, --weight-decays and --boundaries "
    "choose fewer. Writes results.csv, with a row for each finished training, "
    "curves/, with the accuracies of each over the epochs, table.md, delays.png and, for each kind "
    "of ends, curves_ENDS.png. Needs KERAS_BACKEND=jax: the seeds of a setting are trained "
    "at once.",
    {**GrokkingStudyOptions.model_fields, **GrokkingTraining.model_fields},
    start,
    """\
example:
    KERAS_BACKEND=jax keras-tnattn reproduce grokking --networks tn --seeds 0 1 2
Run the same command again to continue an interrupted study, or with more networks or seeds.
""",
)
