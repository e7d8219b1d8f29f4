"""Shows which words of a text a trained classifier attends to, and which decide."""

import html
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_tnattn_train.options.apps import Program
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.options.options import OUTPUT, Options, argument, option
from keras_tnattn_train.processes.backend import start_backend
from keras_tnattn_train.runs.tables import table_of
from keras_tnattn_train.system.files import write_json, writing

if TYPE_CHECKING:
    from keras_tnattn_train.classify.loading import ClassifierRun

INDEX = "index.html"
EXPLANATION = "explanation.json"
# That are printed.
SHOWN_CLASSES = 5
SHOWN_WORDS = 20
DRAWN_WORDS = 60  # of a picture
EXAMPLES = """\
examples:
  show what a classifier, and its compressed model, attend to:
    keras-tnattn explain runs/reuters-tsa-0 "Oil prices rose after the meeting."
    keras-tnattn explain runs/reuters-tsa-0/compressed "Oil prices rose." --out oil
"""


class ExplainOptions(Options):
    """The options of `explain` for a classifier."""

    run: str = argument("the folder of a classifier's run, or of its compressed model")
    text: str = argument("the text to classify")
    out: str | None = option(
        None, OUTPUT, "folder for page and pictures (default: RUN/explained)", metavar="DIR"
    )

    def check_together(self) -> None:
        if not self.text.strip():
            raise ValueError(f"Expected a text with words. Received: {self.text!r}")


def _explain(options: ExplainOptions) -> None:
    explanation = explain_run(options)
    probabilities = sorted(explanation["probabilities"].items(), key=lambda pair: -pair[1])
    print("label: " + ", ".join(f"{name} ({p:.1%})" for name, p in probabilities[:SHOWN_CLASSES]))
    words = explanation["words"]
    most = sorted(range(len(words)), key=lambda i: -abs(words[i]["influence"]))[:SHOWN_WORDS]
    if len(words) > SHOWN_WORDS:
        print(f"the {SHOWN_WORDS} words of {len(words):,} with the largest influence:")
    columns = [name for name in ("attention", "influence") if name in words[0]]
    lines = [
        [word["word"] + ("" if word["known"] else " (unknown)")]
        + [f"{word[name]:{'.2f' if name == 'attention' else '+.3f'}}" for name in columns]
        for word in (words[i] for i in sorted(most))
    ]
    print(table_of([["word", *columns], *lines]))
    print(f"open {Path(explanation['folder'], INDEX)}")


PROGRAM = Program(
    "explain",
    "Classifies a text, and shows for each word the attention that it receives and its influence: "
    "by how much the probability of the label is lower without it. Writes index.html, "
    "explanation.json and a picture of the scores of each attention layer. Models without scores "
    "have the influence only.",
    EXAMPLES,
    ExplainOptions,
    _explain,
)


def explain_run(options: ExplainOptions) -> dict[str, Any]:
    """Writes what a run's classifier computed for a text, as a page with pictures.

    Returns:
        The content of `explanation.json`: `text`, `label`, `probabilities` by class, and `words`,
        each with the `word`, whether it is `known`, its `influence`, the probability of the label
        less that without the word, and its `attention`: the sum over the column of the scores of
        the first attention layer, averaged over its heads, divided by the largest such sum. And
        `folder` and `files`, the pictures in it.
    """
    start_backend()  # takes seconds
    from keras_tnattn_train.classify.loading import ClassifierRun
    from keras_tnattn_train.classify.reports import attentions, draw_psi

    run = ClassifierRun(Path(options.run))
    words = run.vectorizer.words(options.text)
    if not words:
        raise InputError(f"Expected a text with words. Received: {options.text!r}")
    ids = run.vectorizer([options.text])[0, : len(words)]
    probabilities, influence = _influences(run, ids)
    entries = [
        {"word": word, "known": bool(number != 1), "influence": float(change)}
        for word, number, change in zip(words, ids, influence, strict=True)
    ]
    folder = Path(options.out or Path(options.run, "explained"))
    scores = {
        name: s for name in attentions(run.model) if (s := _scores(run, name, ids)) is not None
    }
    if "attention" in scores:
        received = scores["attention"].mean(axis=0).sum(axis=0)
        largest = received.max() or 1.0  # of a single word it can be 0
        for entry, share in zip(entries, received / largest, strict=True):
            entry["attention"] = float(share)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob("attention*.png"):  # of another text
            path.unlink()
        for name, layer in scores.items():
            drawn = layer[:, :DRAWN_WORDS, :DRAWN_WORDS]
            draw_psi(drawn, words[:DRAWN_WORDS], folder / f"{name}.png")
        explanation = {
            "text": options.text,
            "label": run.class_names[int(probabilities.argmax())],
            "probabilities": dict(zip(run.class_names, map(float, probabilities), strict=True)),
            "words": entries,
        }
        files = [f"{name}.png" for name in scores]
        (folder / INDEX).write_text(_page(explanation, files), encoding="utf-8")
        write_json(folder / EXPLANATION, explanation)
    return {**explanation, "folder": str(folder), "files": files}


def _influences(run: "ClassifierRun", ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the probabilities `(C,)` of a text, and what each word adds to that of the label."""
    from keras_tnattn.estimator.batches import outputs_of

    texts = np.tile(ids, (len(ids) + 1, 1))
    for i in range(len(ids)):
        texts[i + 1] = [*np.delete(ids, i), 0]
    outputs = outputs_of(run.model, texts)
    return outputs[0], outputs[0].max() - outputs[1:, outputs[0].argmax()]


def _scores(run: "ClassifierRun", name: str, ids: np.ndarray) -> np.ndarray | None:
    """Returns the scores `(H, L, L)` of an attention layer, if it has any."""
    from keras import ops

    from keras_tnattn.export.explaining import attention_scores

    compute = attention_scores(run.model, name)
    return None if compute is None else ops.convert_to_numpy(compute(ids[None]))[0]


def _page(explanation: dict[str, Any], files: Sequence[str]) -> str:
    """Returns a page in HTML: the classes, the text shaded by attention and by influence."""
    words = explanation["words"]
    classes = sorted(explanation["probabilities"].items(), key=lambda pair: -pair[1])
    lines = [
        '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>A classified text</title>',
        "<style>body{font-family:sans-serif;max-width:75rem;margin:auto;padding:1rem}"
        "img{max-width:100%}.words{line-height:2}.words span{padding:.2em}"
        ".unknown{text-decoration:underline wavy}</style>",
        f"<h1>{html.escape(explanation['label'])}</h1><table>",
        *(f"<tr><td>{html.escape(name)}<td>{p:.1%}" for name, p in classes[:SHOWN_CLASSES]),
        "</table>",
    ]
    if "attention" in words[0]:
        lines += [
            "<h2>Attention</h2><p>The darker a word, the more the words of the text attend to it. "
            "Underlined: not in the vocabulary.</p>",
            _shade(words, [word["attention"] for word in words]),
        ]
    largest = max(max(abs(word["influence"]) for word in words), 1e-9)
    lines += [
        "<h2>Influence</h2><p>Blue words support the label, red words oppose it: a word's title "
        "says how much lower or higher the probability of the label is without it.</p>",
        _shade(words, [word["influence"] / largest for word in words]),
    ]
    for file in files:
        lines += [
            f"<h2>{file.removesuffix('.png')}</h2><p>The scores of the layer: how much the word of "
            f"a row takes from the word of a column; the first {DRAWN_WORDS} words.</p>"
            f'<img src="{file}" alt="scores of {file}">'
        ]
    return "\n".join([*lines, "</html>", ""])


def _shade(words: Sequence[dict[str, Any]], strengths: Sequence[float]) -> str:
    spans = []
    for word, strength in zip(words, strengths, strict=True):
        color = "47,91,199" if strength >= 0 else "192,47,29"
        unknown = "" if word["known"] else ' class="unknown"'
        spans.append(
            f'<span{unknown} style="background:rgba({color},{0.8 * abs(strength):.3f})" '
            f'title="influence {word["influence"]:+.4f}">{html.escape(word["word"])}</span>'
        )
    return f'<p class="words">{" ".join(spans)}</p>'
