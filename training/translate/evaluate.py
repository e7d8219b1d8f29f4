"""Measures a trained translator: BLEU, chrF and speed on a part of its corpus."""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from training.engine.backend import start_backend
from training.engine.counter import Counter
from training.errors import InputError, exit_status
from training.files import replacing
from training.options import at_least

if TYPE_CHECKING:
    from keras_tnattn.text.sentence_translator import Translation

PARTS = ("test", "validation")
TOKENIZATIONS = ("13a", "none", "intl", "char")  # of sacrebleu, those that download nothing
EXAMPLES = """\
examples:
  greedy search, then a beam of 4, on the test part:
    %(prog)s runs/mine
    %(prog)s runs/mine --beam 4
  the three best hypotheses of each sentence of the validation part, with their scores, by the
  weights of the best validation accuracy:
    %(prog)s runs/mine --beam 4 --part validation --n-best 3 --scores --checkpoint best_accuracy
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments: The words of the command line. Default: `sys.argv[1:]`.

    Returns:
        The exit status: 0, 2 for invalid input, or 130 if interrupted.
    """
    args = vars(_parser().parse_args(arguments))
    return exit_status(lambda: _evaluate(args))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python training/evaluate.py",
        description="Translates a part of the corpus that a run was trained on, and writes "
        "hypotheses-PART-beamK.txt and evaluation-PART-beamK.json (BLEU, chrF, exact matches, "
        "speed) into the run's folder.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_folder", metavar="RUN", help="the folder of a translator's run")
    parser.add_argument(
        "--beam",
        dest="beam_size",
        type=int,
        default=1,
        metavar="K",
        help="hypotheses kept at each step; 1: greedy search (default: 1)",
    )
    parser.add_argument(
        "--part", choices=PARTS, default="test", help="what to translate (default: test)"
    )
    parser.add_argument(
        "--checkpoint",
        metavar="NAME",
        help="best_loss, best_accuracy, epoch_0010, ... (default: the finished model)",
    )
    parser.add_argument(
        "--n-best",
        type=int,
        metavar="K",
        help="write the K best hypotheses of each sentence to n_best-PART-beamK.tsv",
    )
    parser.add_argument(
        "--scores", action="store_true", help="write their scores beside them; lower is better"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="the first N sentences alone")
    parser.add_argument(
        "--batch-size",
        type=int,
        default=32,
        metavar="N",
        help="sentences searched together (default: 32)",
    )
    parser.add_argument(
        "--tokenize",
        choices=TOKENIZATIONS,
        default="13a",
        help="how sacrebleu cuts words for BLEU; none: at spaces, for data that have them around "
        "punctuation, as TED and Multi30k (default: 13a, sacrebleu's own)",
    )
    return parser


def _evaluate(args: dict[str, Any]) -> None:
    counter = Counter("sentences")
    results = evaluate_run(**args, progress=counter.show)
    counter.close()
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
        print(f"wrote {Path(args['run_folder'], name)}")


def evaluate_run(
    run_folder: str | Path,
    beam_size: int = 1,
    part: str = "test",
    checkpoint: str | None = None,
    n_best: int | None = None,
    scores: bool = False,
    limit: int | None = None,
    batch_size: int = 32,
    tokenize: str = "13a",
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Translates a part of a run's corpus, compares it with the references and writes both down.

    The search is the paper's: at most 50 tokens more than the source has, and scores divided by the
    length normalization with exponent 0.6. Sources longer than the corpus' `max_length` are cut;
    `cut_sources` counts them. The references are never cut: they are the given sentences as the
    target tokenizer normalizes them (Unicode form, white space, and case and accents if the run
    folds those), which is the form of the hypotheses.

    Args:
        run_folder: The run's folder.
        beam_size: Hypotheses kept; 1 is greedy search. Default 1.
        part: `"test"` or `"validation"`. Default `"test"`.
        checkpoint: As `training.translate.loading.load_translator` takes it.
        n_best: How many hypotheses of a sentence `n_best-PART-beamK.tsv` holds. Default: no such
            file, or with `scores` one.
        scores: Whether that file has their scores and whether they were finished. Default `False`.
        limit: How many sentences are translated, the first ones. Default: all.
        batch_size: Sentences searched together. Default 32.
        tokenize: How sacrebleu cuts words for BLEU: `"13a"`, its own default, for text as it is
            written; `"none"` for text with spaces around punctuation already; `"intl"`, `"char"`.
            The signature in the results names it. Default `"13a"`.
        progress: Called after each batch with the number of sentences done, and of all.

    Returns:
        What `evaluation-PART-beamK.json` holds; `files` names what was written. A checkpoint or a
        limit is added to the names of the files. The speed counts compiling too.

    Raises:
        InputError: If a value is out of its range, the part is empty, or the run cannot be read or
            written.
    """
    at_least(1, beam_size=beam_size, n_best=n_best, limit=limit, batch_size=batch_size)
    for name, value, known in (("part", part, PARTS), ("tokenize", tokenize, TOKENIZATIONS)):
        if value not in known:
            raise InputError(f"Expected one of {known}. Received: {name}={value!r}")
    if n_best is not None and n_best > beam_size:
        raise InputError(
            f"Expected n_best <= beam_size. Received: n_best={n_best}, beam_size={beam_size}"
        )
    start_backend()  # takes seconds, so it comes after the checks
    from training.translate.loading import load_translator

    translator = load_translator(run_folder, checkpoint)
    pairs = translator.corpus.texts[part][:limit]
    if not pairs:
        raise InputError(f"Expected a corpus with a {part} part. Received: one without")
    sentences, sources = translator.searching(beam_size), [pair[0] for pair in pairs]
    tokenizer, max_length = translator.target_tokenizer, translator.corpus.max_length
    references = [
        text.decode() for text in tokenizer.normalize([pair[1] for pair in pairs]).numpy()
    ]
    lengths = translator.source_tokenizer.tokenize(sources).row_lengths().numpy()
    cut = int(np.sum(lengths > max_length))
    start = time.perf_counter()

    def report(done: int) -> None:
        if progress is not None:
            progress(done, len(sources))

    hypotheses = sentences.n_best(sources, batch_size, max_length, report)
    seconds = time.perf_counter() - start
    best = [candidates[0].text for candidates in hypotheses]
    matches = sum(text == reference for text, reference in zip(best, references, strict=True))
    name = "-".join(
        str(word)
        for word in (part, f"beam{beam_size}", checkpoint, limit and f"first{limit}")
        if word is not None
    )
    files = {f"hypotheses-{name}.txt": "".join(f"{text}\n" for text in best)}
    if n_best or scores:
        files[f"n_best-{name}.tsv"] = _table(
            [candidates[: n_best or 1] for candidates in hypotheses], scores
        )
    results = {
        "run": str(run_folder),
        "checkpoint": checkpoint,
        "part": part,
        "sentences": len(pairs),
        "cut_sources": cut,
        "max_length": max_length,
        "beam_size": beam_size,
        "extra_tokens": sentences.search.extra_tokens,
        "length_penalty": sentences.search.length_penalty,
        **_scores(best, references, tokenize),
        "exact_matches": matches,
        "exact_match": matches / len(pairs),
        "finished": sum(candidates[0].finished for candidates in hypotheses),
        "references": "the given sentences in the Unicode form "
        f"{tokenizer.form}, white space folded, case: {tokenizer.case}, accents: "
        f"{'keep' if tokenizer.keep_accents else 'drop'}",
        "batch_size": batch_size,
        "seconds": seconds,
        "sentences_per_second": len(pairs) / seconds,
        "files": [*files, f"evaluation-{name}.json"],
    }
    files[f"evaluation-{name}.json"] = json.dumps(results, indent=2, ensure_ascii=False) + "\n"
    for file, text in files.items():
        with replacing(Path(run_folder, file)) as path:
            path.write_text(text, encoding="utf-8", newline="\n")
    return results


def _scores(hypotheses: list[str], references: list[str], tokenize: str) -> dict[str, Any]:
    from sacrebleu.metrics import BLEU, CHRF

    # `force`: the data may have spaces around punctuation; the signature says what was done.
    bleu, chrf = BLEU(tokenize=tokenize, force=True), CHRF()
    return {
        "bleu": bleu.corpus_score(hypotheses, [references]).score,
        "bleu_signature": str(bleu.get_signature()),
        "chrf": chrf.corpus_score(hypotheses, [references]).score,
        "chrf_signature": str(chrf.get_signature()),
    }


def _table(hypotheses: "Sequence[Sequence[Translation]]", with_scores: bool) -> str:
    """Writes a line for each hypothesis: sentence and rank from 1, (score, finished,) text."""
    lines = [["sentence", "rank", *(["score", "finished"] if with_scores else []), "hypothesis"]]
    for number, candidates in enumerate(hypotheses, start=1):
        for rank, (text, score, finished) in enumerate(candidates, start=1):
            cells = [f"{score:.5f}", str(int(finished))] if with_scores else []
            lines.append([str(number), str(rank), *cells, text])
    return "".join("\t".join(line) + "\n" for line in lines)
