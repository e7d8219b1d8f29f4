"""Pictures."""

import pytest
from matplotlib.figure import Figure

from keras_tnattn_train.runs.plots import distinct_colors, save


def test_characters_that_the_font_lacks_are_no_warnings(tmp_path):
    figure = Figure(layout="constrained")
    figure.subplots().set_title("\U0001f600 \u4e2d\u6587")  # warnings are errors in tests
    save(figure, tmp_path / "title.png")
    assert (tmp_path / "title.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("count", [0, 1, 10, 11, 20, 21, 40])
def test_no_two_series_share_a_color(count):
    colors = distinct_colors(count)
    assert len(set(map(tuple, colors))) == len(colors) == count
