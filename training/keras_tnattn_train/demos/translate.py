"""`make demo-translate`: trains and compares two translators, runs and draws one of them.

No network is needed: the pairs are CLDR's data in Portuguese and English. If you run the demo
again, it keeps finished runs and resumes an interrupted one.
"""

import sys
from pathlib import Path
from typing import Any

from keras_tnattn_train.commands import run_demo
from keras_tnattn_train.demos.classify import serve
from keras_tnattn_train.runs.many import exported_folder, finish_all, save_text
from keras_tnattn_train.translate.config import TranslateConfig

RUNS = Path("runs/demo-translate")
# No dropout, because the same content is always rendered the same way. Power law graph attention
# needs a low peak of the learning rate, here reached early.
COMMON: dict[str, Any] = {
    "corpus": "cldr:pt-en",
    "prepared": str(RUNS / "prepared"),
    "model_dim": 128,
    "num_heads": 4,
    "feedforward_dim": 512,
    "num_layers": 1,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "learning_rate": 1e-3,
    "warmup_steps": 800,
    "epochs": 10,
    "cooldown_epochs": 5,
}
MODELS: dict[str, dict[str, Any]] = {
    "plga": {"preset": "plga-small", "residual_dim": 64, "name": "plga-pt-en", "export": True},
    "sdpa": {"preset": "sdpa", "name": "sdpa-pt-en"},
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
    configs = [TranslateConfig(**COMMON, **options) for options in MODELS.values()]
    from keras_tnattn_train.runs.tables import table_of
    from keras_tnattn_train.translate.evaluate import EvaluateOptions, evaluate_run
    from keras_tnattn_train.translate.explain import ExplainOptions, explain_run
    from keras_tnattn_train.translate.train import train_translator

    results = finish_all(configs, RUNS, train_translator)
    lines = [HEADER]
    for config, result in zip(configs, results, strict=True):
        measured = evaluate_run(EvaluateOptions(run=str(RUNS / config.name)))
        lines.append(
            (
                config.attention.upper(),
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

    exported = exported_folder(results[0], RUNS)
    print(f"\nTranslations of {exported}, run by TensorFlow in another process:", flush=True)
    serve(exported, SERVE, SENTENCES)
    run_folder = str(RUNS / configs[0].name)
    explained = explain_run(ExplainOptions(run=run_folder, sentence=SENTENCES[0], bootstraps=0))
    print(
        f"\npictures: learning_curves.png in {RUNS}/*/, and {len(explained['files'])} pictures of "
        f"the attention for the first sentence in {explained['folder']}/"
    )


if __name__ == "__main__":
    sys.exit(run_demo(run))
