"""The options of `images`."""

import dataclasses

from training.errors import InputError
from training.options import DATA, MODEL, TRAINING, RunConfig, at_least, one_of, option

IMAGE_SETS = ("digits", "mnist", "fashion_mnist")


@dataclasses.dataclass(frozen=True)
class ImagesConfig(RunConfig):
    """Everything that decides what `images` trains, on what, and what it writes.

    Raises:
        InputError: If a value is out of its range whatever the data.
    """

    dataset: str = option(
        "digits",
        DATA,
        "digits: scikit-learn's, 8 by 8 pixels, no network needed; mnist, fashion_mnist: Keras' "
        "loaders, or --data-dir",
    )
    data_dir: str | None = option(
        None, DATA, "folder of DATASET.npz, laid out as Keras' mnist.npz", metavar="DIR"
    )
    patch_size: int | None = option(
        None,
        DATA,
        "a site is a patch of N by N pixels, 1: a pixel (default: a row of pixels)",
        type=int,
        metavar="N",
    )

    bond_dim: int = option(10, MODEL, "size of the matrices", metavar="N")
    num_layers: int = option(1, MODEL, "tensor-network attentions", metavar="N")

    epochs: int | None = option(
        None,
        TRAINING,
        "passes over the training part (default: 40, of digits; else 5)",
        type=int,
        metavar="N",
    )
    batch_size: int = option(64, TRAINING, "images in a step", metavar="N")
    learning_rate: float = option(
        5e-3, TRAINING, "of AdamW at the start; it falls to 0 by a cosine"
    )
    weight_decay: float = option(1e-2, TRAINING, "of AdamW")

    def __post_init__(self) -> None:
        one_of(IMAGE_SETS, dataset=self.dataset)
        if self.epochs is None:
            object.__setattr__(self, "epochs", 40 if self.dataset == "digits" else 5)
        super().__post_init__()
        if self.dataset == "digits" and self.data_dir is not None:
            raise InputError(
                "Expected no data_dir with dataset='digits', which scikit-learn brings along. "
                f"Received: data_dir={self.data_dir!r}"
            )
        at_least(1, patch_size=self.patch_size, bond_dim=self.bond_dim, num_layers=self.num_layers)
        at_least(0, weight_decay=self.weight_decay)

    @property
    def default_name(self) -> str:
        """The name of the run if none is given."""
        sites = "rows" if self.patch_size is None else f"patches-{self.patch_size}"
        return f"{self.dataset}-{sites}-{self.seed}"
