"""Draws the results of a trained translator's attentions for a sentence.

Each block has a picture of all chosen heads: `E_LM.png` (`scores.png` for scaled dot-product
attention) and `E.png`, the energies before the mask, with the tokens on the axes; and a heat map
and a histogram of each of `P`, `a`, `b_a`, `A_LM` and `G_LM`. The rows are the tokens that attend;
in a decoder's cross-attention they are labeled by the tokens they predict. The chosen heads, or by
default the paper's head 4 (the last, if there are fewer), also have pictures of their own:
`head_4_learned.png` as Figure 5 and `head_4_inferred.png` as Figure 6. A causal metric differs from
token to token; the last token's is drawn. `explanation.json` holds the sentences and their pieces;
`distributions.csv` describes the entries of `P`, `a`, `b_a`, `A_LM` and `G_LM` of each block and
chosen head in numbers (`keras_tnattn_train.translate.distributions.describe`), with the smallest
eigenvalue of the symmetric part of each, which says whether the matrix is positive definite. Of a
block with power law graph attention, `power_laws.csv` tests whether the magnitudes of these entries
and those of `E_LM` follow a power law (`keras_tnattn_train.translate.power_laws.fit_power_law`);
`P_tail.png` and so on show the fits. `index.html` shows all pictures, and says what they are. What
an earlier call wrote into the folder is removed.
"""

import collections
import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_tnattn_train.options.apps import Program
from keras_tnattn_train.options.errors import InputError, input_errors
from keras_tnattn_train.options.options import DATA, OUTPUT, Options, argument, option
from keras_tnattn_train.options.search import beam_option, checkpoint_option
from keras_tnattn_train.processes.backend import start_backend
from keras_tnattn_train.system.files import write_json, write_table, writing
from keras_tnattn_train.translate.explained_page import index_page
from keras_tnattn_train.translate.explained_tables import (
    FITTED,
    INFERRED,
    LEARNED,
    fit_power_laws,
    write_distributions,
    write_power_laws,
)

SPREADS = ("metric_spread.png", "metric_spread.csv")
DISTRIBUTIONS = "distributions.csv"
POWER_LAWS = "power_laws.csv"
INDEX = "index.html"
BLOCK_NAME = re.compile(r"encoder_\d+|decoder_\d+\.(self|cross)")
PICTURE = re.compile(rf"E|({'|'.join(FITTED)})(_histogram|_tail)?|head_\d+_(learned|inferred)")
EXAMPLES = """\
examples:
  translate a sentence, and draw all blocks and heads:
    keras-tnattn explain runs/mine "este é um problema que temos que resolver ."
  use a given translation, and draw head 4 of one attention, as in the paper's Figures 5 and 6:
    keras-tnattn explain runs/mine "este é um problema ." --target "this is a problem ." \\
        --blocks decoder_0.cross --heads 4
"""


class ExplainOptions(Options):
    """The options of `keras-tnattn explain`."""

    run: str = argument("the folder of a translator's run")
    sentence: str = argument("the sentence to translate")
    target: str | None = option(
        None, DATA, "its translation (default: the result of the search)", metavar="SENTENCE"
    )
    checkpoint: str | None = checkpoint_option()
    beam: int = beam_option()
    blocks: tuple[str, ...] = option(
        (), OUTPUT, "encoder_0, decoder_0.self, decoder_0.cross, ... (default: all)"
    )
    heads: tuple[int, ...] = option((), OUTPUT, "heads, counted from 1 (default: all)")
    bootstraps: int = option(
        250,
        OUTPUT,
        "bootstrap samples of each test of a power law; 0: no such tests, which take half a minute "
        "to two minutes",
        metavar="N",
        ge=0,
        le=100_000,
    )
    seed: int = option(0, OUTPUT, "seed of these samples", ge=0, le=2**32 - 1)
    spread: int | None = option(
        None,
        OUTPUT,
        "also draw how much the metric of each head depends on the sentence, over N pairs of the "
        "corpus: metric_spread.png and .csv (plga)",
        metavar="N",
        ge=2,
        le=1_000_000,
    )
    out: str | None = option(
        None, OUTPUT, "folder for the pictures (default: RUN/explained)", metavar="DIR"
    )


def _explain(options: ExplainOptions) -> None:
    explained = explain_run(options)
    print(f"source: {explained['source']}\ntarget: {explained['target']}")
    for name, verdicts in explained["verdicts"].items():
        counts = ", ".join(f"{verdict} {count}" for verdict, count in verdicts.most_common())
        print(f"support for a power law of {name}: {counts}")
    print(
        f"wrote {len(explained['files'])} pictures into {explained['folder']}; open "
        f"{Path(explained['folder'], INDEX)}"
    )


PROGRAM = Program(
    "explain",
    "Translates a sentence and draws what the attentions computed: the scores E_LM between "
    "tokens, and of power law graph attention the learned P, a, b_a and the sentence's A_LM "
    "and G_LM, as heat maps and histograms (the paper's Figures 5, 6 and A.1 to A.33), with "
    "moments and tests of their distributions in distributions.csv, and tests of power laws in "
    "power_laws.csv. Scaled dot-product attention has scores only.",
    EXAMPLES,
    ExplainOptions,
    _explain,
)


def explain_run(options: ExplainOptions) -> dict[str, Any]:
    """Draws what the attentions of a run's translator computed for one sentence.

    Returns:
        The content of `explanation.json`, with `folder`, `files`, the pictures in it, and
        `verdicts`, the number of heads by matrix and verdict on a power law.
    """
    start_backend()  # takes seconds, so invalid arguments are reported first
    from keras_tnattn_train.translate.loading import load_translator

    translator = load_translator(options.run, options.checkpoint)
    _check_blocks(translator.model, options.blocks)
    source_ids = _ids(translator.source_tokenizer, options.sentence)
    if options.target is None:
        ids = translator.with_beam(options.beam).search(source_ids[None]).ids[0, 0]
        target_ids = ids[ids != 0]
    else:
        target_ids = _ids(translator.target_tokenizer, options.target)
    computed = attention_outputs(translator.model, source_ids, target_ids[:-1])
    computed = _with_pictures(computed, translator.model, options.blocks)
    spreads = _metric_spreads(translator, options.spread) if options.spread else {}
    folder = Path(options.out or Path(options.run, "explained"))
    heads = _chosen_heads(next(iter(computed.values())), options.heads)
    explanation = {
        "source": options.sentence,
        "target": translator.target_tokenizer.detokenize(target_ids).numpy().decode(),
        "target_given": options.target is not None,
        "source_pieces": _pieces(translator.source_tokenizer, source_ids),
        "target_pieces": _pieces(translator.target_tokenizer, target_ids),
    }
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)  # a path that cannot be used is reported first
        fits: dict[str, dict[str, list[Any]]] = {}
        # Of other attentions nobody says that they follow power laws.
        with_power_laws = {block: x for block, x in computed.items() if "P" in x}
        if options.bootstraps and with_power_laws:
            fits = fit_power_laws(with_power_laws, heads, options.bootstraps, options.seed)
        _clear(folder)
        files = _draw_all(computed, fits, heads, options.heads, explanation, folder)
        write_distributions(computed, heads, folder / DISTRIBUTIONS)
        if fits:
            write_power_laws(fits, heads, folder / POWER_LAWS)
        (folder / INDEX).write_text(index_page(explanation, files), encoding="utf-8")
        if spreads:
            files += _write_spreads(spreads, folder)
        write_json(folder / "explanation.json", explanation)
    verdicts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for matrices in fits.values():
        for name, results in matrices.items():
            verdicts[name].update(fit.results["verdict"] for fit in results)
    return {**explanation, "folder": str(folder), "files": files, "verdicts": verdicts}


def _draw_all(
    computed: dict[str, dict[str, np.ndarray]],
    fits: dict[str, dict[str, list[Any]]],
    heads: list[int],
    chosen: Sequence[int],
    explanation: dict[str, Any],
    folder: Path,
) -> list[str]:
    """Draws the pictures of all blocks, the attentions between the sentences first; returns their
    names."""
    files = []
    source, target = explanation["source_pieces"], explanation["target_pieces"]
    for block in sorted(computed, key=lambda block: not block.endswith(".cross")):
        outputs = computed[block]
        (folder / block).mkdir(parents=True, exist_ok=True)
        if block.startswith("encoder"):
            tokens = source, source
        else:
            tokens = (target[:-1],) * 2 if block.endswith("self") else (target[1:], source)
        pictures = _draw(outputs, heads, chosen or [min(4, len(heads))], tokens)
        pictures |= _draw_tails(fits.get(block, {}), heads)
        for name, draw in pictures.items():
            draw(folder / block / name)
            files.append(f"{block}/{name}")
    return files


def _write_spreads(spreads: dict[str, tuple[float, ...]], folder: Path) -> list[str]:
    """Draws and writes how much the metric depends on the sentence; returns the picture's name."""
    from keras_tnattn_train.translate import plots

    plots.metric_spreads(spreads, folder / SPREADS[0])
    rows = [
        {"layer": name, "head": head, "spread": spread}
        for name, by_head in spreads.items()
        for head, spread in enumerate(by_head, start=1)
    ]
    write_table(folder / SPREADS[1], rows)
    return [SPREADS[0]]


def _metric_spreads(translator: Any, number: int) -> dict[str, tuple[float, ...]]:
    """Returns the spread of each head's metric over pairs of the validation part, by layer."""
    from keras_tnattn.models.freezing import metric_spreads
    from keras_tnattn_train.data.pairs.batches import BucketedBatches

    parts = translator.corpus.parts
    part = parts["validation"] if len(parts["validation"]) > 1 else parts["train"]
    batches = BucketedBatches(part, min(64, number))
    sample = batches.sample(-(-number // batches.batch_size))
    with input_errors():
        return {layer.path: layer.spreads for layer in metric_spreads(translator.model, sample)}


def _clear(folder: Path) -> None:
    """Removes only the files that an earlier call wrote, which may be for another sentence."""
    for name in ("explanation.json", INDEX, DISTRIBUTIONS, POWER_LAWS, *SPREADS):
        (folder / name).unlink(missing_ok=True)
    for path in folder.glob("*coder_*/*.png"):
        if BLOCK_NAME.fullmatch(path.parent.name) and PICTURE.fullmatch(path.stem):
            path.unlink()


def attention_outputs(
    model: Any, source: np.ndarray, target: np.ndarray
) -> dict[str, dict[str, np.ndarray]]:
    """Returns what the attentions of a translator compute for one sentence, with teacher forcing.

    Returns:
        For each block, `encoder_0`, `decoder_0.self`, `decoder_0.cross` and so on, a dict of arrays
        whose first axis is that of the heads: the deductive outputs of power law graph attention,
        or the `scores` of another attention. Attentions without scores are left out.
    """
    from keras import ops

    memory, computed = model.encode(source[None], return_details=True)
    _, decoded = model.decode(target[None], memory, return_details=True)
    computed |= decoded
    return {
        block: {
            name: _of_one_sentence(name, ops.convert_to_numpy(array))
            for name, array in outputs.items()
        }
        for block, outputs in computed.items()
        if {"E_LM", "scores"} & set(outputs)
    }


def _of_one_sentence(name: str, array: np.ndarray) -> np.ndarray:
    if name in LEARNED:
        return array
    # A causal metric has an axis of positions, (B, H, T, k, k).
    return array[0] if array.ndim == 4 else array[0, :, -1]


def _block_names(model: Any) -> list[str]:
    """Returns the names of the blocks: one per encoder layer, two per decoder layer."""
    decoders = (f"{layer.name}.{side}" for layer in model.decoders for side in ("self", "cross"))
    return [*(layer.name for layer in model.encoders), *decoders]


def _check_blocks(model: Any, blocks: Sequence[str]) -> None:
    known = _block_names(model)
    for block in blocks:
        if block not in known:
            raise InputError(f"Expected blocks of {', '.join(known)}. Received: block={block!r}")


def _with_pictures(
    computed: dict[str, dict[str, np.ndarray]], model: Any, chosen: Sequence[str]
) -> dict[str, dict[str, np.ndarray]]:
    """Returns the outputs of the chosen blocks, by default of all whose attention has scores."""
    if without := [block for block in chosen or _block_names(model) if block not in computed]:
        if chosen:
            raise InputError(
                f"Expected blocks whose attention has scores: {', '.join(computed)}. "
                f"Received: block={without[0]!r}"
            )
        print(f"without pictures, because the attention has no scores: {', '.join(without)}")
    blocks = chosen or _block_names(model)
    return {block: computed[block] for block in blocks if block in computed}


def _chosen_heads(outputs: dict[str, np.ndarray], heads: Sequence[int]) -> list[int]:
    count = len(next(iter(outputs.values())))
    for head in heads:
        if not 1 <= head <= count:
            raise InputError(f"Expected heads of 1 to {count}. Received: head={head}")
    return list(heads or range(1, count + 1))


def _ids(tokenizer: Any, sentence: str) -> np.ndarray:
    from keras_tnattn.text.reserved import END

    ids = tokenizer.tokenize([sentence])[0].numpy()
    if len(ids) == 2:  # start and end alone
        raise InputError(f"Expected a sentence with words. Received: {sentence!r}")
    if (ids <= END).all():
        raise InputError(
            "Expected a sentence with pieces of the run's vocabulary. "
            f"Received: {sentence!r}, unknown throughout"
        )
    return ids


def _pieces(tokenizer: Any, ids: np.ndarray) -> list[str]:
    return [tokenizer.vocabulary[i] for i in ids]


def _draw(
    outputs: dict[str, np.ndarray],
    heads: list[int],
    single_heads: Sequence[int],
    tokens: tuple[list[str], list[str]],
) -> dict[str, Any]:
    """Returns the pictures of one block: functions that draw to a path, by file name."""
    from keras_tnattn_train.translate import plots

    pictures = {}
    rows = [head - 1 for head in heads]
    for name in ("scores", "E_LM", "E"):
        if name in outputs:
            pictures[f"{name}.png"] = lambda path, name=name: plots.heat_maps(
                name, outputs[name][rows], heads, path, tokens
            )
    for name in (*LEARNED, *INFERRED):
        if name in outputs:
            pictures[f"{name}.png"] = lambda path, name=name: plots.heat_maps(
                name, outputs[name][rows], heads, path
            )
            pictures[f"{name}_histogram.png"] = lambda path, name=name: plots.histograms(
                name, outputs[name][rows], heads, path
            )
    if "P" in outputs:
        for head in single_heads:
            for kind, names in (("learned", LEARNED), ("inferred", (*INFERRED, "E_LM"))):
                pictures[f"head_{head}_{kind}.png"] = functools.partial(
                    plots.one_head, {n: outputs[n][head - 1] for n in names}, tokens=tokens
                )
    return pictures


def _draw_tails(fits: dict[str, list[Any]], heads: list[int]) -> dict[str, Any]:
    """Returns the pictures of the tails of one block, as `_draw` does."""
    from keras_tnattn_train.translate import plots

    return {
        f"{name}_tail.png": functools.partial(plots.tails, name, results, heads)
        for name, results in fits.items()
    }
