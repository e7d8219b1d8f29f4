"""The command `rules`."""

from keras_tnattn_train.commands import training_command
from keras_tnattn_train.processes.backend import start_backend
from keras_tnattn_train.rules.config import RulesConfig
from keras_tnattn_train.runs.run import Run


def rules(config: RulesConfig, run: Run) -> None:
    """Trains a network on a cellular automaton, and prints its accuracy by length."""
    start_backend()  # takes seconds, so it comes after the checks
    from keras_tnattn_train.rules.train import summary, train_rule

    print(summary(train_rule(config, run)))


COMMAND = training_command(
    RulesConfig,
    rules,
    "Train a deep tensor network on an elementary cellular automaton",
    "A network of tensor-network attention, or a baseline, learns to compute steps of the "
    "automaton, and is tested on rows up to 128 times as long as the training rows. Writes the run "
    "folder: config.json, data.json, metrics.csv, results.json, learning_curves.png, "
    "space_time.png, model.keras and checkpoints.",
    examples="""\
examples:
  learn rule 30:
    keras-tnattn rules --rule 30
  learn two steps at once, with zeros beyond the ends of the row, and export the network:
    keras-tnattn rules --rule 110 --steps 2 --boundary fixed --export
""",
    first=("resume", "rule", "steps", "boundary", "model", "epochs", "seed", "export", "name"),
)
