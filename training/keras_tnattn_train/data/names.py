"""Labels and names of columns that look alike are alike: nobody can see what tells them apart."""

import collections
import decimal
import unicodedata
from collections.abc import Iterator

from keras_tnattn_runtime.reader import visible

_LISTED = 5  # characters that a note names


def plain(name: str) -> str:
    """Returns a name as it is seen.

    Invisible characters are left out, accents are parts of their letters (Unicode's form NFC), and
    all white space between words is one space. Upper and lower case stay.
    """
    return " ".join(unicodedata.normalize("NFC", visible(name)).split())


class InvisibleCharacters:
    """Counts what has characters that nobody sees.

    Args:
        noun: What is counted, such as `"label"`.
    """

    def __init__(self, noun: str) -> None:
        self.noun, self.count = noun, 0
        self._characters: collections.Counter[str] = collections.Counter()

    def add(self, text: str) -> None:
        """Looks for such characters in a text."""
        if text.isascii():
            return
        seen = visible(text)
        if seen != text:
            self.count += 1
            self._characters.update({c for c in text if not visible(c)})

    def notes(self) -> Iterator[str]:
        """Describes how many texts have them, if there are any."""
        if not self.count:
            return
        names = [f"U+{ord(c):04X}" for c in sorted(self._characters)]
        more = ", ..." if len(names) > _LISTED else ""
        noun = self.noun if self.count == 1 else f"{self.noun}s"
        yield (
            f"{self.count:,} {noun} with invisible characters "
            f"({', '.join(names[:_LISTED])}{more}), which are left out"
        )


class Labels:
    """Reads labels as they are seen, and counts those that were written in another way."""

    def __init__(self) -> None:
        self._invisible = InvisibleCharacters("label")
        self._others = 0

    def __call__(self, label: str) -> str:
        """Returns a label as it is seen."""
        if label.isascii() and "  " not in label and label.isprintable():
            return label.strip()
        self._invisible.add(label)
        name = plain(label)
        self._others += name != visible(label).strip()
        return name

    def notes(self) -> Iterator[str]:
        """Describes the labels, after they were read."""
        yield from self._invisible.notes()
        if self._others:
            noun = "label" if self._others == 1 else "labels"
            yield (
                f"{self._others:,} {noun} with other spaces or separate accents, which are read "
                "as plain spaces and accented letters"
            )


def number_of(name: str) -> decimal.Decimal | None:
    """Returns the number that a name is, exactly, also of 19 digits; `None` if it is none."""
    try:
        number = decimal.Decimal(name)
    except decimal.InvalidOperation:
        return None
    return number if number.is_finite() else None
