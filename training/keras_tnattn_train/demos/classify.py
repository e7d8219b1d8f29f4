"""`make demo-classify`: trains three attentions on real text, exports one, and runs it.

No network is needed: the texts are the docstrings of the installed libraries. If you run the demo
again, it keeps finished runs and resumes an interrupted one.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from keras_tnattn_train.commands import run_demo
from keras_tnattn_train.demos.runs import finished
from keras_tnattn_train.system.files import save_text

RUNS = Path("runs/demo")
COMMAND = "classify --dataset docstrings --recipe paper --epochs 6"
# The options of each model, by the name of its run: attentions of about 300 weights, as in the
# papers. The first is exported.
MODELS = {
    "docstrings": "--attention tsa --embedding-dim 64 --export",
    "docstrings-dpa": "--attention dpa --embedding-dim 6",
    "docstrings-ada": "--attention ada --embedding-dim 6",
}
HEADER = ("run", "attention weights", "all weights", "train %", "test %")
SENTENCES = (
    "Draws the line with the given color and marker on the axes of the figure.",
    "Fits the classifier to the training samples and returns the estimator itself.",
    "Applies dropout to the inputs of the layer, which becomes a part of the saved model.",
)
# All that a server needs; this code runs in a process that never imports this package.
SERVE = """
import sys
import tensorflow as tf

model = tf.saved_model.load(sys.argv[1])
outputs = model.signatures["serving_default"](tf.constant(sys.argv[2:]))
for text, label, row in zip(sys.argv[2:], outputs["label"], outputs["probabilities"]):
    print(f"  {label.numpy().decode():>10} {tf.reduce_max(row):4.0%}  {text}")
print("  keras_tnattn imported:", "keras_tnattn" in sys.modules)
"""


def run() -> None:
    """Runs the demo."""
    from keras_tnattn_train.runs.tables import table_of

    results = {
        name: finished(RUNS / name, f"{COMMAND} {options} --name {name}")
        for name, options in MODELS.items()
    }
    lines = [HEADER]
    for name, result in results.items():
        weights = result["parameters"]
        lines.append(
            (
                name,
                f"{weights['attention']:,}",
                f"{weights['all']:,}",
                f"{100 * result['train_accuracy']:.1f}",
                f"{100 * result['test_accuracy']:.1f}",
            )
        )
    text = table_of(lines)
    save_text(RUNS / "table.md", text)
    print(f"\n{text}\n")

    exported = Path(results["docstrings"]["exported"])
    print(f"Predictions of {exported}, run by TensorFlow in another process:", flush=True)
    serve(exported, SERVE, SENTENCES)
    print(
        f"\npictures: learning_curves.png, confusion_matrix.png and psi.png in {RUNS}/docstrings/\n"
        "try it in the browser: make serve"
    )


def serve(exported: Path, code: str, sentences: Sequence[str]) -> None:
    """Runs code with an exported model and sentences in a process without this package.

    Shows its output, and its messages on stderr only if it fails.
    """
    command = [sys.executable, "-I", "-c", code, str(exported), *sentences]
    served = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace")
    if served.returncode:
        print(served.stderr, file=sys.stderr)
    served.check_returncode()


if __name__ == "__main__":
    sys.exit(run_demo(run))
