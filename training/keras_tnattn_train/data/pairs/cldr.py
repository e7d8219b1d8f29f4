"""A parallel corpus that needs no download: Babel renders CLDR data in two languages.

CLDR is Unicode's repository of locale data. A sentence is a list of one to three items (dates,
times, spans, quantities, prices, territories, languages), joined by the language's "and" or "or".
All differences between the languages (order, separators, plurals, 12 or 24 hours) come from CLDR.
"""

import datetime
import random
from collections.abc import Callable, Iterable
from typing import Literal

from babel import Locale, dates, lists, numbers, units
from babel.languages import get_official_languages

from keras_tnattn_train.options.errors import InputError

LANGUAGES = ("en", "pt", "tr")
PAIRS = 22_000
HELD_OUT = 1_000  # pairs of the validation part, and as many of the test part

Render = Callable[[Locale], str]
Span = Literal["second", "minute", "hour", "day", "week", "month", "year"]

FIRST_DAY = datetime.date(1950, 1, 1)
DAYS = 36_525  # a century
NOT_PLACES = {"XA", "XB", "ZZ"}  # pseudo-locales and the unknown
SPANS: tuple[Span, ...] = ("second", "minute", "hour", "day", "week", "month", "year")
SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
SECONDS |= {"month": 2592000, "year": 31536000}  # as Babel counts them


def render_pairs(source: str, target: str, seed: int = 0) -> list[tuple[str, str]]:
    """Renders `PAIRS` pairs; no source and no target sentence occurs twice.

    Returns:
        Pairs in random order. The source determines the target and vice versa: names that one of
        the two languages does not distinguish are left out.
    """
    if source == target or not {source, target} <= set(LANGUAGES):
        raise InputError(
            f"Expected cldr:A-B with two of the languages {', '.join(LANGUAGES)}. "
            f"Received: cldr:{source}-{target}"
        )
    first, second = (Locale.parse(name) for name in sorted((source, target)))
    phrases = _Phrases(random.Random(seed), first, second)
    pairs: list[tuple[str, str]] = []
    sentences: tuple[set[str], set[str]] = (set(), set())
    while len(pairs) < PAIRS:
        sentence = phrases.sentence()
        one, other = (" ".join(sentence(locale).split()) for locale in (first, second))
        if one not in sentences[0] and other not in sentences[1]:
            sentences[0].add(one)
            sentences[1].add(other)
            pairs.append((one, other) if source < target else (other, one))
    return pairs


class _Phrases:
    """Draws random phrases; a phrase is a function from a locale to its wording."""

    def __init__(self, draw: random.Random, *locales: Locale) -> None:
        self.draw = draw
        self.territories = _told_apart(
            (
                code
                for code in map(str, locales[0].territories)
                if code.isalpha() and code not in NOT_PLACES
            ),
            lambda code, locale: locale.territories[code],
            locales,
        )
        spoken = {code for place in self.territories for code in get_official_languages(place)}
        self.languages = _told_apart(
            (code for code in spoken if len(code) == 2),
            lambda code, locale: locale.languages[code],
            locales,
        )
        tender = {
            code
            for place in self.territories
            for code in numbers.get_territory_currencies(place, tender=True)
        }
        self.currencies = _told_apart(tender, lambda code, locale: locale.currencies[code], locales)
        self.units = _told_apart(
            locales[0].unit_display_names,
            lambda unit, locale: units.format_unit(2, unit, locale=locale),
            locales,
        )
        self.things = (
            self.day,
            self.month,
            self.time,
            self.span,
            self.quantity,
            self.price,
            self.territory,
            self.territory,
            self.language,
        )

    def sentence(self) -> Render:
        count = self.draw.choice((1, 1, 2, 2, 2, 3))
        if count == 1:
            return self.draw.choice((self.day, self.moment, self.period, *self.things))()
        things = [self.draw.choice(self.things)() for _ in range(count)]
        styles: tuple[Literal["standard", "or"], ...] = ("standard", "or")
        style = self.draw.choice(styles)
        return lambda locale: lists.format_list([x(locale) for x in things], style, locale)

    def date(self) -> datetime.date:
        return FIRST_DAY + datetime.timedelta(days=self.draw.randrange(DAYS))

    def day(self) -> Render:
        day = self.date()
        style = self.draw.choice(("full", "long", "medium"))
        return lambda locale: dates.format_date(day, style, locale)

    def month(self) -> Render:
        day = self.date()
        style = self.draw.choice(("yMMMM", "MMMMd"))
        return lambda locale: dates.format_skeleton(style, day, locale=locale)

    def time(self) -> Render:
        time = datetime.time(self.draw.randrange(24), self.draw.randrange(60))
        return lambda locale: dates.format_time(time, "short", locale=locale)

    def moment(self) -> Render:
        day = self.day()
        time = self.time()
        return lambda locale: (
            str(dates.get_datetime_format("long", locale=locale))
            .replace("{0}", time(locale))
            .replace("{1}", day(locale))
        )

    def period(self) -> Render:
        start = self.date()
        days = self.draw.randrange(1, 400)
        end = start + datetime.timedelta(days=days)
        return lambda locale: dates.format_interval(start, end, "yMMMd", locale=locale)

    def span(self) -> Render:
        unit = self.draw.choice(SPANS)
        count = self.draw.randrange(1, 100)
        delta = datetime.timedelta(seconds=self.draw.choice((1, -1)) * count * SECONDS[unit])
        return lambda locale: dates.format_timedelta(
            delta, unit, threshold=1e9, add_direction=True, locale=locale
        )

    def number(self) -> int | float:
        number = self.draw.randrange(1, 10 ** self.draw.randint(1, 4))
        return number / 10 if self.draw.random() < 0.3 else number

    def quantity(self) -> Render:
        number = self.number()
        unit = self.draw.choice(self.units)
        return lambda locale: units.format_unit(number, unit, locale=locale)

    def price(self) -> Render:
        number = self.number()
        code = self.draw.choice(self.currencies)
        return lambda locale: numbers.format_currency(
            number, code, locale=locale, format_type="name"
        )

    def territory(self) -> Render:
        code = self.draw.choice(self.territories)
        return lambda locale: locale.territories[code]

    def language(self) -> Render:
        code = self.draw.choice(self.languages)
        return lambda locale: locale.languages[code]


def _told_apart(
    codes: Iterable[str], name: Callable[[str, Locale], str], locales: Iterable[Locale]
) -> list[str]:
    """Keeps the codes whose names are unique in every locale, in a fixed order."""
    unique: list[str] = []
    known: set[tuple[Locale, str]] = set()
    for code in sorted(codes):
        try:
            names = {(locale, name(code, locale)) for locale in locales}
        except (KeyError, units.UnknownUnitError):  # one of the locales has no name for it
            continue
        if known.isdisjoint(names):
            unique.append(code)
        known |= names
    return unique
