"""The options of `images`."""

from typing import Any

from training.options import (
    DATA,
    MODEL,
    TRAINING,
    RunConfig,
    batch_size_option,
    epochs_option,
    name_option,
    option,
)

IMAGE_SETS = ("digits", "mnist", "fashion_mnist")


def _default_name(values: dict[str, Any]) -> str:
    size = values["patch_size"]
    sites = "rows" if size is None else f"patches-{size}"
    return f"{values['dataset']}-{sites}-{values['seed']}"


def _default_epochs(values: dict[str, Any]) -> int:
    return 40 if values["dataset"] == "digits" else 5


class ImagesConfig(RunConfig):
    """The options of `images`: data, model, training and output.

    Raises:
        InputError: If a value is out of its range.
    """

    dataset: str = option(
        "digits",
        DATA,
        "digits: scikit-learn's, 8 by 8 pixels, no network needed; mnist, fashion_mnist: from "
        "Keras' loaders or --data-dir",
        choices=IMAGE_SETS,
    )
    data_dir: str | None = option(
        None, DATA, "folder of DATASET.npz, laid out as Keras' mnist.npz", metavar="DIR"
    )
    patch_size: int | None = option(
        None,
        DATA,
        "use patches of N by N pixels as sites; 1: single pixels (default: rows of pixels)",
        metavar="N",
        ge=1,
        le=65_536,
    )

    bond_dim: int = option(
        10, MODEL, "bond dimension: size of the network's matrices", ge=1, le=65_536
    )
    num_layers: int = option(1, MODEL, "number of tensor-network attention layers", ge=1, le=100)

    epochs: int = epochs_option(
        40, "passes over the training part (default: 40 for digits, else 5)", _default_epochs
    )
    batch_size: int = batch_size_option(64, "images")
    learning_rate: float = option(
        5e-3, TRAINING, "initial learning rate of AdamW, with cosine decay to 0", gt=0
    )
    weight_decay: float = option(1e-2, TRAINING, "weight decay of AdamW", ge=0)
    name: str = name_option(_default_name, "DATASET-SITES-SEED")

    def check_together(self) -> None:
        if self.dataset == "digits":
            self.refuse("dataset='digits', which is a part of scikit-learn", "data_dir")
