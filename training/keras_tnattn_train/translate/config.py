"""The options of `translate`."""

from typing import Any

import pydantic

from keras_tnattn_train.data.pairs.prepared import Preparing
from keras_tnattn_train.data.pairs.registry import PARALLEL_SETS
from keras_tnattn_train.data.reading import short_name
from keras_tnattn_train.options.attentions import registered_attentions, translator_presets
from keras_tnattn_train.options.options import (
    DATA,
    EITHER,
    EXPERIMENTS,
    MODEL,
    OUTPUT,
    TRAINING,
    ExportConfig,
    Options,
    batch_size_option,
    early_stopping_option,
    epochs_option,
    name_option,
    option,
    skip_bad_rows_option,
)

PRESETS = translator_presets()
SMALL = tuple(name for name in PRESETS if name.endswith("-small"))
ATTENTIONS = ("plga", "sdpa")
ATTENTION_NAMES = tuple(registered_attentions())
CAUSAL = tuple(registered_attentions(can_be_causal=True))
TOKENIZERS = ("joiners", "bert")
# Warm-up steps of the learning rate in the paper.
WARMUP_STEPS = {"plga": 15_000, "sdpa": 4000}
CORPUS = "cldr:pt-en"
PLGA_ONLY = (
    "residual_units",
    "residual_dim",
    "causal_metric",
    "cross_metric",
    "metric_epsilon",
    "query_dropout",
    "key_dropout",
)
# Options whose names in the translator differ, because these say less on a command line.
METRIC_ARGUMENTS = {"cross_metric": "metric_from", "metric_epsilon": "epsilon"}
PREPARING = ("vocabulary_size", "max_length", "tokenizer", "lower_case")
EMBEDDINGS = ("dense", "tensor_train", "low_rank")
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
    "encoder_attention",
    "decoder_attention",
    "feedforward",
)


def override(text: str, metavar: str = "N", group: str = MODEL, **constraints: Any) -> Any:
    """Declares an option of the model whose default is the preset's value."""
    return option(None, group, f"{text} (default: the preset's)", metavar=metavar, **constraints)


def size(text: str, of_paper: int, le: int) -> Any:
    """Declares a size of the model, which is a quarter of the paper's in the small preset."""
    of_small = of_paper // 4

    def compute(values: dict[str, Any]) -> int:
        return of_small if values["preset"] in SMALL else of_paper

    text = f"{text} (default: {of_small} for the small presets, {of_paper} for the others)"
    return option(compute, MODEL, text, ge=1, le=le)


def default_warmup(values: dict[str, Any]) -> int:
    return 2000 if values["preset"] in SMALL else WARMUP_STEPS[values["attention"]]


def fitting_warmup(config: "TranslateConfig", steps: int) -> int:
    """Returns the warm-up steps: the default becomes a tenth of the steps of a shorter run."""
    default = config.warmup_steps == default_warmup(dict(config))
    return max(1, steps // 10) if default and config.warmup_steps > steps else config.warmup_steps


def _default_peak(values: dict[str, Any]) -> float:
    if values["preset"] in SMALL:
        return 8e-4
    return (values["model_dim"] * values["warmup_steps"]) ** -0.5


def _metric_of_preset(preset: str) -> tuple[str, float]:
    """Returns the defaults of `cross_metric` and `metric_epsilon`."""
    options = PRESETS[preset]
    return options.get("metric_from", "query"), options.get("epsilon", 1e-9)


def _default_name(values: dict[str, Any]) -> str:
    words = [short_name(values["corpus"] or values["prepared"])]
    words += ["reversed"] if values["reverse"] else []
    words.append(values["preset"])
    words += [] if values["preset"].startswith(values["attention"]) else [values["attention"]]
    for side in ("encoder", "decoder"):
        other = values[f"{side}_attention"]
        words += [f"{side}-{other}"] if other else []
    words += ["tt"] if values["feedforward"] == "tensor_train" else []
    words += ["learned"] if values["position_encoding"] == "learned" else []
    words += ["causal"] if values["causal_metric"] else []
    cross_metric, epsilon = _metric_of_preset(values["preset"])
    if values["cross_metric"] not in (None, cross_metric):
        words.append({"query": "queries", "key": "keys"}[values["cross_metric"]])
    if values["metric_epsilon"] not in (None, epsilon):
        words.append(f"eps{values['metric_epsilon']:g}")
    return "-".join([*words, str(values["seed"])])


class PreparingOptions(Options):
    """The options of the preparation that do not affect its result; they are not part of the
    config.
    """

    workers: int = option(
        1,
        DATA,
        "processes that prepare the corpus, each with TensorFlow in memory; the result is the "
        "same. An interrupted preparation in --prepared continues with the same command",
        ge=1,
        le=1024,
    )


class TranslateConfig(ExportConfig):
    """The options of `translate`: data, model, training and output."""

    command = "translate"

    prepared: str | None = option(
        None,
        DATA,
        "folder of the tokenized corpus, to share it between runs; created if it is missing. "
        "Without --corpus it has to exist, and tensorflow-text is not needed "
        "(default: prepared/ in the run's folder)",
        metavar="DIR",
    )
    corpus: str | None = option(
        lambda values: CORPUS if values["prepared"] is None else None,
        DATA,
        "cldr:SOURCE-TARGET, two of en, pt and tr: dates, units and prices, no network needed; "
        + "; ".join(f"{name}: {entry.description}" for name, entry in PARALLEL_SETS.items())
        + "; tfds:NAME: a set of TensorFlow Datasets; a table (.tsv, .csv, .jsonl, also packed, "
        ".parquet) with the columns source and target; two text files A,B; or a folder of "
        "LANGUAGE.PART.txt files "
        f"(default: {CORPUS}, or what --prepared holds)",
        given=EITHER,
        brief="a table with the columns source and target, two text files A,B, or a "
        f"named corpus (default: {CORPUS})",
    )
    data_dir: str | None = option(
        None, DATA, "folder that holds the named corpora, or TFDS' folder", metavar="DIR"
    )
    skip_bad_rows: bool = skip_bad_rows_option()
    reverse: bool = option(False, DATA, "translate from the target to the source")
    vocabulary_size: int = option(
        8000, DATA, "maximum number of word pieces of each language", ge=1, le=1_000_000
    )
    max_length: int = option(
        128,
        DATA,
        "maximum number of word pieces of a sentence; longer training pairs are left out, longer "
        "validation and test sentences are cut",
        ge=1,
        le=65_536,
    )
    tokenizer: str = option(
        "joiners",
        DATA,
        "joiners: word pieces from which the sentence can be restored exactly; bert: BERT's word "
        "pieces, as in the paper, which put spaces around punctuation and with --lower-case "
        "remove accents",
        choices=TOKENIZERS,
    )
    lower_case: bool = option(False, DATA, "lower-case the text; in Turkish with its two i's")

    preset: str = option(
        "sdpa-small",
        MODEL,
        "sdpa-small, plga-small: for small corpora; the others: the models of the paper's Table 1. "
        "The other model options change it; --attention plga alone means plga-small",
        choices=tuple(PRESETS),
    )
    attention: str = option(
        lambda values: values["preset"].partition("-")[0],
        MODEL,
        "plga: power law graph attention; sdpa: scaled dot-product attention "
        "(default: the preset's)",
        choices=ATTENTIONS,
    )
    num_layers: int | None = override("layers of the encoder, and of the decoder", ge=1, le=128)
    model_dim: int = size("size of embeddings and layers", 512, le=65_536)
    num_heads: int | None = override("heads of each attention", ge=1, le=256)
    embedding: str = option(
        "dense",
        MODEL,
        "dense: full tables; tensor_train, low_rank: tables with far fewer weights",
        choices=EMBEDDINGS,
    )
    embedding_tt_ranks: int = option(
        16, MODEL, "maximum rank of the embeddings (tensor_train, low_rank)", ge=1, le=4096
    )
    feedforward_dim: int = size("hidden size of the feed-forward networks", 2048, le=262_144)
    residual_units: int | None = override(
        "residual units that learn the metric (plga)", ge=0, le=256
    )
    residual_dim: int | None = override("width of these units (plga)", ge=1, le=65_536)
    dropout: float | None = override("dropout rate of embeddings and branches", "RATE", ge=0, lt=1)
    attention_dropout: float | None = override(
        "dropout rate of the scores and, with plga, in the residual units", "RATE", ge=0, lt=1
    )
    query_dropout: float = option(
        0.0, EXPERIMENTS, "dropout rate of the projected queries (plga)", metavar="RATE", ge=0, lt=1
    )
    key_dropout: float = option(
        0.0, EXPERIMENTS, "dropout rate of the projected keys (plga)", metavar="RATE", ge=0, lt=1
    )
    encoder_attention: str | None = option(
        None,
        MODEL,
        "attention of the encoder, any of the library's (default: the preset's, or --attention)",
        choices=ATTENTION_NAMES,
    )
    decoder_attention: str | None = option(
        None,
        MODEL,
        "attention of the target to itself, one that can be causal (default: the preset's, or "
        "--attention)",
        choices=CAUSAL,
    )
    feedforward: str = option(
        "dense",
        MODEL,
        "feed-forward networks of dense or of tensor-train layers",
        choices=("dense", "tensor_train"),
    )
    position_encoding: str = option(
        "sinusoidal",
        MODEL,
        "fixed sinusoids, or a learned vector for each of --max-length positions",
        choices=("sinusoidal", "learned"),
    )
    freeze_metric: bool = option(
        False,
        TRAINING,
        "after training, replace the net of the metric by its mean over some sentences where it is "
        "the same for all of them; such a model translates faster (plga)",
    )
    causal_metric: bool = option(
        False,
        EXPERIMENTS,
        "compute the metric at each decoder position from the tokens up to it (plga); as "
        "published, it is computed from the whole target sentence",
    )
    cross_metric: str | None = override(
        "compute the metric of the attention to the source from the target (query), as "
        "published, or from the source (key), which is complete before decoding starts (plga)",
        "WHAT",
        choices=("query", "key"),
        group=EXPERIMENTS,
    )
    metric_epsilon: float | None = override(
        "number added to the learned metric before the power, as published 1e-9. With 0.01 the "
        "model learns faster, and needs a decoder that sees no later tokens: --causal-metric, or "
        "--cross-metric key and --decoder-attention sdpa (plga)",
        "X",
        ge=1e-30,
        lt=1,
        group=EXPERIMENTS,
    )

    epochs: int = epochs_option(20)
    batch_size: int = batch_size_option(64, "sentence pairs")
    warmup_steps: int = option(
        default_warmup,
        TRAINING,
        "steps over which the learning rate rises (default: 2,000 for the small presets; else "
        "15,000 for plga, 4,000 for sdpa; a tenth of the run's steps if it has fewer)",
        ge=1,
        le=1_000_000_000,
    )
    learning_rate: float = option(
        _default_peak,
        TRAINING,
        "peak learning rate of Adam, reached after the warm-up. plga needs a small one, such as "
        "1e-3 at model-dim 128 (default: 8e-4 for the small presets, otherwise the paper's, "
        "(model-dim * warmup-steps) ** -0.5)",
        metavar="PEAK",
        gt=0,
    )
    cooldown_epochs: int = option(
        0,
        TRAINING,
        "number of final epochs over which the learning rate falls to 0; short runs benefit from "
        "a few, the paper uses none",
        ge=0,
        le=100_000,
    )
    early_stopping: int | None = early_stopping_option(
        "stop after this many epochs without a lower validation loss"
    )
    epochs_after_best: int = option(
        0,
        EXPERIMENTS,
        "keep the model this many epochs after the lowest validation loss; the paper evaluates the "
        "model 10 epochs after",
        ge=0,
        le=100_000,
    )
    checkpoint_epochs: tuple[int, ...] = option(
        (),
        EXPERIMENTS,
        "epochs whose weights are kept",
        strict=False,  # JSON has lists
    )

    export_beam: int = option(
        1, OUTPUT, "number of beams of the exported translator; 1: greedy search", ge=1, le=1024
    )
    name: str = name_option(_default_name, "CORPUS-PRESET-SEED, with what differs from the preset")

    @pydantic.model_validator(mode="before")
    @classmethod
    def _preset_of_attention(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {"preset": "plga-small", **values} if values.get("attention") == "plga" else values

    def check_together(self) -> None:
        if self.cooldown_epochs > self.epochs:
            raise ValueError(
                f"Expected cooldown_epochs of 0 to {self.epochs}, the epochs. "
                f"Received: cooldown_epochs={self.cooldown_epochs}"
            )
        if self.early_stopping and self.early_stopping < self.epochs_after_best:
            raise ValueError(
                "Expected early_stopping >= epochs_after_best, or training stops before. Received: "
                f"early_stopping={self.early_stopping}, epochs_after_best={self.epochs_after_best}"
            )
        if not all(1 <= epoch <= self.epochs for epoch in self.checkpoint_epochs):
            raise ValueError(
                f"Expected checkpoint_epochs of 1 to {self.epochs}. "
                f"Received: checkpoint_epochs={list(self.checkpoint_epochs)}"
            )
        if self.export_beam > 1 and not self.export:
            raise ValueError(
                f"Expected export with export_beam. Received: export_beam={self.export_beam}"
            )
        if self.attention != "plga":
            reason = f"attention={self.attention!r}, which has none"
            self.refuse(reason, "cross_metric")
            if self.target_attention != "plga":
                self.refuse(reason, "causal_metric")
                if self.encoder_attention != "plga":
                    self.refuse(reason, *PLGA_ONLY, "freeze_metric")
        cross_metric = self.cross_metric or _metric_of_preset(self.preset)[0]
        if self.causal_metric and cross_metric == "key" and self.target_attention != "plga":
            raise ValueError(
                "Expected decoder_attention='plga' or cross_metric='query' with causal_metric, "
                "which otherwise changes nothing. Received: causal_metric=True, "
                f"cross_metric={cross_metric!r}, decoder_attention={self.target_attention!r}"
            )
        if self.embedding == "dense":
            self.refuse("embedding='dense', which has none", "embedding_tt_ranks")
        if self.corpus is None and self.position_encoding == "learned":
            raise ValueError(
                "Expected a corpus with position_encoding='learned', whose max_length says how "
                f"many positions there are. Received: prepared={self.prepared!r} alone"
            )
        if self.corpus is None:
            reason = "prepared alone, which settles it"
            self.refuse(reason, "data_dir", "skip_bad_rows", "reverse", *PREPARING)

    @property
    def export_options(self) -> dict[str, Any]:
        """The options that decide what an export contains and where it is written."""
        return {**super().export_options, "beam_size": self.export_beam}

    @property
    def preparation(self) -> Preparing:
        """How the corpus is prepared."""
        return Preparing(self.vocabulary_size, self.max_length, self.lower_case, self.tokenizer)

    @property
    def target_attention(self) -> str:
        """The attention of the target to itself."""
        return self.decoder_attention or PRESETS[self.preset].get(
            "decoder_attention", self.attention
        )

    @property
    def reads_ahead(self) -> bool:
        """Whether a decoder that sees later tokens in training learns fast enough to use them."""
        cross_metric, epsilon = _metric_of_preset(self.preset)
        epsilon = self.metric_epsilon or epsilon
        if epsilon < 1e-6 or self.causal_metric:
            return False
        from_target = self.attention == "plga" and (self.cross_metric or cross_metric) == "query"
        return self.target_attention == "plga" or from_target

    @property
    def overrides(self) -> dict[str, Any]:
        """The arguments of the translator that differ from the preset's."""
        values = {name: getattr(self, name) for name in MODEL_ARGUMENTS}
        options = {name: value for name, value in values.items() if value is not None}
        if self.position_encoding == "learned":
            options |= {"position_encoding": "learned", "max_length": self.max_length}
        if self.embedding != "dense":
            options |= {"embedding": self.embedding, "embedding_tt_ranks": self.embedding_tt_ranks}
        if self.causal_metric:
            options["causal_metric"] = True
        metric = {METRIC_ARGUMENTS[name]: getattr(self, name) for name in METRIC_ARGUMENTS}
        options |= {name: value for name, value in metric.items() if value is not None}
        rates = {"query_dropout": self.query_dropout, "key_dropout": self.key_dropout}
        return options | {name: rate for name, rate in rates.items() if rate}
