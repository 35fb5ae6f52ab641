"""MTP modules of the local engine: the same numbers as on the Hugging Face model, over shared prompts."""

from __future__ import annotations

import itertools

import pytest
import torch
from local_fixtures import codec, random_policy, random_prompts

from rlvr.config import Problems
from rlvr.config_mtp import Mtp
from rlvr.engines.local.mtp import MtpModules, new_modules, predict
from rlvr.engines.local.mtp_warmup import history_frame, warm_up_modules
from rlvr.engines.local.network import head_logits, packed_states
from rlvr.engines.local.packing import pack
from rlvr.engines.local.policy import unflatten
from rlvr.engines.local.rollout import derive_seed, training_problems, validation_problems
from rlvr.engines.local.warmup import pack_solutions
from rlvr.mtp import FILE, cross_entropy, load_modules, mtp_outputs, save_modules
from rlvr.mtp import MtpModules as HfModules

KINDS = list(itertools.product(("parallel", "chained"), ("last", "trunk")))
SIZE = 3  # responses per prompt
PROMPTS = random_prompts(3, low=5, high=12)
LENGTHS = torch.tensor([7, 1, 3, 5, 2, 6, 4, 8, 1])


def responses(seed=0):
    return torch.randint(2, 60, (len(LENGTHS), 8), generator=torch.Generator().manual_seed(seed))


def stirred(policy, blocks=4, variant="parallel", hidden="last", seed=1):
    modules = new_modules(policy, blocks, variant, hidden)
    noise = torch.randn(modules.phi.shape, generator=torch.Generator().manual_seed(seed))
    return MtpModules(modules.shape, modules.phi + 0.1 * noise)


def run(policy, modules, packed, phi=None, theta=None, **more):
    """(predictions, the policy's logits)."""
    weights = unflatten(policy.theta if theta is None else theta, policy.shape)
    states = packed_states(weights, policy.shape, packed)
    logits = head_logits(states.last.index_select(0, packed.predicts_from), weights, policy.shape)
    phi = modules.phi if phi is None else phi
    return predict(phi, modules.shape, weights, states, packed, **more), logits


def hf_batch(tokens):
    """input_ids, attention_mask, response_mask of the same responses, prompts padded on the left."""
    left, right = max(map(len, PROMPTS)), int(LENGTHS.max())
    ids = torch.zeros(len(LENGTHS), left + right, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, length in enumerate(LENGTHS.tolist()):
        prompt = PROMPTS[i // SIZE]
        at = slice(left - len(prompt), left + length)
        ids[i, at], mask[i, at] = torch.tensor(prompt + tokens[i, :length].tolist()), 1
    return ids, mask, mask[:, left:].float()


def hf_modules(policy, modules):
    model, shape = policy.to_hf(), modules.shape
    twin = HfModules(model, shape.blocks, shape.variant, shape.hidden)
    twin.load_state_dict(modules.state_dict())
    return model, twin


@pytest.mark.parametrize(("variant", "hidden"), KINDS)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probs_and_ranks_are_those_of_the_hugging_face_model(variant, hidden, temperature):
    policy = random_policy()
    modules = stirred(policy, 4, variant, hidden)
    packed = pack(PROMPTS, responses(), LENGTHS, SIZE)
    mine, logits = run(policy, modules, packed, temperature=temperature)
    model, twin = hf_modules(policy, modules)
    with torch.no_grad():
        theirs = mtp_outputs(model, twin, *hf_batch(responses()), temperature=temperature, rank=True)
    assert mine.log_prob.shape == (9, 8, 3) and mine.log_prob.min() < -1
    torch.testing.assert_close(mine.log_prob, theirs.mtp_log_prob, atol=1e-5, rtol=0)
    for index, rank in enumerate(mine.ranks(logits)):
        expected = theirs.rank[..., index].flatten()
        assert torch.equal(rank, expected[expected > 0])


@pytest.mark.parametrize(("variant", "hidden"), KINDS)
def test_gradients_are_those_of_the_hugging_face_model(variant, hidden):
    """Of the modules; and of the policy, which gets none unless asked for."""
    policy = random_policy()
    modules = stirred(policy, 3, variant, hidden)
    packed = pack(PROMPTS, responses(), LENGTHS, SIZE)
    model, twin = hf_modules(policy, modules)
    for through in (False, True):
        phi, theta = modules.phi.clone().requires_grad_(), policy.theta.clone().requires_grad_()
        mine, _ = run(policy, modules, packed, phi, theta, backbone_gradient=through)
        loss, _ = cross_entropy(mine.log_prob, packed.response_mask)
        of_phi, of_theta = torch.autograd.grad(loss, [phi, theta], allow_unused=True)

        given = hf_batch(responses())
        loss, _ = cross_entropy(
            mtp_outputs(model, twin, *given, backbone_gradient=through).mtp_log_prob, given[2]
        )
        wanted = [*twin.parameters(), *model.parameters()]
        grads = torch.autograd.grad(loss, wanted, allow_unused=True)
        grads = [torch.zeros_like(p) if g is None else g for p, g in zip(wanted, grads, strict=True)]
        count = len(list(twin.parameters()))
        named = dict(zip([name for name, _ in twin.named_parameters()], grads[:count], strict=True))
        shaped = MtpModules(modules.shape, of_phi).state_dict()
        assert shaped.keys() == named.keys()
        for name, gradient in shaped.items():
            torch.testing.assert_close(gradient, named[name], atol=2e-5, rtol=1e-3, msg=name)
        if not through:
            assert of_theta is None and not any(g.any() for g in grads[count:])
            continue
        state = policy.with_theta(of_theta).state_dict()
        for (name, _), gradient in zip(model.named_parameters(), grads[count:], strict=True):
            torch.testing.assert_close(state[name], gradient, atol=2e-5, rtol=1e-3, msg=name)


@pytest.mark.parametrize(("variant", "hidden"), KINDS)
def test_gradient_by_finite_differences(variant, hidden):
    policy = random_policy()
    modules = stirred(policy, 3, variant, hidden)
    packed = pack(PROMPTS, responses(), LENGTHS, SIZE)

    def loss(phi):
        return cross_entropy(run(policy, modules, packed, phi)[0].log_prob, packed.response_mask)[0]

    phi = modules.phi.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(phi), phi)
    direction = gradient / gradient.norm() + 0.01 * torch.randn(
        phi.shape, generator=torch.Generator().manual_seed(0)
    )
    step = 3e-3
    with torch.no_grad():
        slope = (loss(phi + step * direction) - loss(phi - step * direction)) / (2 * step)
    assert float(slope) == pytest.approx(float(gradient @ direction), rel=5e-3)


@pytest.mark.parametrize("variant", ["parallel", "chained"])
def test_grouping_order_width_and_splitting_change_nothing(variant):
    policy = random_policy()
    modules = stirred(policy, 4, variant)
    whole = run(policy, modules, pack(PROMPTS, responses(), LENGTHS, SIZE))[0].log_prob
    each = [p for p in PROMPTS for _ in range(SIZE)]
    alone = run(policy, modules, pack(each, responses(), LENGTHS, 1))[0].log_prob
    torch.testing.assert_close(alone, whole, atol=1e-5, rtol=0)
    dirty = torch.cat([responses(), torch.full((9, 4), 33)], 1)
    wide = run(policy, modules, pack(PROMPTS, dirty, LENGTHS, SIZE))[0].log_prob
    torch.testing.assert_close(wide, whole, atol=1e-6, rtol=0)
    order = [4, 8, 0, 7, 2, 1, 3, 6, 5]
    packed = pack([each[i] for i in order], responses()[order], LENGTHS[order], 1)
    torch.testing.assert_close(run(policy, modules, packed)[0].log_prob, whole[order], atol=1e-5, rtol=0)
    for group in range(3):
        rows = slice(SIZE * group, SIZE * group + SIZE)
        part = pack(PROMPTS[group : group + 1], responses()[rows], LENGTHS[rows], SIZE)
        width = part.size[1]
        torch.testing.assert_close(
            run(policy, modules, part)[0].log_prob, whole[rows, :width], atol=1e-5, rtol=0
        )


def test_entries_past_the_end_are_exactly_zero():
    policy = random_policy()
    log_prob = run(policy, stirred(policy), pack(PROMPTS, responses(), LENGTHS, SIZE))[0].log_prob
    for i, t, k in itertools.product(range(9), range(8), (2, 3, 4)):
        assert (log_prob[i, t, k - 2] == 0) == (t + k - 1 >= LENGTHS[i])


@pytest.mark.parametrize("variant", ["parallel", "chained"])
def test_later_tokens_never_reach_an_entry(variant):
    policy = random_policy()
    modules = stirred(policy, 4, variant)
    before = run(policy, modules, pack(PROMPTS, responses(), LENGTHS, SIZE))[0].log_prob
    for changed in range(8):
        tokens = responses()
        tokens[:, changed] = 2 + (tokens[:, changed] + 7) % 50
        after = run(policy, modules, pack(PROMPTS, tokens, LENGTHS, SIZE))[0].log_prob
        moved = ((after - before).abs() > 1e-5).any(0)
        for t, k in itertools.product(range(8), (2, 3, 4)):
            target = t + k - 1
            reached = changed < t or changed == target if variant == "parallel" else changed <= target
            assert bool(moved[t, k - 2]) == (target < 8 and reached), (changed, t, k)


def test_a_prompt_shorter_than_a_chained_block_is_refused():
    policy = random_policy()
    packed = pack([[3, 4, 5], [3, 4]], responses()[:2], LENGTHS[:2], 1)
    assert run(policy, stirred(policy, 3, "parallel"), packed)[0].log_prob.shape == (2, 7, 2)
    with pytest.raises(ValueError, match=r"a prompt has 2 tokens: allowed .* blocks=3"):
        run(policy, stirred(policy, 3, "chained"), packed)
    packed = pack([[3, 4, 5]], responses()[:1], LENGTHS[:1], 1)  # just long enough
    assert run(policy, stirred(policy, 3, "chained"), packed)[0].log_prob.shape == (1, 7, 2)


@pytest.mark.parametrize(("variant", "hidden"), KINDS)
def test_files_go_both_ways(tmp_path, variant, hidden):
    policy = random_policy()
    modules = stirred(policy, 3, variant, hidden)
    policy.save_pretrained(tmp_path)
    modules.save(tmp_path)
    again = MtpModules.load(tmp_path, policy.shape)
    assert again.shape == modules.shape and torch.equal(again.phi, modules.phi)
    twin = load_modules(policy.to_hf(), tmp_path)
    save_modules(twin, tmp_path)
    assert torch.equal(MtpModules.load(tmp_path, policy.shape).phi, modules.phi)
    other = random_policy()
    with pytest.raises(ValueError, match=r"mtp.safetensors does not fit this policy: weight block 2\.head"):
        MtpModules.load(tmp_path, other.shape.__class__(**{**vars(other.shape), "vocab_size": 9}))


def test_new_modules_are_the_copies_that_the_hugging_face_class_makes():
    policy = random_policy()
    for variant in ("parallel", "chained"):
        mine = new_modules(policy, 3, variant).state_dict()
        theirs = HfModules(policy.to_hf(), 3, variant).state_dict()
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
        shape = new_modules(policy, 3, variant).shape
        assert shape.parameters == sum(value.numel() for value in theirs.values())


# --- warm-up ---------------------------------------------------------------------------------------------

WORDS = Problems(task="word", seed=0, operations=(1, 1), validation=6, held_out=4)


def settings(**changes):
    warmup = dict(seed=0, steps=6, lr=1e-2, betas=(0.9, 0.98), batch_size=8, check_every=3)
    own = {name: changes.pop(name) for name in list(changes) if name in warmup}
    return Mtp(**(dict(blocks=3, lr=1e-3, warmup=warmup | own) | changes))


def test_warm_up_learns_and_leaves_the_policy_alone():
    policy = random_policy()
    before, seen = policy.theta.clone(), []
    config = settings(steps=60, check_every=25)
    result = warm_up_modules(policy, codec(), WORDS, config, lambda *step: seen.append(step))
    assert torch.equal(policy.theta, before) and not policy.theta.requires_grad
    assert [row["step"] for row in result.history] == [0, 25, 50, 60]
    assert seen == [(step, 60) for step in range(1, 61)]
    first, last = result.history[0], result.history[-1]
    for k in (2, 3):
        assert last[f"val_loss_{k}"] < first[f"val_loss_{k}"] - 1
        assert last[f"val_top1_{k}"] > first[f"val_top1_{k}"]
        assert last[f"val_rank_{k}"] >= 1
    per_step = [
        int(pack_solutions(codec(), training_problems(WORDS, 8, derive_seed(4, 0, 0), n)).response_mask.sum())
        for n in range(60)
    ]
    assert [row["tokens"] for row in result.history] == [
        0, sum(per_step[:25]), sum(per_step[:50]), sum(per_step),
    ]  # fmt: skip
    of_modules = {f"val_{n}_{k}" for n in ("loss", "top1", "rank") for k in (2, 3)}
    assert set(last) == {"step", "tokens", "loss"} | of_modules
    assert not torch.equal(result.modules.phi, new_modules(policy, 3).phi)
    assert FILE == "mtp.safetensors"


def test_warm_up_repeats_and_depends_on_its_seed():
    policy = random_policy()
    one, two, other = (warm_up_modules(policy, codec(), WORDS, settings(seed=s)) for s in (3, 3, 4))
    assert torch.equal(one.modules.phi, two.modules.phi) and one.history == two.history
    assert not torch.equal(one.modules.phi, other.modules.phi)


@pytest.mark.parametrize(("variant", "hidden"), KINDS)
def test_the_first_loss_and_the_first_check_by_hand(variant, hidden):
    policy, words = random_policy(), codec()
    config = settings(steps=1, check_every=1, variant=variant, hidden=hidden)
    result = warm_up_modules(policy, words, WORDS, config)
    modules = new_modules(policy, 3, variant, hidden)
    packed = pack_solutions(words, training_problems(WORDS, 8, derive_seed(4, 0, 0), 0))
    loss, _ = cross_entropy(run(policy, modules, packed)[0].log_prob, packed.response_mask)
    assert result.history[1]["loss"] == pytest.approx(float(loss), abs=1e-6)
    checks = pack_solutions(words, validation_problems(WORDS, 6))
    predictions, logits = run(policy, modules, checks)
    _, each = cross_entropy(predictions.log_prob, checks.response_mask)
    first = result.history[0]
    assert [first["val_loss_2"], first["val_loss_3"]] == pytest.approx(each.tolist(), abs=1e-6)
    ranks = [float(rank.double().mean()) for rank in predictions.ranks(logits)]
    assert [first["val_rank_2"], first["val_rank_3"]] == pytest.approx(ranks)


def test_wrong_settings_are_named():
    with pytest.raises(ValueError, match="variant"):
        settings(variant="serial")
    with pytest.raises(ValueError, match="blocks"):
        settings(blocks=0)
    with pytest.raises(ValueError, match="steps='6' must be a number"):
        settings(steps="6")


@pytest.mark.parametrize(("variant", "hidden"), KINDS)
def test_a_module_reads_no_later_one(variant, hidden):
    """The first modules alone predict what they predict among all."""
    policy, modules = random_policy(), stirred(random_policy(), 4, variant, hidden)
    packed = pack(PROMPTS, responses(), LENGTHS, SIZE)
    whole, _ = run(policy, modules, packed)
    part, _ = run(policy, modules.first(3), packed)
    torch.testing.assert_close(part.log_prob, whole.log_prob[..., :2])


def test_a_warm_up_s_history_by_module():
    row = {"step": 4, "tokens": 70, "loss": 9.0, "val_loss_2": 1.0, "val_top1_2": 0.5, "val_rank_2": 2.0}
    row |= {"val_loss_3": 1.5, "val_top1_3": 0.4, "val_rank_3": 3.0}
    assert history_frame([row]).to_dict("records") == [
        {"step": 4, "tokens": 70, "k": 2, "loss": 1.0, "top1": 0.5, "rank": 2.0},
        {"step": 4, "tokens": 70, "k": 3, "loss": 1.5, "top1": 0.4, "rank": 3.0},
    ]
