"""LaTeX, plain and Unicode mathematics as one list of tokens.

:func:`normalize` undoes what only concerns the looks (delimiters, spacing, sizes, Unicode signs);
:func:`tokenize` cuts the rest. Both take time linear in the text.

What a comma means is not in the text: ``1,000`` is a number or a list. ``tokenize(grouped=True)`` reads a
number where every group has three digits and no bracket is open; ``grouped=False`` reads a list. Marked
separators (``1{,}000``, ``1,\\!000``, ``1\\,000``) always group.
"""

from __future__ import annotations

import re

from rlvr.verifiers.answers import signs, units, vocabulary, words
from rlvr.verifiers.answers.signs import Token

_UNICODE = str.maketrans(
    {
        **{a: "-" for a in "−–—‐‑﹣"}, **{a: "" for a in "✓✔∎"},
        **{a: r"\cdot " for a in "·⋅∙•"},
        **{a: f"^{{{b}}}" for a, b in zip("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789", strict=True)},
        **{a: f"_{{{b}}}" for a, b in zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True)},
        **{a: rf"\frac{{{b}}}{{{c}}}" for a, b, c in zip("½⅓⅔¼¾⅕⅛", "1121111", "2334458", strict=True)},
        **{chr(0xFF01 + k): chr(0x21 + k) for k in range(94)},
        **{a: b for a, b in zip("。、“”‘’", ".,\"\"''", strict=True)},
        **{a: rf"\{b} " for a, b in zip("×πθαβγδλμρσφωτ∞√", (
            "times pi theta alpha beta gamma delta lambda mu rho sigma phi omega tau infty sqrt"
        ).split(), strict=True)},
        **{a: rf"\{b} " for a, b in zip("≤≥≠≈∪∩∈±∓∅", "le ge ne approx cup cap in pm mp emptyset".split(),
                                       strict=True)},
        "÷": "/", "°": r"^\circ ", "…": r"\ldots ", "ℝ": r"\mathbb{R}", "\N{NO-BREAK SPACE}": " ",
        "¾": r"\frac{3}{4}", "⅔": r"\frac{2}{3}", "或": r"\text{or}", "和": r"\text{and}",
        "且": r"\text{and}",
    }
)  # fmt: skip
_TRAILING = ("\\,", "\\;", "\\:", "\\!", "\\ ", "\\\\")
_GROUP = re.compile(r"(?<=\d)(?:\s*\{\s*,\s*\}|\s*,\s*\\!|\\[,;: ]|~)\s*(?=\d{3}(?!\d))")
_DOUBLED = re.compile(r"(?<!\\)\\\\(?=[A-Za-z])")  # a LaTeX string that was escaped once too often
_COSMETIC = re.compile(
    r"\\(?:left|right|middle)\s*\.|"
    r"\\(?:left|right|middle|[bB]ig{1,2}[lrm]?|displaystyle|textstyle|scriptstyle|limits|nolimits)(?![A-Za-z])|"
    r"\\q?quad|\\(?:enspace|thinspace|negthinspace|nonumber|notag|hfill)(?![A-Za-z])|"
    r"\\(?:tiny|small|normalsize|large|Large|LARGE|huge|Huge|bf|rm|it)(?![A-Za-z])|\\(?:text)?color\s*\{[^{}]*\}|"
    r"\\(?:checkmark|blacksquare|qed)(?![A-Za-z])|\\[hv]space\*?\{[^{}]*\}|\\phantom\s*(?:\{[^{}]*\}|.)|\\(?:label|tag)\{[^{}]*\}|"
    r"(?<!\\)\\[,;:!\s/]|(?<!\\)\\[()\[\]]|(?<!\\)\$|~"
)
_UNBRACED = re.compile(r"\\(?:text|mathrm|textrm|mbox)\s+([A-Za-z])(?![A-Za-z])")
_UNIT_FRACTION = re.compile(
    r"\\[dt]?frac\s*\{\s*\\(?:text|mathrm|textrm|mbox)\s*\{([^{}]{1,20})\}(\^\{?[23]\}?)?\s*\}"
    r"\s*\{\s*\\(?:text|mathrm|textrm|mbox)\s*\{([^{}]{1,20})\}(\^\{?[23]\}?)?\s*\}"
)
_PER_CENT = re.compile(r"\bper\s+cent\b")
_ROOT = re.compile(r"√\s*(\d+|[A-Za-z])")
_MODULE = re.compile(r"\b(?:np|numpy|math|sympy|sp)\.(?=[a-z])")
_TIMES_TEN = re.compile(r"(?<=\d)\s*[xX]\s*(?=10\s*\^)")

_FLAT = re.compile(r"\\(?:text|mbox|textbf|textup|mathrm)\s*|[{}\s]")
_CLOCK = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d))?([ap])\.?m\.?", re.IGNORECASE)
_BASED = re.compile(r"(-?[0-9A-Z]*[A-Z][0-9A-Z]*)_(\d{1,2})")

_NEGATIVE = ("negative", "minus")
_NUMBER_AND_WORDS = re.compile(r"([-+]?\d[\d,]*(?:\.\d+)?)\s+([A-Za-z][A-Za-z .'/^23-]*)")

_TEXT = r"\\(?:text|mbox|hbox|textbf|textit|textrm|textnormal|textsf|textup|textsc|mathrm|operatorname\*?)"
_TOKEN = re.compile(
    rf"""
    (?P<space>\s+)
  | (?P<mixed>\d+\s+\d+\s*/\s*\d+(?![\d.]))
  | (?P<spaced>(?<![\d.,])\d{{1,3}}(?:\ \d{{3}})+(?![\d.]))
  | (?P<grouped>(?<![\d.,])\d{{1,3}}(?:,\d{{3}})+(?!\d)(?!,\d)(?:\.\d+)?)
  | (?P<repeating>\d*\.\d*\\(?:overline|bar)\s*\{{\d{{1,60}}\}})
  | (?P<num>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+(?![A-Za-z\d]))?)
  | (?P<text>{_TEXT}\s*\{{(?P<words>(?:[^{{}}]|\{{[^{{}}]*\}})*)\}})
  | \\begin\s*\{{(?P<begin>\w+)\*?\}}(?:\s*\{{[|lcr\s]*\}})?
  | \\end\s*\{{(?P<close>\w+)\*?\}}
  | (?P<row>\\\\(?:\s*\[[^\]]*\])?)
  | \\(?P<cmd>[A-Za-z]+)
  | \\(?P<escaped>[^A-Za-z])
  | (?P<dots>\.\.\.+)
  | (?P<word>[A-Za-z]+)
  | (?P<rel><=|>=|!=|==|[=<>])
  | (?P<op>.)
    """,
    re.VERBOSE | re.DOTALL,
)


def normalize(text: str) -> str:
    """Text without what only concerns its looks; a trailing full stop goes too."""
    if not text.isascii():
        text = _ROOT.sub(r"\\sqrt{\1}", text)
        text = text.translate(_UNICODE)
    if "\\" in text or "$" in text or "~" in text or "{,}" in text:
        if "\\begin" not in text:  # where a double backslash ends a row
            text = _DOUBLED.sub(r"\\", text)
        previous = None
        while previous != text and "," in text + "\\":
            previous, text = text, _GROUP.sub("", text)
        if "frac" in text and ("\\text" in text or "\\mathrm" in text or "\\mbox" in text):
            text = _UNIT_FRACTION.sub(_unit_fraction, _UNBRACED.sub(r"\\text{\1}", text))
        text = text.replace(r"\$", "\N{FULLWIDTH DOLLAR SIGN}")
        text = _COSMETIC.sub(" ", text)
    if "**" in text:
        text = text.replace("**", "^")
    text = _PER_CENT.sub("percent", _TIMES_TEN.sub("*", _MODULE.sub("", text)))
    return strip_stop(text.strip())


def _unit_fraction(match: re.Match[str]) -> str:
    """``\\frac{\\text{m}}{\\text{s}}`` as one unit, if it is one."""
    above, power, below, other = (part or "" for part in match.groups())
    unit = f"{above.strip()}{power}/{below.strip()}{other}".replace("{", "").replace("}", "")
    return match.group() if units.canonical(unit) is None else rf"\text{{ {unit}}}"


def strip_stop(text: str) -> str:
    """Without punctuation, spacing or a line break at the end; an ellipsis stays."""
    while True:
        if text.endswith(_TRAILING):
            text = text[:-2].rstrip()
        elif text and text[-1] in ".,;:" and not text.endswith(".."):
            text = text[:-1].rstrip()
        elif text.endswith("\\"):  # of a hidden space, "\\ ", whose space was stripped
            text = text[:-1].rstrip()
        else:
            return text


def ambiguous(text: str) -> bool:
    """Whether ``grouped`` changes the reading of a normalized text."""
    return "," in text and re.search(r"\d,\d{3}(?!\d)", text) is not None


def tokenize(text: str, *, grouped: bool = True) -> list[Token]:
    """Tokens of a normalized text. Raises Unreadable for a sign outside the notation."""
    tokens: list[Token] = _whole(text)
    if tokens:
        return tokens
    position, depth, braces, size = 0, 0, 0, len(text)
    while position < size:
        if (
            tokens
            and tokens[-1][0] in ("num", "mixed", ")")
            and (text[position] in " mcsk" or text[position].isalpha())
        ):
            unit = units.PLAIN.match(text, position + (text[position] == " "))
            if unit is not None:
                tokens.append(("unit", unit.group().strip()))
                position = unit.end()
                continue
        match = _TOKEN.match(text, position)
        kind, value = match.lastgroup, match.group(match.lastgroup)
        if kind == "grouped" and (depth or not grouped):
            kind, value = "num", value[: value.index(",")]
            position += len(value)
        else:
            position = match.end()
        if kind == "space":
            continue
        if kind == "words":
            kind = "text"
        if kind in ("num", "grouped", "spaced"):
            tokens.append(("num", value.replace(",", "").replace(" ", "")))
        elif kind == "word":
            alone = (
                not braces
                and not text[match.start() - 1 : match.start()].strip()
                and not text[position : position + 1].strip()
            )
            tokens.extend([("text", value)] if alone and value in vocabulary.PROSE else _word(value, tokens))
        elif kind == "text":
            tokens.extend(_upright(match.group("words"), tokens))
        elif kind == "cmd":
            tokens.extend(signs.command(value))
        elif kind == "escaped":
            tokens.extend(signs.escaped(value))
        elif kind == "rel":
            tokens.append(("rel", "=" if value == "==" else value))
        elif kind == "op":
            if value in "([":
                depth += 1
            elif value in ")]":
                depth = max(0, depth - 1)
            braces += (value == "{") - (value == "}")
            tokens.extend(signs.operator(value))
        else:
            tokens.append((kind, value))
        if kind in ("cmd", "escaped") and tokens and tokens[-1][0] in ("{{", "("):
            depth += 1
        elif kind in ("cmd", "escaped") and tokens and tokens[-1][0] in ("}}", ")"):
            depth = max(0, depth - 1)
    return tokens


def _whole(text: str) -> list[Token]:
    """A time of day, or digits in a base with letters among them (``A5_{11}``)."""
    if len(text) < 40 and (":" in text or "_" in text):
        flat = _FLAT.sub("", text)
        clock = _CLOCK.fullmatch(flat)
        if clock is not None:
            hour, minute, second, half = clock.groups()
            return [("clock", f"{int(hour)}:{minute}:{second or '00'} {half.lower()}m")]
        based = _BASED.fullmatch(flat)
        if based is not None and all(int(c, 36) < int(based[2]) <= 36 for c in based[1].lstrip("-")):
            return [("based", based[0])]
    return []


def _at_start(before: list[Token]) -> bool:
    return not before or before[-1][0] in ("rel", "sep", "(", "[", "{", "{{")


def _word(word: str, before: list[Token]) -> list[Token]:
    lower = word.lower()
    if lower in ("and", "or"):
        return [("sep", lower)]
    if lower in ("percent", "percentage", "pct"):
        return [("%", "%")]
    if word in vocabulary.FUNCTIONS:
        return [("cmd", "sqrt")] if word == "sqrt" else [("func", vocabulary.FUNCTIONS[word])]
    if lower in ("pi", "infinity", "inf", "oo"):
        return [("sym", "pi" if lower == "pi" else "oo")]
    if word in vocabulary.GREEK:
        return [("sym", word)]
    if len(word) == 1:
        return [("sym", word)]
    if lower in vocabulary.FILLER and word != "A" and not before:
        return []
    if lower in _NEGATIVE and _at_start(before):
        return [("-", "-")]
    if word in vocabulary.CURRENCIES and not before:
        return [("cur", vocabulary.CURRENCIES[word])]
    if word in ("cm", "mm", "km", "kg") and before:
        return [("unit", word)]
    if word.isupper() or len(word) <= 3:
        return [("sym", letter) for letter in word]
    return [("text", word)]


def _upright(inside: str, before: list[Token]) -> list[Token]:
    """The inside of \\text{...}: mathematics if it holds a digit, a connective, a letter, or words."""
    bare = inside.strip()
    core = bare.strip(" ,.;:")
    lower = core.lower()
    if not core:
        return [("sep", ",")] if "," in bare else []
    if core == "!":
        return [("!", "!")]
    if lower in ("and", "or", "and/or"):
        return [("sep", "and" if lower != "or" else "or")]
    if lower in ("percent", "per cent", "pct"):
        return [("%", "%")]
    if core in vocabulary.FUNCTIONS:
        return _word(core, before)
    if not before and core != "A" and all(word in vocabulary.FILLER for word in lower.split()):
        return []
    if lower in _NEGATIVE and _at_start(before):
        return [("-", "-")]
    if len(core) == 1 and core.isalpha():
        return [("upright", core)]
    if core in vocabulary.CURRENCIES and not before:
        return [("cur", vocabulary.CURRENCIES[core])]
    if lower == "pi":
        return [("sym", "pi")]
    if units.canonical(core) is not None:  # km/h, m/s^2
        return [("text", bare)]
    if core.startswith("\\"):
        return tokenize(normalize(core))
    counted = None if before else _NUMBER_AND_WORDS.fullmatch(core)
    if counted is not None and words.role(counted[2], counted[1] == "1") is not None:
        return [*tokenize(normalize(counted[1])), ("text", counted[2])]
    if re.search(r"\d", core) and re.fullmatch(r"[\d\s.,+\-*/=()%A-Z]+", core):
        return tokenize(normalize(core))
    if re.search(r"[+=^/*<>]", core) and not re.search(r"[^\W\d_]{3}|\s[^\W\d_]{2}", core):
        return tokenize(normalize(core))
    return [("text", bare)]
