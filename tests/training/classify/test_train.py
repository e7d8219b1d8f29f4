import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from run_folders import (
    EXPORTS,
    FILES,
    assert_equal,
    assert_refused,
    interrupted_after,
    killed_after,
)
from slow_cases import slow_but

from keras_tnattn.estimator import parts
from keras_tnattn.estimator.batches import TextBatches
from keras_tnattn.estimator.building import compiled_model
from keras_tnattn.estimator.parts import what_is_read, words_to_read
from keras_tnattn.estimator.settings import Settings
from keras_tnattn.models.attentions import ATTENTIONS as CLASSIFIERS
from keras_tnattn.ops.time_graph import PowerLaw, Window
from keras_tnattn_train.classify.config import ATTENTIONS, ClassifyConfig
from keras_tnattn_train.classify.loading import ClassifierRun
from keras_tnattn_train.classify.texts import warning_without_spaces
from keras_tnattn_train.classify.train import _a_sentence
from keras_tnattn_train.cli import train as main
from keras_tnattn_train.data.texts.labeled import split_rows
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.runs.run import Run, from_json

ROOT = Path(__file__).parents[3]
EPOCHS = 10  # more than a run has done when it is killed


def small_table(path, rows=240):
    rng = np.random.default_rng(0)
    words = {"a": ["red", "blue", "green", "grey"], "b": ["one", "two", "three", "four"]}
    lines = ["text,label"]
    for i in range(rows):
        label = "ab"[i % 2]
        lines.append(" ".join(rng.choice([*words[label], "the", "of"], 6)) + f",{label}")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def command(table, folder, *more):
    options = (
        "--max-words 8 --vocabulary-size 20 --embedding-dim 4 --batch-size 8 --test-fraction 0.4"
    )
    options += f" --epochs {EPOCHS} --attention tsa --jit-compile off"
    return ["classify", "--dataset", table, "--run-dir", str(folder), *options.split(), *more]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    table = small_table(folder / "table.csv")
    assert main(command(table, folder / "run")) == 0
    return table, folder / "run"


@pytest.mark.slow
def test_a_killed_run_ends_as_an_uninterrupted_one(uninterrupted, tmp_path):
    table, whole = uninterrupted
    folder = tmp_path / "run"
    killed_after(3, command(table, folder), folder)
    assert Run(folder).results is None
    assert main(["classify", "--run-dir", str(folder), "--resume"]) == 0
    assert_equal(folder, whole)
    assert [row["epoch"] for row in Run(folder).read_metrics()] == list(range(1, EPOCHS + 1))


def test_a_resumed_run_fits_no_second_svm(tmp_path, monkeypatch):
    table = small_table(tmp_path / "table.csv")
    fits = []

    def start(config, model, ids, labels):
        fits.append(ids.shape)
        model.set_weights([np.zeros_like(weight) for weight in model.get_weights()])

    monkeypatch.setattr("keras_tnattn.estimator.initial_weights.start_from_svm", start)
    folder = tmp_path / "run"
    options = ["--learning-rate", "1e-30", "--attention", "none", "--epochs", "2"]
    options += ["--validation-fraction", "0"]  # so that the trained weights are kept
    interrupted_after(1, command(table, folder, *options), monkeypatch)
    assert fits == [(144, 8)]
    assert main(["classify", "--run-dir", str(folder), "--resume"]) == 0
    assert fits == [(144, 8)]
    model = keras.models.load_model(folder / "model.keras")
    assert all(np.abs(weight).max() < 1e-20 for weight in model.get_weights())


def test_a_run_starts_from_an_svm(tmp_path):
    table = small_table(tmp_path / "table.csv")
    # What does not learn is right from the start.
    options = ["--learning-rate", "1e-30", "--attention", "none", "--epochs", "1"]
    options += ["--validation-fraction", "0"]  # so that the trained weights are kept
    for start, right in (("svm", True), ("random", False)):
        folder = tmp_path / start
        assert main([*command(table, folder, *options), "--initial-weights", start]) == 0
        assert (Run(folder).results["test_accuracy"] > 0.95) == right


@pytest.mark.slow
def test_texts_of_many_lengths_are_resumed_to_the_same_weights(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    rows = [
        " ".join(["one", "two"][i % 2] for _ in range(n)) for i, n in enumerate([3, 70, 140] * 8)
    ]
    rng.shuffle(rows)
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["text,label", *(f"{row},{row[0]}" for row in rows)]) + "\n")
    options = ["--max-words", "140", "--epochs", "3", "--batch-size", "2", "--word-dropout", "0.2"]
    options += ["--jit-compile", "off"]  # which would compile each length
    arguments = ["classify", "--dataset", str(table), "--embedding-dim", "4", *options]
    arguments += ["--attention", "dpa"]
    assert main([*arguments, "--run-dir", str(tmp_path / "whole")]) == 0
    folder = tmp_path / "run"
    interrupted_after(1, [*arguments, "--run-dir", str(folder)], monkeypatch)
    assert main(["classify", "--run-dir", str(folder), "--resume"]) == 0
    assert_equal(folder, tmp_path / "whole")


def test_a_run_folder_holds_it_all_and_stays_as_it_is(uninterrupted, capsys):
    _, folder = uninterrupted
    assert {path.name for path in folder.iterdir()} == FILES - {"export.json"} | {
        *("confusion_matrix.png", "psi.png", "report.csv", "mistakes.csv")
    }
    results = Run(folder).results
    assert results["test_accuracy"] > 0.9
    assert results["rows"] == {"train": 129, "validation": 15, "test": 96}
    assert {"val_loss", "val_accuracy"} <= Run(folder).read_metrics()[0].keys()
    assert results["epochs"] == EPOCHS
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert main(["classify", "--run-dir", str(folder), "--resume"]) == 0
    assert "finished" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_every_attention_of_the_classifier_has_an_option():
    assert set(ATTENTIONS) == set(CLASSIFIERS)


@pytest.mark.parametrize("attention", slow_but(["rgtn"], ["tn", "tga", "rgtn", "plga", "sdpa"]))
def test_other_attentions_train(tmp_path, attention):
    table = small_table(tmp_path / "table.csv", rows=40)
    options = ["--attention", attention, "--epochs", "1"]
    options += ["--time-graph", "power_law", "--exponent", "2"] if attention == "rgtn" else []
    assert main(command(table, tmp_path / "run", *options)) == 0
    count = Run(tmp_path / "run").results["parameters"]["attention"]
    assert (count > 0) == (attention != "rgtn")  # which has none by default
    assert (tmp_path / "run/psi.png").is_file() or attention != "tga"


def test_the_options_of_the_model_reach_its_layers():
    sizes = {"recipe": "paper", "embedding_dim": 8, "max_words": 9}
    options = {"position_encoding": "learned", "feedforward": "tensor_train"}
    options |= {"embedding": "low_rank", "embedding_tt_ranks": 3, "window": 3, **sizes}
    config = ClassifyConfig(attention="tsa", time_graph="window", **options)
    model = compiled_model(config.settings, 30, 2, 100)
    attention = model.get_layer("attention")
    assert attention.time_graphs == (Window(3),) * 2
    assert model.get_layer("positions").max_length == 9
    kinds = [type(layer).__name__ for layer in model.layers]
    assert {"LowRankEmbedding", "LearnedPositionEncoding", "TTDense"} <= set(kinds)
    assert model.get_layer("embedding").rank == 3
    power_law = ClassifyConfig(attention="tga", time_graph="power_law", exponent=1.5, **sizes)
    attention = compiled_model(power_law.settings, 30, 2, 100).get_layer("attention").attention
    assert attention.time_graphs[0] == PowerLaw(1.5)
    plain = ClassifyConfig(attention="tsa", **sizes)
    learned = plain.replace(time_graph="exponential")
    plain, trained = (compiled_model(config.settings, 30, 2, 100) for config in (plain, learned))
    assert trained.count_params() == plain.count_params() + 2 * 2  # two numbers for each head


def test_a_recipe_decides_defaults():
    sizes = {"embedding_dim": 8, "max_words": 9}
    tuned, paper = (ClassifyConfig(recipe=name, **sizes) for name in ("tuned", "paper"))
    assert ClassifyConfig(**sizes) == tuned
    assert (tuned.attention, tuned.validation_fraction) == ("none", 0.1)
    assert (paper.attention, paper.validation_fraction) == ("tsa", 0)
    assert ClassifyConfig(recipe="paper", early_stopping=2).validation_fraction == 0.1
    with pytest.raises(InputError, match="validation_fraction=0, early_stopping=2"):
        ClassifyConfig(early_stopping=2, validation_fraction=0.0)
    assert ClassifyConfig(recipe="paper", epochs=3).epochs == 3
    models = [compiled_model(config.settings, 30, 2, 100) for config in (tuned, paper)]
    layers = [{layer.name for layer in model.layers} for model in models]
    assert layers[0] - layers[1] == {"word_dropout", "normalization"}
    assert layers[1] - layers[0] == {"hidden", "hidden_dropout"}


@pytest.mark.parametrize(("recipe", "rates"), [("tuned", (0.6, 0.5)), ("paper", (0.0, 0.1))])
@pytest.mark.parametrize("attention", ["tsa", "none"])
def test_the_dropout_of_a_recipe(recipe, attention, rates):
    config = ClassifyConfig(recipe=recipe, attention=attention, embedding_dim=8, max_words=9)
    assert (config.word_dropout, config.dropout) == rates
    model = compiled_model(config.settings, 30, 2, 100)
    assert model.get_layer("pooling_dropout").rate == rates[1]
    words = [layer.rate for layer in model.layers if layer.name == "word_dropout"]
    assert words == [rate for rate in rates[:1] if rate]
    if recipe == "tuned" and attention == "none":
        config = ClassifyConfig(attention=attention, initial_weights="random")
        assert (config.word_dropout, config.dropout) == (0.5, 0.1)
    if recipe == "tuned":
        config = ClassifyConfig(attention=attention, embedding="tensor_train")
        assert (config.word_dropout, config.dropout) == (0.5, 0.1)
    given = ClassifyConfig(recipe=recipe, attention=attention, word_dropout=0.2, dropout=0.3)
    assert (given.word_dropout, given.dropout) == (0.2, 0.3)


def test_the_schedule_ends_at_zero():
    config = ClassifyConfig(embedding_dim=8, epochs=3, batch_size=40)
    schedule = compiled_model(config.settings, 30, 2, 3).optimizer._learning_rate
    assert float(schedule(0)) == pytest.approx(config.learning_rate)
    assert float(schedule(9)) == pytest.approx(0)  # three steps in each epoch
    assert float(schedule(8)) > 0


@pytest.mark.slow
def test_rare_classes_count_as_much_as_frequent_ones(tmp_path, monkeypatch):
    weights = {}

    class Watched(TextBatches):
        def __init__(self, inputs, labels, batch_size, seed=None, sample_weights=None):
            super().__init__(inputs, labels, batch_size, seed, sample_weights)
            weights["labels"], weights["weights"] = labels, sample_weights

    monkeypatch.setattr("keras_tnattn.estimator.building.TextBatches", Watched)
    table = tmp_path / "table.csv"
    rows = [f"word{i % 7} the,{'b' if i % 4 == 0 else 'a'}" for i in range(40)]
    table.write_text("\n".join(["text,label", *rows]) + "\n")
    options = ["--attention", "dpa", "--epochs", "1", "--class-weights", "balanced"]
    options += ["--tensorboard"]
    assert main(command(str(table), tmp_path / "run", *options)) == 0
    totals = [weights["weights"][weights["labels"] == label].sum() for label in (0, 1)]
    np.testing.assert_allclose(totals, len(weights["labels"]) / 2, rtol=1e-6)
    assert list((tmp_path / "run/tensorboard").rglob("events.out.tfevents.*"))


def test_a_diverging_run_stops(tmp_path, capsys):
    arguments = command(small_table(tmp_path / "table.csv", 40), tmp_path / "run", "--attention")
    arguments += ["dpa", "--learning-rate", "1e30"]
    assert_refused(capsys, arguments, "Training diverged", "lower --learning-rate than 1e+30")
    assert Run(tmp_path / "run").results is None


@pytest.mark.parametrize("script", [["training/train.py"], ["-m", "keras_tnattn_train"]])
def test_both_ways_to_start(script):
    run = [sys.executable, *script, "classify", "--help-all"]
    shown = subprocess.run(run, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert "[default: 0.9]" in " ".join(shown.replace("│", " ").split())
    assert "--dataset reuters --recipe paper" in shown


@pytest.mark.slow
@pytest.mark.parametrize(("monitor", "sign"), [("loss", 1), ("accuracy", -1)])
def test_early_stopping_keeps_the_best_epoch(tmp_path, monitor, sign):
    table = small_table(tmp_path / "table.csv")
    # A learning rate this high is soon past its best.
    options = ["--early-stopping", "2", "--learning-rate", "0.3", "--monitor", monitor]
    assert main(command(table, tmp_path / "run", *options)) == 0
    values = [sign * row[f"val_{monitor}"] for row in Run(tmp_path / "run").read_metrics()]
    assert len(values) == min(EPOCHS, int(np.argmin(values)) + 3)
    assert Run(tmp_path / "run").results["rows"] == {"train": 129, "test": 96, "validation": 15}

    model = keras.models.load_model(tmp_path / "run/model.keras")
    weights = [keras.ops.convert_to_numpy(weight) for weight in model.trainable_variables]
    checkpoints = []
    for name in ("best", "last"):
        with np.load(tmp_path / f"run/checkpoints/{name}.npz") as file:
            checkpoints.append([file[f"arr_{i}"] for i in range(1, 1 + len(weights))])
    best, last = checkpoints
    assert all(map(np.array_equal, weights, best))
    assert not any(map(np.array_equal, weights, last))


def test_words_of_the_test_part_alone_are_not_learned(tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["text,label", *(f"word{i} the,{i % 2}" for i in range(40))]) + "\n")
    options = ["--vocabulary-size", "99", "--attention", "dpa", "--epochs", "1"]
    options += ["--validation-fraction", "0"]
    assert main(command(str(table), tmp_path / "run", *options)) == 0
    vocabulary = json.loads((tmp_path / "run/data.json").read_text())["vocabulary"]
    train, _ = split_rows(np.arange(40) % 2, 0.4, seed=0)
    assert {word for word in vocabulary if word.startswith("word")} == {f"word{i}" for i in train}


class TestRefusals:
    def test_an_existing_run_and_other_options(self, uninterrupted, capsys):
        table, folder = uninterrupted
        assert_refused(capsys, command(table, folder), "which exists", "--resume")
        other = command(table, folder, "--resume", "--seed", "3")
        assert_refused(capsys, other, "seed=0", "seed=3")

    def test_a_run_of_another_process(self, uninterrupted, capsys, tmp_path):
        table, folder = uninterrupted
        shutil.copytree(folder, tmp_path / "run")
        (tmp_path / "run" / "results.json").unlink()
        resumed = command(table, tmp_path / "run", "--resume")
        with Run(tmp_path / "run").lock():
            assert_refused(capsys, resumed, "no other process is training", str(tmp_path / "run"))
        with Run(tmp_path / "new").lock():
            assert_refused(capsys, command(table, tmp_path / "new"), "no other process is")
        assert not (tmp_path / "new").exists()

    def test_a_run_that_another_process_has_just_begun(
        self, uninterrupted, capsys, tmp_path, monkeypatch
    ):
        table, folder = uninterrupted

        class Late(Run):
            """A run that another process trains between the first look at it and the lock."""

            @contextlib.contextmanager
            def lock(self):
                shutil.copytree(folder, self.folder)
                with super().lock() as free:
                    yield free

        monkeypatch.setattr("keras_tnattn_train.runs.run.Run", Late)
        assert_refused(capsys, command(table, tmp_path / "run"), "which exists")

    def test_other_data(self, uninterrupted, capsys, tmp_path):
        _, whole = uninterrupted
        table = small_table(tmp_path / "table.csv", rows=100)
        config = from_json(ClassifyConfig, (whole / "config.json").read_text())
        run = Run(tmp_path / "run")
        run.start_or_check(config.replace(dataset=table), {})
        assert_refused(
            capsys, ["classify", "--run-dir", str(run.folder), "--resume"], "other texts"
        )

    def test_an_unreadable_checkpoint(self, uninterrupted, capsys, tmp_path):
        _, whole = uninterrupted
        folder = tmp_path / "run"
        (folder / "checkpoints").mkdir(parents=True)
        for name in ("config.json", "data.json"):
            (folder / name).write_bytes((whole / name).read_bytes())
        (folder / "checkpoints/last.npz").write_bytes(b"PK half a file")
        arguments = ["classify", "--run-dir", str(folder), "--resume"]
        assert_refused(capsys, arguments, "last.npz", "Delete it")

    @pytest.mark.parametrize(
        ("options", "parts"),
        [
            (["--dataset", "no_such_set"], ["dataset='no_such_set'"]),
            (["--text-column", "body"], ["column 'body'"]),
            (["--damping", "1.0"], ["damping=1.0"]),
            (["--test-fraction", "0.999"], ["fraction of 0.999 leaves none"]),
            (["--test-fraction", "1.5"], ["test_fraction=1.5"]),
            (["--epochs", "0"], ["epochs=0"]),
            (["--learning-rate", "0"], ["learning_rate=0"]),
            (["--learning-rate", "nan"], ["learning_rate=nan"]),
            (["--name", "../out"], ["name='../out'"]),
            (["--attention", "dpa", "--damping", "0.5"], ["damping=0.5", "attention='dpa'"]),
            (["--attention", "dpa", "--residual-dim", "8"], ["residual_dim=8", "'dpa'"]),
            (["--attention", "tn", "--num-heads", "3"], ["num_heads=3", "attention='tn'"]),
            (["--word-dropout", "1"], ["word_dropout=1"]),
            (["--recipe", "tuned", "--feedforward", "tensor_train"], ["default of recipe='tuned'"]),
        ],
    )
    def test_bad_options_leave_no_folder(self, tmp_path, capsys, options, parts):
        table = small_table(tmp_path / "table.csv")
        assert_refused(capsys, command(table, tmp_path / "runs/run", *options), *parts)
        assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]

    @pytest.mark.parametrize(
        ("content", "part"),
        [
            ("", "empty"),
            ("text,label\na,x\nb,x\n", "two classes"),
            ("text,label\n" + "?,x\n!,y\n" * 5, "without any"),
            ("text,label\na,x\nb,y\n", "two rows or more"),
        ],
    )
    def test_bad_tables_leave_no_folder(self, tmp_path, capsys, content, part):
        (tmp_path / "table.csv").write_text(content)
        arguments = command(str(tmp_path / "table.csv"), tmp_path / "runs/run")
        assert_refused(capsys, arguments, part)
        assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]

    @pytest.mark.skipif(EXPORTS, reason="the TensorFlow backend does export")
    def test_export_on_another_backend(self, tmp_path, capsys):
        table = small_table(tmp_path / "table.csv")
        arguments = command(table, tmp_path / "run", "--export")
        assert_refused(capsys, arguments, "KERAS_BACKEND=tensorflow")
        assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not EXPORTS, reason="only the TensorFlow backend exports")
class TestExport:
    def arguments(self, tmp_path, *more):
        options = ["--attention", "dpa", "--epochs", "1", "--name", "small", "--export"]
        options += ["--saved-models", str(tmp_path / "saved"), *more]
        return command(small_table(tmp_path / "table.csv"), tmp_path / "run", *options)

    def test_an_impossible_folder_is_told_before_the_training(self, tmp_path, capsys):
        (tmp_path / "saved").write_text("a file")
        assert_refused(capsys, self.arguments(tmp_path), str(tmp_path / "saved"))
        assert not (tmp_path / "run").exists()

    @pytest.mark.slow
    def test_a_failed_export_is_told_in_a_line(self, tmp_path, capsys, monkeypatch):
        def full(*_):
            raise OSError("No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr("keras_tnattn_train.exports.export", full)
            assert main(self.arguments(tmp_path)) == 2
        assert "no space left" in capsys.readouterr().err
        assert Run(tmp_path / "run").results is None
        assert main(["classify", "--run-dir", str(tmp_path / "run"), "--resume"]) == 0
        assert Run(tmp_path / "run").results["exported"] == str(tmp_path / "saved/small/1")

    @pytest.mark.slow
    def test_a_continued_run_exports_no_second_time(self, tmp_path, capsys):
        assert main(self.arguments(tmp_path)) == 0
        run = Run(tmp_path / "run")
        results = run.results
        (run.folder / "results.json").unlink()  # as if killed between the two
        assert main(["classify", "--run-dir", str(run.folder), "--resume"]) == 0
        assert run.results == results
        assert [path.name for path in (tmp_path / "saved/small").iterdir()] == ["1"]
        resume = ["classify", "--run-dir", str(run.folder), "--resume", "--saved-models"]
        assert main([*resume, str(tmp_path / "saved")]) == 0
        assert "nothing to do" in capsys.readouterr().out
        shutil.rmtree(tmp_path / "saved/small/1")  # then it is exported again
        assert main([*resume, str(tmp_path / "saved")]) == 0
        assert (tmp_path / "saved/small/1/saved_model.pb").is_file()
        assert main([*resume, str(tmp_path / "other")]) == 0  # of a finished run
        assert run.results == results | {"exported": str(tmp_path / "other/small/1")}
        assert Path(run.results["exported"]).is_dir()


LONG, TSA = [100] * 97 + [9000] * 3, {"attention": "tsa"}


class TestWordsToRead:
    def chosen(self, lengths, **options):
        return words_to_read(ClassifyConfig(**options).settings, np.array(lengths))

    @pytest.mark.parametrize(
        ("lengths", "options", "words"),
        [
            ([5, 30], {}, 200),  # never fewer: other texts may be longer
            ([100] * 99 + [150], {}, 200),
            ([100] * 199 + [3000], {}, 200),
            ([100] * 97 + [3000] * 3, {}, 3000),
            (LONG, {}, 4096),
            (LONG, {"attention": "dpa"}, 1024),
            (LONG, TSA | {"time_graph": "power_law", "exponent": 1.0}, 1024),
            (LONG, TSA | {"time_graph": "exponential"}, 1024),
            (LONG, TSA | {"time_graph": "window", "window": 9}, 4096),
            (LONG, TSA | {"time_graph": "window", "window": 4000}, 1024),
            (LONG, {"attention": "tga", "damping": 0.5}, 4096),
            (LONG, {"attention": "tn"}, 4096),
            (LONG, {"attention": "rgtn"}, 4096),
            (LONG, {"attention": "rgtn", "time_graph": "exponential"}, 1024),
            (LONG, {"attention": "none"}, 4096),
            (LONG, {"max_words": 7}, 7),
            (LONG, {"recipe": "paper"}, 200),
        ],
    )
    def test_the_training_part_decides(self, lengths, options, words):
        assert self.chosen(lengths, **options) == words

    def test_what_is_cut_off_is_told(self):
        assert what_is_read(Settings(), np.array([100, 300]), 200) == (
            "  the first 200 words of a text are read; 50.0% of the training texts are longer, and "
            "25.0% of their words are cut off"
        )
        characters = what_is_read(Settings(split="characters"), np.array([100, 300]), 300)
        assert characters == "  texts are read whole, up to 300 characters"

    def test_ids_of_many_texts_are_few(self, monkeypatch):
        monkeypatch.setattr(parts, "LARGEST_IDS", 50_000)
        assert self.chosen([3000] * 100) == 500
        assert self.chosen([3000] * 1000) == 200


def test_long_texts_of_characters_are_read_and_predicted(tmp_path, capsys):
    rng, path, run = np.random.default_rng(0), tmp_path / "t.csv", tmp_path / "run"
    # The class stands at the end, far beyond the first 200 characters, and no space before it.
    fill = ["".join(rng.choice(list("\u6211\u4eec\u662f"), 300)) for _ in range(60)]
    rows = [f"{text}{chr(0x5929 + i % 2) * 40},{'ab'[i % 2]}" for i, text in enumerate(fill)]
    path.write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")
    arguments = ["classify", "--dataset", str(path), "--attention", "none", "--epochs", "2"]
    assert main([*arguments, "--run-dir", str(tmp_path / "words")]) == 0
    printed = capsys.readouterr().out
    assert "warning: words have 340 characters" in printed
    assert main([*arguments, "--split", "characters", "--run-dir", str(run)]) == 0
    printed = capsys.readouterr().out
    assert "warning" not in printed
    assert "texts are read whole, up to 340 characters" in printed
    assert Run(run).results["test_accuracy"] == 1
    assert json.loads((run / "data.json").read_text())["max_words"] == 340
    loaded = ClassifierRun(run)
    predictions = loaded.predictor(8, 1, None)([row.partition(",")[0] for row in rows[:4]])
    assert [p[0].words[0] for p in predictions] == ["a", "b", "a", "b"]


@pytest.mark.parametrize(
    ("lengths", "row", "shown"),
    [([9, 31, 30, 12], 2, 30), ([9, 10, 12], 1, 10), ([3, 40, 35], 1, 30), ([3, 9, 4], 1, 9)],
)
def test_the_sentence_that_is_drawn_is_neither_short_nor_long(lengths, row, shown):
    ids = np.arange(1, 51) + 100 * np.arange(len(lengths))[:, None]
    ids[np.arange(50) >= np.array(lengths)[:, None]] = 0
    np.testing.assert_array_equal(_a_sentence(ids), 100 * row + np.arange(1, shown + 1))


@pytest.mark.parametrize(
    ("texts", "warns"),
    [
        (["the cat sat on the mat", "donaudampfschifffahrtsgesellschaft"], False),
        (["\u5f88\u597d\u5403\u7684\u996d\u5e97\uff0c\u6211\u559c\u6b22"], True),
        (["\u5f88 \u597d\u5403 \u7684 \u996d\u5e97"], False),
        (["thisisatextofwordswithoutanyspaces"], True),
        ([""], False),
        (["a short text", "x" * 100], True),  # 26 characters on average
        (["x" * 100, "a short text"], True),
        ([*["a short text"] * 2000, *["x" * 100] * 2000], True),
        ([*["x" * 100] * 2000, *["a short text"] * 2000], True),
        ([*["a short text"] * 3000, *["x" * 100] * 1000], False),  # 12
    ],
)
def test_texts_without_spaces_are_warned_about(texts, warns):
    assert (warning_without_spaces(texts) is not None) == warns


@pytest.mark.slow
@pytest.mark.parametrize("max_words", [[], ["--max-words", "140"]])
def test_xla_compiles_tensorized_attention_for_texts_of_many_lengths(tmp_path, max_words):
    rows = ["one", "two", "one " * 140, "two " * 140] * 3
    table = tmp_path / "table.csv"
    table.write_text("text,label\n" + "".join(f"{row},{row[:3]}\n" for row in rows))
    options = ["--epochs", "1", "--batch-size", "1", "--embedding-dim", "4", "--jit-compile", "on"]
    arguments = ["classify", "--dataset", str(table), "--attention", "tsa", *options, *max_words]
    assert main([*arguments, "--run-dir", str(tmp_path / "run")]) == 0
