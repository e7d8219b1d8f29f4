"""Options, declared once: values, JSON, the command line and `--help`."""

import json
import re
from pathlib import Path

import pydantic
import pytest
from import_path import run_python
from run_folders import assert_refused

from keras_tnattn.models.attentions import ATTENTIONS
from keras_tnattn_train import compress, predict, programs
from keras_tnattn_train.classify.config import ClassifyConfig
from keras_tnattn_train.cli import train as main
from keras_tnattn_train.commands import RunOptions, app_of, run_to_train
from keras_tnattn_train.options.attentions import registered_attentions
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.options.options import (
    DATA,
    IN_PLACE,
    MODEL,
    Options,
    choices,
    extras,
    interval,
    option,
)
from keras_tnattn_train.rules.config import RulesConfig
from keras_tnattn_train.runs.run import Run, from_json, to_json
from keras_tnattn_train.tasks import task_commands
from keras_tnattn_train.translate import evaluate, explain
from keras_tnattn_train.translate.config import TranslateConfig
from keras_tnattn_train.translate.models import build_translator

ROOT = Path(__file__).resolve().parents[3]
COMMANDS = task_commands()
CONFIGS = (ClassifyConfig, RulesConfig, TranslateConfig)


class Example(Options):
    """An option of each kind."""

    count: int = option(2, DATA, "a count", ge=1, le=5)
    share: float = option(0.5, DATA, "a share", gt=0, lt=1)
    kind: str = option("a", MODEL, "a kind", choices=("a", "b"))
    kinds: tuple[str, ...] = option(("a",), MODEL, "kinds", choices=("a", "b"))
    bits: int | None = option(None, MODEL, "bits", choices=(8, 4))
    patience: int | None = option(None, DATA, "a patience", ge=1)
    flag: bool = option(False, DATA, "a flag")
    double: int = option(lambda values: 2 * values["count"], DATA, "computed", le=8)


class TestValues:
    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"count": 0}, "Expected count to be an integer from 1 to 5. Received: count=0"),
            ({"count": 6}, "integer from 1 to 5. Received: count=6"),
            ({"count": "2"}, "integer from 1 to 5. Received: count='2'"),
            ({"count": True}, "integer from 1 to 5. Received: count=True"),
            ({"count": None}, "integer from 1 to 5. Received: count=None"),
            ({"share": 0}, "share to be a number > 0 and < 1. Received: share=0"),
            ({"share": 1.0}, "Received: share=1.0"),
            ({"share": float("nan")}, "Received: share=nan"),
            ({"kind": "c"}, "Expected kind to be one of a, b. Received: kind='c'"),
            ({"kind": 3}, "Expected kind to be one of a, b. Received: kind=3"),
            ({"kinds": ("a", "c")}, "Received: kinds=('a', 'c')"),
            ({"bits": 5}, "Expected bits to be one of 8, 4. Received: bits=5"),
            ({"patience": 0}, "patience to be an integer >= 1. Received: patience=0"),
            ({"flag": "maybe"}, "Expected flag to be true or false. Received: flag='maybe'"),
            ({"count": 5}, "Received: double=10"),
            ({"counts": 3}, "Unknown option 'counts' of Example"),
        ],
    )
    def test_what_is_refused(self, values, message):
        with pytest.raises(InputError) as error:
            Example(**values)
        assert message in str(error.value)

    def test_what_is_allowed(self):
        example = Example(bits=4, count=4, kind="b", kinds=("b", "a"), patience=1, flag=True)
        assert (example.double, example.share, example.patience) == (8, 0.5, 1)
        assert example.replace(double=3).double == 3
        with pytest.raises(pydantic.ValidationError):
            example.count = 3

    @pytest.mark.parametrize("kind", CONFIGS)
    def test_json(self, kind):
        config = kind()
        assert from_json(kind, to_json(config)) == config
        assert set(json.loads(to_json(config))) == {*kind.model_fields, "command"}

    @pytest.mark.parametrize("text", ["[1]", "3", "{", '"options"'])
    def test_no_options_at_all(self, text):
        with pytest.raises(InputError, match="Expected the options of a run as"):
            from_json(ClassifyConfig, text)

    @pytest.mark.parametrize("kind", CONFIGS)
    def test_every_size_has_a_bound(self, kind):
        for name, field in kind.model_fields.items():
            if field.annotation in (int, int | None):
                assert interval(field).startswith("from "), name


WINDOW = ["--time-graph", "window", "--window", "2"]


class TestCommandLine:
    @pytest.mark.parametrize(
        ("options", "part"),
        [
            (["--num-heads", "1000"], "num_heads=1000"),
            (["--filter-order", "1000000"], "filter_order=1000000"),
            (["--epochs", "99999999999999999999"], "epochs=99999999999999999999"),
            (["--batch-size", "1000000000000"], "batch_size=1000000000000"),
            (["--max-words", "100000000000"], "max_words=100000000000"),
            (["--max-words", "0"], "max_words=0"),
            (["--vocabulary-size", "2"], "vocabulary_size=2"),
            (["--tt-ranks", "0"], "tt_ranks=0"),
            (["--damping", "-0.1"], "damping=-0.1"),
            (["--attention", "tsa", "--time-graph", "window"], "time_graph='window', window=None"),
            (["--attention", "tsa", "--exponent", "2.0"], "time_graph='geometric', exponent=2.0"),
            (["--attention", "dpa", "--time-graph", "exponential"], "time_graph=exponential"),
            (["--attention", "tsa", *WINDOW, "--damping", "0.5"], "damping=0.5"),
            (["--embedding-tt-ranks", "3"], "embedding_tt_ranks=3"),
            (["--seed", "-1"], "seed=-1"),
            (["--name", "é" * 101], "at most 200 bytes. Received: 202 bytes"),
            (["--jit-compile", "maybe"], '"maybe" for --jit-compile'),
            (["--attention", "nothing"], '"nothing" for --attention'),
            (["--epochs", "3.5"], "--epochs: expected an integer, received '3.5'"),
            (["--epochs"], "--epochs requires an argument"),
            (["--epoch-s", "3"], "Unknown option: --epoch-s"),
            (["table.csv"], "table.csv"),
            (["--dataset", "ruters"], "Did you mean reuters?"),
            (["--dataset", "folder/none.csv"], "There is no file or folder 'folder/none.csv'"),
            (["--dataset", "none.csv"], "There is no file or folder 'none.csv'"),
        ],
    )
    def test_what_is_refused(self, options, part, capsys, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert_refused(capsys, ["classify", *options], part)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("options", "part"),
        [
            (["--corpus", "folder/none.tsv"], "There is no file or folder 'folder/none.tsv'"),
            (["--corpus", "none.pt,none.en"], "There is no file 'none.pt'"),
            (["--corpus", "multi30k_pt-en"], "Did you mean multi30k_pt_en?"),
            (["--corpus", "multi30k_pt_en"], "--data-dir"),
            (["--corpus", "ted_hrlr_pt_en", "--data-dir", f"{ROOT}/tests/data/sets"], "train.tsv"),
            (["--num-heads", "1000"], "num_heads=1000"),
            (["--export-beam", "2"], "export_beam=2"),
        ],
    )
    def test_what_translate_refuses(self, options, part, capsys, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert_refused(capsys, ["translate", *options], part)
        assert list(tmp_path.iterdir()) == []

    def test_an_unknown_command(self, capsys):
        commands = ", ".join(["Expected one of classify", *(c.name for c in COMMANDS[1:])])
        assert_refused(capsys, ["paint"], '"paint". ', f"{commands}. See --help")

    def test_an_option_that_is_nearly_right(self, capsys):
        known = "Unknown option: --epoch. Did you mean --epochs? See --help\n"
        assert_refused(capsys, ["classify", "--epoch", "3"], known)

    def test_lists_and_repetitions(self):
        arguments = ["translate", "--checkpoint-epochs", "3", "4"]
        app = app_of("train", "Trains.", COMMANDS)
        start = app([*arguments, "--epochs", "5", "--epochs=6"], exit_on_error=False)
        assert start.args[0] == {"checkpoint_epochs": (3, 4), "epochs": 6}

    def test_neither_an_error_nor_help_loads_tensorflow(self, tmp_path):
        table = tmp_path / "table.csv"
        table.write_text("text,label\n" + "a,x\nb,y\n" * 30)
        code = (
            "import sys; from keras_tnattn_train.cli import main;"
            "from keras_tnattn_train import compress, predict;"
            "from keras_tnattn_train.translate.evaluate import PROGRAM as evaluate;"
            "from keras_tnattn_train.translate.explain import PROGRAM as explain;"
            "assert all(main([p, '--help']) == 0 for p in ('evaluate', 'explain'));"
            "assert all(p(['--help']) == 0 for p in (compress.main, predict.main, evaluate));"
            "assert all(p(['a', 'b', '--beam', '0']) == 2 for p in (predict.main, explain));"
            "assert evaluate(['a', '--beam', '0']) == 2;"
            "assert main(['classify', '--damping', '1']) == 2;"
            "assert main(['translate', '--corpus', 'none.tsv']) == 2;"
            "assert main(['translate', '--help']) == 0;"
            "slow = {'tensorflow', 'keras', 'sklearn', 'scipy', 'matplotlib'} & set(sys.modules);"
            "assert not slow, slow;"
            f"arguments = ['classify', '--dataset', {str(table)!r}, '--test-fraction', '0.999'];"
            "assert main(arguments) == 2;"
            "assert not {'tensorflow', 'keras'} & set(sys.modules)"
        )
        expected = "a fraction of 0.999 leaves none. Give a smaller fraction"
        assert expected in run_python("-c", code).stderr

    def test_data_need_no_option(self, capsys):
        for command in ("classify", "translate", "language"):
            assert_refused(capsys, [command, "none.csv"], "none.csv")
        assert main(["classify", "none.csv", "other.csv"]) == 2
        error = capsys.readouterr().err
        assert error == "error: Expected options, --NAME VALUE. Received: other.csv. See --help\n"


def assert_described(name, field, text):
    assert " ".join(field.description.split()) in text, name
    assert interval(field) in text, name
    assert ", ".join(map(str, choices(field))) in text, name


class TestHelp:
    @pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
    def test_it_derives_from_the_declarations(self, command, capsys):
        assert main([command.name, "--help-all"]) == 0
        text = " ".join(capsys.readouterr().out.replace("│", " ").split())
        for name, field in command.options.items():
            assert f"--{name.replace('_', '-')} " in text, name
            assert_described(name, field, text)
        example = command.examples.strip().splitlines()[-1].strip()
        assert " ".join(example.split()) in text

    @pytest.mark.parametrize("program", [programs.evaluate, programs.explain])
    def test_of_the_programs_for_runs(self, program, capsys):
        assert program(["--help"]) == 0
        text = capsys.readouterr().out
        assert all(words in " ".join(text.split()) for words in ("RUN --help", "--help-all."))
        assert program(["--help-all"]) == 0
        text = capsys.readouterr().out
        assert re.findall("Of a run of (.*):", text) == ["classify", "translate"]
        assert ("--beam" if program is programs.evaluate else "--out") in text

    @pytest.mark.parametrize(
        ("program", "kind"),
        [
            (compress.main, compress.CompressOptions),
            (predict.main, predict.PredictOptions),
            (evaluate.PROGRAM, evaluate.EvaluateOptions),
            (explain.PROGRAM, explain.ExplainOptions),
        ],
    )
    def test_of_the_programs_for_trained_models(self, program, kind, capsys):
        assert program(["--help"]) == 0
        brief = capsys.readouterr().out
        assert len(brief.splitlines()) < 68
        has_more = bool(getattr(program, "first", ()))
        assert ("--help-all" in brief) == has_more
        assert program(["--help-all" if has_more else "--help"]) == 0
        text = " ".join(capsys.readouterr().out.replace("│", " ").split())
        for name, field in kind.model_fields.items():
            positional = extras(field)["given"] == IN_PLACE
            word = name.upper() if positional else f"--{name.replace('_', '-')} "
            assert word in text, name
            assert_described(name, field, text)

    def test_groups_and_defaults(self, capsys):
        main(["classify", "--help-all"])
        text = capsys.readouterr().out
        titles = [text.index(f"─ {name} ─") for name in ("run", "data", "model", "training")]
        assert titles == sorted(titles)
        assert "[default: 20000]" in " ".join(text.replace("│", " ").split())
        assert "--no-export" not in text

    @pytest.mark.parametrize("command", [c for c in COMMANDS if c.first], ids=lambda c: c.name)
    def test_is_one_screen_of_the_first_options(self, command, capsys):
        assert set(command.first) < set(command.options)
        assert main([command.name, "--help"]) == 0
        text = capsys.readouterr().out
        shown = re.findall(r"│ (?:[A-Z]+ )?--([a-z-]+)", text)
        assert sorted(name.replace("-", "_") for name in shown) == sorted(command.first)
        assert len(shown) <= 10
        assert f"{command.name} --help-all" in text
        assert len(text[: text.index("example")].splitlines()) <= 50

    def test_the_commands(self, capsys):
        assert main(["--help"]) == 0
        text = capsys.readouterr().out
        assert all(f" {command.name} " in text for command in COMMANDS)


class TestResuming:
    @pytest.fixture
    def folder(self, tmp_path):
        config = TranslateConfig(name="mine", epochs=30, export=True, attention="sdpa")
        Run(tmp_path / "run").start_or_check(config, {})
        return tmp_path / "run"

    def options(self, folder):
        return RunOptions(run_dir=str(folder), resume=True)

    def test_the_options_are_those_of_the_run(self, folder):
        config, run = run_to_train(TranslateConfig, {}, self.options(folder))
        assert (config.name, config.epochs, config.preset) == ("mine", 30, "sdpa-small")
        assert run.folder == folder

    # On its own, `export_beam` is refused: there is no export.
    def test_options_given_again_need_not_be_complete(self, folder):
        given = {"cooldown_epochs": 0, "export_beam": 4}
        config, _ = run_to_train(TranslateConfig, given, self.options(folder))
        assert config.export_beam == 4

    def test_another_value_is_refused(self, folder):
        with pytest.raises(InputError, match=r"epochs=30.*Received: epochs=20"):
            run_to_train(TranslateConfig, {"epochs": 20}, self.options(folder))

    def test_a_renamed_run_is_found_by_its_new_name(self, folder, monkeypatch):
        monkeypatch.chdir(folder.parent)
        (folder.parent / "runs").mkdir()
        folder.rename(folder.parent / "runs/new")
        config, run = run_to_train(TranslateConfig, {"name": "new"}, RunOptions(resume=True))
        assert (run.folder, config.name) == (Path("runs/new"), "new")

    def test_a_missing_run_names_the_way_out(self, tmp_path):
        with pytest.raises(InputError, match="--run-dir"):
            run_to_train(TranslateConfig, {"name": "old"}, RunOptions(resume=True))

    def test_a_finished_run_is_trained_for_another_export_alone(self, folder, capsys):
        run = Run(folder)
        run.finish({"loss": 1.0})
        config, _ = run_to_train(TranslateConfig, {}, self.options(folder)) or (None, None)
        assert config is None
        assert "nothing to do" in capsys.readouterr().out
        config, _ = run_to_train(TranslateConfig, {"export_beam": 2}, self.options(folder))
        assert config.export_beam == 2
        note = {"options": config.export_options, "version": 1}
        (run.folder / "export.json").write_text(json.dumps(note))
        run.finish({"loss": 1.0, "exported": str(folder)})
        assert run_to_train(TranslateConfig, {"export_beam": 2}, self.options(folder)) is None
        run.finish({"loss": 1.0, "exported": str(folder / "deleted")})
        assert run_to_train(TranslateConfig, {"export_beam": 2}, self.options(folder)) is not None

    @pytest.mark.parametrize(
        ("name", "value", "part"),
        [
            ("epochs", "30", "epochs='30'"),
            ("epochs", [30], r"epochs=\[30\]"),
            ("dropout", "much", "dropout='much'"),
            ("name", 3, "Expected name to be a string"),
            ("checkpoint_epochs", 3, "Expected checkpoint_epochs to be a list of integers"),
            ("color", "red", "Unknown option 'color'"),
        ],
    )
    def test_a_field_of_the_wrong_type(self, folder, name, value, part):
        path = folder / "config.json"
        values = json.loads(path.read_text())
        path.write_text(json.dumps({**values, name: value}))
        with pytest.raises(InputError, match=rf"config\.json is not usable.*{part}"):
            run_to_train(TranslateConfig, {}, self.options(folder))


def test_the_attentions_are_those_of_the_library():
    expected = {name: entry.summary for name, entry in ATTENTIONS.items()}
    assert registered_attentions() == expected
    assert choices(ClassifyConfig.model_fields["attention"]) == tuple(ATTENTIONS)
    assert choices(TranslateConfig.model_fields["encoder_attention"]) == tuple(ATTENTIONS)
    causal = tuple(name for name, entry in ATTENTIONS.items() if entry.can_be_causal)
    assert choices(TranslateConfig.model_fields["decoder_attention"]) == causal


@pytest.mark.parametrize("fact", ["has_heads", "takes_memory", "can_be_causal", "tensor_tokens"])
def test_the_attentions_can_be_chosen_by_what_the_library_says_of_them(fact):
    for value in (True, False):
        expected = {name for name, entry in ATTENTIONS.items() if getattr(entry, fact) is value}
        assert expected or fact == "can_be_causal"  # all can
        assert set(registered_attentions(**{fact: value})) == expected


def test_the_translator_of_the_options_of_its_model():
    kinds = {"attention": "sdpa", "encoder_attention": "tsa", "decoder_attention": "rgtn"}
    kinds |= {"feedforward": "tensor_train", "position_encoding": "learned"}
    sizes = {"max_length": 20, "model_dim": 16, "feedforward_dim": 32, "num_heads": 2}
    config = TranslateConfig(**kinds, **sizes)
    assert config.name == "cldr_pt-en-sdpa-small-encoder-tsa-decoder-rgtn-tt-learned-0"
    model = build_translator(config, (30, 40))
    classes = {type(layer).__name__ for layer in model._flatten_layers()}
    assert {"TensorizedSpectralAttention", "GraphTensorNetwork"} <= classes
    assert {"TTDense", "LearnedPositionEncoding"} <= classes
    with pytest.raises(InputError, match=r"learned.*prepared='folder' alone"):
        TranslateConfig(prepared="folder", position_encoding="learned")


@pytest.mark.parametrize("values", [(), ("tsa", "tsa")])
def test_a_list_of_choices_has_one_or_more_different_values(values):
    class Listed(Options):
        attentions: tuple[str, ...] = option(("tsa",), MODEL, "which", choices=("tsa", "dpa"))
        blocks: tuple[int, ...] = option((), MODEL, "which (default: all)")

    assert Listed(attentions=("tsa", "dpa"), blocks=()).blocks == ()
    received = " ".join(values)
    with pytest.raises(InputError, match=f"different attentions.*attentions={received}$"):
        Listed(attentions=values)
    with pytest.raises(InputError, match="blocks=1 1"):
        Listed(blocks=(1, 1))
