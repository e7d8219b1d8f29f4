"""Writes SavedModels of any signatures, as versions of a model."""

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from keras_tnattn.checks import check_backend_among
from keras_tnattn.export.cards import technical
from keras_tnattn.typing import Tensor
from keras_tnattn_runtime import reader
from keras_tnattn_runtime.folders import partial_folder
from keras_tnattn_runtime.layout import MODEL_CARD, SIGNATURES
from keras_tnattn_runtime.saved_model import read_metadata

CLASS_NAMES = "assets.extra/class_names.json"


@dataclasses.dataclass(frozen=True)
class Signatures:
    """The signatures of a model of texts, and what belongs to them.

    Attributes:
        functions: For each name a function from tensors to a dict of tensors, and the
            `tf.TensorSpec` of its argument or a list of them.
        layers: All models and layers that the functions call.
        card: Entries of the model card: task, sizes, hints about the inputs.
        extra_files: The content of further text files by their paths in a version.

    Example:
        >>> signatures = Signatures({}, [], {"task": "classify"})
        >>> signatures.card["task"], signatures.extra_files
        ('classify', {})
    """

    functions: Mapping[str, tuple[Callable[..., dict[str, Tensor]], Any]]
    layers: Sequence[keras.layers.Layer]
    card: Mapping[str, Any]
    extra_files: Mapping[str, str] = dataclasses.field(default_factory=dict)


def check_backend() -> None:
    """Raises a `RuntimeError` unless Keras runs on TensorFlow, whose graphs process the text.

    `keras_small.export` exports numeric models on other backends, too.

    Example:
        >>> if keras.backend.backend() == "tensorflow":
        ...     check_backend()
    """
    check_backend_among("a model of text, or with a training command,", "tensorflow")


def class_names_file(class_names: Sequence[str]) -> dict[str, str]:
    """Returns the file of an exported classifier that names its classes, for `extra_files`.

    Args:
        class_names: The `C` names, in the order of the probabilities.

    Example:
        >>> class_names_file(["cat", "dog"])
        {'assets.extra/class_names.json': '["cat", "dog"]'}
    """
    return {CLASS_NAMES: json.dumps(list(class_names))}


def export_signatures(
    signatures: Mapping[str, tuple[Callable[..., dict[str, Tensor]], Any]],
    layers: Sequence[keras.layers.Layer],
    folder: str | os.PathLike,
    version: int | None = None,
    extra_files: Mapping[str, str | Path] | None = None,
    card: Mapping[str, Any] | None = None,
) -> Path:
    """Writes `folder/<version>/`, a SavedModel with any signatures; completely or not at all.

    Args:
        signatures: For each name a function from tensors to a dict of tensors, and the
            `tf.TensorSpec` of its argument or a list of them.
        layers: All models and layers that the functions call.
        folder: The model's folder.
        version: A positive integer. Default: one more than the highest existing version, or 1.
        extra_files: The content of further text files by their paths in the version, such as that
            of `class_names_file`; or the paths of folders, which are copied.
        card: Further entries of the model card, `assets.extra/model_card.json`, besides name,
            version, versions and date.

    `assets.extra/signatures.json` has the signatures, for servers that compute some of them without
    TensorFlow.

    Returns:
        The path of the new version.

    Raises:
        FileExistsError: If the version exists.
        RuntimeError: If Keras does not run on TensorFlow.
        ValueError: If `version` is not positive.

    Example:
        ```python notest
        spec = tf.TensorSpec((None, 64), tf.float32, name="features")
        export_signatures({"serving_default": (classify, spec)}, [model], "saved_models/mine")
        ```
    """
    check_backend()

    def write(whole: Path) -> None:
        archive = keras.export.ExportArchive()
        for layer in layers:
            archive.track(layer)
        for name, (function, spec) in signatures.items():
            archive.add_endpoint(name, function, spec if isinstance(spec, list) else [spec])
        write_archive(archive, whole, signatures)
        write_description(whole, read_metadata(whole))
        for name, content in (extra_files or {}).items():
            (whole / name).parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                shutil.copytree(content, whole / name)
            else:
                (whole / name).write_text(content, encoding="utf-8")

    return write_version(write, Path(folder), version, card)


def write_version(
    write: Callable[[Path], None],
    folder: Path,
    version: int | None = None,
    card: Mapping[str, Any] | None = None,
) -> Path:
    """Writes a version of a model, completely or not at all, and returns its path.

    `write` writes all files but the card into a new folder, whose path it gets. Else as
    `export_signatures`, with the same errors.
    """
    chosen = version is not None
    if version is None:
        version = next_version(folder)
    if version < 1:
        raise ValueError(f"Expected a positive version. Received: version={version}")
    if (folder / str(version)).exists():
        raise _error_of_existing(folder / str(version))
    with partial_folder(folder / str(version)) as partial:
        whole = partial / "whole"
        write(whole)
        while True:
            target = folder / str(version)
            whole_card = {"name": folder.name, "version": version, **technical(), **(card or {})}
            text = json.dumps(whole_card, indent=1, ensure_ascii=False) + "\n"
            (whole / MODEL_CARD).write_text(text, encoding="utf-8")
            try:
                return whole.rename(target)
            except OSError as error:
                if not target.exists():
                    raise
                if chosen:
                    raise _error_of_existing(target) from error
                version = next_version(folder)  # another export has taken this one


def write_description(folder: Path, signatures: Mapping[str, Any]) -> None:
    """Writes what a server has to know of a version while its SavedModel is not loaded.

    These are its signatures, and the bytes and checksums of the files that are there by now.
    """
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    described = {file.relative_to(folder).as_posix(): reader.describe_file(file) for file in files}
    path = folder / SIGNATURES
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(reader.sealed({"signatures": signatures, "files": described}))


def write_archive(archive: keras.export.ExportArchive, path: Path, names: Iterable[str]) -> None:
    """Writes a SavedModel with one copy of its weights and without gradients.

    Keras keeps the variables of the tracked layers beside those that the signatures read, which are
    the same, and TensorFlow the gradients of functions that have their own.
    """
    import tensorflow as tf
    from tensorflow.core.protobuf import saved_model_pb2

    tracked = getattr(archive, "_tf_trackable", archive)
    # As graphs, because TensorFlow would trace functions once more.
    for name in names:
        setattr(tracked, name, getattr(tracked, name).get_concrete_function())
    for name in ("variables", "trainable_variables", "non_trainable_variables"):
        if hasattr(tracked, name):
            setattr(tracked, name, [])
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    archive.write_out(str(path), options, verbose=False)
    file = path / "saved_model.pb"
    content = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    graph = content.meta_graphs[0].graph_def
    for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
        for node in nodes:
            node.attr.pop("_gradient_op_type", None)  # TensorFlow warns of one without a gradient
    file.write_bytes(content.SerializeToString(deterministic=True))


def _error_of_existing(target: Path) -> FileExistsError:
    return FileExistsError(
        f"Expected a new version, because exports are never changed. Received: {target} exists"
    )


def next_version(folder: str | os.PathLike) -> int:
    """Returns the version that an export takes by default in a model's folder.

    Example:
        >>> next_version("a_folder_without_versions")
        1
    """
    return max(versions_in(Path(folder)), default=0) + 1


def versions_in(folder: Path) -> list[int]:
    """Returns the numbers of the versions in a model's folder.

    Example:
        >>> versions_in(Path("a_folder_without_versions"))
        []
    """
    return [int(p.name) for p in folder.glob("[0-9]*") if p.name.isdecimal()]
