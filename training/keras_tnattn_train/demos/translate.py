"""`make demo-translate`: trains and compares two translators, runs and draws one of them.

No network is needed: the pairs are CLDR's data in Portuguese and English. If you run the demo
again, it keeps finished runs and resumes an interrupted one.
"""

import sys
from pathlib import Path

from keras_tnattn_train.commands import run_demo
from keras_tnattn_train.demos.classify import serve
from keras_tnattn_train.demos.runs import finished
from keras_tnattn_train.system.files import save_text

RUNS = Path("runs/demo-translate")
# No dropout, because the same content is always rendered the same way. Power law graph attention
# needs a low peak of the learning rate, here reached early.
COMMAND = (
    f"translate --corpus cldr:pt-en --prepared {RUNS / 'prepared'} --model-dim 128 --num-heads 4 "
    "--feedforward-dim 512 --num-layers 1 --dropout 0 --attention-dropout 0 --learning-rate 0.001 "
    "--warmup-steps 800 --epochs 10 --cooldown-epochs 5"
)
MODELS = {  # the options of each, by the name of its run; the first is exported
    "plga-pt-en": "--preset plga-small --residual-dim 64 --export",
    "sdpa-pt-en": "--preset sdpa",
}
HEADER = ("attention", "weights", "BLEU", "exact %", "training s", "sentences/s")
SENTENCES = (
    "terça-feira, 17 de dezembro de 1963",
    "16:52, 08:43 e Nova Caledônia",
    "912 milhas cúbicas ou 5.771 Francos guineanos",
)
# All that a server needs; this code runs in a process that never imports this package.
SERVE = """
import sys
import tensorflow as tf
import tensorflow_text  # the operations on text

model = tf.saved_model.load(sys.argv[1])
outputs = model.signatures["serving_default"](tf.constant(sys.argv[2:]))
for text, translation in zip(sys.argv[2:], outputs["translation"].numpy()):
    print(f"  {text}  ->  {translation.decode()}")
print("  keras_tnattn imported:", "keras_tnattn" in sys.modules)
"""


def run() -> None:
    """Runs the demo."""
    from keras_tnattn_train.runs.tables import table_of
    from keras_tnattn_train.translate.evaluate import EvaluateOptions, evaluate_run
    from keras_tnattn_train.translate.explain import ExplainOptions, explain_run

    results = {
        name: finished(RUNS / name, f"{COMMAND} {options} --name {name}")
        for name, options in MODELS.items()
    }
    lines = [HEADER]
    for name, result in results.items():
        measured = evaluate_run(EvaluateOptions(run=str(RUNS / name)))
        lines.append(
            (
                name.partition("-")[0].upper(),
                f"{result['parameters']:,}",
                f"{measured['bleu']:.1f}",
                f"{100 * measured['exact_match']:.1f}",
                f"{result['seconds']:.0f}",
                f"{measured['sentences_per_second']:.0f}",
            )
        )
    text = table_of(lines)
    save_text(RUNS / "table.md", text)
    print(f"\n{measured['sentences']:,} sentences of the test part, greedy search:\n\n{text}\n")
    print(measured["bleu_signature"])

    first = next(iter(MODELS))
    exported = Path(results[first]["exported"])
    print(f"\nTranslations of {exported}, run by TensorFlow in another process:", flush=True)
    serve(exported, SERVE, SENTENCES)
    options = ExplainOptions(run=str(RUNS / first), sentence=SENTENCES[0], bootstraps=0)
    explained = explain_run(options)
    print(
        f"\npictures: learning_curves.png in {RUNS}/*/, and {len(explained['files'])} pictures of "
        f"the attention for the first sentence in {explained['folder']}/"
    )


if __name__ == "__main__":
    sys.exit(run_demo(run))
