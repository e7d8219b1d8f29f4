"""Tells names of languages from sentences."""

import functools
import re

# Names that columns of pairs have besides those of languages.
_ROLES = {
    "source",
    "target",
    "src",
    "trg",
    "tgt",
    "input",
    "output",
    "original",
    "translation",
    "text",
    "sentence",
    "segment",
    "label",
    "value",
    "a",
    "b",
}


@functools.cache
def _languages() -> frozenset[str]:
    """Returns codes of languages, and their names in English and in the language itself."""
    from babel import Locale

    names = Locale("en").languages
    native_names = {
        Locale(code).get_display_name(code)
        for code in ("de", "en", "es", "fr", "it", "ja", "nl", "pl", "pt", "ru", "tr", "uk", "zh")
    }
    # Other codes in use: the three letters of ISO 639-2 and 639-3.
    codes = "por eng tur deu ger fra fre spa ita nld rus zho chi jpn kor ara hin pol ukr ces cze"
    return frozenset({*names, *(n.lower() for n in names.values()), *native_names, *codes.split()})


def is_name_of_side(name: str) -> bool:
    """Returns whether a name of a column names a language or a side of a pair.

    A name is a code such as `pt`, `EN`, `pt_BR` or `zh-Hans`, a name such as `English`, a role such
    as `source`, or several of these joined as in `text_en` or `source sentence`. What ends in
    punctuation is a sentence.

    Example:
        >>> is_name_of_side("pt_BR"), is_name_of_side("Go.")
        (True, False)
    """
    if re.search(r"[^\w)]$", name):
        return False
    if name.lower() in _languages() | _ROLES and not re.fullmatch(r"[A-Z][a-z]{1,2}", name):
        return True
    first, *others = [part for part in re.split(r"[\W_]+", name) if part]
    if not others:
        return False
    parts = [first, *others]
    if name.count(" "):  # two words of a language are a sentence, too
        return len(parts) == 2 and any(part.lower() in _ROLES for part in parts)
    known = [part.lower() in _languages() | _ROLES for part in parts]
    return known[0] or known[-1]
