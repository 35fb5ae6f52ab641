import json
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen3Config, Qwen3ForCausalLM

from rlvr.evaluation.compute import ACTIVITIES, PURPOSES, Entry, Ledger, ModelShape, merge

MODEL = ModelShape(parameters=1000, layers=2, heads=3, head_dim=5)
purposes, activities = st.sampled_from(PURPOSES), st.sampled_from(ACTIVITIES)
records = st.lists(
    st.tuples(purposes, activities, st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=3)),
    max_size=6,
)


def fill(items):
    ledger = Ledger()
    for purpose, activity, sequences in items:
        ledger.add(purpose, activity, [new for new, _ in sequences], [before for _, before in sequences])
    return ledger


def slow_flops(items, purposes):
    """Token by token, matrix by matrix."""
    total = 0
    for purpose, activity, sequences in items:
        passes = {"prefill": 1, "decode": 1, "score": 1, "train": 3}.get(activity, 0)
        if purpose not in purposes:
            continue
        for new, before in sequences:
            for position in range(before + 1, before + new + 1):
                weights = 2 * MODEL.parameters
                products = 2 * MODEL.head_dim * position  # with the keys, and again with the values
                total += passes * (weights + MODEL.layers * MODEL.heads * 2 * products)
    return total


@settings(max_examples=100, deadline=None)
@given(records, st.lists(purposes, unique=True))
def test_flops_slow_loop(items, chosen):
    assert fill(items).flops(MODEL, chosen) == slow_flops(items, chosen)
    assert fill(items).flops(MODEL) == slow_flops(items, ("base", "correction"))


def test_a_group_typed_in():
    # a prompt of 10, responses of 4 and 6 tokens, all trained on with the prompt once
    ledger = Ledger()
    ledger.add("base", "prefill", 10)
    ledger.add("base", "decode", [4, 6], 10, seconds=2.0)
    ledger.add("base", "train", 10)
    ledger.add("base", "train", [4, 6], 10)
    ledger.add("base", "verify", [4, 6], seconds=0.5)
    ledger.add("validation", "decode", 100)
    assert ledger["base", "prefill"] == Entry(10, 55, 1, 0.0)
    assert ledger["base", "decode"] == Entry(10, 4 * 10 + 10 + 6 * 10 + 21, 2, 2.0)
    assert ledger["base", "train"].tokens == 20 and ledger["correction", "decode"] == Entry()
    attended = 55 + 131
    assert ledger.flops(MODEL) == 4 * (2 * 1000 * 20 + 4 * 2 * 3 * 5 * attended)  # 1 forward + 3 in training
    assert ledger.seconds() == 2.5 and ledger.seconds(["validation"]) == 0
    table = ledger.table(MODEL)
    assert table.flops.sum() == ledger.flops(MODEL, PURPOSES)
    assert table.activity.tolist() == ["prefill", "decode", "verify", "train", "decode"]
    assert table.set_index(["purpose", "activity"]).flops["base", "verify"] == 0


@pytest.mark.fault("compute-counted-in-rollouts")
def test_rollout_counts_mislead():
    # 64 responses, or 8 and corrections behind long prompts: an eighth of the rollouts, more FLOPs
    plain, corrected = Ledger(), Ledger()
    plain.add("base", "decode", [100] * 64, 50)
    corrected.add("base", "decode", [100] * 8, 50)
    corrected.add("correction", "prefill", [5000] * 8)
    corrected.add("correction", "decode", [100] * 8, 5000)
    assert corrected["correction", "decode"].sequences * 8 == plain["base", "decode"].sequences
    assert corrected.flops(MODEL) > plain.flops(MODEL)


@settings(max_examples=60, deadline=None)
@given(records, records, records)
def test_algebra(a, b, c):
    one, two, three = fill(a), fill(b), fill(c)
    assert one + two == two + one == fill(a + b) == merge([one, two])
    assert (one + two) + three == one + (two + three) == merge([one, two, three])
    assert (one + two) - one == two and one - one == Ledger() == merge([])
    assert one == fill(a)  # operands are left alone
    assert Ledger.from_dict(json.loads(json.dumps(one.to_dict()))) == one
    before = one.copy()
    one.add("base", "decode", 5)
    assert (one - before).to_dict() == {
        "base": {"decode": {"tokens": 5, "attended": 15, "sequences": 1, "seconds": 0.0}}
    }


def test_how_sequences_are_handed_over_changes_nothing():
    whole, parts = Ledger(), Ledger()
    whole.add("base", "decode", [3, 0, 7], [2, 5, 1])
    for length, context in ((7, 1), (3, 2), (0, 5)):
        parts.add("base", "decode", length, context)
    assert whole == parts
    pieces = Ledger()  # a sequence in two calls, the second behind the first
    pieces.add("base", "decode", 4, 10)
    pieces.add("base", "decode", 6, 14)
    once = Ledger()
    once.add("base", "decode", 10, 10)
    assert pieces["base", "decode"].attended == once["base", "decode"].attended
    same = Ledger()
    same.add("base", "decode", torch.tensor([3, 0, 7]), np.array([2, 5, 1]))
    assert same == whole


def test_counts_do_not_overflow():
    ledger = Ledger()
    ledger.add("base", "prefill", np.full(4, 2**31, dtype=np.int64))
    assert ledger["base", "prefill"].attended == 4 * (2**31 * (2**31 + 1) // 2)
    ledger.add("base", "prefill", np.array([2**31 - 1], dtype=np.int32))
    assert ledger["base", "prefill"].tokens == 5 * 2**31 - 1


def test_wall_time():
    ledger = Ledger()
    with ledger.timed("correction", "compare"):
        time.sleep(0.02)
    with pytest.raises(KeyError), ledger.timed("correction", "compare"):
        raise KeyError
    assert 0.02 <= ledger["correction", "compare"].seconds < 1
    assert ledger.flops(MODEL) == 0
    later = ledger.copy()
    later.add("base", "verify", 1, seconds=0.25)
    assert (later - ledger).seconds() == pytest.approx(0.25)


@pytest.mark.parametrize("tied", [True, False])
def test_shape_counts_what_torch_multiplies(tied):
    config = Qwen3Config(
        vocab_size=61, hidden_size=24, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, tie_word_embeddings=tied, attn_implementation="eager",
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).eval()
    shape = ModelShape.of(config)
    matrices = sum(p.numel() for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name)
    head = 61 * 24 if tied else 0  # the embedding serves as the head
    assert shape.parameters == matrices + head
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(torch.arange(7).unsqueeze(0))
    # eager attention multiplies the whole square, 7 for every token
    assert counter.get_total_flops() == shape.flops(7, 7 * 7)


def test_shape_without_optional_sizes():
    plain = SimpleNamespace(
        vocab_size=10, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    shape = ModelShape.of(plain)
    assert (shape.head_dim, shape.parameters) == (4, 8 * 4 * 2 * 4 + 3 * 8 * 16 + 80)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Ledger().add("base", "generate", 1), "activity='generate': allowed are 'prefill'"),
        (lambda: Ledger().add("main", "decode", 1), "purpose='main': allowed are 'base'"),
        (lambda: Ledger().add("base", "decode", -1), "lengths=-1: allowed are whole numbers >= 0"),
        (lambda: Ledger().add("base", "decode", [1.5]), "lengths="),
        (lambda: Ledger().add("base", "decode", [True]), "lengths="),
        (lambda: Ledger().add("base", "decode", [[1]]), "lengths="),
        (
            lambda: Ledger().add("base", "decode", [1, 2, 3], [1, 2]),
            "contexts has 2 values: allowed is 1, or 3",
        ),
        (lambda: Ledger().add("base", "decode", 1, seconds=-1.0), "seconds=-1.0"),
        (lambda: Ledger().flops(MODEL, ["everything"]), "purposes='everything'"),
        (lambda: Ledger()["base", "generate"], "activity='generate'"),
        (lambda: Ledger() - fill([("base", "decode", [(1, 0)])]), "tokens of base.decode would be -1"),
        (lambda: Ledger.from_dict({"base": {"decode": {"tokens": 1}}}), "base.decode="),
        (
            lambda: Ledger.from_dict(
                {"base": {"decode": dict(tokens=1.5, attended=0, sequences=0, seconds=0)}}
            ),
            "tokens=1.5",
        ),
        (lambda: Ledger.from_dict({"x": {"decode": {}}}), "purpose='x'"),
        (lambda: ModelShape(0, 1, 1, 1), "parameters=0"),
        (lambda: ModelShape(1, 1, 1, float("nan")), "head_dim=nan"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_refused_call_counts_nothing():
    ledger = Ledger()
    for call in (
        lambda: ledger.add("base", "decode", [1, -1]),
        lambda: ledger.add("base", "decode", 1, seconds=float("nan")),
        lambda: ledger.add("base", "decode", [1, 2, 3], [1, 2]),
    ):
        with pytest.raises(ValueError):
            call()
    assert ledger == Ledger() and repr(ledger) == "Ledger()"
    with pytest.raises(TypeError):
        ledger + 1
