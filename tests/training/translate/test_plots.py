"""Pictures of several heads: nothing is cut, and no row of panels lies on the next one."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from keras_tnattn_train.translate import plots

SOURCE = ["[START]", "1", "7", "de", "dezembro", "de", "2", "0", "0", "3", "[END]"]
TARGET = ["December", "1", "7", ",", "2", "0", "0", "3", "[END]"]


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("tokens", [None, (TARGET, SOURCE)])
def test_titles_are_in_the_picture_and_apart_from_other_panels(
    monkeypatch, tmp_path, heads, tokens
):
    figures = []
    monkeypatch.setattr(plots, "save", lambda figure, path: figures.append(figure))
    matrices = np.random.default_rng(0).random((heads, len(TARGET), len(SOURCE)))
    plots.heat_maps("E_LM", matrices, range(1, heads + 1), tmp_path / "x.png", tokens)
    (figure,) = figures
    assert figure.get_figwidth() <= plots.MAX_WIDTH
    figure.set_dpi(120)  # in which it is written
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    panels = [axes for axes in figure.axes if axes.get_title()]
    assert len(panels) == heads
    boxes = [axes.get_tightbbox(renderer) for axes in panels]
    for n, box in enumerate(boxes):
        assert figure.bbox.y0 <= box.y0
        assert box.y1 <= figure.bbox.y1
        assert not any(box.overlaps(other) for other in boxes[:n])
