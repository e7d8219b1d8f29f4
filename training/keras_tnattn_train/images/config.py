"""The options of `images`."""

from typing import Any

from keras_tnattn_train.data.images import IMAGE_SETS
from keras_tnattn_train.data.reading import short_name
from keras_tnattn_train.options.options import (
    DATA,
    MODEL,
    TRAINING,
    ExportConfig,
    batch_size_option,
    epochs_option,
    name_option,
    option,
)

TN_ONLY = ("bond_dim", "initial_deviation")
PLGA_ONLY = ("model_dim", "num_heads", "residual_units", "residual_dim")


def _default_name(values: dict[str, Any]) -> str:
    words = [short_name(values["dataset"]), values["attention"]]
    if values["attention"] != "none":
        size = values["patch_size"]
        words.append("rows" if size is None else f"patches-{size}")
    return "-".join([*words, str(values["seed"])])


class ImagesConfig(ExportConfig):
    """The options of `images`: data, model, training and output."""

    command = "images"

    dataset: str = option(
        "digits",
        DATA,
        "digits: scikit-learn's, 8 by 8 pixels, no network needed; mnist, fashion_mnist: from "
        "Keras' loaders or --data-dir; or the path of a folder with one subfolder of pictures for "
        "each class, or of a table with the columns path and label",
        named_or_not=True,
    )
    data_dir: str | None = option(
        None, DATA, "folder of DATASET.npz, laid out as Keras' mnist.npz", metavar="DIR"
    )
    test_fraction: float | None = option(
        None,
        DATA,
        "share of digits or pictures for the test (default: 0.25 of digits, 0.2 of pictures)",
        gt=0,
        lt=1,
    )
    image_size: int | None = option(
        None,
        DATA,
        "resize pictures to N by N pixels (default: as they are, all of one size)",
        metavar="N",
        ge=1,
        le=4096,
    )
    patch_size: int | None = option(
        None,
        DATA,
        "use patches of N by N pixels as sites; 1: single pixels (default: rows of pixels; tn, "
        "plga)",
        metavar="N",
        ge=1,
        le=65_536,
    )

    attention: str = option(
        "none",
        MODEL,
        "none: a small convolutional network; tn: a deep tensor network of tensor-network "
        "attention; plga: a transformer encoder with power law graph attention",
        choices=("none", "tn", "plga"),
    )
    num_layers: int = option(1, MODEL, "number of attention layers (tn, plga)", ge=1, le=100)
    bond_dim: int = option(
        10, MODEL, "bond dimension: size of the network's matrices (tn)", ge=1, le=65_536
    )
    # The best of 0.1, 0.2, 0.4 and 0.8 on a part of the digits' training part.
    initial_deviation: float = option(
        0.2, MODEL, "standard deviation of the noise on the initial identity matrices (tn)", ge=0
    )
    model_dim: int = option(32, MODEL, "size of the sites' features (plga)", ge=1, le=65_536)
    num_heads: int = option(2, MODEL, "attention heads (plga)", ge=1, le=256)
    residual_units: int = option(
        2, MODEL, "residual units that learn the metric (plga)", ge=0, le=256
    )
    residual_dim: int = option(32, MODEL, "width of these units (plga)", ge=1, le=65_536)

    epochs: int = epochs_option(
        40,
        "passes over the training part (default: 5 for mnist and fashion_mnist, else 40)",
        lambda values: 5 if values["dataset"] in ("mnist", "fashion_mnist") else 40,
    )
    batch_size: int = batch_size_option(64, "images")
    learning_rate: float = option(
        None,
        TRAINING,
        "initial learning rate of AdamW; with cosine decay to 0 (default: 0.001 for plga, else "
        "0.005)",
        compute=lambda values: 1e-3 if values["attention"] == "plga" else 5e-3,
        gt=0,
    )
    weight_decay: float = option(1e-2, TRAINING, "weight decay of AdamW", ge=0)
    name: str = name_option(_default_name, "DATASET-ATTENTION-SITES-SEED")

    def check_together(self) -> None:
        named = f"dataset={self.dataset!r}"
        if self.dataset not in ("mnist", "fashion_mnist"):
            self.refuse(f"{named}, which needs none", "data_dir")
        elif self.test_fraction is not None:
            self.refuse(f"{named}, which has a test part", "test_fraction")
        if self.dataset in IMAGE_SETS:
            self.refuse(f"{named}, whose images have one size", "image_size")
        reason = f"attention={self.attention!r}, which has none"
        if self.attention != "tn":
            self.refuse(reason, *TN_ONLY)
        if self.attention != "plga":
            self.refuse(reason, *PLGA_ONLY)
        elif self.model_dim % self.num_heads:
            raise ValueError(
                "Expected a model_dim that num_heads divides. Received: "
                f"model_dim={self.model_dim}, num_heads={self.num_heads}"
            )
        if self.attention == "none":
            self.refuse(reason, "num_layers", "patch_size")
