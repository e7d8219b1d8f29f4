"""Trains, measures and exports a network of attention that classifies images."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
from matplotlib.figure import Figure

from keras_tnattn.layers import (
    LearnedPositionEncoding,
    LocalEmbedding,
    PowerLawGraphAttention,
    TransformerEncoder,
)
from keras_tnattn.models import deep_tensor_network
from keras_tnattn.typing import Tensor
from keras_tnattn_train.data.batches import ArrayBatches
from keras_tnattn_train.data.images import LabeledImages
from keras_tnattn_train.images.config import ImagesConfig
from keras_tnattn_train.runs.cards import describe
from keras_tnattn_train.runs.finishing import finish
from keras_tnattn_train.runs.plots import confusion_matrix, learning_curves, save
from keras_tnattn_train.runs.predictions import predict
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.runs.training import fit, start_session

# The paper's symbols: what is computed from the image, then what is learned of all images.
SYMBOLS = {
    "E_LM": r"$E_{LM}$",
    "A_LM": r"$A_{LM}$",
    "G_LM": r"$G_{LM}$",
    "P": r"$P$",
    "a": r"$a$",
    "b_a": r"$b_a$",
}


def train_images(config: ImagesConfig, run: Run, data: LabeledImages) -> dict[str, Any]:
    """Trains a network on images, or resumes an interrupted run."""
    start_session(config)
    model = _compiled_model(config, data)
    description = {"fingerprint": data.fingerprint(), "class_names": list(data.class_names)}
    run.start_or_check(config, description)

    batches = ArrayBatches(data.images, data.labels, config.batch_size, config.seed)
    log = fit(model, batches, config, run)
    model = log.model
    predictions = predict(model, data.test_images)
    train_predictions = predict(model, data.images)
    results: dict[str, Any] = {
        "train_accuracy": float(np.mean(train_predictions == data.labels)),
        "test_accuracy": float(np.mean(predictions == data.test_labels)),
        "parameters": {"all": model.count_params()},
        "rows": {"train": len(data.labels), "test": len(data.test_labels)},
        **log.costs,
    }
    learning_curves(log.rows, results["test_accuracy"], run.folder / "learning_curves.png")
    confusion_matrix(
        data.test_labels, predictions, data.class_names, run.folder / "confusion_matrix.png"
    )
    if config.attention == "plga":
        image = data.test_images[0]
        draw_deductive(image, deductive_outputs(model, image), run.folder / "deductive.png")

    def export(folder: Path, version: int) -> Path:
        return _export(model, data, folder, version, _card(config, data, results))

    return finish(config, run, model, results, export)


def _export(
    model: keras.Model, data: LabeledImages, folder: Path, version: int, card: dict[str, Any]
) -> Path:
    import tensorflow as tf

    from keras_tnattn.export import class_names_file, export_signatures
    from keras_tnattn.export.classifiers import labels_and_probabilities

    def probabilities(images: tf.Tensor, training: bool) -> tf.Tensor:
        return tf.nn.softmax(model(images, training=training))

    images = tf.TensorSpec([None, *data.images.shape[1:]], tf.float32, "images")
    classify = labels_and_probabilities(probabilities, data.class_names)
    signatures = {"serving_default": (classify, images)}
    files = class_names_file(data.class_names)
    return export_signatures(signatures, [model], folder, version, files, card)


def _card(config: ImagesConfig, data: LabeledImages, results: dict[str, Any]) -> dict[str, Any]:
    source = {"name": config.dataset, "fingerprint": data.fingerprint()}
    return {
        "task": "images",
        "labels": list(data.class_names),
        "image_size": list(data.images.shape[1:]),
        **describe(config, source, results),
    }


def _compiled_model(config: ImagesConfig, data: LabeledImages) -> keras.Model:
    if config.attention == "none":
        model = convolutional_network(data.images.shape[1:], len(data.class_names))
    else:
        model = _attention_network(config, data)
    steps = config.epochs * -(-len(data.labels) // config.batch_size)
    schedule = keras.optimizers.schedules.CosineDecay(config.learning_rate, steps)
    model.compile(
        keras.optimizers.AdamW(schedule, weight_decay=config.weight_decay),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def convolutional_network(shape: tuple[int, ...], classes: int) -> keras.Model:
    """Returns a small convolutional network from images `(B, height, width)` to logits."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(shape),
            layers.Reshape((*shape, 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.25),
            layers.Dense(classes),
        ],
        name="image_classifier",
    )


def _attention_network(config: ImagesConfig, data: LabeledImages) -> keras.Model:
    height, width = data.images.shape[1:]
    size = config.patch_size
    # A row of pixels is a patch as wide as the image.
    high, wide = (size, size) if size else (1, width)
    num_sites = (height // high) * (width // wide)
    images = keras.Input((height, width), name="images")
    x = keras.layers.Reshape((height // high, high, width // wide, wide))(images)
    x = keras.layers.Permute((1, 3, 2, 4))(x)
    x = keras.layers.Reshape((num_sites, high * wide), name="patches")(x)
    classes = len(data.class_names)
    if config.attention == "tn":
        logits = _tensor_network(config, classes, num_sites, high * wide)(x)
    else:
        logits = _power_law_encoder(config, classes, num_sites, x)
    return keras.Model(images, logits, name="image_classifier")


def _tensor_network(
    config: ImagesConfig, classes: int, num_sites: int, num_features: int
) -> keras.Model:
    return deep_tensor_network(
        classes,
        LocalEmbedding("trigonometric"),
        num_layers=config.num_layers,
        bond_dim=config.bond_dim,
        num_sites=num_sites,
        num_features=num_features,
        initial_deviation=config.initial_deviation,
        skip=True,
    )


def _power_law_encoder(config: ImagesConfig, classes: int, num_sites: int, sites: Tensor) -> Tensor:
    x = keras.layers.Dense(config.model_dim, name="embedding")(sites)
    x = LearnedPositionEncoding(num_sites, name="positions")(x)
    for n in range(config.num_layers):
        attention = PowerLawGraphAttention(
            config.num_heads,
            residual_units=config.residual_units,
            residual_dim=config.residual_dim,
            name=f"attention_{n}",
        )
        x = TransformerEncoder(attention, 2 * config.model_dim, name=f"encoder_{n}")(x)
    x = keras.layers.GlobalAveragePooling1D(name="pooling")(x)
    return keras.layers.Dense(classes, dtype="float32", name="logits")(x)


def deductive_outputs(model: keras.Model, image: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the deductive outputs of the last attention for one image `(H, W)`, by name.

    Each is an array whose first axis is that of the heads.
    """
    encoder = [layer for layer in model.layers if isinstance(layer, TransformerEncoder)][-1]
    inputs = keras.Model(model.input, encoder.input)(image[None])
    _, details = encoder(inputs, return_details=True)
    arrays = {name: keras.ops.convert_to_numpy(value) for name, value in details.items()}
    # What is computed from the image has a batch axis; what is learned of all images has not.
    return {name: array[0] if array.ndim == 4 else array for name, array in arrays.items()}


def draw_deductive(image: np.ndarray, outputs: dict[str, np.ndarray], path: Path) -> None:
    """Draws an image, and a row of the deductive outputs of each head."""
    heads = len(outputs["E_LM"])
    columns = 1 + len(SYMBOLS)
    figure = Figure(figsize=(2.6 * columns, 2.6 * heads), layout="constrained")
    rows = figure.subplots(heads, columns, squeeze=False)
    for head, row in enumerate(rows):
        if head == 0:
            row[0].imshow(image, cmap="gray")
        row[0].axis("off")
        for axes, (name, symbol) in zip(row[1:], SYMBOLS.items(), strict=True):
            drawn = axes.imshow(outputs[name][head], cmap="viridis", interpolation="nearest")
            figure.colorbar(drawn, ax=axes, shrink=0.7)
            axes.set_title(f"{symbol}, head {head + 1}")
    save(figure, path)
