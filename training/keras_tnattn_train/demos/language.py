"""`make demo-language`: a language model of docstrings, its metric frozen, continues texts.

If you run the demo again, it keeps a finished run and resumes an interrupted one.
"""

import sys
from pathlib import Path

from keras_tnattn_train.commands import run_demo
from keras_tnattn_train.demos.runs import finished

RUN = Path("runs/demo-language/docstrings")
PROMPTS = ("Returns the ", "Parameters\n----------\nx : ")
# Three minutes on two cores.
COMMAND = "language --attention plga --freeze-metric --epochs 3 --batches-per-epoch 200"


def run() -> None:
    """Runs the demo."""
    from keras_tnattn_train.language.loading import LanguageRun

    finished(RUN, f"{COMMAND} --name {RUN.name}")
    trained = LanguageRun(RUN)
    generator = trained.generator(max_new_tokens=60, temperature=0.7, top_p=0.9)
    prompts = [trained.tokens.prompt(prompt) for prompt in PROMPTS]
    for prompt, ids in zip(PROMPTS, generator(prompts).ids, strict=True):
        print(f"\n{prompt}{trained.tokens.decode(ids)}")
    print(f"\nrun folder: {RUN}")


if __name__ == "__main__":
    sys.exit(run_demo(run))
