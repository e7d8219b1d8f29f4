"""`make demo-language`: a language model of docstrings, its metric frozen, continues texts.

If you run the demo again, it keeps a finished run and resumes an interrupted one.
"""

import sys
from pathlib import Path
from typing import Any

from keras_tnattn_train.commands import run_demo
from keras_tnattn_train.language.config import LanguageConfig
from keras_tnattn_train.runs.many import finish_all

RUNS = Path("runs/demo-language")
PROMPTS = ("Returns the ", "Parameters\n----------\nx : ")
# Three minutes on two cores.
OPTIONS: dict[str, Any] = {
    "attention": "plga",
    "freeze_metric": True,
    "epochs": 3,
    "batches_per_epoch": 200,
}


def run() -> None:
    """Runs the demo."""
    from keras_tnattn_train.language.corpus import read_corpus
    from keras_tnattn_train.language.loading import LanguageRun
    from keras_tnattn_train.language.train import summary, train_language_model

    config = LanguageConfig(name="docstrings", **OPTIONS)

    def train(config: LanguageConfig, run: Any) -> dict[str, Any]:
        return train_language_model(config, run, read_corpus(config))

    (results,) = finish_all([config], RUNS, train)
    print(summary(results, config))
    trained = LanguageRun(RUNS / config.name)
    generator = trained.generator(max_new_tokens=60, temperature=0.7, top_p=0.9)
    prompts = [trained.tokens.prompt(prompt) for prompt in PROMPTS]
    for prompt, ids in zip(PROMPTS, generator(prompts).ids, strict=True):
        print(f"\n{prompt}{trained.tokens.decode(ids)}")
    print(f"\nrun folder: {RUNS / config.name}")


if __name__ == "__main__":
    sys.exit(run_demo(run))
