"""Words around numbers: which may be dropped, which multiply, and which change the value.

One rule for words behind a number, in gold answers and in responses alike. They may be

- multipliers (``5 million``, ``3 dozen``): they multiply;
- a unit (:mod:`rlvr.verifiers.answers.units`), or what is counted: letters only, with a plural, a unit or one
  of a few nouns among them (``apples``, ``distinct integers``, ``people``; behind 1 also a singular), or
  words that only round off a sentence (``in total``, ``each``). They may be missing on the other side;
- anything else, or with a word of :data:`CHANGING` among them (``squared``, ``thirds``, ``or more``,
  ``less than``): then the text is no number and cannot be read.
"""

from __future__ import annotations

import re

from rlvr.verifiers.answers import units

NUMERALS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty"
).split()
MULTIPLIERS = {
    "dozen": 12,
    "hundred": 100,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}
_TENS = "thirty forty fifty sixty seventy eighty ninety".split()
_PARTS = (
    "half third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth "
    "fifteenth sixteenth seventeenth eighteenth nineteenth twentieth thirtieth fortieth fiftieth sixtieth "
    "seventieth eightieth ninetieth hundredth thousandth millionth billionth"
).split()
_PLURALS = ("halves", *(f"{word}s" for word in _PARTS))
FRACTIONS = (*_PARTS, *_PLURALS)
CHANGING = frozenset(
    [
        *NUMERALS, *_TENS, *FRACTIONS, *MULTIPLIERS, *(f"{word}s" for word in MULTIPLIERS),
        *(
            "and or nor not no non never none without except but if when where unless otherwise other else "
            "plus minus times over under by divided multiplied mod modulo modulus base to from than more "
            "less fewer greater smaller least most at up above below between out point twice double triple "
            "thrice quadruple squared cubed power powers exponent exponents factorial factorials percent "
            "percents percentage percentages permille basis ppm gross score scores tens ones imaginary "
            "complex infinity infinite choose recurring repeating reciprocal reciprocals inverse inverses "
            "logarithm logarithms mille lakh lakhs crore crores myriad quadrillion quintillion "
            "is are was were has have does do equals equal as this thus its us always perhaps besides across "
            "towards yes cannot quarter googol ths nds rds sts"
        ).split(),
    ]
)  # fmt: skip
_COUNTED = frozenset(
    "people children men women persons feet mice geese teeth dice sheep fish deer cattle oxen kids folk data "
    "criteria vertices matrices indices radii foci loci".split()
)
_CLOSING = frozenset("in total all altogether each left remaining only exactly overall together".split())
_WORD = re.compile(r"[A-Za-z]+(?:['’]s|s['’])?(?:-[A-Za-z]+)*")


def role(phrase: str, one: bool = False) -> tuple[int, str] | None:
    """(factor, unit) of words behind a number, which is 1 if ``one``; None if they change its value or are
    not known."""
    words, factor = phrase.replace("~", " ").split(), 1
    while words and words[0].lower().rstrip(".,") in MULTIPLIERS:
        factor *= MULTIPLIERS[words.pop(0).lower().rstrip(".,")]
    unit = " ".join(words).strip(" .,;:()")
    if factor == 1 and unit in ("st", "nd", "rd", "th"):
        return 1, ""
    if not unit or units.canonical(unit) is not None:
        return factor, unit
    return (factor, unit) if is_counted(unit, one) else None


def is_counted(phrase: str, one: bool = False) -> bool:
    """Whether words name what is counted or measured, without a word that changes a number."""
    words = re.split(r"[\s/,]+", phrase.lower().replace("(", "").replace(")", ""))
    if len(words) > 6 or not all(_WORD.fullmatch(word) for word in words):
        return False
    if words[-1] == "times":
        words = [*words[:-1], "occasions"]
    if any(part in CHANGING for word in words for part in word.split("-")):
        return False
    if all(word in _CLOSING for word in words):
        return True
    singular = one and len(words) <= 2 and len(words[-1]) >= 3
    return singular or any(
        word in _COUNTED
        or (len(word) > 2 and word.endswith("s") and not word.endswith(("ss", "us", "is", "'s", "’s")))
        or (len(word) > 1 and units.canonical(word) not in (None, "in"))
        for word in words
    )


# words in prose around the number that is taken from it

_LINK = r"(?:\s+(?:be|been|equal|equals|to|just|simply|the|is|exactly|value|number|of|a|an)){0,4}"
_MARKUP = " \t$*_`\\({[}"
_OPENED = re.compile(r"[\s$*_`)}\]\\]*(?:(?:text[a-z]*|mbox|mathrm)\s*\{\s*)?")
_NEGATED = re.compile(
    rf"(?:\b(?:not|never|none|cannot|neither|nor|except|unlike|without|no\s+longer)|n['’]t|"
    rf"\b(?:other|rather)\s+than|\binstead\s+of|\bexcept\s+for){_LINK}\Z",
    re.IGNORECASE,
)
_BEFORE = re.compile(
    r"(?:\b(?:less|more|greater|fewer|larger|smaller|higher|lower|bigger)\s+than(?:\s+or\s+equal\s+to)?|"
    r"\b(?:over|under|above|below|exceeds?|exceeding|beyond|between)|"
    r"\b(?:between|from)\s+\S{1,40}(?:\s+\S{1,20})?\s+(?:and|to)|\bof\s+\S{1,40}\s+and|"
    r"(?<![=+*/$.\d-])(?<![=+*/-] )\d(?:[\d,.]{0,20}\d)?[ \t]+(?:and|or|to)|"
    rf"\b(?:{'|'.join(FRACTIONS)}|quarters?|roots?|square|cube|logarithm|log|factorial|reciprocal|inverse|"
    r"opposite|negative|multiples?|powers?|complement|double|triple)\s+of(?:\s+(?:the|number|value|about))*|"
    r"\b(?:half|twice|thrice|double|triple|mod|modulo|base|times|plus|choose|(?:divided|multiplied)\s+by|"
    r"to\s+the\s+power(?:\s+of)?))\Z",
    re.IGNORECASE,
)
_SIGN = re.compile(r"\b(?:negative|minus)\Z", re.IGNORECASE)
_NEXT = rf"(?=\s*[\d$\\(+−-]|\s+(?:{'|'.join(NUMERALS)})\b)"
_AFTER = re.compile(
    rf"(?:{'|'.join((*MULTIPLIERS, *(f'{word}s' for word in MULTIPLIERS), *_PLURALS))}|"
    r"squared|cubed|factorial|percent|per\s+cent|pi|(?:negative|half)(?=\W*\Z|\s*[.!$*}])|"
    r"(?:over|plus|minus|times|mod|modulo|base|to|point|divided\s+by|multiplied\s+by|raised\s+to|choose|or)"
    rf"{_NEXT}|"
    r"to\s+the\s+power|(?:degrees?\s+)?below\s+zero|is\s+(?:wrong|incorrect|impossible|false)|(?:or|and)\s+(?:more|less|fewer|greater|above|below|higher|lower|over|under)|"
    r"and\s+(?:a|one|two|three)\s+(?:half|thirds?|quarters?))\b",
    re.IGNORECASE,
)


def sign_before(text: str, start: int) -> bool:
    """Whether ``negative`` or ``minus`` stands before what begins there."""
    return _SIGN.search(text[max(0, start - 40) : start].rstrip(_MARKUP)) is not None


def changed(text: str, start: int, end: int) -> bool:
    """Whether the words directly around a formula in prose deny or change its value: ``not 5``, ``less than
    5``, ``half of 10``, ``between 3 and 5``, ``5 squared``, ``5 or more``. The value of an equation (``at
    least 7 - 2 = 5``) can only be denied."""
    preceding, following = text[max(0, start - 120) : start].rstrip(_MARKUP), text[end : end + 80]
    if _NEGATED.search(preceding) or _AFTER.match(following, _OPENED.match(following).end()):
        return True
    return "=" not in text[start:end] and _BEFORE.search(preceding) is not None
