"""`keras_tnattn.text` lists what is public; words need no TensorFlow."""

import pytest
from import_path import run_python


def test_what_is_listed_is_there():
    pytest.importorskip("tensorflow_text")
    from keras_tnattn import text

    for name in text.__all__:
        assert getattr(text, name).__name__ == name
        assert name in dir(text)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = text.nothing


def test_the_package_and_its_words_need_no_tensorflow():
    pytest.importorskip("jax")
    code = (
        "import sys; sys.modules['tensorflow'] = sys.modules['tensorflow_text'] = None;"
        "from keras_tnattn.text import learn_words; print(learn_words(['b a a']).get_vocabulary())"
    )
    assert run_python("-c", code, backend="jax").stdout.strip() == "['', '[UNK]', 'a', 'b']"
