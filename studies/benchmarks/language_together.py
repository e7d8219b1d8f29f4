"""Trains the seeds of each model of the study `language` at once, by JAX on one device.

    KERAS_BACKEND=jax python studies/benchmarks/language_together.py train --corpus gcide.txt \
        --epochs 60 --models sdpa plga --output together
    KERAS_BACKEND=jax python studies/benchmarks/language_together.py finish --corpus gcide.txt \
        --epochs 60 --models sdpa plga --output together --run-dir runs/language
    KERAS_BACKEND=jax python studies/benchmarks/language_together.py diagnosis --corpus gcide.txt \
        --epochs 30 --lanes published:0.001 epsilon:0.001 --seeds 0 --output together

A step computes the networks of all seeds together (`jax.vmap`), and an epoch is one program
(`jax.lax.scan`), so that a GPU has enough to do. Data, first weights, optimizer and schedules are
those of `keras-tnattn reproduce language` on JAX. `train` tries each learning rate with seed 0,
trains all seeds with the best one, and writes weights and losses. `finish` measures the parts and
writes finished runs, which the command takes as its own: run it with the same options to get its
table.

`diagnosis` trains `plga`, `published:RATE`, beside changes of it, each alone:

- `epsilon`: 0.01 is added to the entries of `A_LM`, instead of 1e-9;
- `stopped`: no gradient flows through the metric to the queries;
- `constant`: the network gets the identity instead of `D_Q`, the same for each text;
- `linear`: all powers are 1;
- `slow`: the weights of the network of the metric change at a tenth of the rate.
"""

import argparse
import json
import os
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "training"))
sys.path.insert(2, str(Path(__file__).resolve().parents[1]))

import jax
import jax.numpy as jnp
import keras
import numpy as np
from keras import ops

from keras_tnattn.layers import PLDRAttention
from keras_tnattn.models import language_model
from keras_tnattn.models.freezing import metric_spreads, power_law_layers
from keras_tnattn.ops.power_law import elementwise_power
from keras_tnattn_studies.language_config import LSTM, MODELS, LanguageTraining
from keras_tnattn_studies.language_lstm import lstm_language_model
from keras_tnattn_studies.language_training import whole_rows, with_mean_metric
from keras_tnattn_train.language.corpus import PackedBatches, read_corpus
from keras_tnattn_train.language.train import LOSS_IGNORING_PADDING, SPREAD_ROWS, measure, new_model
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.runs.training import reset_session

HELD_OUT_ROWS = 64  # of a batch
CHANGES = ("published", "epsilon", "stopped", "constant", "linear", "slow")
# Weights of the network of the metric, by their paths.
NETWORK = re.compile(r"self_attention/(residual_|metric_norm|([WaPb]|b_a)$)")


class ChangedAttention(PLDRAttention):
    """Power law attention with numbers `changes` that are 1 where a change is made."""

    def _build_metric(self):
        super()._build_metric()
        self.changes = self.add_weight(
            shape=(len(CHANGES),), initializer="zeros", trainable=False, name="changes"
        )

    def deductive(self, metric, training=None):
        _, epsilon, stopped, constant, linear, _ = ops.unstack(ops.convert_to_tensor(self.changes))
        metric = stopped * ops.stop_gradient(metric) + (1 - stopped) * metric
        metric = constant * ops.eye(self.head_dim) + (1 - constant) * metric
        rows = ops.reshape(metric, (-1, self.head_dim))
        learned = ops.reshape(self._learned_rows(rows, training), ops.shape(metric))
        positive = self._positive(self.power_law_W @ learned + self.power_law_b)
        powers = linear + (1 - linear) * self.power_law_P
        powers = elementwise_power(positive + 1e-9 + 0.01 * epsilon, powers)
        return {"G_LM": self.power_law_a @ powers + self.power_law_b_a}


def built(config, seed, vocabulary_size):
    """The untrained model of a config, as the command makes it."""
    reset_session(seed)
    if config.attention == "none":
        return lstm_language_model(vocabulary_size, **LSTM)
    return new_model(config, vocabulary_size)


class Together:
    """Networks of the same shapes that are trained together: `lanes`, one after the other."""

    def __init__(self, models, parts, config, held_out_batches, slow=None):
        self.count, self.steps = held_out_batches, config.batches_per_epoch
        self.model, self.config, self.parts = models[0], config, parts
        self.lanes, self.held_out = len(models), {}
        self.trainable = stacked([[v.value for v in m.trainable_variables] for m in models])
        self.others = stacked([[v.value for v in m.non_trainable_variables] for m in models])
        self.optimizer = keras.optimizers.AdamW(1e-3, weight_decay=0.01, clipnorm=1.0, beta_2=0.98)
        self.optimizer.build(self.model.trainable_variables)
        state = [jnp.asarray(v.value) for v in self.optimizer.variables]
        self.state = stacked([state] * self.lanes)
        names = [v.path for v in self.optimizer.variables]
        self.rate_at = next(i for i, name in enumerate(names) if name.endswith("learning_rate"))
        self.slow = jnp.ones(self.lanes) if slow is None else jnp.asarray(slow)
        self.of_network = [bool(NETWORK.search(v.path)) for v in self.model.trainable_variables]
        self.loss = keras.losses.SparseCategoricalCrossentropy(**LOSS_IGNORING_PADDING)

    def compile(self, like=None):
        """Compiles an epoch and a validation, or takes those of networks of the same shapes."""
        if like is not None and like.lanes == self.lanes:
            self.epoch, self.nats = like.epoch, like.nats
            return self
        size, length = self.config.batch_size, self.config.length
        ids = jax.ShapeDtypeStruct((self.steps, self.lanes, size, length + 1), "int32")
        rates = jax.ShapeDtypeStruct((self.steps, self.lanes), "float32")
        rows = jax.ShapeDtypeStruct((self.count, self.lanes, HELD_OUT_ROWS, length + 1), "int32")
        state = self.trainable, self.others, self.state
        epoch = jax.jit(self._epoch, donate_argnums=(0, 1, 2)).lower(*state, self.slow, ids, rates)
        tested = jax.jit(self._nats).lower(self.trainable, self.others, rows)
        self.epoch, self.nats = epoch.compile(), tested.compile()
        return self

    def _epoch(self, trainable, others, state, slow, ids, rates):
        def one(trainable, others, state, slow, ids, rate):
            def loss_of(weights):
                logits, new = self.model.stateless_call(weights, others, ids[:, :-1], training=True)
                return self.loss(ids[:, 1:], logits), new

            (loss, new), gradients = jax.value_and_grad(loss_of, has_aux=True)(trainable)
            state = [rate if i == self.rate_at else s for i, s in enumerate(state)]
            after, state = self.optimizer.stateless_apply(state, gradients, trainable)
            after = [
                old + slow * (a - old) if net else a
                for old, a, net in zip(trainable, after, self.of_network, strict=True)
            ]
            return after, new, state, loss

        def step(carry, batch):
            *carry, losses = jax.vmap(one)(*carry, slow, *batch)
            return tuple(carry), losses

        carry, losses = jax.lax.scan(step, (trainable, others, state), (ids, rates))
        return *carry, losses.mean(0)

    def _nats(self, trainable, others, rows):
        def one(trainable, others, ids):
            logits, _ = self.model.stateless_call(trainable, others, ids[:, :-1], training=False)
            labels = ids[:, 1:]
            chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)[..., 0]
            return -jnp.sum(jnp.where(labels != 0, chosen, 0))

        def add(total, ids):
            return total + jax.vmap(one)(trainable, others, ids), None

        return jax.lax.scan(add, jnp.zeros(self.lanes), rows)[0]

    def bits(self, name="validation"):
        """Bits per byte of a part, for each lane."""
        if name not in self.held_out:
            self.held_out[name] = self._rows(name)
        nats = np.asarray(self.nats(self.trainable, self.others, self.held_out[name]))
        return nats / np.log(2) / np.array([part[name].num_bytes for part in self.parts])

    def _rows(self, name):
        size, length = HELD_OUT_ROWS, self.config.length
        rows = np.zeros((self.count, self.lanes, size, length + 1), "int32")
        for lane, part in enumerate(self.parts):
            batches = PackedBatches(part[name], length, size)
            for i in range(len(batches)):
                some = whole_rows(batches[i])
                rows[i, lane, : len(some)] = some
        return jnp.asarray(rows)

    def train(self, rates, seeds, epochs, log, every=5):
        """Trains for some epochs with the largest rate of each lane; returns rows of losses."""
        steps = epochs * self.steps
        warmup = min(100, max(1, steps // 10))
        schedule = keras.optimizers.schedules.CosineDecay(
            0.0, max(1, steps - warmup), warmup_target=1.0, warmup_steps=warmup
        )
        factors = np.asarray(jax.vmap(schedule)(jnp.arange(steps)), "float32")
        batches = [
            PackedBatches(p["train"], self.config.length, self.config.batch_size, seed, self.steps)
            for p, seed in zip(self.parts, seeds, strict=True)
        ]
        rows = []
        for epoch in range(epochs):
            ids = np.stack([ids_of(b, epoch) for b in batches], axis=1)
            wanted = factors[epoch * self.steps : (epoch + 1) * self.steps, None] * np.float32(
                rates
            )
            *state, losses = self.epoch(
                self.trainable, self.others, self.state, self.slow, ids, wanted
            )
            self.trainable, self.others, self.state = state
            if (epoch + 1) % every == 0 or epoch + 1 == epochs:
                row = {"epoch": epoch + 1, "loss": np.asarray(losses).tolist()}
                row["bits"] = self.bits().tolist()
                rows.append(row)
                print(f"  {log} {json.dumps(row)}", flush=True)
        return rows

    def weights(self, lane):
        return [np.asarray(value[lane]) for value in self.trainable]


def stacked(lists):
    return [jnp.stack(values) for values in zip(*lists, strict=True)]


def ids_of(batches, epoch):
    """All rows of an epoch: `(steps, B, L + 1)`."""
    batches.set_epoch(epoch)
    return np.stack([whole_rows(batches[i]) for i in range(len(batches))])


class Study:
    """Reads the corpus of each seed once."""

    def __init__(self, given):
        self.given, self._corpora = given, {}
        self.options = LanguageTraining(
            corpus=(given.corpus,),
            epochs=given.epochs,
            frozen_after=max(1, given.epochs // 3),
            learning_rates=tuple(given.rates),
            tried_epochs=given.tried_epochs,
            batches_per_epoch=given.batches_per_epoch,
        )

    def corpus(self, seed):
        if seed not in self._corpora:
            self._corpora[seed] = read_corpus(self.options.config_of("sdpa", seed))
        return self._corpora[seed]

    @property
    def held_out_batches(self):
        """As many as the longest part has."""
        corpora = [self.corpus(seed).parts for seed in {0, *self.given.seeds}]
        parts = [parts[name] for parts in corpora for name in ("validation", "test")]
        length = self.options.config_of("sdpa", 0).length
        return max(len(PackedBatches(part, length, HELD_OUT_ROWS)) for part in parts)

    def together(self, model, seeds, frozen=False):
        config = self.options.config_of(model, 0)
        corpora = [self.corpus(seed) for seed in seeds]
        models = [built(config, seed, corpora[0].tokens.vocabulary_size) for seed in seeds]
        if frozen:  # to compile for, whatever their metrics
            models = [with_mean_metric(models[0], config, corpora[0])] * len(models)
        return self.of(models, seeds, config)

    def of(self, models, seeds, config, slow=None):
        parts = [self.corpus(seed).parts for seed in seeds]
        return Together(models, parts, config, self.held_out_batches, slow)


def train(given):
    study, began = Study(given), time.monotonic()
    folder = Path(given.output)
    folder.mkdir(parents=True, exist_ok=True)
    pending = [m for m in given.models if not (folder / f"{m}.json").exists()]
    tried, seeded, frozen = {}, {}, {}
    with ThreadPoolExecutor(16) as pool:
        for model in pending:
            tried[model] = study.together(model, [0] * len(given.rates))
            seeded[model] = study.together(model, given.seeds)
            if model == "plga-frozen":
                frozen[model] = study.together(model, given.seeds, frozen=True)
            print(f"{time.monotonic() - began:.0f} s: {model} is built", flush=True)
        tried = {m: pool.submit(t.compile) for m, t in tried.items()}
        frozen = {m: pool.submit(t.compile) for m, t in frozen.items()}
        for model in pending:
            tries = tried[model].result()
            print(f"{time.monotonic() - began:.0f} s: {model} is compiled", flush=True)
            together = seeded[model].compile(like=tries)
            like = frozen[model].result() if model in frozen else None
            train_model(study, model, tries, together, like)
    print(f"{time.monotonic() - began:.0f} s", flush=True)


def train_model(study, model, tries, together, frozen):
    given, options = study.given, study.options
    short, epochs = options.short(given.rates[0]), options.epochs
    tried_epochs = short.epochs
    if model == "plga-frozen":
        epochs, tried_epochs = options.frozen_after, short.frozen_after
    seeds = [0] * len(given.rates)
    bits = tries.train(given.rates, seeds, tried_epochs, f"{model}, rates", 2)[-1]["bits"]
    rate = given.rates[int(np.nanargmin(bits))]
    print(f"  {model}: rate {rate} of {dict(zip(given.rates, bits, strict=True))}", flush=True)
    rates = [rate] * together.lanes
    rows = together.train(rates, given.seeds, epochs, model)
    if model == "plga-frozen":
        together = with_mean_metrics(study, together).compile(like=frozen)
        rest = options.epochs - options.frozen_after
        rows += together.train(rates, given.seeds, rest, f"{model}, frozen")
    facts = {"rate": rate, "rates": given.rates, "tries": bits, "rows": rows}
    facts["test_bits"] = together.bits("test").tolist()
    save(Path(given.output), model, together, facts)


def with_mean_metrics(study, together):
    """The networks with their mean metrics, and with new optimizers."""
    models, variables = [], together.model.trainable_variables
    for lane, seed in enumerate(study.given.seeds):
        for variable, value in zip(variables, together.weights(lane), strict=True):
            variable.assign(value)
        models.append(with_mean_metric(together.model, together.config, study.corpus(seed)))
    return study.of(models, study.given.seeds, together.config)


def save(folder, model, together, facts):
    arrays = {
        f"{lane}/{number:03d}": array
        for lane in range(together.lanes)
        for number, array in enumerate(together.weights(lane))
    }
    np.savez(folder / f"{model}.npz", **arrays)
    (folder / f"{model}.json").write_text(json.dumps(facts))


def diagnosis(given):
    study, began = Study(given), time.monotonic()
    config = study.options.config_of("plga", 0)
    lanes = [(*lane.split(":"), seed) for lane in given.lanes for seed in given.seeds]
    models = []
    for change, _, seed in lanes:
        reset_session(seed)
        flags = np.float32([name == change for name in CHANGES])
        size = study.corpus(seed).tokens.vocabulary_size
        models.append(changed(config, size, flags))
    slow = [0.1 if change == "slow" else 1.0 for change, *_ in lanes]
    seeds = [seed for *_, seed in lanes]
    together = study.of(models, seeds, config, slow).compile()
    print(f"{time.monotonic() - began:.0f} s: compiled {lanes}", flush=True)
    rates = [float(rate) for _, rate, _ in lanes]
    rows = together.train(rates, seeds, given.epochs, given.name)
    facts = {"lanes": lanes, "rows": rows, "test_bits": together.bits("test").tolist()}
    Path(given.output).mkdir(parents=True, exist_ok=True)
    (Path(given.output) / f"{given.name}.json").write_text(json.dumps(facts))


def changed(config, vocabulary_size, flags):
    """The untrained model with `ChangedAttention`."""
    attention = ChangedAttention(
        config.num_heads,
        residual_units=config.residual_units,
        residual_dim=config.residual_dim,
    )
    model = language_model(
        vocabulary_size,
        attention,
        num_layers=config.num_layers,
        model_dim=config.model_dim,
        num_heads=config.num_heads,
        feedforward_dim=config.feedforward_dim,
        norm_first=True,
        max_length=config.length,
    )
    for decoder in model.decoders:
        decoder.self_attention.changes.assign(flags)
    return model


def finish(given):
    study, folder = Study(given), Path(given.run_dir)
    Run(folder).start_study(study.options, {})
    for model in given.models:
        facts = json.loads((Path(given.output) / f"{model}.json").read_text())
        for rate, bits in zip(facts["rates"], facts["tries"], strict=True):
            tried = folder / f"{model}-rate-{rate}"
            tried.mkdir(exist_ok=True)
            Run(tried).finish({"validation": {"bits_per_byte": bits}})
        arrays = np.load(Path(given.output) / f"{model}.npz")
        for lane, seed in enumerate(given.seeds):
            corpus, config = study.corpus(seed), study.options.config_of(model, seed)
            config = config.model_copy(update={"learning_rate": facts["rate"]})
            run = Run(folder / config.name)
            if run.results:
                continue
            network = built(config, seed, corpus.tokens.vocabulary_size)
            if model == "plga-frozen":
                network = with_mean_metric(network, config, corpus)
            weights = [arrays[name] for name in arrays.files if name.startswith(f"{lane}/")]
            for variable, value in zip(network.trainable_variables, weights, strict=True):
                variable.assign(value)
            network.compile()
            run.start_or_check(config, corpus.description())
            network.save(run.folder / "model.keras")
            run.write_metrics([{"epoch": config.epochs, **spreads(network, config, corpus)}])
            parts = {
                part: measure(network, corpus.parts[part], config.length, config.batch_size)
                for part in ("validation", "test")
            }
            run.finish({**parts, "parameters": {"all": network.count_params()}})
            print(config.name, parts, flush=True)


def spreads(network, config, corpus):
    """What metrics.csv has of the metrics."""
    if config.attention != "plga" or not power_law_layers(network):
        return {}
    rows = PackedBatches(corpus.parts["validation"], config.length, config.batch_size)[0][0]
    layers = metric_spreads(network, rows[:SPREAD_ROWS], batch_size=4)
    return {f"metric_spread_{i}": layer.largest for i, layer in enumerate(layers)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("train", "diagnosis", "finish"))
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rates", nargs="+", type=float, default=[0.0003, 0.001, 0.003])
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--tried-epochs", type=int, default=6)
    parser.add_argument("--batches-per-epoch", type=int, default=200)
    parser.add_argument("--lanes", nargs="+", help="CHANGE:RATE, of diagnosis")
    parser.add_argument("--name", default="diagnosis", help="of the file of a diagnosis")
    parser.add_argument("--output", required=True, help="folder of weights and losses")
    parser.add_argument("--run-dir", help="folder of finished runs")
    given = parser.parse_args()
    jax.config.update("jax_default_matmul_precision", "highest")
    {"train": train, "diagnosis": diagnosis, "finish": finish}[given.action](given)


if __name__ == "__main__":
    main()
