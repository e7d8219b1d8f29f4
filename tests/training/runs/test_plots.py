"""Pictures."""

from matplotlib.figure import Figure

from keras_tnattn_train.runs.plots import save


def test_characters_that_the_font_lacks_are_no_warnings(tmp_path):
    figure = Figure(layout="constrained")
    figure.subplots().set_title("\U0001f600 \u4e2d\u6587")  # warnings are errors in tests
    save(figure, tmp_path / "title.png")
    assert (tmp_path / "title.png").read_bytes().startswith(b"\x89PNG")
