"""The command line of `keras-tnattn reproduce`, built from the studies."""

from collections.abc import Sequence

from keras_tnattn_studies.compare import COMMAND as COMPARE
from keras_tnattn_studies.compare_nodes import COMMAND as COMPARE_NODES
from keras_tnattn_studies.digits import COMMAND as DIGITS
from keras_tnattn_studies.grokking import COMMAND as GROKKING
from keras_tnattn_studies.language import COMMAND as LANGUAGE
from keras_tnattn_studies.long_texts import COMMAND as LONG_TEXTS
from keras_tnattn_studies.paper_tables import RULES_TABLE, TABLE_1, TABLE_2
from keras_tnattn_studies.paper_translators import COMMAND as PAPER_TRANSLATORS
from keras_tnattn_studies.power_law_data import COMMAND as POWER_LAW_DATA
from keras_tnattn_studies.rules import COMMAND as RULES
from keras_tnattn_studies.tensorized import COMMAND as TENSORIZED_ATTENTIONS
from keras_tnattn_studies.translators import COMMAND as TRANSLATORS
from keras_tnattn_studies.whole_texts import COMMAND as WHOLE_TEXTS
from keras_tnattn_train.commands import Command, run_commands

STUDIES: tuple[Command, ...] = (
    TABLE_1,
    RULES_TABLE,
    TABLE_2,
    TENSORIZED_ATTENTIONS,
    LONG_TEXTS,
    WHOLE_TEXTS,
    TRANSLATORS,
    PAPER_TRANSLATORS,
    LANGUAGE,
    RULES,
    GROKKING,
    DIGITS,
    POWER_LAW_DATA,
    COMPARE,
    COMPARE_NODES,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a study, by default with `sys.argv[1:]`; returns its `exit_status`."""
    text = (
        "Runs a study: trains many models, and writes tables and pictures; a study that was "
        "interrupted continues."
    )
    return run_commands("keras-tnattn reproduce", text, STUDIES, arguments)
