import json
import shlex

import pytest

from keras_tnattn_train.classify.config import ClassifyConfig
from keras_tnattn_train.rules.config import RulesConfig
from keras_tnattn_train.runs.cards import describe
from keras_tnattn_train.translate.config import TranslateConfig


@pytest.mark.parametrize(
    ("command", "config", "words"),
    [
        ("classify", ClassifyConfig(attention="tsa", damping=0.5), "--damping 0.5"),
        ("rules", RulesConfig(rule=110, export=True), "--rule 110"),
        ("translate", TranslateConfig(checkpoint_epochs=(2, 5)), "--checkpoint-epochs 2 5"),
    ],
)
def test_the_command_trains_the_same_again(command, config, words):
    results = {"test_accuracy": 0.5, "seconds": 3, "parameters": 7, "rows": {"train": 2}}
    card = describe(config, {"name": "mine"}, results)
    assert card["command"].startswith(f"keras-tnattn {command} ")
    assert words in card["command"]
    assert shlex.split(card["command"]).count("--export") == 1
    assert card["scores"] == {"test_accuracy": 0.5}
    assert card["sizes"] == {"parameters": 7, "rows": {"train": 2}}
    assert (card["seed"], card["data"]) == (0, {"name": "mine"})
    assert json.loads(json.dumps(card)) == card


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (ClassifyConfig(), ""),
        (ClassifyConfig(recipe="paper"), "--recipe paper"),
        (ClassifyConfig(attention="tsa"), "--attention tsa"),
        (
            # The rates that it has by default with random initial weights only.
            ClassifyConfig(word_dropout=0.5, dropout=0.1),
            "--word-dropout 0.5 --dropout 0.1",
        ),
        (
            ClassifyConfig(recipe="paper", epochs=8, seed=3, early_stopping=2),
            "--seed 3 --recipe paper --epochs 8 --early-stopping 2",
        ),
        (TranslateConfig(export=True, export_beam=4), "--export-beam 4"),
        # Each of the two is refused without the other.
        (
            ClassifyConfig(attention="tsa", time_graph="window", window=3),
            "--attention tsa --time-graph window --window 3",
        ),
        (TranslateConfig(preset="plga-small", data_dir="x"), "--data-dir x --preset plga-small"),
    ],
)
def test_the_command_names_what_the_other_options_do_not_decide(config, words):
    command = "classify" if isinstance(config, ClassifyConfig) else "translate"
    described = describe(config, {}, {})["command"]
    expected = ["keras-tnattn", command, *words.split(), "--export"]
    assert shlex.split(described) == expected


def test_a_card_names_no_folder_of_this_machine(tmp_path):
    path = tmp_path / "reviews.csv"
    config = ClassifyConfig(dataset=str(path), epochs=3, export=True)
    card = describe(config, {"name": str(path)}, {"test_accuracy": 0.9672826416237503})
    assert card["data"] == {"name": "reviews.csv"}
    assert card["options"] == {"dataset": "reviews.csv", "epochs": 3}
    assert card["scores"] == {"test_accuracy": 0.9673}
    assert str(tmp_path) not in json.dumps(card)
    pairs = TranslateConfig(corpus=f"{tmp_path}/train.pt,{tmp_path}/train.en", name="pairs")
    assert describe(pairs, {}, {})["options"]["corpus"] == "train.pt,train.en"


def test_a_card_without_notes_names_none():
    card = describe(ClassifyConfig(), {"name": "a.csv", "notes": ()}, {})
    assert card["data"] == {"name": "a.csv"}


def test_a_card_counts_bad_rows_and_does_not_quote_them():
    notes = ("train: 40 bad rows left out: row 2: 'secret'; row 3: ...", "3 rows without text")
    card = describe(ClassifyConfig(), {"name": "/data/a.csv", "notes": notes}, {})
    notes = ["train: 40 bad rows left out", "3 rows without text"]
    assert card["data"] == {"name": "a.csv", "notes": notes}
