"""Units that stand behind a number: which names are one unit, and which two contradict each other."""

from __future__ import annotations

import re
from functools import lru_cache

# canonical: other spellings. A plain word counts as a unit only directly behind a number.
_NAMES = {
    "mm": "millimeter millimeters millimetre millimetres",
    "cm": "centimeter centimeters centimetre centimetres",
    "m": "meter meters metre metres",
    "km": "kilometer kilometers kilometre kilometres",
    "in": "inch inches",
    "ft": "foot feet",
    "yd": "yard yards",
    "mi": "mile miles",
    "mg": "milligram milligrams",
    "g": "gram grams gm",
    "kg": "kilogram kilograms",
    "lb": "lbs pound pounds",
    "oz": "ounce ounces",
    "ml": "mL milliliter milliliters millilitre millilitres",
    "L": "liter liters litre litres",
    "gal": "gallon gallons",
    "ms": "millisecond milliseconds",
    "s": "sec secs second seconds",
    "min": "mins minute minutes",
    "h": "hr hrs hour hours",
    "day": "days",
    "week": "weeks",
    "month": "months",
    "year": "years yr yrs",
    "Hz": "hertz",
    "kHz": "kilohertz",
    "MHz": "megahertz",
    "W": "watt watts",
    "kW": "kilowatt kilowatts",
    "J": "joule joules",
    "kJ": "kilojoule kilojoules",
    "N": "newton newtons",
    "Pa": "pascal pascals",
    "kPa": "kilopascal kilopascals",
    "V": "volt volts",
    "mV": "millivolt millivolts",
    "K": "kelvin kelvins",
    "dollar": "dollars usd USD bucks",
    "cent": "cents",
    "euro": "euros eur EUR",
    "gbp": "GBP",
    "yuan": "rmb RMB",
    "rad": "radian radians",
    "deg": "degree degrees",
    "arcminute": "arcminutes arcmin",
    "arcsecond": "arcseconds arcsec",
    "celsius": "",
    "fahrenheit": "",
    "mph": "",
    "km/h": "kph kmh km/hr",
    "m/s": "",
    "unit": "units",
}
_CANONICAL = {spelling: name for name, others in _NAMES.items() for spelling in (name, *others.split())}
_LOWER = {spelling.lower(): name for spelling, name in _CANONICAL.items()}
# Single letters are variables unless they are written upright (\text{m}).
_PLAIN = sorted(
    (re.escape(word) for word in _CANONICAL if len(word) > 1),
    key=len,
    reverse=True,
)
_POWER = r"(?:\s*\^?\s*\{?\s*[23]\s*\}?|\s+(?:squared|cubed))?"
PLAIN = re.compile(
    rf"(?:(?:square|sq\.?|cubic|cu\.?)\s+)?(?:{'|'.join(_PLAIN)}|m(?=\^))(?![A-Za-z]){_POWER}"
    r"(?:\s*(?:/|per)\s*(?:[a-z]+)(?:\^\{?[23]\}?)?)?(?![A-Za-z])"
)
_PARTS = re.compile(
    r"(?:(square|sq|cubic|cu)\.?\s+)?([A-Za-z/]+)\s*(?:\^?\s*\{?\s*([23])\s*\}?|(squared|cubed))?"
)


@lru_cache(maxsize=4096)
def canonical(unit: str) -> str | None:
    """One name per known unit (``square feet``, ``ft^2``: ``ft^2``); None for words that are no known
    unit."""
    match = _PARTS.fullmatch(unit.strip().rstrip("."))
    if match is None:
        return None
    prefix, word, digit, suffix = match.groups()
    name = _CANONICAL.get(word) or _LOWER.get(word.lower())
    if name is None:
        return None
    square = prefix in ("square", "sq") or suffix == "squared" or digit == "2"
    cube = prefix in ("cubic", "cu") or suffix == "cubed" or digit == "3"
    return name + ("^2" if square else "^3" if cube else "")


def contradict(first: str, second: str) -> bool:
    """Whether both are known units and not the same; there is no conversion (``5 m`` is not ``500 cm``)."""
    a, b = canonical(first), canonical(second)
    generic = {None, "unit", "unit^2", "unit^3"}
    return a not in generic and b not in generic and a != b
