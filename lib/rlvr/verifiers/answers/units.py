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
    "unit": "units",
    "mi/h": "mph",
    "km/h": "kph kmh",
}
# spellings that count inside \\text{..} only: behind a plain number they could be letters
_UPRIGHT_NAMES = {
    "dm": "decimeter decimeters decimetre decimetres",
    "um": "micrometer micrometers micron microns",
    "nm": "nanometer nanometers",
    "pm": "",
    "AU": "",
    "ly": "lightyear lightyears",
    "pc": "parsec parsecs",
    "kpc": "",
    "Mpc": "",
    "t": "ton tons tonne tonnes",
    "amu": "",
    "ns": "nanosecond nanoseconds",
    "us": "microsecond microseconds",
    "decade": "decades",
    "century": "centuries",
    "mol": "mole moles",
    "eV": "",
    "keV": "",
    "MeV": "",
    "GeV": "",
    "erg": "ergs",
    "dyn": "dyne dynes",
    "cal": "calorie calories",
    "kcal": "kilocalorie kilocalories",
    "atm": "atmosphere atmospheres",
    "bar": "bars",
    "torr": "Torr",
    "psi": "",
    "A": "amp amps ampere amperes",
    "mA": "",
    "C": "coulomb coulombs",
    "F": "farad farads",
    "ohm": "ohms Ohm",
    "T": "tesla teslas",
    "G": "gauss Gauss",
    "Wb": "weber webers",
    "GHz": "gigahertz",
    "MW": "megawatt megawatts",
    "kN": "",
    "MPa": "",
    "MJ": "",
    "rev": "revolution revolutions",
    "rpm": "",
    "acre": "acres",
    "ha": "hectare hectares",
    "knot": "knots",
    "cup": "cups",
    "pt": "pint pints",
    "qt": "quart quarts",
    "AM": "a.m A.M",
    "PM": "p.m P.M",
}
_PLAIN_NAMES = {spelling: name for name, others in _NAMES.items() for spelling in (name, *others.split())}
_CANONICAL = {
    **{spelling: name for name, others in _UPRIGHT_NAMES.items() for spelling in (name, *others.split())},
    **_PLAIN_NAMES,
}
_LOWER = {spelling.lower(): name for spelling, name in _CANONICAL.items() if len(spelling) > 1}
# Single letters are variables unless they are written upright (\\text{m}).
_PLAIN = sorted((re.escape(word) for word in _PLAIN_NAMES if len(word) > 1), key=len, reverse=True)
_POWER = r"(?:\s*\^?\s*\{?\s*[23]\s*\}?|\s+(?:squared|cubed))?"
PLAIN = re.compile(
    rf"(?:(?:square|sq\.?|cubic|cu\.?)\s+)?(?:{'|'.join(_PLAIN)}|m(?=\^))(?![A-Za-z]){_POWER}"
    r"(?:\s*(?:/|per)\s*(?:[a-z]+)(?:\^\{?[23]\}?)?)?(?![A-Za-z])"
)
_WORD = re.compile(r"([A-Za-z]+(?:\.[A-Za-z])?)\s*(?:\^?\s*\{?\s*(-?\d)\s*\}?)?")
_SPLIT = re.compile(r"(\s*(?:/|\bper\b)\s*|\s*[*·]\s*|\s+)")
_POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}


@lru_cache(maxsize=4096)
def canonical(unit: str) -> str | None:
    """One name per known unit, a product of powers (``square feet``: ``ft^2``, ``meters per second``:
    ``m s^-1``); None for words that are no known unit."""
    unit = unit.strip().rstrip(".")
    if not unit or len(unit) > 60:
        return None
    powers: dict[str, int] = {}
    direction, coming, last = 1, 1, ""
    for piece in _SPLIT.split(unit):
        if not piece or not piece.strip(" \n\t*·"):
            continue
        if piece.strip() in ("/", "per"):
            direction, last = -1, ""
            continue
        word = piece.rstrip(".")
        if word in ("square", "sq", "cubic", "cu"):
            coming = _POWERS[word]
            continue
        if word in ("squared", "cubed") and last:
            powers[last] *= _POWERS[word]
            continue
        match = _WORD.fullmatch(word)
        name = match and (_CANONICAL.get(match[1]) or _LOWER.get(match[1].lower()))
        if not name or name in powers:
            return None
        name, _, below = name.partition("/")
        powers[name] = direction * coming * int(match[2] or 1)
        if below:
            powers[below] = -direction
        coming, last = 1, name
    if not powers or coming != 1:
        return None
    if set(powers) in ({"deg", "celsius"}, {"deg", "fahrenheit"}):
        del powers["deg"]
    return " ".join(name + (f"^{power}" if power != 1 else "") for name, power in sorted(powers.items()))


def contradict(first: str, second: str) -> bool:
    """Whether both are known units and not the same; there is no conversion (``5 m`` is not ``500 cm``)."""
    a, b = canonical(first), canonical(second)
    generic = {None, "unit", "unit^2", "unit^3"}
    return a not in generic and b not in generic and a != b
