"""The eight token categories of NFPO's appendix D.1: a rule on the token's string, and on nothing else.

The paper describes the categories and gives examples [text]; the rules, their order and all further words are
ours [choice]. A token is read in these steps, and the first that fits decides:

1. White space and the marks of a leading space (``Ġ``, ``▁``) are dropped; nothing left: formatting.
2. Special token (``<|im_end|>``, ``<pad>``, ``[INST]``): formatting. ``<0x0A>`` is the byte it names.
3. Byte-level pieces (``Ċ``, ``âĪļ``) become the text that they stand for; one that is part of a character is
   other. Then NFKC: wide, mathematical and raised letters and digits become plain ones.
4. ``'s``, ``'t``, ``n't`` and the like: function word.
5. A backslash and a name, whatever signs stand around them: numeric or formatting by the two lists of
   commands; ``\\n`` and ``\\t`` formatting, other commands other.
6. No letter but a digit: numeric. Neither: signs. They are numeric if, brackets and punctuation aside, one
   operator is left, or one that takes several signs (``<=``, ``->``, ``=-``); else formatting, as ``**``,
   ``---`` and ``##`` are.
7. Signs at both ends are dropped (``(x``, ``we,``, ``-y``). A single Latin or Greek letter: math variable,
   but ``a``, ``A`` and ``I`` are function words (``i`` is a variable).
8. The word, in lower case, by its list; ``let's`` and ``don't`` by what stands before the apostrophe. The
   lists share no word, so their order does not matter: "one" is numeric, "first" a connective, "can" an
   action.
9. The name of a command that lost its backslash (``frac``, ``boxed``): as the command. All else: other.

What the string cannot tell, and no rule on it could: "since" of time or of reason, "first" in a list or in a
proof, "also" and "finally" that link nothing, ``*`` as product or bullet, the point A, ``$a$``, a word and a
piece of a longer one ("so" in "so|lve"). What the paper does not say: whether "pronouns" among the actions
means "I" and "you" (here: function words, as the other pronouns), which auxiliaries are modals (here: can,
could, may, might, must, shall, should, will, would), whether ordinals are number words (here: all but
"first"), whether ``\\pi`` is a command or a variable (here: a command; π itself is a variable), and where
ordinary words go that no description fits ("apples", "very"; here: other).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from rlvr.analysis import token_words as words

CONNECTIVE, ACTION, FUNCTION = "reasoning connectives", "reasoning actions", "function words"
NOUN, VARIABLE, NUMERIC = "math content nouns", "math variables", "numeric"
FORMATTING, OTHER = "formatting", "other"
#: In the paper's order.
CATEGORIES = (CONNECTIVE, ACTION, FUNCTION, NOUN, VARIABLE, NUMERIC, FORMATTING, OTHER)
#: The "reasoning tokens" of section 5: the two that D.2 calls reasoning-related [text].
REASONING = (CONNECTIVE, ACTION)

_WORDS = {
    **dict.fromkeys(words.CONNECTIVES, CONNECTIVE),
    **dict.fromkeys(words.ACTIONS, ACTION),
    **dict.fromkeys(words.FUNCTION, FUNCTION),
    **dict.fromkeys(words.MATH, NOUN),
    **dict.fromkeys(words.NUMBERS, NUMERIC),
}
_COMMANDS = dict.fromkeys(words.COMMANDS, NUMERIC) | dict.fromkeys(words.LAYOUT, FORMATTING)
_BARE = dict.fromkeys(words.BARE_COMMANDS, NUMERIC) | dict.fromkeys(
    words.BARE_LAYOUT | words.ENVIRONMENTS, FORMATTING
)

_SPECIAL = re.compile(r"<[|｜].*[|｜]>|</?[A-Za-z][\w.:-]*>|\[/?[A-Z][A-Z_]{2,}\d*\]", re.DOTALL)
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_ESCAPES = re.compile(r"[^\w\\]*(?:\\[nrt])+[^\w\\]*")
_COMMAND = re.compile(r"(?:(?!\\)[\W\d_])*\\+([A-Za-z]+)[\W\d_]*")
_OPERATORS = frozenset("+-*/=<>^%·°")  # one sign; other scripts' by their Unicode class (Sm)
_SEVERAL = frozenset("<= >= == === +- -+ =- =+ += -= *= /= *- /- +/- ^- <- -> <-> => <=> <> =<".split())
_LEADING = re.compile(r"[\sĠ▁]*")  # white space, and the marks of a leading space


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's letter for every byte: printable bytes stand for themselves, the others follow from U+0100."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    hidden = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(hidden)}


_BYTES = _byte_alphabet()


def categories(tokens: Iterable[str], byte_level: bool = True) -> list[str]:
    """:func:`categorise` of every token of a vocabulary, in its order."""
    return [categorise(token, byte_level) for token in tokens]


def categorise(token: str, byte_level: bool = True) -> str:
    """The one category of :data:`CATEGORIES` that a token belongs to.

    Args:
        token: as the vocabulary spells it (``convert_ids_to_tokens``), or its plain text.
        byte_level: letters above ASCII are GPT-2's letters for bytes (GPT-2, Qwen, Llama 3). False for
            SentencePiece vocabularies, where ``×`` is a sign and not the first byte of a Hebrew letter.

    Raises:
        ValueError: not a string (``convert_ids_to_tokens`` gives None for ids that the model has and the
            tokenizer lacks).
    """
    if not isinstance(token, str):
        raise ValueError(f"token={token!r}: allowed are strings; an id without a token has no category")
    core = token[_LEADING.match(token).end() :].rstrip()
    if _SPECIAL.fullmatch(core):
        return FORMATTING
    text = _decode(core, byte_level)
    if text is None or not token:
        return OTHER
    text = unicodedata.normalize("NFKC", text).replace("’", "'").strip()
    if not text:
        return FORMATTING
    if text.lower() in words.CLITICS:
        return FUNCTION
    if "\\" in text:
        if _ESCAPES.fullmatch(text):
            return FORMATTING
        if command := _COMMAND.fullmatch(text):
            return _COMMANDS.get(command[1], OTHER)
    if not any(unicodedata.category(c)[0] in "LM" for c in text):
        return NUMERIC if any(unicodedata.category(c)[0] == "N" for c in text) else _signs(text)
    return _word(re.sub(r"^[\W_]+|[\W_]+$", "", text))


def token_text(token: str) -> str:
    """Text of a byte-level or SentencePiece piece, for reading; a part of a character as its bytes.

    >>> token_text("Ġtherefore"), token_text("▁therefore"), token_text("âĪ")
    (' therefore', ' therefore', '\\\\xe2\\\\x88')
    """
    if byte := _BYTE.fullmatch(token):
        return bytes([int(byte[1], 16)]).decode("utf-8", "backslashreplace")
    if all(c in _BYTES for c in token):
        return bytes(_BYTES[c] for c in token).decode("utf-8", "backslashreplace")
    return token.replace("▁", " ")


def _decode(core: str, byte_level: bool) -> str | None:
    """Text of a piece, None for a part of a character."""
    if byte := _BYTE.fullmatch(core):
        value = int(byte[1], 16)
        return chr(value) if value < 128 else None
    if not byte_level or not all(c in _BYTES for c in core):
        return core
    try:
        return bytes(_BYTES[c] for c in core).decode("utf-8")
    except UnicodeDecodeError:
        return None


def _signs(text: str) -> str:
    """Text without letters and digits: operators are numeric."""
    left = "".join(c for c in text if c in _OPERATORS or _is_operator(c))
    rest = [c for c in text if c not in left]
    if any(not _is_punctuation(c) for c in rest):
        return OTHER  # pictures, controls, currencies
    return NUMERIC if len(left) == 1 or left in _SEVERAL or not left.isascii() else FORMATTING


def _is_operator(c: str) -> bool:
    return not c.isascii() and unicodedata.category(c) == "Sm"


def _is_punctuation(c: str) -> bool:
    return c.isspace() or (c.isascii() and c.isprintable()) or unicodedata.category(c)[0] in "PZ"


def _word(core: str) -> str:
    if len(core) == 1:
        if core in "aAI":
            return FUNCTION
        return VARIABLE if re.fullmatch("[A-Za-zͰ-Ͽ]", core) else OTHER
    word = core.lower()
    if word in _WORDS:
        return _WORDS[word]
    if word in ("won't", "shan't", "can't"):
        return ACTION
    stem = word[:-3] if word.endswith("n't") else word.partition("'")[0] if "'" in word else ""
    if stem:
        return _WORDS.get(stem, OTHER)
    return _BARE.get(core, OTHER)
