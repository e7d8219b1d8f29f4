import dataclasses

import keras
import pytest

if keras.backend.backend() != "tensorflow":  # which alone exports texts
    collect_ignore_glob = ["test_*.py"]


# Folders that the tests of several files read: an export takes seconds. None may change them.


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory):
    from translator_runs import make_run

    return make_run(tmp_path_factory.mktemp("translator") / "run", "sdpa")[1].tokenizers


@pytest.fixture(scope="session")
def written_translator(tokenizers, tmp_path_factory):
    """The folder of a translator for ONNX Runtime."""
    from portable_models import talkative

    from keras_tnattn_train.exports import Portable, Translator, export

    pytest.importorskip("onnxruntime")
    task = Translator(talkative(*tokenizers, "sdpa"), *tokenizers, beam_size=2, extra_tokens=5)
    return export(task, tmp_path_factory.mktemp("portable") / "folder", Portable("onnxruntime"))


@pytest.fixture(scope="session")
def written_language_model(tmp_path_factory):
    """The folder of a language model for ONNX Runtime."""
    from language_models import TOKENS, small_language_model

    from keras_tnattn_train.exports import LanguageModel, Portable, export

    pytest.importorskip("onnxruntime")
    task = LanguageModel(
        small_language_model("sdpa"), dataclasses.asdict(TOKENS), {"examples": ["abc"]}
    )
    return export(task, tmp_path_factory.mktemp("portable") / "folder", Portable("onnxruntime"))
