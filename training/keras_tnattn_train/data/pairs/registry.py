"""The named parallel corpora. To add one, add an entry here."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class ParallelSet:
    """A corpus for `--corpus NAME`: the folder NAME in the folder of `--data-dir`.

    The folder holds `train.tsv.xz`, `validation.tsv.xz` and `test.tsv.xz`, tables with the columns
    `source` and `target`; or only `data.tsv.xz`, which is then split into parts. A corpus
    without a training part cannot be trained on.

    Args:
        description: Its description in `--help`.
        languages: The source and the target language.
        tfds: The name of the same corpus in TensorFlow Datasets, if there is one. `tfds:NAME` also
            reads the folder if `--data-dir` holds it.
    """

    description: str
    languages: tuple[str, str]
    tfds: str | None = None


_TED = "TED talks, if --data-dir has their training part"
PARALLEL_SETS = {
    "multi30k_pt_en": ParallelSet("captions of images (needs --data-dir)", ("pt", "en")),
    "tatoeba_tr_en": ParallelSet("short sentences (needs --data-dir)", ("tr", "en")),
    "ted_hrlr_pt_en": ParallelSet(_TED, ("pt", "en"), "ted_hrlr_translate/pt_to_en"),
    "ted_hrlr_tr_en": ParallelSet(_TED, ("tr", "en"), "ted_hrlr_translate/tr_to_en"),
}
