"""The flat policy and its packed forward pass against transformers' own Qwen3."""

import pytest
import torch
from local_fixtures import SIZES, random_policy, random_prompts

from rlvr.engines.local.network import packed_logits
from rlvr.engines.local.packing import pack
from rlvr.engines.local.policy import Policy, flatten, new_policy, unflatten


def batch(groups=3, size=4, width=9, seed=1):
    generator = torch.Generator().manual_seed(seed)
    prompts = random_prompts(groups, seed)
    lengths = torch.randint(1, width + 1, (groups * size,), generator=generator)
    responses = torch.randint(2, 60, (groups * size, width), generator=generator)
    return prompts, responses, lengths, size


def packed_log_prob(policy, theta, packed):
    logits = packed_logits(unflatten(theta, policy.shape), policy.shape, packed)
    return packed.pad(logits.log_softmax(-1).gather(1, packed.targets[:, None]).squeeze(1))


def hf_log_prob(model, prompts, responses, lengths, size):
    """One sequence at a time, no padding, no cache: nothing to get wrong."""
    rows = torch.zeros(len(responses), int(lengths.max()))
    parts = []
    for row, n in enumerate(lengths.tolist()):
        prompt = prompts[row // size]
        ids = torch.tensor([prompt + responses[row, :n].tolist()])
        log_prob = model(ids).logits[0].log_softmax(-1)[len(prompt) - 1 : -1]
        parts.append(log_prob.gather(1, ids[0, len(prompt) :, None]).squeeze(1))
        rows[row, :n] = parts[-1].detach()
    return rows, torch.cat(parts)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_forward_and_gradient_equal_transformers(seed):
    policy = random_policy(seed)
    data = batch(seed=seed)
    packed = pack(*data)
    theta = policy.theta.clone().requires_grad_()
    ours = packed_log_prob(policy, theta, packed)
    model = policy.to_hf()
    rows, flat = hf_log_prob(model, *data)
    torch.testing.assert_close(ours.detach(), rows, atol=2e-5, rtol=1e-5)
    weights = torch.randn(flat.shape, generator=torch.Generator().manual_seed(0))
    (ours[packed.response_mask.bool()] * weights).sum().backward()
    (flat * weights).sum().backward()
    theirs = flatten({name: p.grad for name, p in model.named_parameters()}, policy.shape)
    torch.testing.assert_close(theta.grad, theirs, atol=2e-4, rtol=1e-4)


def test_prompt_shared_by_a_group_equals_each_response_alone():
    policy = random_policy()
    prompts, responses, lengths, size = batch()
    together = packed_log_prob(policy, policy.theta, pack(prompts, responses, lengths, size))
    for row in range(len(responses)):
        alone = packed_log_prob(
            policy,
            policy.theta,
            pack([prompts[row // size]], responses[row : row + 1], lengths[row : row + 1], 1),
        )
        torch.testing.assert_close(together[row, : alone.shape[1]], alone[0], atol=1e-5, rtol=1e-5)


def test_tokens_behind_the_length_do_not_matter_even_if_they_are_end_tokens():
    policy = random_policy()
    prompts, responses, lengths, size = batch()
    changed = responses.clone()
    behind = torch.arange(responses.shape[1]) >= lengths[:, None]
    changed[behind] = policy.eos_ids[0]
    first = packed_log_prob(policy, policy.theta, pack(prompts, responses, lengths, size))
    second = packed_log_prob(policy, policy.theta, pack(prompts, changed, lengths, size))
    assert torch.equal(first, second)
    assert torch.equal(
        first[behind[:, : first.shape[1]]], torch.zeros(int(behind[:, : first.shape[1]].sum()))
    )


def test_one_token_responses():
    policy = random_policy()
    prompts = random_prompts(2)
    packed = pack(prompts, torch.tensor([[5], [6], [7], [8]]), torch.ones(4, dtype=torch.int64), 2)
    theta = policy.theta.clone().requires_grad_()
    log_prob = packed_log_prob(policy, theta, packed)
    log_prob.sum().backward()
    assert log_prob.shape == (4, 1)
    assert torch.isfinite(theta.grad).all()
    assert len(packed.tokens) == sum(map(len, prompts)), "a last token predicts nothing and is not computed"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(group_size=3), "group_size=3"),
        (dict(lengths=torch.tensor([0, 1, 1, 1])), "at least one token"),
        (dict(lengths=torch.tensor([1, 1, 1, 9])), "width"),
        (dict(prompts=[[], [1]]), "at least one token"),
    ],
)
def test_bad_batches_are_refused(change, message):
    good = dict(
        prompts=[[1], [2]],
        responses=torch.full((4, 3), 5),
        lengths=torch.ones(4, dtype=torch.int64),
        group_size=2,
    )
    with pytest.raises(ValueError, match=message):
        pack(**(good | change))


def test_saved_model_is_an_ordinary_hf_model(tmp_path):
    from transformers import AutoModelForCausalLM

    policy = random_policy()
    policy.save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.tensor([random_prompts(1)[0]])
    torch.testing.assert_close(model(ids).logits, policy.to_hf()(ids).logits)
    again = Policy.from_pretrained(tmp_path)
    assert torch.equal(again.theta, policy.theta)
    assert again.eos_ids == policy.eos_ids and again.shape == policy.shape


def test_all_end_tokens_of_the_generation_config_are_read(tmp_path):
    policy = random_policy()
    policy.eos_ids = (1, 7)
    policy.save_pretrained(tmp_path)
    assert Policy.from_pretrained(tmp_path).eos_ids == (1, 7)


def test_other_models_are_refused(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        eos_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="model_type='llama'"):
        Policy.from_pretrained(tmp_path)
    with pytest.raises(FileNotFoundError, match="no saved model"):
        Policy.from_pretrained(tmp_path / "nowhere")


def test_initial_weights_depend_on_the_seed_alone():
    torch.manual_seed(123)
    first = new_policy(SIZES, 68, 1, 0, seed=4).theta
    assert torch.equal(first, new_policy(SIZES, 68, 1, 0, seed=4).theta)
    assert not torch.equal(first, new_policy(SIZES, 68, 1, 0, seed=5).theta)
    with pytest.raises(ValueError, match="padding"):
        new_policy(SIZES, 68, 0, 0, seed=4)
