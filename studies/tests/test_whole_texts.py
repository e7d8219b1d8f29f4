"""The study `whole-texts`: its runs and its table."""

import sys

import numpy as np
import pytest

from keras_tnattn.estimator.building import compiled_model
from keras_tnattn_studies import alone, whole_texts, whole_texts_training
from keras_tnattn_studies.reproduce import main
from keras_tnattn_train.classify.config import ClassifyConfig
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.runs.training import EpochLog

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def arguments(tmp_path, monkeypatch):
    """The study of two models on a small table, in this process."""
    rng = np.random.default_rng(0)
    rows = [
        f"{' '.join(['one', 'two'][i % 2] for _ in range(rng.integers(1, 200)))}" for i in range(60)
    ]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["text,label", *(f"{row},{row[0]}" for row in rows)]) + "\n")
    monkeypatch.setattr(alone, "run_alone", lambda f, *values, gigabytes: f(*values))
    arguments = ["whole-texts", "--datasets", str(table), "--run-dir", str(tmp_path / "study")]
    return [*arguments, "--epochs", "3", "--learning-rate", "0.03", "--models"]


@pytest.mark.slow
def test_an_interrupted_run_ends_as_an_uninterrupted_one(arguments, tmp_path, monkeypatch):
    finished = EpochLog.on_epoch_end

    def interrupt(self, epoch, logs=None):
        finished(self, epoch, logs)
        if epoch == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(EpochLog, "on_epoch_end", interrupt)
        patched.setattr(whole_texts_training, "peak_memory", lambda: 1e6)
        assert main([*arguments, "none"]) == 130
    assert main([*arguments, "none"]) == 0
    results = Run(tmp_path / "study/table-none-0").results
    assert results["megabytes"] > 9e5  # the peak of the process that was interrupted
    assert results["test_accuracy"] > 0.9
    assert results["epochs"] == 3
    folder = str(tmp_path / "whole")
    arguments[arguments.index("--run-dir") + 1] = folder
    assert main([*arguments, "none"]) == 0
    whole = Run(tmp_path / "whole/table-none-0")
    losses = [
        [row["loss"] for row in run.read_metrics()]
        for run in (whole, Run(tmp_path / "study/table-none-0"))
    ]
    assert losses[0] == losses[1]
    lines = (tmp_path / "whole/table.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]
    assert [row[1] for row in cells] == ["no attention"]
    assert cells[0][3] == f"{100 * whole.results['test_accuracy']:.1f}"


@pytest.mark.parametrize("model", ["tsa", "gru", "mha"])
@pytest.mark.slow
def test_other_models_train(arguments, tmp_path, model):
    assert main([*arguments, model]) == 0
    assert Run(tmp_path / f"study/table-{model}-0").results["test_accuracy"] > 0.8


def test_too_little_memory_is_a_result(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(alone, "run_alone", lambda *values, gigabytes: None)
    assert main([*arguments, "mha"]) == 0
    folder = tmp_path / "study/table-mha-0"
    assert (
        f"out of memory with gigabytes=12.0. This is a result; to train it again, delete {folder}"
        in (capsys.readouterr().out)
    )
    assert Run(folder).results == {"outcome": "out of memory"}


def test_the_table_has_all_finished_runs(arguments, tmp_path, monkeypatch, capsys):
    def write(path, text, written=whole_texts.save_text):
        with Run(path.parent).lock() as free:
            assert not free  # no other process writes its table at the same time
        written(path, text)

    monkeypatch.setattr(alone, "run_alone", lambda *values, gigabytes: None)
    monkeypatch.setattr(whole_texts, "save_text", write)
    for model in ("mha", "gru", "tsa"):
        assert main([*arguments, model]) == 0
    lines = (tmp_path / "study/table.md").read_text().splitlines()
    names = [line.split("|")[2].strip() for line in lines[2:]]
    assert names == ["TSA", "MHA", "GRU"]
    capsys.readouterr()
    assert main([*arguments, "none", "--batch-size", "7"]) == 2
    assert "batch_size=7" in capsys.readouterr().err


@pytest.mark.parametrize("model", whole_texts.MODELS)
def test_the_models_have_the_tuned_recipe_without_attention(model):
    config = whole_texts.WholeTextsConfig(model=model, max_words=50, epochs=2)
    options = config.classifier
    assert (options.recipe, options.max_words) == ("tuned", 50)
    tuned = ClassifyConfig(attention="none", initial_weights="random")
    assert options.initial_weights == "random"
    for name in ("batch_size", "learning_rate", "word_dropout", "dropout"):
        assert getattr(options, name) == getattr(tuned, name)
    built = compiled_model(options.settings, 20, 3, 5)
    names = {layer.name for layer in built.layers}
    assert "normalization" in names
    assert "hidden" not in names
    assert float(built.optimizer._learning_rate(10)) == pytest.approx(0)
