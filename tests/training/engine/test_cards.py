import json
import shlex

import pytest

from training.classify.config import ClassifyConfig
from training.engine.cards import describe
from training.images.config import ImagesConfig
from training.rules.config import RulesConfig
from training.translate.config import TranslateConfig


@pytest.mark.parametrize(
    ("command", "config", "words"),
    [
        ("classify", ClassifyConfig(dataset="mine.csv", damping=0.5), "--damping 0.5"),
        ("rules", RulesConfig(rule=110, export=True), "--rule 110"),
        ("images", ImagesConfig(patch_size=2), "--patch-size 2"),
        ("translate", TranslateConfig(checkpoint_epochs=(2, 5)), "--checkpoint-epochs 2 5"),
    ],
)
def test_the_command_trains_the_same_again(command, config, words):
    results = {"test_accuracy": 0.5, "seconds": 3, "parameters": 7, "rows": {"train": 2}}
    card = describe(command, config, {"name": "mine"}, results)
    assert card["command"].startswith(f"python training/train.py {command} ")
    assert words in card["command"]
    assert shlex.split(card["command"]).count("--export") == 1
    assert card["scores"] == {"test_accuracy": 0.5}
    assert card["sizes"] == {"parameters": 7, "rows": {"train": 2}}
    assert (card["seed"], card["data"]) == (0, {"name": "mine"})
    assert json.loads(json.dumps(card)) == card
