"""The parallel corpora that have a name. A new one is one entry here."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class ParallelSet:
    """A corpus that `--corpus NAME` names: the folder NAME in the folder given with `--data-dir`.

    The folder holds `train.tsv.xz`, `validation.tsv.xz` and `test.tsv.xz`, tables with the columns
    `source` and `target`; or `data.tsv.xz` alone, from which the parts are cut. Without a training
    part the corpus can be evaluated on, not trained on.

    Args:
        description: What `--help` says about it.
        languages: The source and the target language.
        tfds: The name of the same corpus in TensorFlow Datasets, if it is there: `tfds:NAME`
            reads the folder too, if `--data-dir` has it.
    """

    description: str
    languages: tuple[str, str]
    tfds: str | None = None


_TED = "TED talks, where --data-dir has their training part"
PARALLEL_SETS = {
    "multi30k_pt_en": ParallelSet("captions of images (needs --data-dir)", ("pt", "en")),
    "tatoeba_tr_en": ParallelSet("short sentences (needs --data-dir)", ("tr", "en")),
    "ted_hrlr_pt_en": ParallelSet(_TED, ("pt", "en"), "ted_hrlr_translate/pt_to_en"),
    "ted_hrlr_tr_en": ParallelSet(_TED, ("tr", "en"), "ted_hrlr_translate/tr_to_en"),
}
