"""Draws the thumbnails of the gallery, whose words can be read at the size at which it shows them.

    python docs/draw_thumbnails.py

Most are a part of the picture of a page, such as one panel of many; the others are drawn again with
the series that count.
"""

import csv
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import matplotlib as mpl
from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont

mpl.use("Agg")
import matplotlib.pyplot as plt

from keras_tnattn_train.rules.config import MODEL_DIMS

PICTURES = Path(__file__).parent / "pictures"
THUMBNAILS = PICTURES / "thumbnails"
SIZE = (480, 360)
# Left, top, right and bottom of the part of a picture, in pixels.
PARTS = {
    "study_rules_accuracy": (0, 0, 555, 456),
    "study_grokking_curves": (38, 0, 384, 287),
    "study_translators_curves": (0, 25, 590, 480),
    "power_law_tails_metric": (0, 0, 432, 384),
    "power_law_inferred": (65, 465, 553, 865),
    "page_classifier": (0, 938, 420, 1307),
    "page_search": (0, 152, 480, 512),
    "page_translator": (0, 640, 480, 995),
    "tensorized_attention": (665, 0, 990, 330),
    "tt_maps": (0, 0, 460, 330),
    "tn_attention": (0, 0, 550, 286),
    "graph_tensor_network": (0, 0, 550, 352),
}
DIMENSIONS = (4, 8, 16, 32, 64)
TOPICS = ("reuters", "newsgroups", "ohsumed")
# Places of the names of series, in data.
COMPRESSED = {
    "plain SVD": ("tab:gray", (1.1, 80)),
    "Keras int8": ("tab:orange", (2.2, 93)),
    "ours, coded": ("tab:blue", (17, 84)),
}
ATTENTIONS = {
    "tsa": ("tensorized", "tab:green", (9, 73.5)),
    "dpa": ("dot product", "tab:gray", (17, 52)),
}
# The legend of a part in larger letters, which covers its own.
LEGEND = (244, 76, 454, 228)


def part_of(name):
    """Writes a part of a picture, as large as it fits, on the color of its corner."""
    picture = Image.open(PICTURES / f"{name}.png").convert("RGB")
    part = picture.crop(PARTS[name])
    scale = min(SIZE[0] / part.width, SIZE[1] / part.height)
    part = part.resize((round(scale * part.width), round(scale * part.height)), Image.LANCZOS)
    thumbnail = Image.new("RGB", SIZE, picture.getpixel((picture.width - 1, 0)))
    place = ((SIZE[0] - part.width) // 2, (SIZE[1] - part.height) // 2)
    thumbnail.paste(part, place)
    thumbnail.save(THUMBNAILS / f"{name}.png", optimize=True)


def enlarge_legend(name):
    """Writes the names of the networks into a thumbnail, in the colors of their curves."""
    path = THUMBNAILS / f"{name}.png"
    thumbnail = Image.open(path)
    font = ImageFont.truetype(font_manager.findfont("DejaVu Sans:bold"), 19)
    draw = ImageDraw.Draw(thumbnail)
    draw.rectangle(LEGEND, "white", "lightgray")
    for line, network in enumerate(MODEL_DIMS):  # in the colors of the study
        place = (LEGEND[0] + 9, LEGEND[1] + 6 + 29 * line)
        draw.text(place, network, mpl.colors.to_hex(f"C{line}"), font)
    thumbnail.save(path, optimize=True)


def means(rows, x, y):
    """Returns sorted pairs `(x, y)`: the mean of `y` for each `x`."""
    groups = defaultdict(list)
    for row in rows:
        groups[float(row[x])].append(float(row[y]))
    return sorted((key, fmean(values)) for key, values in groups.items())


def draw_compression():
    """Draws accuracy by size for few methods."""
    with (PICTURES / "compression.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    axes = new_axes()
    for method, (color, place) in COMPRESSED.items():
        found = [row for row in rows if row["method"] == method and row["seed"] == "0"]
        axes.plot(*zip(*means(found, "ratio", "accuracy"), strict=True), "o-", color=color)
        axes.text(*place, method, color=color, fontweight="bold")
    axes.set(xscale="log", xlabel="times smaller", ylabel="accuracy, %", ylim=(70, 100))
    axes.set_xticks([1, 4, 16, 64], ["1", "4", "16", "64"])
    axes.minorticks_off()
    save("compression")


def draw_dimensions():
    """Draws accuracy by dimension for two attentions."""
    with (PICTURES.parent / "studies/tensorized_runs.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["setting"] == "paper"]
    rows = [row for row in rows if row["dataset"] in TOPICS and int(row["dim"]) in DIMENSIONS]
    axes = new_axes()
    for attention, (title, color, place) in ATTENTIONS.items():
        found = [row for row in rows if row["attention"] == attention and int(row["seed"]) < 3]
        points = means(found, "dim", "test_accuracy")
        axes.plot([dim for dim, _ in points], [100 * y for _, y in points], "o-", color=color)
        axes.text(*place, title, color=color, fontweight="bold")
    axes.set(xscale="log", xlabel="dimensions", ylabel="accuracy, %")
    axes.set_xticks(DIMENSIONS, [str(dim) for dim in DIMENSIONS])
    axes.minorticks_off()
    save("study_tensorized_dimensions")


def new_axes():
    """Returns axes of a new figure with large letters."""
    mpl.rcParams.update({"font.size": 14, "lines.linewidth": 2.5})
    _, axes = plt.subplots(figsize=(SIZE[0] / 100, SIZE[1] / 100), layout="constrained")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    return axes


def save(name):
    """Writes the present figure."""
    plt.savefig(THUMBNAILS / f"{name}.png", dpi=100, metadata={"Software": None})
    plt.close()


def main():
    """Draws all thumbnails."""
    THUMBNAILS.mkdir(exist_ok=True)
    draw_compression()
    draw_dimensions()
    for name in PARTS:
        part_of(name)
    enlarge_legend("study_rules_accuracy")


if __name__ == "__main__":
    main()
