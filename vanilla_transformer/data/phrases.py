"""Generate dates, amounts, durations, country names and lists in any locale, from the Unicode CLDR data in Babel.

The random state alone determines the meaning of a phrase, so `date(Random(7), spanish)` and `date(Random(7), hindi)`
are translations of each other.

Babel's strings are normalised: each run of white space, including the U+00A0 and U+202F that CLDR uses, becomes one
space, and the invisible direction marks U+200E, U+200F and U+061C are removed.
"""

import datetime
import math
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from itertools import pairwise
from random import Random
from typing import Literal, get_args

from babel import Locale
from babel.dates import format_date, format_datetime, format_skeleton, format_time, format_timedelta
from babel.lists import format_list
from babel.numbers import format_currency, format_decimal, format_percent
from babel.units import format_unit


ENGLISH = Locale("en")
NOT_COUNTRIES = {"EU", "EZ", "QO", "UN", "XA", "XB", "ZZ"}  # codes for unions, pseudo-locales and the unknown region
NAMES: dict[str, list[str]] = {
    "country": sorted({code for code in map(str, ENGLISH.territories) if len(code) == 2} - NOT_COUNTRIES),
    "language": sorted(code for code in map(str, ENGLISH.languages) if len(code) == 2),
    "currency": "ARS AUD BRL CAD CHF CNY CZK DKK EGP EUR GBP INR JPY KRW MXN NOK NZD PLN SEK TRY UAH USD ZAR".split(),
}
Unit = Literal["year", "month", "week", "day", "hour", "minute", "second"]
# A year has 365 days, and a month is a twelfth of a year.
SECONDS: dict[Unit, int] = {
    "year": 31536000,
    "month": 2628000,
    "week": 604800,
    "day": 86400,
    "hour": 3600,
    "minute": 60,
    "second": 1,
}
Length = Literal["long", "short"]  # whether a unit name is written out or abbreviated
LENGTHS: tuple[Length, ...] = get_args(Length)
UNITS = {
    "distance": ("length-kilometer", "length-meter", "length-centimeter", "length-mile", "length-foot", "length-inch"),
    "weight": ("mass-kilogram", "mass-gram", "mass-pound", "mass-ounce"),
    "volume": ("volume-liter", "volume-milliliter", "volume-gallon"),
    "area": ("area-hectare", "area-square-meter", "area-square-kilometer"),
    "temperature": ("temperature-celsius", "temperature-fahrenheit"),
    "speed": ("speed-kilometer-per-hour", "speed-mile-per-hour"),
    "memory": ("digital-kilobyte", "digital-megabyte", "digital-gigabyte"),
}

# --- Phrases: each function draws the same fact for every locale and returns all of its forms, the plainest first.
# If the locale lacks a name, the list contains None.


def random_moment(rng: Random) -> datetime.datetime:
    """Draw a random date and time, to the second, in the years 1950 to 2049."""
    return datetime.datetime(1950, 1, 1) + datetime.timedelta(seconds=rng.randrange(36_525 * 86_400))


def date(rng: Random, locale: Locale) -> list[str]:
    """Draw a date, formatted with and without the year."""
    drawn = random_moment(rng)
    forms = [format_date(drawn, length, locale) for length in ("long", "full", "medium", "short")]
    return [*forms, format_skeleton("MMMMd", drawn, locale=locale)]


def month(rng: Random, locale: Locale) -> list[str]:
    """Return a random month with its year as text."""
    return [format_skeleton("yMMMM", random_moment(rng), locale=locale)]


def time(rng: Random, locale: Locale) -> list[str]:
    """Return a random time of day as text, once to the minute and once to the second."""
    drawn = random_moment(rng)
    return [format_time(drawn, length, locale=locale) for length in ("short", "medium")]


def moment(rng: Random, locale: Locale) -> list[str]:
    """Draw a date with a time of day."""
    drawn = random_moment(rng)
    return [format_datetime(drawn, length, locale=locale) for length in ("medium", "short")]


def relative(direction: int, rng: Random, locale: Locale) -> list[str]:
    """Draw a time relative to now: in the past if `direction` is -1, in the future if it is 1."""
    unit, seconds = rng.choice(list(SECONDS.items()))
    delta = datetime.timedelta(seconds=direction * rng.randint(1, 99) * seconds)
    # The infinite threshold keeps the unit; otherwise Babel would round 20 months to 2 years.
    return [format_timedelta(delta, unit, threshold=math.inf, add_direction=True, locale=locale)]


def quantity(value: float, unit: str, length: Length, locale: Locale) -> str:
    """Format a value with a CLDR unit such as "length-meter", written out ("long") or abbreviated ("short")."""
    text = format_unit(value, unit, length, locale=locale)
    # If CLDR has no "long" pattern and falls back to the "short" one, Babel returns the unit identifier instead.
    return format_unit(value, unit, "short", locale=locale) if unit in text else text


def measure(units: tuple[str, ...], rng: Random, locale: Locale) -> list[str]:
    """Draw a quantity below 1000 in one of the units, written out and abbreviated."""
    value = rng.randrange(1, 10 ** rng.randint(1, 3)) + rng.choice((0, 0, rng.randint(1, 9) / 10))
    unit = rng.choice(units)
    return [quantity(value, unit, length, locale) for length in LENGTHS]


def random_duration(rng: Random) -> dict[Unit, int]:
    """Draw a duration in one to three adjacent units, largest first, such as {"day": 40, "hour": 23}."""
    number = rng.choice((1, 2, 2, 3))
    first = rng.randrange(len(SECONDS) - number + 1)
    units = list(SECONDS)[first : first + number]
    rest = {unit: rng.randrange(1, SECONDS[larger] // SECONDS[unit]) for larger, unit in pairwise(units)}
    return {units[0]: rng.randint(1, 99)} | rest


def duration(rng: Random, locale: Locale) -> list[str]:
    """Draw a duration in up to three units, written out and abbreviated."""
    drawn = random_duration(rng)
    return [
        format_list([quantity(n, f"duration-{unit}", length, locale) for unit, n in drawn.items()], locale=locale)
        for length in LENGTHS
    ]


def money(rng: Random, locale: Locale) -> list[str]:
    """Draw an amount of money below a million, formatted with the currency name and with its symbol."""
    cents = rng.choice((1, 100)) * rng.randrange(1, 10 ** rng.randint(2, 6))
    amount = partial(format_currency, Decimal(cents) / 100, rng.choice(NAMES["currency"]), locale=locale)
    return [amount(format_type="name"), amount(format_type="standard")]


def number(rng: Random, locale: Locale) -> list[str]:
    """Draw an integer below ten million, formatted with the locale's separators."""
    return [format_decimal(rng.randrange(1, 10 ** rng.randint(2, 7)), locale=locale)]


def percentage(rng: Random, locale: Locale) -> list[str]:
    """Draw an integer percentage from 1 to 100."""
    return [format_percent(Decimal(rng.randint(1, 100)) / 100, locale=locale)]


def name_of(kind: str, code: str, locale: Locale) -> str | None:
    """Return the name of a country, language or currency in a locale, or None if the locale lacks it."""
    names = {"country": locale.territories, "language": locale.languages, "currency": locale.currencies}
    return names[kind].get(code)


def named(kind: str, rng: Random, locale: Locale) -> list[str | None]:
    """Draw the name of a country, language or currency."""
    return [name_of(kind, rng.choice(NAMES[kind]), locale)]


def listing(rng: Random, locale: Locale) -> list[str | None]:
    """Draw a list of up to three different items of one kind."""
    kind = KINDS[rng.choice(("country", "country", "language", "language", "currency", "distance", "weight", "month"))]
    style: Literal["standard", "or"] = rng.choice(("standard", "or"))
    states = [rng.getrandbits(64) for _ in range(rng.randint(2, 3))]
    # Detect duplicates by their English form, so that the list has the same items in every locale.
    different = {kind(Random(state), ENGLISH)[0]: state for state in states}.values()
    items = [kind(Random(state), locale)[0] for state in different]
    known = [item for item in items if item is not None]
    return [format_list(known, style, locale) if len(known) == len(items) else None]


KINDS: dict[str, Callable[[Random, Locale], Sequence[str | None]]] = {
    "date": date,
    "month": month,
    "time": time,
    "moment": moment,
    "past": partial(relative, -1),
    "future": partial(relative, 1),
    "duration": duration,
    "money": money,
    "number": number,
    "percentage": percentage,
    "listing": listing,
    **{kind: partial(measure, units) for kind, units in UNITS.items()},
    **{kind: partial(named, kind) for kind in NAMES},
}
# Relative frequency of each kind in translation and language identification
WEIGHTS = dict.fromkeys(UNITS, 3) | {
    "date": 20, "month": 3, "time": 5, "moment": 8, "past": 4, "future": 4,
    "duration": 6, "money": 15, "number": 4, "percentage": 1, "listing": 25,
}  # fmt: skip


def say(kind: str, rng: Random, locale: Locale) -> list[str]:
    """Draw a fact and return its normalised forms, or an empty list if the locale lacks a name."""
    forms = [form for form in KINDS[kind](rng, locale) if form is not None]
    return [" ".join(re.sub("[\u200e\u200f\u061c]", "", form).split()) for form in forms]
