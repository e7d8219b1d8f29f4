"""Small exported models, made in seconds, for the tests and benchmarks of the server."""

import keras
import tensorflow as tf

from keras_tnattn.export import (
    export,
    export_signatures,
    export_translator,
    labels_and_probabilities,
)
from keras_tnattn.layers import LocalEmbedding
from keras_tnattn.models import deep_tensor_network, text_classifier
from keras_tnattn.text.words import split_words, word_vectorizer

TEXTS = ["the cat sat on the mat", "a dog ran in the park", "the cat ran and the dog sat"]
NAMES = ("cat", "dog", "çat")


def export_classifier(folder, version=None, attention="tsa", max_words=30, **options):
    """Writes an untrained classifier of three classes."""
    vectorizer = word_vectorizer(TEXTS, max_words=max_words)
    model = text_classifier(
        vectorizer.vocabulary_size(), len(NAMES), attention=attention, embedding_dim=16
    )
    return export(model, vectorizer, NAMES, folder, version, split_words, **options)


def export_rule(folder, version=None):
    """Writes an untrained network of rows of cells; a cell's value 2 makes it fail."""
    model = deep_tensor_network(
        2, LocalEmbedding("one_hot", num_ids=2), bond_dim=4, head="sequence"
    )

    @tf.function
    def predict(bits):
        with tf.control_dependencies([tf.debugging.assert_less(bits, 2, "cells are 0 or 1")]):
            probabilities = tf.nn.softmax(model(bits, training=False))
        bits = tf.argmax(probabilities, axis=-1, output_type=tf.int32)
        return {"bits": bits, "probabilities": probabilities}

    signature = (predict, tf.TensorSpec([None, None], tf.int32, "bits"))
    signatures = {"serving_default": signature, "ids": signature}
    return export_signatures(signatures, [model], folder, version)


def export_images(folder, version=None):
    """Writes an untrained classifier of images of 8 by 8 pixels."""
    images = keras.Input((8, 8))
    network = deep_tensor_network(
        10, LocalEmbedding("trigonometric"), bond_dim=4, num_sites=8, num_features=8
    )
    model = keras.Model(images, network(images))

    def probabilities(images, training):
        return tf.nn.softmax(model(images, training=training))

    names = [str(n) for n in range(10)]
    signature = (
        labels_and_probabilities(probabilities, names),
        tf.TensorSpec([None, 8, 8], tf.float32, "images"),
    )
    return export_signatures(
        {"serving_default": signature}, [model], folder, version, class_names=names
    )


def export_pt_en(run, folder, version=None, beam_size=2):
    """Writes an untrained translator; `run` is a new folder for its corpus."""
    from translator_runs import make_run

    model, corpus = make_run(run, "sdpa")
    return export_translator(model, *corpus.tokenizers(), folder, version, beam_size)


def export_all(folder, scratch):
    """Writes one model of each task below a folder."""
    export_classifier(folder / "pets")
    export_rule(folder / "rule-110")
    export_images(folder / "digits")
    export_pt_en(scratch / "run", folder / "pt_en")
    return folder
