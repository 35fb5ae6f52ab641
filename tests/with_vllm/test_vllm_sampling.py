"""vLLM against the local engine on the same saved policy, and what a sample must not depend on."""

import json
import random

import numpy as np
import pytest
import torch
from local_fixtures import codec, random_policy
from scipy.stats import chisquare
from transformers import PreTrainedTokenizerFast
from vllm_fixtures import PROMPTS, config, policy, save

from rlvr.engines.local.network import packed_logits
from rlvr.engines.local.packing import pack
from rlvr.engines.local.policy import unflatten
from rlvr.engines.local.sampling import sample as local_sample
from rlvr.engines.vllm import sample, widen_heads
from rlvr.engines.vllm.engine import open_engine

pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm")

pytestmark = pytest.mark.vllm
KEY = ["problem", "sample", "seed"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save(policy(), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def samples(model):
    """Six prompts, two runs of eight samples each, in parts of 40."""
    settings = config(samples=8, seeds=(0, 1), log_probs=True, chunk_size=40)
    return sample(model, PROMPTS, settings, name="small", progress=False)


def logits_of(policy, frame):
    """Logits [tokens, vocabulary] and sampled ids [tokens] of every response, under the local engine."""
    with torch.no_grad():
        for _, row in frame.iterrows():
            ids = torch.tensor(row["token_ids"]).long()[None]
            packed = pack([codec().encode(row["prompt"])], ids, torch.tensor([ids.shape[1]]), 1)
            yield packed_logits(unflatten(policy.theta, policy.shape), policy.shape, packed), ids[0], row


def worst(policy, frame, temperature=1.0, keep=lambda logits: logits):
    """Largest difference of log-probs to the local engine's, over all tokens."""
    difference = 0.0
    for logits, ids, row in logits_of(policy, frame):
        log_prob = keep(logits / temperature).log_softmax(-1).gather(1, ids[:, None])[:, 0]
        difference = max(difference, (log_prob - torch.tensor(row["log_probs"])).abs().max().item())
    return difference


def by_key(frame):
    """Rows by (problem, sample, seed), without where they stood."""
    rows = frame.sort_values(KEY).reset_index(drop=True)
    for name in {"token_ids", "log_probs"} & set(rows):
        rows[name] = rows[name].map(lambda values: tuple(values.tolist()))
    return rows


# --- the table ----------------------------------------------------------------------------------------


def test_one_row_per_response(samples):
    assert len(samples) == 6 * 8 * 2
    assert list(samples["seed"].unique()) == [0, 1]
    assert list(samples["sample"][:9]) == [*range(8), 0]
    assert (samples.groupby(["problem", "seed"]).size() == 8).all()
    assert samples["problem"].nunique() == 6 and not samples.duplicated(KEY).any()
    assert set(samples["engine"]) == {"vllm"} and set(samples["model"]) == {"small"}
    assert list(samples["prompt"].unique()) == PROMPTS
    assert str(samples["correct"].dtype) == "boolean" and samples["correct"].isna().all()
    assert (samples["prompt_tokens"] == [len(codec().encode(p)) for p in samples["prompt"]]).all()


def test_lengths_ends_and_text(samples):
    words = codec()
    assert set(samples["finish_reason"]) == {"stop", "length"}  # both kinds occur
    for _, row in samples.iterrows():
        ids = row["token_ids"].tolist()
        assert row["tokens"] == len(ids) == len(row["log_probs"]) <= 24
        (text,), (finished,) = words.responses([ids])
        assert row["text"] == text and row["finished"] == finished == (row["finish_reason"] == "stop")
        assert words.eos_id not in ids[:-1] and (finished or len(ids) == 24)


# --- the same numbers as the local engine -------------------------------------------------------------


def test_log_probs_are_the_local_engines(samples):
    assert worst(policy(), samples) < 1e-5


def test_log_probs_are_of_the_sampling_distribution(model):
    settings = config(samples=8, temperature=0.7, top_k=20, top_p=0.6, log_probs=True)
    frame = sample(model, PROMPTS, settings, progress=False)

    def nucleus(logits):
        """Of the 20 likeliest, those that make up the first 0.6 of their mass."""
        ordered, order = logits.topk(20)
        mass = ordered.softmax(-1)
        kept = mass.cumsum(-1) - mass < 0.6
        return torch.full_like(logits, -torch.inf).scatter(1, order, ordered.where(kept, -torch.inf))

    assert worst(policy(), frame, 0.7, nucleus) < 1e-5  # finite: no token from outside
    assert worst(policy(), frame, 0.7) > 0.1  # not those of all tokens


def test_greedy_text_is_the_local_engines(model):
    words = codec()
    prompts = [*PROMPTS, *(f"Dan has {a} pens." for a in range(10, 60))]
    settings = config(temperature=0, max_tokens=40, log_probs=True)
    frame = sample(model, prompts, settings, progress=False)
    ours = local_sample(policy(), words.encode_batch(prompts), 1, 40, seed=0, temperature=0)
    texts, finished = words.responses(ours.responses())
    assert frame["text"].tolist() == texts and frame["finished"].tolist() == finished
    assert frame["tokens"].tolist() == ours.lengths.tolist()
    assert len(set(texts)) > 10
    # vllm-project/vllm#5898: the same prompt alone
    alone = by_key(sample(model, prompts[30:31], settings, progress=False))
    assert alone.equals(by_key(frame[frame["problem"].isin(alone["problem"])]))


def test_first_tokens_follow_the_policys_distribution(model):
    """Seeds are hashes of the request: the first draws of 4000 generators must still be independent."""
    frame = sample(
        model,
        PROMPTS[:1],
        config(samples=4000, max_tokens=1, log_probs=True, chunk_size=4000),
        progress=False,
    )
    logits, _, _ = next(logits_of(policy(), frame))
    expected = 4000 * logits[0].softmax(-1).double().numpy()
    seen = np.bincount(np.concatenate(frame["token_ids"].to_list()), minlength=len(expected))
    often = expected >= 5
    pooled = [np.append(x[often], x[~often].sum()) for x in (seen, expected)]
    statistic = chisquare(pooled[0], pooled[1] * pooled[0].sum() / pooled[1].sum())
    assert statistic.pvalue > 1e-3


def test_a_policy_of_the_shipped_size_needs_wider_heads(tmp_path):
    narrow = random_policy()  # heads of 8
    with pytest.raises(
        ValueError, match=r"head_dim=8: vLLM's attention on CPU computes heads of 32, .*widen"
    ):
        sample(save(narrow, tmp_path / "narrow"), PROMPTS, config(), progress=False)
    wide = save(widen_heads(narrow), tmp_path / "wide")
    frame = sample(wide, PROMPTS, config(samples=4, log_probs=True), progress=False)
    assert worst(narrow, frame) < 1e-5


# A model's vocabulary may be padded beyond the tokenizer's: padding is a token like others to the policy.
def test_a_padded_vocabulary(tmp_path):
    padded = policy(vocabulary=len(codec()) + 30)
    folder = save(padded, tmp_path)
    with pytest.warns(UserWarning, match=r"\d+ responses hold ids that the tokenizer does not have"):
        frame = sample(folder, PROMPTS, config(samples=4, log_probs=True), progress=False)
    assert max(ids.max() for ids in frame["token_ids"]) >= len(codec())
    assert worst(padded, frame) < 1e-5
    for _, row in frame.iterrows():
        known = [i for i in row["token_ids"].tolist() if i < len(codec())]
        assert row["text"] == codec().responses([known])[0][0]


# --- what ends a response -----------------------------------------------------------------------------


# huggingface/trl PR#7039: a second end token counted as "truncated"
def test_a_second_end_token_finishes_a_response(tmp_path):
    second = codec().encode("many")[0]
    both = policy()
    both.eos_ids = (codec().eos_id, second)
    folder = save(both, tmp_path)
    settings = config(samples=16, log_probs=True, max_tokens=60)
    frame = sample(folder, PROMPTS, settings, progress=False)
    last = frame["token_ids"].map(lambda ids: ids[-1])
    assert (last == second).any() and (last == codec().eos_id).any()
    assert (frame["finished"] == last.isin(both.eos_ids)).all()
    for _, row in frame.iterrows():
        body = row["token_ids"][: row["tokens"] - row["finished"]]
        assert second not in body and row["text"] == codec().decode(body.tolist(), False)


# huggingface/trl PR#4970: with pad == eos, a mask made from token values drops the end token
@pytest.mark.fault("mask-from-token-values")
def test_an_end_token_that_is_also_padding_is_counted(model, samples, tmp_path):
    folder = save(policy(), tmp_path)
    for name in ("config.json", "generation_config.json"):
        values = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(values | {"pad_token_id": codec().eos_id}))
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(folder)
    frame = sample(
        folder,
        PROMPTS,
        config(samples=8, seeds=(0, 1), log_probs=True, chunk_size=40),
        name="small",
        progress=False,
    )
    assert by_key(frame).equals(by_key(samples))
    ended = frame[frame["finished"]]
    assert len(ended) and (ended["token_ids"].map(lambda ids: ids[-1]) == codec().eos_id).all()
    assert (ended["tokens"] == ended["log_probs"].map(len)).all()


def test_stop_strings_and_stop_tokens(model, samples):
    words = codec()
    dan = words.encode("Dan")[0]
    settings = config(samples=8, max_tokens=60, stop=["keys", "4"], stop_token_ids=[dan], log_probs=True)
    frame = sample(model, PROMPTS, settings, progress=False)
    assert samples["text"].str.contains("keys|4").any() and samples["text"].str.contains("Dan").any()
    assert not frame["text"].str.contains("keys|4|Dan").any()
    ends = {dan, words.eos_id, *words.encode("keys 4")}
    last = frame["token_ids"].map(lambda ids: ids[-1])
    assert ends <= set(last) and (frame["finished"] == last.isin(ends)).all()
    assert (frame["finished"] == (frame["finish_reason"] == "stop")).all()


# --- what a sample does and does not depend on --------------------------------------------------------


# vllm-project/vllm#5898, #23138; verl-project/verl#3126 (a seed that never reached the engine)
@pytest.mark.fault("response-depends-on-its-neighbours")
def test_a_response_depends_on_seed_problem_and_number_alone(model, samples):
    everything = by_key(samples)
    settings = config(samples=8, seeds=(1, 0), log_probs=True, chunk_size=96)
    turned = sample(model, PROMPTS[::-1], settings, name="small", progress=False)
    assert by_key(turned).equals(everything)  # other neighbours, other place, other part
    alone = sample(
        model, PROMPTS[2:3], config(samples=1, seeds=(1,), log_probs=True), name="small", progress=False
    )
    assert len(alone) == 1
    same = everything.merge(alone[KEY], on=KEY)
    assert by_key(alone).equals(same)


@pytest.mark.fault("seed-that-goes-nowhere")
def test_seeds_and_samples_differ(samples):
    texts = samples.pivot(index=["problem", "sample"], columns="seed", values="text")
    assert (texts[0] != texts[1]).mean() > 0.9
    assert samples.groupby("problem")["text"].nunique().min() > 12


def test_the_caller_keeps_random_state_and_sees_progress(model, capsys):
    random.seed(7), np.random.seed(7), torch.manual_seed(7)
    expected = random.random(), np.random.rand(), torch.rand(1).item()
    threads = torch.set_num_threads
    random.seed(7), np.random.seed(7), torch.manual_seed(7)
    sample(model, PROMPTS, config(samples=2))
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == expected
    assert torch.set_num_threads is threads
    shown = capsys.readouterr().err
    assert "12/12" in shown and "tokens/s" in shown


# --- refused ------------------------------------------------------------------------------------------


def test_prompts_without_room_are_refused_before_the_engine_starts(model, monkeypatch):
    monkeypatch.setattr("rlvr.engines.vllm.sampling.open_engine", None)
    with pytest.raises(ValueError, match="max_model_len=30 leaves 6 tokens for a prompt"):
        sample(model, PROMPTS, config(max_model_len=30), progress=False)


def test_batch_invariance_is_refused_on_cpu(model):
    if torch.cuda.is_available():
        pytest.skip("a GPU has these kernels")
    with (
        pytest.raises(ValueError, match="batch_invariant=True: allowed on CPU is False"),
        open_engine(model, config(batch_invariant=True), 64, [1]),
    ):
        pass
