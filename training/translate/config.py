"""The options of `translate`, the command that trains translators."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from training.data.reading import short_name
from training.errors import InputError
from training.options import (
    DATA,
    MODEL,
    OUTPUT,
    TRAINING,
    RunConfig,
    at_least,
    one_of,
    option,
)

PRESETS = ("plga-1", "plga-2", "plga-3", "plga-4", "plga-5", "plga-6", "sdpa")
ATTENTIONS = ("plga", "sdpa")
FORMS = ("NFC", "NFKC")
# Of the schedule, by the paper.
WARMUP_STEPS = {"plga": 15_000, "sdpa": 4000}
CORPUS = "cldr:pt-en"


def override(kind: type, text: str, **arguments: Any) -> Any:
    """Returns an option of the model, which is the preset's if it is not given."""
    if kind is not str:
        arguments["metavar"] = "N" if kind is int else "RATE"
    return option(None, MODEL, f"{text} (default: the preset's)", type=kind, **arguments)


@dataclasses.dataclass(frozen=True)
class TranslateConfig(RunConfig):
    """Everything that decides what `translate` trains, on what, and what it writes.

    Raises:
        InputError: If a value is out of its range whatever the data.
    """

    corpus: str | None = option(
        None,
        DATA,
        "cldr:pt-en (tr, either direction), multi30k_pt_en, ted_hrlr_pt_en, ted_hrlr_tr_en, "
        "tfds:NAME, a .tsv or .csv file (.gz, .xz) with the columns source and target, two text "
        "files A,B, or a folder of LANGUAGE.PART.txt files "
        f"(default: {CORPUS}, or what --prepared holds)",
    )
    data_dir: str | None = option(
        None, DATA, "folder of the named corpora, or TFDS' folder", metavar="DIR"
    )
    reverse: bool = option(
        False, DATA, "translate from the target to the source", action="store_true"
    )
    prepared: str | None = option(
        None,
        DATA,
        "folder of the tokenised corpus, to share it between runs: made there if it is missing; "
        "without --corpus it is taken as it is, and tensorflow-text is not needed "
        "(default: prepared/ in the run's folder)",
        metavar="DIR",
    )
    vocabulary_size: int = option(8000, DATA, "most word pieces of each language", metavar="N")
    max_length: int = option(
        128,
        DATA,
        "most word pieces of a sentence; longer training pairs are left out, longer validation "
        "and test sentences are cut",
        metavar="N",
    )
    lower_case: bool = option(
        False, DATA, "lower the case, in Turkish with its two i's", action="store_true"
    )
    strip_accents: bool = option(
        False, DATA, "take the accents off the letters", action="store_true"
    )
    unicode_form: str = option(
        "NFC",
        DATA,
        "NFC: characters composed; NFKC: letters for their compatible forms too, such as fi for "
        "its ligature",
        choices=FORMS,
    )

    preset: str | None = option(
        None,
        MODEL,
        "a model of the paper's Table 1; the other options of the model change it "
        "(default: plga-2, or sdpa with --attention sdpa)",
        type=str,
        choices=PRESETS,
    )
    attention: str | None = override(
        str,
        "plga: power law graph attention; sdpa: scaled dot-product attention",
        choices=ATTENTIONS,
    )
    num_layers: int | None = override(int, "layers of the encoder, and of the decoder")
    model_dim: int = option(512, MODEL, "size of embeddings and layers", metavar="N")
    num_heads: int | None = override(int, "heads of each attention")
    feedforward_dim: int = option(2048, MODEL, "hidden size of the feed-forward nets", metavar="N")
    residual_units: int | None = override(int, "units that learn the metric (plga)")
    residual_dim: int | None = override(int, "width of these units (plga)")
    dropout: float | None = override(float, "on embeddings and branches")
    attention_dropout: float | None = override(
        float, "on the scores and, with plga, the residual units"
    )
    causal_metric: bool = option(
        False,
        MODEL,
        "give each position of the decoder the metric of the tokens up to it alone (plga); as "
        "published, it is that of the whole sentence",
        action="store_true",
    )

    epochs: int = option(20, TRAINING, "passes over the training part", metavar="N")
    batch_size: int = option(64, TRAINING, "pairs in a step", metavar="N")
    learning_rate: float | None = option(
        None,
        TRAINING,
        "peak of Adam's rate, reached after the warm-up. plga wants a small one: at model-dim 128 "
        "1e-3 learns and 2.8e-3 is too much (default: the paper's, "
        "(model-dim * warmup-steps) ** -0.5)",
        type=float,
        metavar="PEAK",
    )
    warmup_steps: int | None = option(
        None,
        TRAINING,
        "steps in which the rate rises (default: plga 15,000, sdpa 4,000)",
        type=int,
        metavar="N",
    )
    cooldown_epochs: int = option(
        0,
        TRAINING,
        "last epochs, in which the rate falls to 0; a short training ends better by it, the paper "
        "has none",
        metavar="N",
    )
    early_stopping: int | None = option(
        None,
        TRAINING,
        "stop after PATIENCE epochs without a lower loss on the validation part",
        type=int,
        metavar="PATIENCE",
    )
    checkpoint_epochs: Sequence[int] = option(
        (), TRAINING, "epochs whose weights are kept", type=int, nargs="+", metavar="N"
    )
    mixed_precision: bool = option(
        False, TRAINING, "compute in bfloat16, keep the weights in float32", action="store_true"
    )
    steps_per_execution: int = option(
        1, TRAINING, "steps between two looks at the progress", metavar="N"
    )
    jit_compile: str = option(
        "auto", TRAINING, "compile the steps with XLA", choices=("auto", "on", "off")
    )

    export_beam: int = option(
        1,
        OUTPUT,
        "hypotheses that the exported translator keeps at each step; 1: greedy search",
        metavar="N",
    )

    def __post_init__(self) -> None:
        if self.corpus is None and self.prepared is None:
            self._set("corpus", CORPUS)
        if self.preset is None:
            self._set("preset", "sdpa" if self.attention == "sdpa" else "plga-2")
        one_of(PRESETS, preset=self.preset)
        if self.attention is None:
            self._set("attention", self.preset.partition("-")[0])
        one_of(ATTENTIONS, attention=self.attention)
        one_of(FORMS, unicode_form=self.unicode_form)
        if self.warmup_steps is None:
            self._set("warmup_steps", WARMUP_STEPS[self.attention])
        at_least(
            1,
            max_length=self.max_length,
            model_dim=self.model_dim,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            feedforward_dim=self.feedforward_dim,
            residual_dim=self.residual_dim,
            warmup_steps=self.warmup_steps,
            early_stopping=self.early_stopping,
            steps_per_execution=self.steps_per_execution,
            export_beam=self.export_beam,
        )
        at_least(0, residual_units=self.residual_units)
        if self.learning_rate is None:
            self._set("learning_rate", (self.model_dim * self.warmup_steps) ** -0.5)
        super().__post_init__()
        self._set("checkpoint_epochs", list(self.checkpoint_epochs))  # as JSON and argparse do
        if not 0 <= self.cooldown_epochs <= self.epochs:
            raise InputError(
                f"Expected cooldown_epochs of 0 to {self.epochs}, the epochs. "
                f"Received: cooldown_epochs={self.cooldown_epochs}"
            )
        for epoch in self.checkpoint_epochs:
            if not 1 <= epoch <= self.epochs:
                raise InputError(
                    f"Expected checkpoint_epochs of 1 to {self.epochs}. "
                    f"Received: checkpoint_epochs={self.checkpoint_epochs}"
                )
        for name in ("dropout", "attention_dropout"):
            rate = getattr(self, name)
            if rate is not None and not 0 <= rate < 1:
                raise InputError(f"Expected a {name} in [0, 1). Received: {name}={rate}")
        if self.export_beam > 1 and not self.export:
            raise InputError(
                f"Expected export beside export_beam. Received: export_beam={self.export_beam}"
            )
        if self.attention != "plga":
            self._refuse(f"attention={self.attention!r}", *PLGA_ONLY)
        if self.corpus is None:
            self._refuse("prepared alone", "data_dir", "reverse", *PREPARING)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _refuse(self, beside: str, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value != getattr(type(self), name):
                raise InputError(
                    f"Expected no {name} with {beside}, which has its own. Received: {name}={value}"
                )

    @property
    def default_name(self) -> str:
        """The name of the run if none is given."""
        words = [short_name(self.corpus or self.prepared)]
        words += ["reversed"] if self.reverse else []
        words.append(self.preset)
        words += [] if self.preset.startswith(self.attention) else [self.attention]
        words += ["causal"] if self.causal_metric else []
        return "-".join([*words, str(self.seed)])

    @property
    def export_options(self) -> dict[str, Any]:
        """What makes one exported model differ from another of the same run."""
        return {**super().export_options, "beam_size": self.export_beam}

    @property
    def preparing(self) -> dict[str, Any]:
        """The arguments of `training.data.pairs.prepared.prepare`."""
        return {
            "vocabulary_size": self.vocabulary_size,
            "max_length": self.max_length,
            "lower_case": self.lower_case,
            "keep_accents": not self.strip_accents,
            "form": self.unicode_form,
        }

    @property
    def overrides(self) -> dict[str, Any]:
        """The arguments of the translator that differ from the preset's."""
        given = {name: getattr(self, name) for name in MODEL_ARGUMENTS}
        options = {name: value for name, value in given.items() if value is not None}
        return options | ({"causal_metric": True} if self.causal_metric else {})


PLGA_ONLY = ("residual_units", "residual_dim", "causal_metric")
PREPARING = ("vocabulary_size", "max_length", "lower_case", "strip_accents", "unicode_form")
MODEL_ARGUMENTS = (
    "attention",
    "num_layers",
    "model_dim",
    "num_heads",
    "feedforward_dim",
    "residual_units",
    "residual_dim",
    "dropout",
    "attention_dropout",
)
