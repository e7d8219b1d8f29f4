"""The demo of classification, which trains, exports and serves."""

import subprocess

import pytest
from run_folders import EXPORTS

from keras_tnattn_train.data.texts import docstrings
from keras_tnattn_train.demos import classify as demo
from keras_tnattn_train.options.errors import exit_status


def test_the_server_is_quiet_unless_it_fails(tmp_path, capfd):
    code = "import sys; print('noise', file=sys.stderr); print(sys.argv[2])"
    demo.serve(tmp_path, code, ["hi"])
    assert capfd.readouterr() == ("hi\n", "")
    with pytest.raises(subprocess.CalledProcessError):
        demo.serve(tmp_path, "import sys; sys.exit('no such model')", ["hi"])
    assert "no such model" in capfd.readouterr().err


@pytest.mark.skipif(not EXPORTS, reason="only the TensorFlow backend exports")
@pytest.mark.slow
def test_the_demo_trains_exports_and_serves(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(docstrings, "LIBRARIES", ("python", "matplotlib", "sklearn"))
    monkeypatch.setattr(docstrings, "TEXTS_PER_LIBRARY", 20)
    monkeypatch.delitem(demo.MODELS, "docstrings-ada")
    # XLA would take longer to compile than all else here.
    cheap = "classify --dataset docstrings --epochs 1 --max-words 20 --jit-compile off"
    monkeypatch.setattr(demo, "COMMAND", f"{cheap} --recipe paper")
    assert exit_status(demo.run) == 0
    first = capfd.readouterr().out
    assert "keras_tnattn imported: False" in first
    assert all(sentence in first for sentence in demo.SENTENCES)
    assert (tmp_path / "saved_models/docstrings/1/saved_model.pb").is_file()
    assert (tmp_path / "runs/demo/docstrings/psi.png").is_file()

    assert exit_status(demo.run) == 0
    again = capfd.readouterr().out
    assert "epoch 1 of" not in again
    assert again.endswith(first[first.index("\n\n|") :])
    assert len(list((tmp_path / "saved_models/docstrings").iterdir())) == 1
