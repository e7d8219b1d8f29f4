"""`keras_tnattn.text` lists what is public; words need no TensorFlow."""

import os
import subprocess
import sys

import pytest


def test_what_is_listed_is_there():
    pytest.importorskip("tensorflow_text")
    from keras_tnattn import text

    for name in text.__all__:
        assert getattr(text, name).__name__ == name
        assert name in dir(text)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = text.nothing


def test_words_need_no_tensorflow():
    pytest.importorskip("jax")
    code = (
        "import sys; sys.modules['tensorflow'] = sys.modules['tensorflow_text'] = None;"
        "from keras_tnattn.text import learn_words; print(learn_words(['b a a']).get_vocabulary())"
    )
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['', '[UNK]', 'a', 'b']"
