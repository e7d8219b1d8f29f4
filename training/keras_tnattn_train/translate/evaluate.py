"""Measures a trained translator: BLEU, chrF and speed on a part of its corpus.

The search is that of the paper: a translation has at most 50 tokens more than the source, and
scores are normalized by the length with exponent 0.6. Sources longer than the `max_length` of the
corpus are cut; `cut_sources` counts them. The references are never cut. Like the hypotheses, they
are normalized by the target tokenizer (Unicode form, white space, and case and accents if the run
changes these).
"""

import operator
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_tnattn_train.data.pairs.corpus import Pair, ParallelCorpus
from keras_tnattn_train.data.pairs.loading import load_pairs
from keras_tnattn_train.data.reading import short_name
from keras_tnattn_train.options.apps import Program
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.options.options import (
    DATA,
    OUTPUT,
    Options,
    argument,
    option,
    skip_bad_rows_option,
)
from keras_tnattn_train.options.search import (
    LARGEST_BEAM,
    beam_option,
    check_n_best,
    checkpoint_option,
    search_batch_option,
)
from keras_tnattn_train.processes.backend import start_backend
from keras_tnattn_train.runs.counter import Counter
from keras_tnattn_train.system.files import read_object, replacing, write_json

if TYPE_CHECKING:
    from keras_tnattn.text.sentence_translator import Translation
    from keras_tnattn_train.translate.loading import TrainedTranslator

PARTS = ("test", "validation")
TOKENIZATIONS = ("13a", "none", "intl", "char")  # those of sacrebleu that download nothing
EXAMPLES = """\
examples:
  evaluate greedy search, then a beam of 4, on the test part:
    keras-tnattn evaluate runs/mine
    keras-tnattn evaluate runs/mine --beam 4
  translate other sentences than those of the run's corpus: a file, or the test part of a corpus:
    keras-tnattn evaluate runs/mine --corpus mine.tsv
    keras-tnattn evaluate runs/mine --corpus ted_hrlr_pt_en --data-dir DIR --tokenize none
  write the three best hypotheses of each sentence of the validation part, with their scores, using
  the weights of the best validation accuracy:
    keras-tnattn evaluate runs/mine --beam 4 --part validation --n-best 3 --scores \\
        --checkpoint best_accuracy
"""


class EvaluateOptions(Options):
    """The options of `keras-tnattn evaluate`."""

    run: str = argument("the folder of a translator's run")
    part: str = option("test", DATA, "what to translate", choices=PARTS)
    corpus: str | None = option(
        None,
        DATA,
        "another corpus, as for translate, in the run's languages; one that is not divided into "
        "parts is translated whole, whatever --part says (default: the one that the run was "
        "trained on)",
    )
    data_dir: str | None = option(
        None, DATA, "folder that holds the named corpora, for --corpus", metavar="DIR"
    )
    skip_bad_rows: bool = skip_bad_rows_option()
    limit: int | None = option(
        None, DATA, "translate only the first N sentences", metavar="N", ge=1, le=1_000_000_000
    )
    checkpoint: str | None = checkpoint_option()
    beam: int = beam_option()
    batch_size: int = search_batch_option()
    n_best: int | None = option(
        None,
        OUTPUT,
        "write the K best hypotheses of each sentence to n_best-PART-beamK.tsv",
        metavar="K",
        ge=1,
        le=LARGEST_BEAM,
    )
    scores: bool = option(
        False, OUTPUT, "also write their scores (lower is better) and whether they ended"
    )
    tokenize: str = option(
        "13a",
        OUTPUT,
        "how sacrebleu splits text into words for BLEU; 13a: its own default, for normal text; "
        "none: at spaces, for data with spaces around punctuation, such as TED and Multi30k",
        choices=TOKENIZATIONS,
    )

    def check_together(self) -> None:
        if self.corpus is None and self.data_dir is not None:
            raise ValueError(
                "Expected no data_dir without a corpus: the run has its own. "
                f"Received: data_dir={self.data_dir}"
            )
        check_n_best(self.n_best, self.beam)


def _evaluate(options: EvaluateOptions) -> None:
    counter = Counter("sentences")
    results = evaluate_run(options, progress=counter.show)
    counter.close()
    for note in results["notes"]:
        print(f"note: {note}")
    print(
        f"BLEU {results['bleu']:.2f}  {results['bleu_signature']}\n"
        f"chrF {results['chrf']:.2f}  {results['chrf_signature']}\n"
        f"exact {results['exact_matches']} of {results['sentences']} "
        f"({results['exact_match']:.1%})\n"
        f"speed {results['sentences_per_second']:.1f} sentences per second\n"
        f"references: {results['references']}"
    )
    if results["cut_sources"]:
        print(
            f"cut: {results['cut_sources']} of {results['sentences']} sources, longer than "
            f"{results['max_length']} word pieces"
        )
    for name in results["files"]:
        print(f"wrote {Path(options.run, name)}")


PROGRAM = Program(
    "evaluate",
    "Translates a part of the corpus that a run was trained on, or another corpus, and writes "
    "hypotheses-PART-beamK.txt and evaluation-PART-beamK.json (BLEU, chrF, exact matches, "
    "speed) into the run's folder. The names have the corpus if it is another one.",
    EXAMPLES,
    EvaluateOptions,
    _evaluate,
)


def evaluate_run(
    options: EvaluateOptions,
    progress: Callable[[int, int], None] = lambda done, total: None,
    load: "Callable[[str, str | None], TrainedTranslator] | None" = None,
) -> dict[str, Any]:
    """Translates a part of a corpus, and writes hypotheses and scores to the run's folder.

    `progress` is called after each batch with the number of finished sentences and the total, and
    `load` loads the model of a folder by the name of a checkpoint, as `load_translator` does.

    Returns:
        The content of `evaluation-PART-beamK.json`; `files` lists the files that were written. The
        names of the files include the other corpus, the checkpoint and the limit, if given. The
        speed includes compilation.
    """
    other = None
    if options.corpus is not None:
        skip = options.skip_bad_rows
        other = load_pairs(options.corpus, options.data_dir, cut=False, skip_bad_rows=skip)
    start_backend()  # takes seconds, so invalid arguments are reported first
    from keras_tnattn_train.translate.loading import load_translator

    translator = (load or load_translator)(options.run, options.checkpoint)
    part = options.part
    notes = list(translator.corpus.notes)
    pairs: Sequence[Pair] = translator.corpus.texts[part]
    if other:
        part, pairs, notes = _other_pairs(other, translator.corpus.languages, part)
    if not pairs:
        raise InputError(f"Expected a corpus with a {part} part. Received: one without")
    sources, targets = zip(*pairs[: options.limit], strict=True)
    name = _name_of_files(options, part)
    report = f"evaluation-{name}.json"
    _check_earlier(Path(options.run, report), options)
    hypotheses, measured = _search(translator, options, sources, progress)
    best = [candidates[0].text for candidates in hypotheses]
    texts = {f"hypotheses-{name}.txt": "".join(f"{text}\n" for text in best)}
    if options.n_best or options.scores:
        shortlist = [candidates[: options.n_best or 1] for candidates in hypotheses]
        texts[f"n_best-{name}.tsv"] = _table(shortlist, options.scores)
    for count, what in (
        (best.count(""), "are empty"),
        (len(best) - measured["finished"], "reached the limit of the search"),
    ):
        notes += [f"{count} of {len(best)} translations {what}"] if count else []
    results = {
        **{field: getattr(options, field) for field in ("run", "corpus", "checkpoint")},
        "corpus_paths": _corpus_paths(options),
        "notes": notes,
        "part": part,
        "sentences": len(sources),
        **measured,
        **_scores(best, targets, translator.target_tokenizer, options.tokenize),
        "files": [*texts, report],
    }
    for file, text in texts.items():
        with replacing(Path(options.run, file)) as path:
            path.write_bytes(text.encode())
    write_json(Path(options.run, report), results)
    return results


def _search(
    translator: "TrainedTranslator",
    options: EvaluateOptions,
    sources: Sequence[str],
    progress: Callable[[int, int], None],
) -> tuple[list[list["Translation"]], dict[str, Any]]:
    """Returns the hypotheses of each source, the best first, and what the search was and took."""
    sentences = translator.with_beam(options.beam)
    max_length = translator.corpus.max_length
    lengths = translator.source_tokenizer.tokenize(list(sources)).row_lengths().numpy()
    start = time.perf_counter()
    hypotheses = sentences.n_best(
        list(sources), options.batch_size, max_length, lambda done: progress(done, len(sources))
    )
    seconds = time.perf_counter() - start
    return hypotheses, {
        "cut_sources": int(np.sum(lengths > max_length)),
        "max_length": max_length,
        "beam_size": options.beam,
        "extra_tokens": sentences.search.extra_tokens,
        "length_penalty": sentences.search.length_penalty,
        "finished": sum(candidates[0].finished for candidates in hypotheses),
        "batch_size": options.batch_size,
        "seconds": seconds,
        "sentences_per_second": len(sources) / seconds,
    }


def _name_of_files(options: EvaluateOptions, part: str) -> str:
    limited = options.limit and f"first{options.limit}"
    stems = options.corpus and "-".join(map(short_name, options.corpus.split(",")))
    words = (stems, part, f"beam{options.beam}", options.checkpoint, limited)
    return "-".join(str(word) for word in words if word is not None)


def _check_earlier(path: Path, options: EvaluateOptions) -> None:
    """Refuses to overwrite the results of a different corpus, whose file has the same name."""
    if options.corpus is None or not path.exists():
        return
    earlier = read_object(path, "Delete it")
    if earlier.get("corpus_paths") not in (None, _corpus_paths(options)):
        raise InputError(
            f"Expected a corpus whose results do not have the name of earlier ones, {path}, which "
            f"are those of {earlier['corpus']}. Received: corpus={options.corpus}. Rename the "
            "corpus, or move the earlier results"
        )


def _corpus_paths(options: EvaluateOptions) -> list[str] | None:
    """Returns what tells corpora apart: absolute paths, or a name and the folder of its files."""
    if options.corpus is None:
        return None
    folder = [] if options.data_dir is None else [str(Path(options.data_dir).resolve())]
    names = options.corpus.split(",")
    return [str(Path(name).resolve()) if Path(name).exists() else name for name in names] + folder


def _other_pairs(
    corpus: ParallelCorpus, languages: tuple[str, str], part: str
) -> tuple[str, Sequence[Pair], list[str]]:
    """Returns the name and the pairs of a part of another corpus than the run's, and notes."""
    notes = list(corpus.notes)
    source, target = corpus.languages
    if corpus.languages == languages[::-1]:
        corpus = corpus.swap_sides()
        notes.append(
            f"source and target exchanged, because the run translates {target} to {source}"
        )
    elif corpus.languages != languages and all(len(x) == 2 for x in corpus.languages + languages):
        raise InputError(
            f"Expected a corpus in the languages of the run, {' and '.join(languages)}. Received: "
            f"one in {' and '.join(corpus.languages)}"
        )
    elif corpus.languages != languages:
        notes.append(
            f"{source} to {target} is translated as {languages[0]} to {languages[1]}; whether "
            "these are the same languages is not known"
        )
    if corpus.validation or corpus.test:
        return part, corpus.part(part), notes
    return "all", corpus.train, [*notes, "all pairs, because the corpus is not divided into parts"]


def _scores(
    hypotheses: list[str], targets: Sequence[str], tokenizer: Any, tokenize: str
) -> dict[str, Any]:
    from sacrebleu.metrics import BLEU, CHRF

    references = [text.decode() for text in tokenizer.normalize(list(targets)).numpy()]
    matches = sum(map(operator.eq, hypotheses, references))
    # `force`: the data may have spaces around punctuation; the signature says what was done.
    bleu, chrf = BLEU(tokenize=tokenize, force=True), CHRF()
    return {
        "bleu": bleu.corpus_score(hypotheses, [references]).score,
        "bleu_signature": str(bleu.get_signature()),
        "chrf": chrf.corpus_score(hypotheses, [references]).score,
        "chrf_signature": str(chrf.get_signature()),
        "exact_matches": matches,
        "exact_match": matches / len(references),
        "references": "the given sentences in the Unicode form "
        f"{tokenizer.form}, white space folded, case: {tokenizer.case}, accents: "
        f"{'keep' if tokenizer.keep_accents else 'drop'}",
    }


def _table(hypotheses: "Sequence[Sequence[Translation]]", with_scores: bool) -> str:
    """Returns a line per hypothesis: sentence and rank from 1, perhaps score and finished, text."""
    lines = [["sentence", "rank", *(["score", "finished"] if with_scores else []), "hypothesis"]]
    for number, candidates in enumerate(hypotheses, start=1):
        for rank, (text, score, finished) in enumerate(candidates, start=1):
            cells = [f"{score:.5f}", str(int(finished))] if with_scores else []
            lines.append([str(number), str(rank), *cells, text])
    return "".join("\t".join(line) + "\n" for line in lines)
