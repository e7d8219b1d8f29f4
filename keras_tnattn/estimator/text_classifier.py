"""A text classifier with the interface of scikit-learn."""

import contextlib
import dataclasses
import functools
import io
import json
import numbers
import random
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted

from keras_tnattn.checks import check_int
from keras_tnattn.estimator.batches import TextBatches, as_dataset, outputs_of
from keras_tnattn.estimator.building import compiled_model, training_batches
from keras_tnattn.estimator.given import labels_of, texts_of
from keras_tnattn.estimator.initial_weights import svm_weights
from keras_tnattn.estimator.keeping import Kept, keep_better
from keras_tnattn.estimator.parts import Part, ids_of, prepare
from keras_tnattn.estimator.settings import Settings, default_options
from keras_tnattn.models.attentions import find_attention
from keras_tnattn.text.words import SPLITS, WordVectorizer
from keras_tnattn_runtime.folders import checked_target, write_file

_MODEL, _REST = "model.keras", "classifier.json"
_LARGEST_SEED = 2**31 - 1


class TextClassifier(ClassifierMixin, BaseEstimator):
    """Classifies texts, as a scikit-learn estimator on any backend of Keras.

    It is what the command `keras-tnattn classify` trains. `fit` holds out a tenth of the texts,
    learns a vocabulary, fits a linear support vector machine (SVM) of TF-IDF weights, starts a
    `keras_tnattn.models.text_classifier` from it, and trains that. Without an attention it keeps
    the SVM itself, as weights of the model, unless training is clearly ahead of it on the texts
    that were held out. It takes a few seconds for a few thousand texts.

    Args:
        attention: A name in `keras_tnattn.models.attentions.ATTENTIONS`, such as `"tsa"`, or an
            attention layer, of which `fit` makes a copy. Default: none, an average of the words.
        class_weight: `"balanced"`, so that rare classes count as much as frequent ones. Default:
            all texts count alike.
        split: `"words"` (default), or `"characters"` for languages written without spaces.
        vocabulary_size: Maximum number of words, the two ids of padding and of unknown words
            included. Defaults to 20,000.
        epochs: Passes over the texts. Defaults to 8.
        random_state: An int for the same classifier from the same texts, a NumPy `RandomState`, or
            `None` (default) for another one each time.
        verbose: 0 (default) is silent; 1 shows the progress of the training, 2 a line an epoch.

    Attributes:
        classes_: The classes, sorted, `(C,)`.
        model_: The Keras model, from ids `(B, L)` to probabilities `(B, C)`; also as `model`.
        vectorizer_: Turns texts into ids, a `keras_tnattn.text.WordVectorizer`.
        kept_: Which weights were kept, `kept_.weights` being `"svm"` or `"trained"`, with the
            accuracies that decided it. `None` with an attention.

    Raises:
        ImportError: Without scikit-learn.

    Example:
        >>> from keras_tnattn import TextClassifier
        >>> texts = ["a red rose", "a blue violet", "an old bus", "a fast train"] * 5
        >>> labels = ["flower", "flower", "vehicle", "vehicle"] * 5
        >>> classifier = TextClassifier(epochs=1, random_state=0).fit(texts, labels)
        >>> classifier.predict(["the red violet", "this old train"]).tolist()
        ['flower', 'vehicle']
        >>> classifier.predict_proba(["the red violet"]).shape
        (1, 2)
    """

    def __init__(
        self,
        attention: str | keras.layers.Layer | None = None,
        class_weight: str | None = None,
        split: str = "words",
        vocabulary_size: int = 20_000,
        epochs: int = 8,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.attention = attention
        self.class_weight = class_weight
        self.split = split
        self.vocabulary_size = vocabulary_size
        self.epochs = epochs
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, texts: Iterable[str], labels: Iterable[Any]) -> "TextClassifier":
        """Trains a new model.

        Args:
            texts: `N` strings, some of which may be empty.
            labels: `N` labels, strings, ints or booleans of at least two classes. There are no
                weights of texts; one that is repeated counts more.

        Returns:
            The classifier itself. If the training is interrupted, it is not fitted.

        Raises:
            TypeError: For texts that are no strings, and for a set or dict.
            ValueError: For an argument of the constructor out of range, texts without any word,
                more or fewer labels than texts, or labels that are lists, missing, of several
                types, all equal or all different.
        """
        self._forget()
        settings = self._settings()
        texts = texts_of(texts)
        classes, numbers = np.unique(labels_of(labels, len(texts)), return_inverse=True)
        return self._fit(settings, texts, numbers, np.arange(len(texts)), classes)

    def predict(self, texts: Iterable[str]) -> np.ndarray:
        """Returns the most probable class of each of `N` texts, `(N,)`.

        Raises:
            NotFittedError: Before `fit`.
            TypeError: For texts that are no strings, and for a set or dict.
        """
        probabilities = self.predict_proba(texts)
        return self.classes_[probabilities.argmax(axis=1)]

    def predict_proba(self, texts: Iterable[str]) -> np.ndarray:
        """Returns the probability of each class for each of `N` texts, `(N, C)`.

        Raises:
            NotFittedError: Before `fit`.
            TypeError: For texts that are no strings, and for a set or dict.
        """
        check_is_fitted(self)
        texts = texts_of(texts)
        return outputs_of(self.model_, ids_of(self.vectorizer_, texts, np.arange(len(texts))))

    @property
    def model(self) -> keras.Model:
        """The Keras model, from ids `(B, L)` to probabilities `(B, C)`.

        Raises:
            NotFittedError: Before `fit`.
        """
        check_is_fitted(self)
        return self.model_

    def save(self, path: str | Path, overwrite: bool = False) -> None:
        """Writes the fitted classifier to one file, which `load` reads.

        The file is a ZIP archive of the model as a `.keras` file and of a JSON file with the rest.
        It is written completely or not at all.

        Args:
            path: The file, with any ending.
            overwrite: Whether to replace a file that exists. Defaults to `False`.

        Raises:
            FileExistsError: If the file exists, without `overwrite`.
            FileNotFoundError: If the folder does not exist.
            NotFittedError: Before `fit`.
            OSError: If the file cannot be written; the one that exists stays as it is.
        """
        check_is_fitted(self)
        target = checked_target(Path(path), overwrite)
        # A copy, which has no state of an optimizer.
        model = keras.models.clone_model(self.model_)
        model.set_weights(self.model_.get_weights())
        rest = json.dumps(
            {
                "parameters": _portable(self.get_params(deep=False)),
                "classes": self.classes_.tolist(),
                "dtype": self.classes_.dtype.str,
                "vocabulary": self.vectorizer_.get_vocabulary(),
                "max_words": self.vectorizer_.max_words,
                "kept": self.kept_ and dataclasses.asdict(self.kept_),
            }
        )
        weights = io.BytesIO()
        keras.saving.save_model(model, weights, zipped=False)
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as archive:
            archive.writestr(_REST, rest)
            archive.writestr(_MODEL, weights.getvalue())
        write_file(target, content.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> "TextClassifier":
        """Returns the classifier that `save` wrote to a file, which no code of the file runs.

        Args:
            path: The file.

        Raises:
            ValueError: If `save` did not write the file.

        Example:
            >>> import tempfile
            >>> from keras_tnattn import TextClassifier
            >>> classifier = TextClassifier(epochs=1).fit(["yes yes", "no no"] * 9, [1, 0] * 9)
            >>> with tempfile.NamedTemporaryFile() as file:
            ...     classifier.save(file.name, overwrite=True)
            ...     loaded = TextClassifier.load(file.name)
            >>> loaded.predict(["yes"]).tolist()
            [1]
        """
        try:
            with zipfile.ZipFile(path) as archive, tempfile.TemporaryDirectory() as folder:
                rest = json.loads(archive.read(_REST))
                model = keras.models.load_model(archive.extract(_MODEL, folder), compile=False)
        except (zipfile.BadZipFile, KeyError, json.JSONDecodeError) as error:
            raise ValueError(
                f"Expected a file that TextClassifier.save wrote. Received: path={str(path)!r}, "
                f"which it did not ({error})"
            ) from error
        parameters = rest["parameters"]
        if isinstance(parameters["attention"], dict):
            parameters["attention"] = keras.saving.deserialize_keras_object(parameters["attention"])
        classifier = cls(**parameters)
        words = rest["vocabulary"][2:]  # after padding and unknown words
        vectorizer = WordVectorizer(words, rest["max_words"], classifier.split)
        classes = np.array(rest["classes"], rest["dtype"])
        classifier._remember(model, vectorizer, classes, rest["kept"] and Kept(**rest["kept"]))
        return classifier

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        return tags

    def _settings(self) -> Settings:
        """Checks the arguments of the constructor, and returns the settings that they stand for."""
        if self.split not in SPLITS:
            raise ValueError(f"Expected one of {tuple(SPLITS)}. Received: split={self.split!r}")
        if self.class_weight not in (None, "balanced"):
            way_out = ""
            if isinstance(self.class_weight, dict):
                way_out = ". Repeat the texts of a class that should count more"
            raise ValueError(
                f"Expected None or 'balanced'. Received: class_weight={self.class_weight!r}"
                f"{way_out}"
            )
        if self.verbose not in (0, 1, 2):
            raise ValueError(f"Expected 0, 1 or 2. Received: verbose={self.verbose!r}")
        attention = "none" if self.attention is None else self.attention
        options = {}
        if isinstance(attention, str):
            find_attention(attention)
            options = default_options(attention)
        elif not isinstance(attention, keras.layers.Layer):
            raise TypeError(f"Expected a name or a layer. Received: attention={attention!r}")
        return Settings(
            seed=_seed(self.random_state),
            split=self.split,
            vocabulary_size=check_int("vocabulary_size", self.vocabulary_size, at_least=3),
            attention=attention,
            attention_options=options,
            epochs=check_int("epochs", self.epochs),
            class_weight=self.class_weight,
        )

    def _fit(
        self,
        settings: Settings,
        texts: Sequence[str],
        numbers: np.ndarray,
        rows: np.ndarray,
        classes: np.ndarray,
    ) -> "TextClassifier":
        """Trains a new model on some rows of texts, whose classes have numbers."""
        vectorizer, parts = self._prepare(settings, texts, numbers, rows, self._tell)
        training = Training(settings, vectorizer, parts, len(classes))
        with _seeded(settings.seed):
            model, kept = self._train(training), None
            if settings.may_keep_svm:
                model, kept = keep_better(
                    settings,
                    training.build,
                    model,
                    parts["train"].arrays,
                    parts["validation"].arrays,
                    vectorizer.get_vocabulary(),
                )
        if kept is not None:
            self._tell(f"  {kept}")
        self._remember(model, vectorizer, classes, kept)
        return self

    def _prepare(self, *arguments: Any) -> tuple[WordVectorizer, dict[str, Part]]:
        return prepare(*arguments)

    def _train(self, training: "Training") -> keras.Model:
        """Returns a trained model."""
        model = training.build()
        self._start_from_svm(model, training)
        # What is held out decides in the end; in between it is only shown.
        held_out = training.parts["validation"] if self.verbose else None
        batches = training.batches
        ordered = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: batches.set_epoch(epoch)
        )
        history = model.fit(
            as_dataset(batches),
            epochs=training.settings.epochs,
            validation_data=None if held_out is None else as_dataset(held_out.batches()),
            shuffle=False,  # the batches have an order of their own
            callbacks=[ordered, keras.callbacks.TerminateOnNaN()],
            verbose=self.verbose,
        )
        if not np.isfinite(history.history["loss"][-1]):
            raise FloatingPointError("Training diverged: the loss is no longer finite")
        return model

    def _start_from_svm(self, model: keras.Model, training: "Training") -> None:
        self._tell("fitting the linear SVM from which the weights start")
        model.set_weights(
            svm_weights(training.settings, training.build, *training.parts["train"].arrays)
        )

    def _tell(self, text: str) -> None:
        if self.verbose:
            print(text, flush=True)

    def _remember(
        self,
        model: keras.Model,
        vectorizer: WordVectorizer,
        classes: np.ndarray,
        kept: Kept | None,
    ) -> None:
        self.model_ = model
        self.vectorizer_ = vectorizer
        self.classes_ = classes
        self.kept_ = kept

    def _forget(self) -> None:
        """Takes away what an earlier `fit` found, so that an interrupted one leaves nothing."""
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)


@dataclasses.dataclass(frozen=True)
class Training:
    """What a training begins with.

    Attributes:
        settings: The settings.
        vectorizer: The vocabulary.
        parts: The parts by name, `train` and, if there is one, `validation`.
        classes: The number of classes.
    """

    settings: Settings
    vectorizer: WordVectorizer
    parts: dict[str, Part]
    classes: int

    @functools.cached_property
    def batches(self) -> TextBatches:
        """The batches of the training part."""
        return training_batches(self.settings, self.parts["train"])

    @property
    def build(self) -> Callable[[], keras.Model]:
        """A function that returns a new, compiled model."""
        return functools.partial(
            compiled_model,
            self.settings,
            self.vectorizer.vocabulary_size(),
            self.classes,
            len(self.batches),
            self.vectorizer.max_words,
        )


def _seed(random_state: int | np.random.RandomState | None) -> int:
    generator = check_random_state(random_state)
    if isinstance(random_state, numbers.Integral):
        return int(random_state)
    return int(generator.randint(_LARGEST_SEED))


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seeds the generator from which Keras draws seeds, and gives it back as it was."""
    state = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)


def _portable(parameters: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of the constructor in a form for JSON."""
    portable = dict(parameters)
    if isinstance(portable["attention"], keras.layers.Layer):
        portable["attention"] = keras.saving.serialize_keras_object(portable["attention"])
    if not isinstance(portable["random_state"], numbers.Integral):
        portable["random_state"] = None  # the state of a generator is that of another process
    # Those of NumPy come from a search over an array.
    return {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in portable.items()
    }
