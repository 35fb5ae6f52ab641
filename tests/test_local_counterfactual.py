"""IBPO in the local engine: what is corrected, what it earns, what is trained on, and that a run resumes."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from local_fixtures import (
    PROBLEMS,
    SIZES,
    codec,
    contents,
    random_policy,
    random_prompts,
    saved_base,
    train_config,
)

from rlvr.config import Recipe, load_scale
from rlvr.config_corrections import Counterfactual, SelfCorrection
from rlvr.counterfactual.alignment import edit_distance, unchanged_tokens
from rlvr.counterfactual.prompts import TokenPrompts
from rlvr.engines.jobs.embedded import experiment_of
from rlvr.engines.local.accounting import table_of
from rlvr.engines.local.corrections import choose_targets, correct
from rlvr.engines.local.counterfactual import CounterfactualRun, correction_batch, describe
from rlvr.engines.local.job import Job
from rlvr.engines.local.packing import pack
from rlvr.engines.local.policy import new_policy
from rlvr.engines.local.rollout import Rollout, collect, training_problems
from rlvr.engines.local.sampling import Samples
from rlvr.engines.local.self_correction import SelfCorrectionRun
from rlvr.engines.local.training import _Run, run_of, train
from rlvr.engines.local.update import MiniBatch, Updater, kl_penalty, minibatches, response_log_prob
from rlvr.engines.training import LocalTraining
from rlvr.evaluation.compute import Ledger, ModelShape
from rlvr.objectives import get
from rlvr.problems import get_task
from rlvr.problems.tokenizer import Codec, build_tokenizer
from rlvr.recipes import check_recipes
from rlvr.storage import fingerprint

WIDE = {"clip_low": 0.5, "clip_high": 0.5}
SEQUENCE = {"loss_agg_mode": "seq-mean-token-mean"}


def job(objective="gspo", counterfactual=None, self_correction=None, lag=0, seed=0, **changes):
    settings = None if counterfactual is None else Counterfactual(**counterfactual)
    config = train_config(**(SEQUENCE | changes))
    return Job(
        "x", objective, dict(WIDE), lag, seed, config, PROBLEMS, counterfactual=settings,
        self_correction=self_correction,
    )  # fmt: skip


def new_run(*args, policy=None, **kwargs) -> _Run:
    one = job(*args, **kwargs)
    return run_of(one)(one, policy or random_policy(), codec(), "x")


@pytest.fixture(scope="module")
def problems():
    return training_problems(PROBLEMS, 4, 3, 0)


@pytest.fixture(scope="module")
def rollout(problems):
    return collect(random_policy(), codec(), problems, train_config(), seed=5)


def corrected(rollout, problems, **settings):
    return correct(
        random_policy(), codec(), problems, rollout, Counterfactual(**settings),
        max_new_tokens=10, temperature=1.0, advantage_std="unbiased", seed=7,
    )  # fmt: skip


# --- which responses, with what beside them --------------------------------------------------------------


def test_every_wrong_response_is_corrected_with_references_of_its_own_group(rollout, problems):
    found = corrected(rollout, problems, references=2).corrected
    assert found.rows.tolist() == (rollout.rewards == 0).nonzero().squeeze(-1).tolist()
    assert 0 < len(found.rows) < len(rollout.rewards)
    responses = rollout.samples.responses()
    for row, known, right in zip(found.rows.tolist(), found.references, found.reference_right, strict=True):
        group = row // 4
        pool = [i for i in range(4 * group, 4 * group + 4) if i != row]
        best = [i for i in pool if rollout.rewards[i] == 1] or pool
        assert len(known) == min(2, len(best)) and all(k in [responses[i] for i in best] for k in known)
        assert bool(right) == any(rollout.rewards[i] == 1 for i in pool)


def test_prompts_are_those_of_the_template(rollout, problems):
    found = corrected(rollout, problems).corrected
    build = TokenPrompts("compare", codec().encode, codec().eos_id)
    for n, row in enumerate(found.rows.tolist()):
        expected = build(rollout.prompts[row // 4], rollout.samples.responses()[row], found.references[n])
        assert found.prompts[n] == expected


def test_without_references_nothing_is_compared_with(rollout, problems):
    found = corrected(rollout, problems, references=0).corrected
    assert all(known == [] for known in found.references)
    assert found.reference_distance.isnan().all() and not found.reference_right.any()
    assert "corrections_right_of_right_reference" not in describe(corrected(rollout, problems, references=0))


def test_at_most_so_many_targets_of_a_group(rollout):
    rows, references = choose_targets(rollout, Counterfactual(targets=1), seed=0)
    groups = (rows // 4).tolist()
    assert len(set(groups)) == len(groups) and references.shape == (len(rows), 1)
    wrong = (rollout.rewards.view(4, 4) == 0).any(1)
    assert groups == wrong.nonzero().squeeze(-1).tolist()


def test_groups_without_a_right_response_may_be_left_out(rollout):
    rewards = rollout.rewards.clone()
    rewards[:4] = 0.0  # a group that is all wrong
    some = dataclasses.replace(rollout, rewards=rewards)
    every, _ = choose_targets(some, Counterfactual(), seed=0)
    kept, references = choose_targets(some, Counterfactual(wrong_references=False), seed=0)
    assert set(range(4)) <= set(every.tolist()) and not set(range(4)) & set(kept.tolist())
    assert (rewards[references.flatten()] == 1).all()
    has_right = (rewards.view(4, 4) == 1).any(1)
    assert kept.tolist() == [row for row in every.tolist() if has_right[row // 4]]


def test_failing_tests_are_run_for_the_operator_that_asks_for_them():
    """On the program task: distances are shares of tests with other verdicts, by running every expression."""
    task = get_task("program")
    words = Codec(build_tokenizer(task.words))
    policy = new_policy(SIZES, len(words), words.eos_id, words.pad_id, 0)
    problems = task.generate("train", 2, 0, (1, 2))
    texts = [problems[0].solution, "x", "3", "y", problems[1].solution, "x+y", "2", "y"]
    ids = words.encode_batch(texts, end=True)
    width = max(map(len, ids))
    tokens = torch.tensor([row + [words.pad_id] * (width - len(row)) for row in ids])
    lengths = torch.tensor([len(row) for row in ids])
    samples = Samples(tokens, lengths, torch.zeros(tokens.shape), torch.ones(8, dtype=torch.bool))
    rewards = torch.tensor([1.0, 0, 0, 0] * 2)
    prompts = words.encode_batch(p.prompt for p in problems)
    rollout = Rollout(prompts, samples, rewards, torch.zeros(8), 4)
    found = correct(
        policy, words, problems, rollout, Counterfactual(operator="failing_tests", template="problem_last"),
        max_new_tokens=8, temperature=1.0, advantage_std="unbiased", seed=1,
    ).corrected  # fmt: skip
    corrected, _ = words.responses(found.samples.responses())
    for n, row in enumerate(found.rows.tolist()):
        gold = problems[row // 4].answer
        (own,) = task.outcomes([texts[row]], [gold])
        for c, outcome in enumerate(task.outcomes(corrected[4 * n : 4 * n + 4], [gold] * 4)):
            expected = sum(outcome[k] != own[k] for k in own) / len(own)
            assert float(found.distance[n, c]) == pytest.approx(expected)


def test_a_rollout_without_a_wrong_response_has_no_second_pass(rollout, problems):
    right = dataclasses.replace(rollout, rewards=torch.ones_like(rollout.rewards))
    found = corrected(right, problems)
    assert len(found.corrected.rows) == 0 and found.corrected.samples is None
    assert not found.phi.any() and not found.advantages.any()
    assert describe(found) == {
        "targets": 0.0, "phi_mean": 0.0,
        "reward_spread": 0.0, "phi_spread": 0.0, "phi_reward_covariance": 0.0,
    }  # fmt: skip
    (batch,) = minibatches(found, 1)
    assert correction_batch(found, batch, 4) is None


# --- what it earns ---------------------------------------------------------------------------------------


def slow_phi(rollout, found, settings):
    """phi by the formulas, one response at a time."""
    phi = [0.0] * len(rollout.rewards)
    for n, row in enumerate(found.rows.tolist()):
        y = rollout.samples.responses()[row]
        count = settings.corrections
        deltas = []
        for c, z in enumerate(found.samples.responses()[n * count : (n + 1) * count]):
            d, near = edit_distance(y, z), [edit_distance(z, k) for k in found.references[n]]
            rewrite = settings.alpha is not None and d > settings.alpha and (not near or d > min(near))
            ok = found.accuracy[n, c] == 1 and not rewrite
            kept = unchanged_tokens(y, z).mean()
            deltas.append(float(ok) * (kept if settings.variant == "ratio" else settings.scale))
        phi[row] = {"best": max(deltas), "mean": sum(deltas) / count, "first": deltas[0]}[settings.reduce]
    return torch.tensor(phi)


@pytest.mark.parametrize(
    "settings",
    [
        {}, {"alpha": None}, {"alpha": 0.9}, {"variant": "ratio"}, {"references": 0}, {"references": 3},
        {"variant": "ratio", "reduce": "mean", "alpha": 1.0}, {"reduce": "mean", "alpha": None},
        {"reduce": "first", "scale": 1.0},
    ],
)  # fmt: skip
def test_phi_and_advantages_are_those_of_the_formulas(rollout, problems, settings):
    found = corrected(rollout, problems, **settings)
    expected = slow_phi(rollout, found.corrected, Counterfactual(**settings))
    torch.testing.assert_close(found.phi, expected.float())
    assert not found.phi[rollout.rewards == 1].any()
    shaped = (rollout.rewards + 0.6 * expected.float()).view(4, 4)
    centred = shaped - shaped.mean(1, keepdim=True)
    advantages = torch.where(centred.abs() < 1e-6, 0.0, centred / (shaped.std(1, keepdim=True) + 1e-6))
    torch.testing.assert_close(found.advantages, advantages.flatten(), atol=1e-5, rtol=1e-4)
    assert torch.equal(found.rewards, rollout.rewards), "the raw reward is left alone"
    if settings.get("alpha", 0) is None:
        assert 0 < (expected > 0).sum() < len(expected)  # the tests above can fail


def test_corrections_earn_their_verdict_less_the_rewrite_penalty(rollout, problems):
    found = corrected(rollout, problems, alpha=0.8, rewrite_penalty=0.25).corrected
    reward = found.accuracy - 0.25 * found.rewrite.float()
    centred = reward - reward.mean(1, keepdim=True)
    expected = torch.where(centred.abs() < 1e-6, 0.0, centred / (reward.std(1, keepdim=True) + 1e-6))
    torch.testing.assert_close(found.advantages.view_as(reward), expected, atol=1e-5, rtol=1e-4)
    assert found.rewrite.any() and not found.rewrite.all()


def test_the_weight_zero_is_the_objective_alone(rollout, problems):
    torch.testing.assert_close(
        corrected(rollout, problems, shaping_weight=0.0).advantages, rollout.advantages
    )


def test_the_mask_spares_what_the_smallest_accepted_correction_kept(rollout, problems):
    found = corrected(rollout, problems, variant="mask", alpha=None)
    mask = found.token_mask
    c = found.corrected
    assert torch.equal(mask[rollout.rewards == 1], rollout.samples.response_mask[rollout.rewards == 1].bool())
    spared = 0
    for n, row in enumerate(c.rows.tolist()):
        valid = rollout.samples.response_mask[row].bool()
        accepted = [i for i in range(4) if c.accuracy[n, i] == 1]
        if not accepted:
            assert torch.equal(mask[row], valid)
            continue
        y = rollout.samples.responses()[row]
        kept = [unchanged_tokens(y, c.samples.responses()[4 * n + i]) for i in accepted]
        best = max(kept, key=lambda flags: flags.sum())
        assert mask[row, : len(y)].tolist() == (~best).tolist() and not mask[row, len(y) :].any()
        spared += int(best.sum())
    assert spared > 0


def test_moments_give_the_variance_of_centred_rewards_for_any_weight(rollout, problems):
    """Prop. E.4's bookkeeping: Var(R + lambda phi) within groups, from the three logged moments."""
    found = corrected(rollout, problems, alpha=None)
    row = describe(found)
    for weight in (0.0, 0.6, 1.7):
        shaped = (found.rewards + weight * found.phi).double().view(4, 4)
        direct = float((shaped - shaped.mean(1, keepdim=True)).square().mean())
        closed = (
            row["reward_spread"] + 2 * weight * row["phi_reward_covariance"] + weight**2 * row["phi_spread"]
        )
        assert closed == pytest.approx(direct, abs=1e-7)
    assert row["phi_reward_covariance"] < 0 < row["phi_spread"]


def test_what_is_logged_is_counted_by_hand(rollout, problems):
    found = corrected(rollout, problems, alpha=0.9)
    row, c = describe(found), found.corrected
    right = c.accuracy.flatten().tolist()
    assert row["targets"] == len(c.rows) and row["corrections_right"] == pytest.approx(
        sum(right) / len(right)
    )
    assert row["recoverable"] == pytest.approx(float(c.accepted.any(1).float().mean()))
    assert row["rewrites"] == pytest.approx(float(c.rewrite.float().mean()))
    assert row["phi_of_wrong"] == pytest.approx(float(found.phi[found.rewards == 0].double().mean()))
    of = {True: [], False: []}
    for n, known in enumerate(c.reference_right.tolist()):
        of[known] += c.accuracy[n].tolist()
    for known, name in ((True, "right"), (False, "wrong")):
        key = f"corrections_right_of_{name}_reference"
        assert (key in row) == bool(of[known])
        if of[known]:
            assert row[key] == pytest.approx(sum(of[known]) / len(of[known]))


# --- what is trained on ----------------------------------------------------------------------------------


def test_old_log_probs_are_the_sampler_s_under_the_correction_prompt(rollout, problems):
    c = corrected(rollout, problems).corrected
    model = random_policy().to_hf()
    for n in range(0, len(c.rows), 2):
        for i in range(4):
            tokens = c.samples.responses()[4 * n + i]
            with torch.no_grad():
                logits = model(torch.tensor([c.prompts[n] + tokens])).logits[0].log_softmax(-1)
            at = torch.arange(len(tokens)) + len(c.prompts[n]) - 1
            expected = logits[at, torch.tensor(tokens)]
            torch.testing.assert_close(
                c.samples.log_prob[4 * n + i, : len(tokens)], expected, atol=2e-4, rtol=1e-3
            )


def test_corrections_are_trained_in_the_minibatch_of_their_response(rollout, problems):
    found = corrected(rollout, problems)
    batches = minibatches(found, 2)
    others = [correction_batch(found, batch, 4) for batch in batches]
    assert sum(0 if o is None else o.packed.size[0] for o in others) == 4 * len(found.corrected.rows)
    start = 0
    for batch, other in zip(batches, others, strict=True):
        rows = found.corrected.rows
        inside = ((rows >= batch.first_row) & (rows < batch.first_row + 8)).sum()
        assert other.packed.size[0] == 4 * int(inside) and other.first_row == start
        assert torch.equal(other.advantages, found.corrected.advantages[start : start + 4 * int(inside)])
        assert other.packed.targets.tolist() == [
            t for r in found.corrected.samples.responses()[start : start + 4 * int(inside)] for t in r
        ]
        start += 4 * int(inside)


@pytest.mark.parametrize("name", ["gspo", "grpo", "dr_grpo", "dapo"])
def test_two_parts_of_one_update_are_one_loss(name):
    """Groups of one size can be in one minibatch or in two: the weights after the update are the same."""
    policy, prompts = random_policy(), random_prompts(6)
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(2, 8, (24,), generator=generator)
    tokens = torch.randint(2, 60, (24, 7), generator=generator)
    advantages = torch.randn(24, generator=generator)
    shift = 0.2 * torch.randn(24, 7, generator=generator)

    def batch(first, last):
        rows = slice(4 * first, 4 * last)
        packed = pack(prompts[first:last], tokens[rows], lengths[rows], 4)
        with torch.no_grad():
            log_prob, _ = response_log_prob(policy.theta, policy.shape, packed, 1.0)
        old = (log_prob + shift[rows, : packed.size[1]] * packed.response_mask).clamp(max=-1e-3)
        return MiniBatch(packed, old * packed.response_mask, advantages[rows], rows.start)

    objective, after = get(name), []
    for parts in ([batch(0, 6)], [batch(0, 4), batch(4, 6)], [batch(0, 1), batch(1, 3), batch(3, 6)]):

        def loss(*args, **counts):
            return objective(
                *args, **WIDE, loss_agg_mode=objective.loss_agg_mode, loss_scale_factor=7, **counts
            )

        updater = Updater(policy.theta, policy.shape, loss, 1e-2, (0.9, 0.95), 0.0, 1e9, 1.0)
        values, log_prob, _ = updater.step(parts[0], parts[1:])
        assert log_prob.shape[0] == parts[0].packed.size[0]
        assert len(values.get("more", [])) == len(parts) - 1
        after.append((values["loss"], values["grad_norm"], updater.theta.grad.clone()))
    for loss_, norm, gradient in after[1:]:
        assert loss_ == pytest.approx(after[0][0], rel=1e-4, abs=1e-6)
        assert norm == pytest.approx(after[0][1], rel=1e-3)
        torch.testing.assert_close(gradient, after[0][2], atol=1e-6, rtol=1e-3)


def test_the_token_mask_reaches_the_loss():
    """With the mask of no token at all, a response has no gradient."""
    run = new_run("masked_gspo", {"variant": "mask"}, minibatches=1)
    given = []
    inner = run.updater.loss

    def loss(*args, token_mask, **counts):
        given.append((args, token_mask))
        return inner(*args, token_mask=token_mask, **counts)

    run.updater.loss = loss
    run.step()
    (base, mask), (other, ones) = given
    assert mask.shape == base[0].shape and mask.dtype == torch.bool and not torch.equal(mask, base[3].bool())
    assert torch.equal(ones, other[3].bool()), "corrections are trained as a whole"
    assert run.metrics[0]["marked_fraction"] < 1 == run.metrics[0]["correction_marked_fraction"]


def test_shaping_alone_trains_no_correction():
    run = new_run("gspo", {"joint": False, "corrections": 1})
    run.step()
    row = run.metrics[0]
    assert row["targets"] > 0 and "correction_tokens" not in row
    assert (
        "train" not in run.compute.table["correction"] and run.compute.table["correction"]["decode"]["tokens"]
    )
    joint = new_run("gspo", {})
    joint.step()
    assert joint.metrics[0]["reward"] == row["reward"], "the first pass is the same"
    assert joint.metrics[0]["correction_tokens"] > 0 and joint.compute.table["correction"]["train"]["tokens"]


def test_the_first_pass_is_that_of_the_plain_run():
    plain, ibpo = new_run("gspo"), new_run("gspo", {})
    assert type(plain) is _Run and type(ibpo) is CounterfactualRun
    for run in (plain, ibpo):
        run.step()
    for name in ("reward", "response_length", "val_pass1", "truncated"):
        assert plain.metrics[0][name] == ibpo.metrics[0][name]
    assert plain.compute_rows[0]["base_decode_tokens"] == ibpo.compute_rows[0]["base_decode_tokens"]
    assert not any(name.startswith("correction") for name in plain.compute_rows[0])


@pytest.mark.slow
def test_joint_training_raises_the_correction_rate():
    """A task that can be learnt within seconds: responses of an even number of characters are right."""
    run = new_run("gspo", {"alpha": None}, steps=12, lr=1e-2, prompts_per_step=8, group_size=8, minibatches=1)
    for _ in range(12):
        run.step()
    rates = [row["corrections_right"] for row in run.metrics if "corrections_right" in row]
    assert np.mean(rates[-3:]) > np.mean(rates[:3]) + 0.1


# --- runs ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return saved_base(tmp_path_factory.mktemp("base"))


class Killed(Exception):
    pass


@pytest.mark.parametrize(
    "one",
    [
        job("gspo", {"references": 2, "alpha": "adaptive"}, lag=1, schedule="cosine"),
        job("masked_gspo", {"variant": "mask"}),
        job("gspo", self_correction=SelfCorrection()),
    ],
)
def test_a_killed_run_ends_with_the_same_bytes(base, tmp_path, one):
    train(base, one, tmp_path / "whole", tmp_path / "s1")

    def kill(done, total):
        if done == 3:
            raise Killed

    with pytest.raises(Killed):
        train(base, one, tmp_path / "resumed", tmp_path / "s2", on_progress=kill)
    train(base, one, tmp_path / "resumed", tmp_path / "s2")
    assert contents(tmp_path / "whole") == contents(tmp_path / "resumed")
    config = json.loads((tmp_path / "whole/config.json").read_text())
    assert ("counterfactual" in config) == (one.counterfactual is not None)
    compute = pd.read_parquet(tmp_path / "whole/compute.parquet")
    assert compute["step"].tolist() == [1, 2, 3, 4]
    assert (compute.diff().dropna() >= 0).all(axis=None) and compute["correction_decode_tokens"].iloc[-1] > 0


def test_settings_are_part_of_a_run_s_identity():
    jobs = [
        job("gspo"),
        job("gspo", {}),
        job("gspo", {"alpha": 0.7}),
        job("gspo", self_correction=SelfCorrection()),
    ]
    assert len({fingerprint(one.to_dict()) for one in jobs}) == 4


def test_compute_is_counted_token_by_token(problems):
    run = new_run("gspo", {"corrections": 3}, minibatches=1, eval_problems=8, eval_every=10)
    rollout = run._collect(run.policy, training_problems(PROBLEMS, 4, 1, 0))
    c = rollout.corrected
    expected = Ledger()
    prompts = [len(p) for p in rollout.prompts]
    lengths = rollout.samples.lengths.tolist()
    expected.add("base", "prefill", prompts)
    expected.add("base", "decode", lengths, [p for p in prompts for _ in range(4)])
    expected.add("base", "verify", lengths)
    own = [len(p) for p in c.prompts]
    fixes = c.samples.lengths.tolist()
    expected.add("correction", "prefill", own)
    expected.add("correction", "decode", fixes, [p for p in own for _ in range(3)])
    expected.add("correction", "verify", fixes)
    handed = [lengths[row] for row in c.rows.tolist() for _ in range(3)]
    expected.add("correction", "compare", [a + b for a, b in zip(handed, fixes, strict=True)])
    assert Ledger.from_dict(run.compute.table) == expected
    for batch, others in run._updates(rollout):
        run._count_update(batch, others)
    expected.add("base", "train", prompts)
    expected.add("base", "train", [n - 1 for n in lengths], [p for p in prompts for _ in range(4)])
    expected.add("correction", "train", own)
    expected.add("correction", "train", [n - 1 for n in fixes], [p for p in own for _ in range(3)])
    assert Ledger.from_dict(run.compute.table) == expected
    row = run.compute.row(1)
    assert Ledger.from_dict(table_of(row | {"validation_decode_tokens": math.nan})) == expected
    assert expected.flops(ModelShape.of(run.policy.shape)) > 0


# --- recipes ---------------------------------------------------------------------------------------------

SCALE = load_scale(Path(__file__).resolve().parents[1] / "params.yaml")


def with_recipe(**recipe):
    return SCALE.model_copy(update={"recipes": {**SCALE.recipes, "new": Recipe(**recipe)}})


def test_recipes_of_every_kind_are_accepted():
    for recipe in (
        {"objective": "gspo", "counterfactual": {}},
        {"objective": "masked_gspo", "counterfactual": {"variant": "mask"}},
        {"objective": "gspo", "self_correction": {}},
        {"objective": "gspo", "group_size": 64, "prompts_per_step": 4, "steps": 7, "schedule": "cosine"},
    ):
        check_recipes(with_recipe(**recipe))


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (
            {"objective": "gspo", "counterfactual": {"variant": "mask"}},
            "variant='mask' with objective='gspo'",
        ),
        (
            {"objective": "masked_gspo", "counterfactual": {}},
            "variant='indicator' with objective='masked_gspo'",
        ),
        ({"objective": "masked_gspo"}, "needs token_mask"),
        ({"objective": "gspo", "counterfactual": {"template": "compair"}}, "template='compair'"),
        ({"objective": "gspo", "counterfactual": {"operator": "trees"}}, "operator 'trees'"),
    ],
)
def test_recipes_that_do_not_fit_are_refused(recipe, message):
    with pytest.raises(ValueError, match=f"recipes.new: .*{message}"):
        check_recipes(with_recipe(**recipe))


def test_verl_jobs_refuse_what_they_do_not_do():
    problems = SCALE.problems.model_copy(update={"task": "program", "operations": (2, 3)})
    with pytest.raises(
        ValueError, match="task='program': verl jobs grade generated problems by whole numbers"
    ):
        experiment_of(SCALE.model_copy(update={"problems": problems}), "grpo", 0)


def test_a_recipe_s_sizes_are_its_own():
    scale = with_recipe(objective="gspo", counterfactual={"references": 2}, steps=7, group_size=64)
    training = LocalTraining(scale, "new", 0)
    assert training.steps == 7 and training.jobs[0].train.group_size == 64
    assert training.settings["counterfactual"]["references"] == 2
    plain = LocalTraining(SCALE, "grpo", 0)
    assert plain.steps == SCALE.train.steps
    assert plain.settings == {"engine": "local", "objective": "grpo", "clip_low": 0.2, "clip_high": 0.28}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"corrections": 1}, "corrections=1: allowed with joint=true are 2 and more"),
        ({"alpha": 1.5}, "alpha"),
        ({"alpha": "adaptiv"}, "alpha"),
        ({"shaping_weight": -1}, "shaping_weight"),
        ({"lambda": 0.6}, "lambda"),
        ({"variant": "masked"}, "variant"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        Counterfactual(**settings)


@pytest.mark.parametrize(
    "other",
    [
        {"self_correction": {}},
        {"mtp": {"blocks": 2, "lr": 1e-3}},
        {"critic": {"lr": 1e-3}},
        {"sampling": {"dynamic": True}},
    ],
)
def test_one_method_in_a_recipe(other):
    warmup = {"seed": 0, "steps": 1, "lr": 1e-3, "betas": [0.9, 0.9], "batch_size": 1, "check_every": 1}
    own = {name: value | ({"warmup": warmup} if name == "mtp" else {}) for name, value in other.items()}
    Recipe(objective="gspo", **own)
    with pytest.raises(ValueError, match="at most one of them"):
        Recipe(objective="gspo", counterfactual={}, **own)


# --- SCoRe -----------------------------------------------------------------------------------------------


def test_stage_1_moves_the_second_turn_and_holds_the_first():
    run = new_run(
        "gspo", self_correction=SelfCorrection(stage1_share=0.5, first_turn_kl=0.7, kl=0.1), minibatches=1
    )
    assert type(run) is SelfCorrectionRun
    rollout = run._collect(run.policy, training_problems(PROBLEMS, 4, 1, 0))
    assert not rollout.advantages.any() and rollout.second_advantages.any()
    second = rollout.second_rewards.view(4, 4)
    expected = (second - second.mean(1, keepdim=True)) / (second.std(1, keepdim=True) + 1e-6)
    torch.testing.assert_close(
        rollout.second_advantages.view(4, 4), expected.nan_to_num(), atol=1e-5, rtol=1e-4
    )
    ((first, (other,)),) = run._updates(rollout)
    assert (first.kl_coef, other.kl_coef) == (0.7, 0.1)
    with torch.no_grad():  # the run has not moved yet: the anchor is the policy itself
        log_prob, _ = response_log_prob(run.updater.theta, run.policy.shape, first.packed, 1.0)
    torch.testing.assert_close(first.anchor_log_prob, log_prob)
    build = TokenPrompts("compare", codec().encode, codec().eos_id)
    responses = rollout.samples.responses()
    assert rollout.second_prompts == [build(rollout.prompts[r // 4], responses[r]) for r in range(16)]


def test_stage_2_trains_both_turns_and_rewards_progress():
    run = new_run("gspo", self_correction=SelfCorrection(stage1_share=0.3, bonus=3.0), steps=4)
    stages = []
    for _ in range(4):
        run.step()
        stages.append(run.metrics[-1]["stage"])
    assert stages == [1.0, 2.0, 2.0, 2.0]
    run.done = 2
    rollout = run._collect(run.policy, training_problems(PROBLEMS, 4, 1, 0))
    gain = rollout.second_rewards + 3.0 * (rollout.second_rewards - rollout.rewards)
    for found, reward in ((rollout.advantages, rollout.rewards), (rollout.second_advantages, gain)):
        reward = reward.view(4, 4)
        expected = (reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True) + 1e-6)
        torch.testing.assert_close(found.view(4, 4), expected.nan_to_num(), atol=1e-5, rtol=1e-4)


def test_the_kl_penalty_is_the_estimate_of_its_formula():
    log_prob = torch.tensor([[-1.0, -2.0, 0.0]], requires_grad=True)
    anchor, mask = torch.tensor([[-1.5, -2.0, -9.0]]), torch.tensor([[1.0, 1.0, 0.0]])
    value = kl_penalty(log_prob, anchor, mask, None)
    assert value.item() == pytest.approx((math.exp(-0.5) + 0.5 - 1) / 2)
    value.backward()
    torch.testing.assert_close(log_prob.grad, torch.tensor([[(1 - math.exp(-0.5)) / 2, 0.0, 0.0]]))
    assert kl_penalty(log_prob, anchor, mask, 8).item() == pytest.approx(value.item() / 4)


@pytest.mark.slow
def test_a_strong_penalty_keeps_the_first_turn_where_it_was():
    def moved(weight):
        settings = SelfCorrection(stage1_share=0.99, first_turn_kl=weight, kl=0.0)
        run = new_run("gspo", self_correction=settings, steps=6, lr=3e-3)
        for _ in range(6):
            run.step()
        return run.metrics[-1]["anchor_kl"]

    assert moved(30.0) < 0.5 * moved(0.01)
