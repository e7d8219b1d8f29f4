"""The command `images`."""

from keras_tnattn_train.commands import loader, training_command
from keras_tnattn_train.data.images import load_images
from keras_tnattn_train.images.config import ImagesConfig
from keras_tnattn_train.processes.backend import start_backend
from keras_tnattn_train.runs.run import Run


def images(config: ImagesConfig, run: Run) -> None:
    """Trains a classifier of images, and prints its accuracy."""
    data = load_images(
        config.dataset, config.data_dir, config.seed, config.test_fraction, config.image_size
    )
    for note in data.notes:
        print(f"  {note}")
    if config.patch_size is not None:
        data.check_patches(config.patch_size)
    start_backend()  # takes seconds, so it comes after the checks
    from keras_tnattn_train.images.train import train_images

    results = train_images(config, run, data)
    print(
        f"accuracy: {results['train_accuracy']:.1%} on {len(data.labels):,} training images, "
        f"{results['test_accuracy']:.1%} on {len(data.test_labels):,} test images\n"
        f"parameters: {results['parameters']['all']:,}; training: {results['seconds']:.0f} s"
    )


COMMAND = training_command(
    ImagesConfig,
    images,
    "Train a classifier of images",
    "A convolutional network; or the rows of pixels, the patches or the pixels of an image are the "
    "sites of a deep tensor network, or the tokens of a transformer encoder with power law graph "
    "attention. Writes the run folder: config.json, data.json, metrics.csv, results.json, "
    "learning_curves.png, confusion_matrix.png, deductive.png for plga, model.keras and "
    "checkpoints.",
    """\
examples:
  classify scikit-learn's digits; no network needed:
    keras-tnattn images
  classify the digits by attention to their rows, and to patches of 2 by 2 pixels:
    keras-tnattn images --attention tn
    keras-tnattn images --attention plga --patch-size 2
  classify your own pictures, in a folder with one subfolder for each class, and then others:
    keras-tnattn images --dataset pictures --image-size 28 --name mine
    keras-tnattn predict runs/mine new/1.png new/2.png
  classify MNIST from Keras' loader or from DIR/mnist.npz:
    keras-tnattn images --dataset mnist
    keras-tnattn images --dataset mnist --data-dir DIR
""",
    predicting=loader("keras_tnattn_train.images.loading", "ImagesRun"),
    columns=("path", "image", "file"),
    first=(
        *("resume", "dataset", "data_dir", "image_size", "patch_size", "attention"),
        *("epochs", "learning_rate", "export", "name"),
    ),
)
