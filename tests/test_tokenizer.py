"""The tokenizer: one text, one encoding, the same in this process, on disk and through AutoTokenizer."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen3Config

from rlvr.problems import SPLITS, get_task
from rlvr.problems.tokenizer import EOS, PAD, TOKEN_CLASSES, Codec, build_tokenizer, token_class

WORD = get_task("word")
CODEC = Codec(build_tokenizer(WORD.words))
PROBLEMS = [p for split in SPLITS for p in WORD.generate(split, 300, seed=4)]
TEXTS = [text for p in PROBLEMS for text in (p.prompt, p.solution, p.prompt + p.solution)]


def test_vocabulary_size_is_length():
    tokenizer = CODEC.tokenizer
    assert len(CODEC) == len(tokenizer) == tokenizer.vocab_size == len(tokenizer.get_vocab()) == 68
    assert sorted(tokenizer.get_vocab().values()) == list(range(68))


def test_known_encoding():
    assert CODEC.tokens[:19] == (PAD, EOS, *"0123456789+-*=,.?")
    assert CODEC.encode("11+6=17,17-4=13", end=True) == [3, 3, 12, 8, 15, 3, 9, 16, 3, 9, 13, 6, 15, 3, 5, 1]
    prompt = "Anna has 11 pens, buys 6 then loses 4, doubles them. how many pens?"
    tokens = [CODEC.tokens[i] for i in CODEC.encode(prompt)]
    assert tokens == "Anna has 1 1 pens , buys 6 then loses 4 , doubles them . how many pens ?".split()


def test_digits_and_signs_are_single_tokens():
    for text in ("0123456789", "+-*=,.?", "100=42"):
        assert [CODEC.tokens[i] for i in CODEC.encode(text)] == list(text)
    assert not any(any(c.isdigit() for c in token) and len(token) > 1 for token in CODEC.tokens)


def test_fast_path_equals_the_tokenizer_and_round_trips():
    encoded = CODEC.encode_batch(TEXTS)
    assert encoded == CODEC.tokenizer(TEXTS)["input_ids"]
    assert CODEC.decode_batch(encoded) == TEXTS
    assert CODEC.tokenizer.batch_decode(encoded) == TEXTS


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(2, len(CODEC) - 1), max_size=40))
def test_any_ids_round_trip(ids):
    """Whatever a policy samples (special tokens aside): text -> ids gives the sampled ids back."""
    text = CODEC.decode(ids)
    assert text == CODEC.tokenizer.decode(ids)
    assert CODEC.encode(text) == ids == CODEC.tokenizer(text)["input_ids"]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, len(CODEC) - 1), max_size=20))
def test_special_tokens_like_the_tokenizer(ids):
    for skip in (True, False):
        assert CODEC.decode(ids, skip) == CODEC.tokenizer.decode(ids, skip_special_tokens=skip)


def test_pad_and_end_differ_and_are_not_reachable_from_text():
    assert CODEC.pad_id != CODEC.eos_id
    assert (
        (CODEC.pad_id, CODEC.eos_id) == (CODEC.tokenizer.pad_token_id, CODEC.tokenizer.eos_token_id) == (0, 1)
    )
    with pytest.raises(ValueError, match="'<'"):
        CODEC.encode("1<eos>")


def test_end_token_only_where_asked():
    assert CODEC.encode("1") == [3]
    assert CODEC.encode("1", end=True) == [3, CODEC.eos_id]
    assert CODEC.encode_batch(["1", ""], end=True) == [[3, 1], [1]]


@pytest.mark.parametrize(
    ("text", "symbol"),
    [
        ("Anna has 3 zebras", "'zebras'"),
        ("3/4", "'/'"),
        ("3 × 4", "'×'"),
        ("Annahas", "'Annahas'"),
        ("٣", "'٣'"),
    ],
)
def test_unknown_text_is_named(text, symbol):
    with pytest.raises(ValueError, match=symbol):
        CODEC.encode(text)
    with pytest.raises(ValueError, match=symbol):
        CODEC.encode_batch(["1", text])
    with pytest.raises(Exception, match="UNK"):  # the tokenizer alone refuses as well, never drops it
        CODEC.tokenizer(text)


@pytest.mark.parametrize("with_model_config", [False, True])
def test_saved_and_loaded_it_is_the_same(tmp_path, with_model_config):
    """Also beside a Qwen3 config, which must not bring in Qwen's own tokenizer."""
    CODEC.save(tmp_path)
    if with_model_config:
        Qwen3Config(vocab_size=len(CODEC)).save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(str(tmp_path), local_files_only=True)
    assert isinstance(loaded, PreTrainedTokenizerFast)
    assert len(loaded) == len(CODEC) and loaded.get_vocab() == CODEC.tokenizer.get_vocab()
    assert loaded(TEXTS)["input_ids"] == CODEC.encode_batch(TEXTS)
    assert loaded.batch_decode(CODEC.encode_batch(TEXTS, end=True), skip_special_tokens=True) == TEXTS
    codec = Codec.load(tmp_path)
    assert (codec.tokens, codec.classes, codec.pad_id, codec.eos_id) == (
        *(CODEC.tokens, CODEC.classes, CODEC.pad_id),
        CODEC.eos_id,
    )


def test_saved_by_save_pretrained_it_is_the_same(tmp_path):
    CODEC.tokenizer.save_pretrained(tmp_path)
    assert Codec.load(tmp_path).encode_batch(TEXTS[:50]) == CODEC.encode_batch(TEXTS[:50])


def test_saving_twice_gives_the_same_bytes(tmp_path):
    Codec(build_tokenizer(WORD.words)).save(tmp_path / "a")
    CODEC.save(tmp_path / "b")
    names = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert "tokenizer.json" in names
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_load_never_looks_elsewhere(tmp_path):
    with pytest.raises((OSError, ValueError)):
        Codec.load(tmp_path / "missing")


def test_responses_end_at_the_first_end_token():
    one, comma, seven, pad, end = 3, 16, 9, CODEC.pad_id, CODEC.eos_id
    rows = [
        [one, seven, end],
        [one, seven],
        [one, end, seven, end],
        [one, seven, end, pad, pad],
        [end],
        [],
        [one, pad, seven, end],
        [one, comma, seven, end],
    ]
    texts, finished = CODEC.responses(rows)
    assert texts == ["17", "17", "1", "17", "", "", "1<pad>7", "1,7"]
    assert finished == [True, False, True, True, True, False, True, True]
    gold = ["17"] * len(rows)
    assert WORD.rewards(texts, gold, finished) == [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]


def test_classes():
    expected = dict.fromkeys("0123456789", "digit") | dict.fromkeys("+-*=", "operator")
    expected |= dict.fromkeys(",.?", "separator") | {EOS: "end", PAD: "end", "Anna": "word", "then": "word"}
    assert {token: token_class(token) for token in expected} == expected
    assert CODEC.classes == tuple(map(token_class, CODEC.tokens))
    assert set(CODEC.classes) == set(TOKEN_CLASSES)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", "b", "a"], r"words\[2\]='a'"),
        (["a1"], r"words\[0\]='a1'"),
        ([""], r"words\[0\]=''"),
        (["é"], "é"),
    ],
)
def test_bad_words(words, message):
    with pytest.raises(ValueError, match=message):
        build_tokenizer(words)


def test_codec_refuses_one_token_for_pad_and_end():
    tokenizer = build_tokenizer(["a"])
    tokenizer.pad_token = EOS
    with pytest.raises(ValueError, match="pad and end token must differ"):
        Codec(tokenizer)
    tokenizer = build_tokenizer(["a"])
    tokenizer.pad_token = None
    with pytest.raises(ValueError, match="needs a pad token"):
        Codec(tokenizer)


def test_codec_refuses_gaps():
    class Gap:
        pad_token_id, eos_token_id, pad_token = 0, 1, "p"

        def get_vocab(self):
            return {"p": 0, "e": 1, "x": 3}

        def __len__(self):
            return 3

    with pytest.raises(ValueError, match=r"ids must be 0\.\.2"):
        Codec(Gap())
