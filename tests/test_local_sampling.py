"""Sampling: the right distribution, the right log-probs, and independence of the batch."""

import pytest
import torch
from local_fixtures import random_policy, random_prompts
from scipy import stats

from rlvr.engines.local.network import packed_logits
from rlvr.engines.local.packing import pack
from rlvr.engines.local.policy import unflatten
from rlvr.engines.local.sampling import _choose, sample


def trainer_log_prob(policy, prompts, samples, size, temperature=1.0):
    packed = pack(prompts, samples.tokens, samples.lengths, size)
    logits = packed_logits(unflatten(policy.theta, policy.shape), policy.shape, packed) / temperature
    return packed.pad(logits.log_softmax(-1).gather(1, packed.targets[:, None]).squeeze(1))


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.8])
def test_log_probs_equal_the_trainers(temperature):
    policy, prompts = random_policy(), random_prompts(6)
    samples = sample(policy, prompts, 4, 20, seed=0, temperature=temperature)
    expected = trainer_log_prob(policy, prompts, samples, 4, temperature)
    torch.testing.assert_close(samples.log_prob, expected, atol=2e-5, rtol=1e-5)
    assert 1 < len(samples.lengths.unique()), "rows must have finished at different times"


def test_greedy_equals_transformers_generate():
    policy, prompts = random_policy(3), random_prompts(4)
    samples = sample(policy, prompts, 1, 15, seed=0, temperature=0)
    model = policy.to_hf()
    for row, prompt in enumerate(prompts):
        out = model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), do_sample=False,
            max_new_tokens=15, eos_token_id=list(policy.eos_ids), pad_token_id=0,
        )  # fmt: skip
        assert samples.responses()[row] == out[0, len(prompt) :].tolist()


@pytest.mark.fault("response-depends-on-its-neighbours")
def test_a_response_does_not_depend_on_the_rest_of_the_batch():
    policy, prompts = random_policy(), random_prompts(40)
    everything = sample(policy, prompts, 4, 20, seed=7)
    few = sample(policy, prompts[:3], 4, 20, seed=7)
    assert few.responses() == everything.responses()[:12]
    torch.testing.assert_close(
        few.log_prob, everything.log_prob[:12, : few.log_prob.shape[1]], atol=1e-5, rtol=1e-5
    )


def test_chunks_do_not_matter(monkeypatch):
    policy, prompts = random_policy(), random_prompts(10)
    whole = sample(policy, prompts, 2, 20, seed=7)
    monkeypatch.setattr("rlvr.engines.local.sampling.ROWS_AT_ONCE", 6)
    seen = []
    chunked = sample(policy, prompts, 2, 20, seed=7, on_progress=seen.append)
    assert chunked.responses() == whole.responses()
    assert seen == [3, 6, 9, 10]


@pytest.mark.fault("seed-that-goes-nowhere")
def test_the_seed_reaches_the_sampler():
    policy, prompts = random_policy(), random_prompts(4)
    first, again, other = (sample(policy, prompts, 4, 20, seed=s) for s in (1, 1, 2))
    assert torch.equal(first.tokens, again.tokens) and torch.equal(first.log_prob, again.log_prob)
    assert not torch.equal(first.tokens, other.tokens)


def test_first_tokens_follow_the_policys_distribution():
    policy, prompts = random_policy(spread=0.3), [random_prompts(1)[0]]
    samples = sample(policy, prompts, 20_000, 1, seed=0)
    logits = policy.to_hf()(torch.tensor(prompts)).logits[0, -1]
    expected = logits.softmax(-1).detach().double() * 20_000
    counts = torch.bincount(samples.tokens[:, 0], minlength=len(expected)).double()
    common = expected >= 5
    observed = torch.cat([counts[common], counts[~common].sum()[None]]).numpy()
    wanted = torch.cat([expected[common], expected[~common].sum()[None]]).numpy()
    assert stats.chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue > 1e-3


def test_any_of_several_end_tokens_ends_a_response_and_counts_as_finished():
    policy, prompts = random_policy(), random_prompts(8)
    policy.eos_ids = (1, 20, 33)
    samples = sample(policy, prompts, 4, 40, seed=0)
    last = samples.tokens.gather(1, samples.lengths[:, None] - 1).squeeze(1)
    assert set(last[samples.finished].tolist()) > {20}
    for row, n, done in zip(
        samples.responses(), samples.lengths.tolist(), samples.finished.tolist(), strict=True
    ):
        assert done == (row[-1] in policy.eos_ids)
        assert not set(row[:-1]) & set(policy.eos_ids)
        assert len(row) == n and (done or n == samples.tokens.shape[1])


def test_masks_come_from_lengths_even_if_the_pad_token_is_sampled():
    policy, prompts = random_policy(spread=0.3), random_prompts(8)
    samples = sample(policy, prompts, 8, 30, seed=1)
    inside = samples.response_mask.bool()
    assert (samples.tokens[inside] == 0).any(), "this policy does sample id 0, which is also the padding"
    assert torch.equal(inside.sum(1), samples.lengths)
    assert (samples.log_prob[inside] < 0).all() and (samples.log_prob[~inside] == 0).all()


def test_uniforms_at_the_edges_never_pick_an_impossible_token():
    logits = torch.tensor([[float("-inf"), 0.0, float("-inf"), 0.0, float("-inf")]]).repeat(3, 1)
    token, log_prob = _choose(logits, torch.tensor([0.0, 0.5, 1 - 2**-24]), 1.0)
    assert token.tolist() == [1, 3, 3]
    torch.testing.assert_close(log_prob, torch.full((3,), 0.5).log())


@pytest.mark.parametrize(
    "change",
    [dict(prompts=[]), dict(prompts=[[]]), dict(group_size=0), dict(max_new_tokens=0), dict(temperature=-1)],
)
def test_bad_arguments_are_refused(change):
    good = dict(prompts=[[2]], group_size=1, max_new_tokens=1, seed=0, temperature=1.0)
    with pytest.raises(ValueError):
        sample(random_policy(), **(good | change))
