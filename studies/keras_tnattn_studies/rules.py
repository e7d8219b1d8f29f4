"""The study `rules`: which networks learn cellular automata exactly, and at which lengths."""

from pathlib import Path
from typing import Any

from keras_tnattn_studies.many import finish_all
from keras_tnattn_train.commands import Command, pop_options
from keras_tnattn_train.options.options import RUN, Options, Seeds, option
from keras_tnattn_train.processes.backend import start_backend
from keras_tnattn_train.processes.workers import replaced_process
from keras_tnattn_train.rules.config import (
    BOUNDARIES,
    MODEL_DIMS,
    RowsOptions,
    RulesConfig,
    learning_rate_option,
)
from keras_tnattn_train.runs.run import Run

# For more steps the baselines have no sizes.
STEPS = tuple(range(1, 1 + min(len(sizes) for sizes in MODEL_DIMS.values() if sizes)))


class RulesTrainingOptions(RowsOptions):
    """The options that all trainings of the study share."""

    learning_rate: float | None = learning_rate_option(lambda values: None)


class RulesStudyOptions(Options):
    """The options that only the study has."""

    models: tuple[str, ...] = option(
        tuple(MODEL_DIMS), RUN, "networks to compare", choices=tuple(MODEL_DIMS)
    )
    rules: tuple[int, ...] = option((30, 90, 110, 184), RUN, "Wolfram's numbers of the rules")
    steps: tuple[int, ...] = option(
        (1, 2, 3, 4), RUN, "steps that a network computes at once", choices=STEPS
    )
    boundaries: tuple[str, ...] = option(BOUNDARIES, RUN, "ends of the rows", choices=BOUNDARIES)
    seeds: Seeds = option(tuple(range(5)), RUN, "seeds to train each network with")
    run_dir: str = option("runs/study-rules", RUN, "folder of the study", metavar="DIR")


def start(values: dict[str, Any]) -> None:
    """Runs the study with the options that the user typed."""
    options = RulesStudyOptions(**pop_options(values, RulesStudyOptions))
    common = RulesTrainingOptions(**values)
    configs = [
        RulesConfig(**values, model=model, rule=rule, steps=steps, boundary=boundary, seed=seed)
        for steps in options.steps
        for seed in options.seeds
        for model in options.models
        for rule in options.rules
        for boundary in options.boundaries
    ]
    start_backend()  # takes seconds, so invalid input is reported first
    from keras_tnattn_studies.rules_report import report
    from keras_tnattn_train.rules.train import train_rule

    folder = Path(options.run_dir)
    Run(folder).start_study(common, {})
    with replaced_process(len(configs)) as call:
        finish_all(configs, folder, lambda config, run: call(train_rule, config, run))
    with Run(folder).waited_for():
        print(f"\n{report(folder)}\n")


COMMAND = Command(
    "rules",
    "Train networks on several cellular automata, and count those that become exact",
    "A run is exact if every cell of its test rows is correct at every length, up to 128 times "
    "--length. Trains each run in DIR/NAME/, and writes to DIR, for all runs that are finished "
    "there: runs.csv, table.md, accuracy_by_length.png and exact_by_steps.png. Finished runs are "
    "not trained again, so that the command can add seeds, rules or networks to a study; length, "
    "epochs, batches and learning rate are the same in all runs of a study.",
    {**RulesStudyOptions.model_fields, **RulesTrainingOptions.model_fields},
    start,
    """\
example:
    keras-tnattn reproduce rules --steps 1 2 --models tn lstm --seeds 0 1 2
Run the same command again to continue an interrupted study. Several processes
with the same --run-dir share the runs.
""",
)
