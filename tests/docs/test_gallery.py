"""The gallery shows a picture of its own for each result, whose words can be read."""

import re
import sys
from pathlib import Path

import pytest

Image = pytest.importorskip("PIL.Image")
DOCS = Path(__file__).resolve().parents[2] / "docs"
sys.path.append(str(DOCS))

from draw_thumbnails import DIMENSIONS, PARTS, SIZE, THUMBNAILS  # noqa: E402  after the path is set

SHOWN = re.findall(r"\(pictures/(\S+)\.png\)", (DOCS / "gallery.md").read_text("utf-8"))


def size_of(path):
    with Image.open(path) as picture:
        return picture.size


def test_every_thumbnail_is_shown_once():
    drawn = sorted(f"thumbnails/{path.stem}" for path in THUMBNAILS.glob("*.png"))
    assert sorted(SHOWN) == drawn
    assert len({(DOCS / "pictures" / f"{name}.png").read_bytes() for name in SHOWN}) == len(SHOWN)


def test_no_thumbnail_is_made_much_smaller_than_its_picture():
    for name, (left, top, right, bottom) in PARTS.items():
        width, height = size_of(DOCS / "pictures" / f"{name}.png")
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
        # Letters of 16 pixels then have 7 where the gallery shows them smallest, 256 pixels wide.
        assert max((right - left) / SIZE[0], (bottom - top) / SIZE[1]) < 1.28, name
    assert {size_of(path) for path in THUMBNAILS.glob("*.png")} == {SIZE}


def test_the_text_has_the_dimensions_of_the_picture():
    text = (DOCS / "gallery.md").read_text("utf-8")
    assert f"with {min(DIMENSIONS)} to {max(DIMENSIONS)} dimensions" in text
