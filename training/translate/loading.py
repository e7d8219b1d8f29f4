"""A trained translator, read back from its run."""

import dataclasses
import warnings
import zipfile
from pathlib import Path
from typing import Any

import keras

from keras_tnattn.models import Translator, translator
from keras_tnattn.models.translator import PRESETS
from training.data.pairs.prepared import PreparedCorpus, load_prepared
from training.engine.checkpoints import ARCHIVE_ERRORS, first_line, load_weights
from training.engine.runs import Run
from training.errors import InputError
from training.files import read_object
from training.translate.config import PLGA_ONLY, TranslateConfig

SUFFIX = ".weights.npz"  # of the weights of an epoch, among the checkpoints


@dataclasses.dataclass(frozen=True)
class TrainedTranslator:
    """A translator and what its ids mean.

    Args:
        model: The `keras_tnattn.models.Translator`.
        corpus: The prepared corpus it was trained on.
        source_tokenizer: The `WordPieceTokenizer` of what it reads.
        target_tokenizer: The `WordPieceTokenizer` of what it writes.
    """

    model: Translator
    corpus: PreparedCorpus
    source_tokenizer: Any
    target_tokenizer: Any


def load_translator(folder: str | Path, checkpoint: str | None = None) -> TrainedTranslator:
    """Reads the translator of a run's folder.

    Args:
        folder: The run's folder.
        checkpoint: A file of weights among its checkpoints, such as `best_accuracy` or
            `epoch_0010`, which a run has before it is finished. Default: the finished model.

    Raises:
        InputError: If the run is not there or, without a checkpoint, not finished, a file of it is
            damaged, or the weights belong to other vocabularies.
    """
    folder = Path(folder)
    corpus = _corpus_of(folder)
    if checkpoint is not None:
        path = _checkpoint_path(folder, checkpoint)
        config = Run(folder).read_config(TranslateConfig, {})
        model = untrained(config, corpus.vocabulary_sizes)
        load_weights(model, path, "Choose another, or train the run again")
        return TrainedTranslator(model, corpus, *corpus.tokenizers())
    path = folder / "model.keras"
    model = _saved_model(path)
    try:
        model = Translator.from_model(model)
    except ValueError as error:
        raise InputError(f"Expected a translator. Received: {path}, another model") from error
    sizes = (model.source_vocabulary_size, model.target_vocabulary_size)
    if sizes != corpus.vocabulary_sizes:
        raise InputError(
            f"Expected a translator of {corpus.vocabulary_sizes} source and target pieces, the "
            f"vocabularies in {corpus.folder}. Received: {path} of {sizes} pieces"
        )
    return TrainedTranslator(model, corpus, *corpus.tokenizers())


def untrained(config: TranslateConfig, sizes: tuple[int, int]) -> keras.Model:
    """Makes the translator of a config, in its precision, for so many source and target pieces.

    Raises:
        ValueError: If the sizes do not fit together.
    """
    options = {**PRESETS[config.preset], **config.overrides}
    if config.attention != "plga":
        options = {name: value for name, value in options.items() if name not in PLGA_ONLY}
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16" if config.mixed_precision else "float32")
    try:
        return translator(*sizes, **options)
    finally:
        keras.config.set_dtype_policy(before)


def _saved_model(path: Path) -> keras.Model:
    if not path.exists():
        raise InputError(
            f"Expected the model of a finished run. Received: {path}, which is missing. Finish the "
            "run with --resume, or choose one of its checkpoints with --checkpoint"
        )
    try:
        # Of a file that is cut short, Keras says that there is none.
        with zipfile.ZipFile(path) as archive:
            if archive.testzip() is not None:
                raise ValueError("a checksum is wrong")
        with warnings.catch_warnings():
            # Keras only warns of weights that it does not find and leaves as they began.
            warnings.simplefilter("error", UserWarning)
            return keras.models.load_model(path, compile=False)
    except (*ARCHIVE_ERRORS, TypeError, UserWarning) as error:  # Keras' words for another model
        raise InputError(
            f"Expected a trained translator of this run. Received: {path}, damaged or another "
            f"program's ({first_line(error)}). Delete it and results.json, then finish the run "
            "with --resume"
        ) from error


def _corpus_of(folder: Path) -> PreparedCorpus:
    data = read_object(folder / "data.json", "Choose the folder of a translator's run")
    shared = data.get("prepared")
    if not isinstance(shared, str | None):
        raise InputError(
            f"Expected the path of a prepared corpus in {folder / 'data.json'}, which is damaged. "
            f"Received: prepared={shared!r}"
        )
    corpus = load_prepared(shared or folder / "prepared")
    if data.get("digest", corpus.digest) != corpus.digest:
        raise InputError(
            f"Expected the corpus and vocabularies that the run in {folder} was trained on. "
            f"Received: others in {corpus.folder}"
        )
    return corpus


def _checkpoint_path(folder: Path, name: str) -> Path:
    paths = {
        path.name.removesuffix(SUFFIX): path
        for path in sorted(folder.glob(f"checkpoints/*{SUFFIX}"))
    }
    if name not in paths:
        raise InputError(
            f"Expected a checkpoint of the run in {folder}: {', '.join(paths) or 'it has none'}. "
            f"Received: checkpoint={name!r}"
        )
    return paths[name]
