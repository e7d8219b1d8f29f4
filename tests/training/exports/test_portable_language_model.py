"""Folders that continue texts, read without Keras and TensorFlow."""

import dataclasses
import functools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from language_models import TOKENS, small_language_model
from portable_models import HOSTILE, HOSTILE_SENTENCES, RUNTIMES, printed_alone
from slow_cases import slow_but

from keras_tnattn.search import Generator
from keras_tnattn_runtime import reader
from keras_tnattn_train.exports import LanguageModel, Page, Portable, export
from keras_tnattn_train.language.tokens import END, Tokens

# Keys and values, nothing at all, a window, a vector, a matrix.
ATTENTIONS = {
    "sdpa": {},
    "plga": {"residual_units": 1, "residual_dim": 8},
    "causal plga": {"causal_metric": True, "residual_units": 1, "residual_dim": 8},
    "tsa": {},
    "rgtn": {},
    "tn": {},
}


def model_of(name):
    return small_language_model(name.split()[-1], **ATTENTIONS[name])


@pytest.fixture(scope="module")
def written_to(written_language_model, tmp_path_factory):
    """A function that returns the folder of a language model for a runtime."""

    @functools.cache
    def folder_of(name, runtime):
        if (name, runtime) == ("sdpa", "onnxruntime"):
            return written_language_model
        pytest.importorskip(RUNTIMES[runtime])
        folder = tmp_path_factory.mktemp("portable") / "folder"
        card = {"examples": ["abc"]}
        task = LanguageModel(model_of(name), dataclasses.asdict(TOKENS), card)
        return export(task, folder, Portable(runtime))

    return folder_of


@functools.cache  # with what it traced
def generator(name, **options):
    return Generator(model_of(name), end_id=END, **options)


def expected(name, prompt, seed=0, **options):
    generate = generator(name, **options)
    generate.seed = seed
    return TOKENS.decode(generate([TOKENS.prompt(prompt)]).ids[0])


@pytest.mark.parametrize("runtime", slow_but(["onnxruntime"], RUNTIMES))
@pytest.mark.parametrize("name", slow_but(["sdpa"], ATTENTIONS))
def test_the_reader_continues_as_the_model(name, runtime, written_to):
    folder = written_to(name, runtime)
    suffix = ".onnx" if runtime == "onnxruntime" else ".tflite"
    parts = ["prompt"] if name == "plga" else ["prompt", "step"]
    files = {"text.json", "reader.py", *(f"{part}{suffix}" for part in parts)}
    assert {path.name for path in folder.iterdir()} == files
    loaded = reader.load(folder, threads=1)
    prompts = ["", "a", "bad cabbage"]
    for temperature in (0.0, 3.0):
        wanted = [
            expected(name, prompt, max_new_tokens=25, temperature=temperature) for prompt in prompts
        ]
        assert loaded(prompts, max_tokens=25, temperature=temperature) == wanted
    assert len(set("".join(wanted))) > 1


@pytest.mark.parametrize(
    "options",
    [
        *slow_but(
            [{"temperature": 2.0, "top_p": 0.6}],
            [
                {"temperature": 1.5},
                {"temperature": 2.0, "top_k": 3},
                {"temperature": 2.0, "top_p": 0.6},
                {"temperature": 2.0, "min_p": 0.3},
                {"repetition_penalty": 3.0},
            ],
        ),
        {"temperature": 1.0, "top_k": 8, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.2},
    ],
)
def test_the_options_are_those_of_the_generator(options, written_to):
    loaded = reader.load(written_to("sdpa", "onnxruntime"))
    for seed in (0, 1):
        text = loaded("bad ", max_tokens=20, seed=seed, **options)
        assert text == expected("sdpa", "bad ", max_new_tokens=20, seed=seed, **options)
    assert text != loaded("bad ", max_tokens=20)


def test_a_stop_and_the_end_of_the_document(written_to):
    loaded = reader.load(written_to("sdpa", "onnxruntime"))
    whole = loaded("bad ", max_tokens=20)
    stop = whole[3:6]
    end = whole.find(stop) + len(stop)
    assert loaded("bad ", max_tokens=20, stop=stop) == whole[:end]
    assert list(loaded.stream("bad ", max_tokens=20)) == list(whole)
    run = loaded._run

    def ending(ids, count):
        for n, (logits, *rest) in enumerate(run(ids, count)):
            yield logits + 1e6 * (np.arange(len(logits)) == END) * (n == 4), *rest

    loaded._run = ending
    assert loaded("bad ", max_tokens=20) == whole[:4]


def test_texts_come_one_after_the_other(written_to):
    loaded = reader.load(written_to("sdpa", "onnxruntime"))
    calls = []
    loaded._step, step = lambda **x: calls.append(1) or step(**x), loaded._step
    texts = loaded.stream("bad ", max_tokens=10)
    next(texts), next(texts), next(texts)
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 0}, "Received: max_tokens=0"),
        ({"max_tokens": 40}, "reads, 40.*Received: max_tokens=40"),
        ({"max_tokens": 38}, "at most 2 tokens, as the model reads 40.*Received: 4"),
        ({"temperature": -1.0}, "Received: temperature=-1.0"),
        ({"top_k": 0}, "Received: top_k=0"),
        ({"top_p": 0}, "Received: top_p=0"),
        ({"min_p": 1.5}, "Received: min_p=1.5"),
        ({"repetition_penalty": 0}, "Received: repetition_penalty=0"),
        ({"seed": -1}, "Received: seed=-1"),
        ({"top_p": float("nan")}, "Received: top_p=nan"),
        ({"stop": ["a"]}, r"Expected a text. Received: stop=\['a'\]"),
    ],
)
def test_options_out_of_range(options, message, written_to):
    loaded = reader.load(written_to("sdpa", "onnxruntime"))
    with pytest.raises(ValueError, match=message):
        loaded.stream("bad ", **options)  # before the first text


def test_unknown_characters_are_named(written_to):
    with pytest.raises(ValueError, match="Received: '京' '東'"):
        reader.load(written_to("sdpa", "onnxruntime"))("a東京")


def test_needs_numpy_and_a_runtime_only(written_to):
    printed = printed_alone(written_to("sdpa", "onnxruntime"), "model('bad ', max_tokens=9)")
    assert printed == expected("sdpa", "bad ", max_new_tokens=9)


TEXTS = [*HOSTILE, *HOSTILE_SENTENCES, "it's  the\n\n  cat's 'll 12three4 -- 's"]


@pytest.fixture(scope="module")
def pieces():
    pytest.importorskip("tokenizers")
    return Tokens.learn("pieces", TEXTS, 500)


@pytest.mark.slow
def test_the_reader_is_a_program(written_to):
    program = [sys.executable, str(written_to("sdpa", "onnxruntime") / "reader.py")]
    options = {"capture_output": True, "text": True, "check": True}
    # As many tokens as the model still reads.
    texts = [expected("sdpa", prompt, max_new_tokens=40 - len(prompt)) for prompt in ("bad ", "a")]
    assert subprocess.run([*program, "bad ", "a"], **options).stdout == "\n".join([*texts, ""])
    assert subprocess.run(program, input="bad \na\n", **options).stdout == "\n".join([*texts, ""])
    done = subprocess.run([*program, "Z"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.endswith("Received: 'Z'\n")
    assert done.stderr.startswith("error: ")
    assert subprocess.run([*program, "--help"], **options).stdout.startswith("usage:")


class TestTokens:
    @pytest.mark.parametrize("kind", ["characters", "bytes", "pieces"])
    def test_hostile_texts_have_the_ids_of_training(self, kind, pieces):
        tokens = pieces if kind == "pieces" else Tokens.learn(kind, TEXTS)
        other = reader.Tokens(**dataclasses.asdict(tokens))
        assert other.size == tokens.vocabulary_size
        for text in TEXTS:
            ids = tokens.encode(text).tolist()
            assert other.ids(text) == ids
            assert "".join(map(other.decoder(), ids)) == tokens.decode(ids) == text

    @settings(max_examples=300, deadline=None)
    @given(text=st.text(st.characters(exclude_categories=["Cs"])) | st.text(" \n'sda1é-\u3000"))
    def test_any_text_has_the_pieces_of_training(self, pieces, text):
        other = reader.Tokens(**dataclasses.asdict(pieces))
        assert other.ids(text) == pieces.encode(text).tolist()


@pytest.mark.slow
def test_a_file_that_computes_something_else_is_refused(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    whole = reader.LanguageModel.logits
    monkeypatch.setattr(
        reader.LanguageModel, "logits", lambda *x: (logits[::-1] for logits in whole(*x))
    )
    task = LanguageModel(model_of("sdpa"), dataclasses.asdict(TOKENS))
    with pytest.raises(RuntimeError, match="continues '' in another way than the model"):
        export(task, tmp_path / "new", Portable())
    assert not list(tmp_path.iterdir())


def test_other_numbers_of_tokens_and_runtimes_are_refused(tmp_path):
    task = LanguageModel(model_of("sdpa"), {"kind": "characters", "characters": "ab"})
    with pytest.raises(ValueError, match=r"of 5 ids.*vocabulary_size=13"):
        export(task, tmp_path / "new", Portable())
    task = dataclasses.replace(task, tokens=dataclasses.asdict(TOKENS))
    with pytest.raises(ValueError, match="runtime='tensorrt'"):
        export(task, tmp_path / "new", Portable("tensorrt"))
    with pytest.raises(ValueError, match=r"Version or Portable of a language model.*Page\("):
        export(task, tmp_path / "new", Page())
    with pytest.raises(ValueError, match=r"at least one engine.*engines=\(\)"):
        export(task, tmp_path / "new")
    assert not list(tmp_path.iterdir())


def test_min_p_is_a_share_of_the_largest_probability():
    logits = np.log(np.array([0.1, 0.6, 0.3], "float32"))
    # Of 0.6 and 0.3 alone, the second one has the last third.
    for noise, expected in ((0.6, 1), (0.7, 2), (0.99, 2)):
        assert reader._draw(logits, noise, None, None, 0.4) == expected
