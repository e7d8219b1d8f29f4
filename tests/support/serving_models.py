"""Models of plain TensorFlow with the signatures and cards of our exports, written in a second."""

import json

import tensorflow as tf
from serving_table import save_signatures

WORDS = ("the", "cat", "dog", "sat")
RULE = 110


def write(folder, card, **functions):
    """Writes version 1 of a model with a card, beside its signatures."""
    save_signatures(folder / "1", functions)
    extra = folder / "1" / "assets.extra"
    extra.mkdir()
    text = json.dumps({"name": folder.name, "version": 1, **card})
    (extra / "model_card.json").write_text(text, encoding="utf-8")


def write_factor(folder, version, factor, gate=None):
    """Writes a version that multiplies by a number, whole at once.

    With a gate (an event), it answers only while the gate is open (set).
    """

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")])
    def multiply(x):
        if gate:
            x = tf.numpy_function(lambda x: gate.wait(60) and x, [x], tf.float32)
            x = tf.ensure_shape(x, [None])
        return {"y": factor * x}

    module = tf.Module()
    module.weight = tf.Variable(tf.random.normal([1000]))  # so that there is a file to damage
    module.f = multiply
    partial = folder / ".partial"
    tf.saved_model.save(module, str(partial), {"serving_default": multiply})
    return partial.rename(folder / str(version))


def write_table(folder, rows):
    """Writes a model whose answer has `rows` x 100,000 numbers."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")])
    def table(x):
        return {"y": tf.sin(x[:, None] + tf.range(rows * 100_000, dtype=tf.float32))}

    module = tf.Module()
    module.f = table
    tf.saved_model.save(module, str(folder / "table" / "1"), {"serving_default": table})


def classifier(folder):
    """`cat` with 0.7 if there is a cat, else `dog`; the attention gives all to the first word."""
    text = tf.TensorSpec([None], tf.string, "text")

    def classify(text):
        cat = tf.strings.regex_full_match(text, r"(?s).*\bcat\b.*")[:, None]
        probabilities = tf.where(cat, [[0.7, 0.2, 0.1]], [[0.1, 0.8, 0.1]])
        label = tf.gather(["cat", "dog", "<b>çat</b>"], tf.argmax(probabilities, 1))
        return {"label": label, "probabilities": probabilities}

    def explain(text):
        words = tf.strings.split(tf.strings.lower(text)).to_tensor("")
        known = tf.reduce_any(words[..., None] == tf.constant(WORDS), -1)
        rows = tf.shape(words)
        first = tf.tile(tf.one_hot([0], rows[1]), [rows[0], 1])
        return {
            **classify(text),
            "words": words,
            "unknown": ~known & (words != ""),
            "weights": first,
            "graph": tf.tile(first[:, None, :], [1, rows[1], 1]),
        }

    card = {
        "task": "classify",
        "labels": ["cat", "dog", "<b>çat</b>"],
        "examples": ["The cat sat", "a dog <i>barked</i>"],
        "data": {"name": "pets", "fingerprint": "0f3a"},
        "scores": {"test_accuracy": 0.87526416237503},
        "seed": 0,
    }
    write(folder, card, serving_default=(classify, text), explain=(explain, text))


def translator(folder):
    """Writes a sentence in upper case; the beam gives it also with an exclamation mark."""
    text = tf.TensorSpec([None], tf.string, "text")
    translation = tf.TensorSpec([None], tf.string, "translation")

    def several(text, ends):
        upper = tf.strings.upper(text)[:, None]
        scores = tf.cast(tf.range(len(ends)), tf.float32)[None] + 0.5
        return {
            "translations": upper + tf.constant(ends)[None],
            "scores": tf.tile(scores, [tf.shape(text)[0], 1]),
        }

    def default(text):
        return {"translation": tf.strings.upper(text), "score": tf.zeros(tf.shape(text))}

    def pieces(text):
        split = tf.strings.split(text)
        end = tf.fill([tf.shape(text)[0], 1], "[END]")
        return tf.concat([split, end], 1).to_tensor("")

    def explain(text, translation):
        start = tf.fill([tf.shape(text)[0], 1], "[START]")
        source = tf.concat([start, pieces(text)], 1)
        target = pieces(translation)
        shift = tf.eye(tf.shape(target)[1], tf.shape(source)[1] - 1)  # each word to its own
        attention = tf.pad(shift, [[0, 0], [1, 0]])
        return {
            "source": source,
            "target": target,
            "unknown": tf.strings.regex_full_match(source, "☃"),
            "attention": tf.tile(attention[None], [tf.shape(text)[0], 1, 1]),
        }

    card = {
        "task": "translate",
        "languages": ["pt", "en"],
        "examples": ["eu vi"],
        "beam_size": 2,
        "inputs": {"text": {"by_length": True, "max_length": 200}},
    }
    write(
        folder,
        card,
        serving_default=(default, text),
        greedy=(lambda text: several(text, [""]), text),
        n_best=(lambda text: several(text, ["", "!"]), text),
        explain=(explain, text, translation),
    )


def rule(folder):
    """Rule 110 without error, but for cell 3 of a row that is all 0, which becomes 1."""

    def predict(bits):
        left, right = tf.roll(bits, 1, 1), tf.roll(bits, -1, 1)
        number = 4 * left + 2 * bits + right
        following = tf.bitwise.right_shift(RULE, number) % 2
        empty = tf.cast(tf.reduce_all(bits == 0, 1, keepdims=True), tf.int32)
        following += empty * tf.one_hot([2], tf.shape(bits)[1], dtype=tf.int32)
        return {"bits": following, "probabilities": tf.one_hot(following, 2)}

    bits = tf.TensorSpec([None, None], tf.int32, "bits")
    card = {"task": "rules", "rule": RULE, "steps": 1, "boundary": "periodic"}
    write(folder, card, serving_default=(predict, bits))


def digits(folder):
    """`1` if anything is drawn in the left half of 8 by 8 pixels, else `0`."""

    def classify(images):
        left = tf.reduce_max(images[:, :, :4], [1, 2])
        one = tf.cast(left > 0, tf.float32)
        probabilities = tf.stack([1 - one, one], 1)
        return {
            "label": tf.gather(["0", "1"], tf.argmax(probabilities, 1)),
            "probabilities": probabilities,
        }

    card = {"task": "images", "labels": ["0", "1"], "image_size": [8, 8]}
    write(folder, card, serving_default=(classify, tf.TensorSpec([None, 8, 8], name="images")))


def page_models(folder):
    """Writes one model of each task but language models, and one without a card."""
    classifier(folder / "pets")
    translator(folder / "pt_en")
    rule(folder / "rule-110")
    digits(folder / "digits")
    write(
        folder / "plain",
        {},
        serving_default=(lambda x: {"y": 2 * x}, tf.TensorSpec([None], name="x")),
    )
    return folder
