"""The claims of `make demo-translate`, whole: eight minutes on two cores."""

import pytest
from import_path import run_python
from run_folders import EXPORTS

from keras_tnattn_train.demos.translate import SENTENCES


@pytest.mark.slow
@pytest.mark.skipif(not EXPORTS, reason="only the TensorFlow backend exports")
def test_demo(tmp_path):
    done = run_python("-m", "keras_tnattn_train.demos.translate", cwd=tmp_path)
    table = (tmp_path / "runs/demo-translate/table.md").read_text()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    figures = {row[0]: (float(row[2]), float(row[3])) for row in rows[2:]}
    bleu, exact = figures["PLGA"]
    assert bleu >= 95
    assert exact >= 90
    assert figures["SDPA"][0] > 90
    assert all(f"  {sentence}  ->  " in done.stdout for sentence in SENTENCES)
    assert "keras_tnattn imported: False" in done.stdout
    drawn = [*(tmp_path / "runs/demo-translate/plga-pt-en/explained").rglob("*.png")]
    assert {path.parent.name for path in drawn} >= {
        "encoder_0",
        "decoder_0.self",
        "decoder_0.cross",
    }
