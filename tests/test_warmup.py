"""Supervised warm-up: what a step computes, when it checks, stops and cools down, and that it repeats."""

from __future__ import annotations

import pytest
import torch
from local_fixtures import codec, random_policy

from rlvr.config import Problems, WarmUp
from rlvr.counterfactual.examples import correction_examples, encode_examples
from rlvr.engines.local import warmup
from rlvr.engines.local.rollout import derive_seed, training_problems
from rlvr.engines.local.warmup import warm_up

PROBLEMS = Problems(task="word", seed=0, operations=(1, 1), validation=4, held_out=4)
LIMIT = 10


def config(**changes):
    values = {
        "seed": 0, "lr": 4e-3, "betas": (0.9, 0.98), "batch_size": 8, "max_steps": 30, "cooldown_steps": 0,
        "check_every": 10, "target_pass1": 0.9,
    }  # fmt: skip
    return WarmUp(**(values | changes))


def run(settings, policy=None, **more):
    return warm_up(policy or random_policy(), codec(), PROBLEMS, settings, LIMIT, **more)


@pytest.fixture
def scripted(monkeypatch):
    """Scores come from a list and steps only note the learning rate: ``rates = scripted([0.0, 0.5])``."""

    def _scripted(scores):
        rates, left = [], iter(scores)

        def step(theta, policy, codec, problems, config, index, optimizer):
            assert index == len(rates)
            rates.append(optimizer.param_groups[0]["lr"])
            return float(index)

        monkeypatch.setattr(warmup, "_supervised_step", step)
        monkeypatch.setattr(warmup, "pass1", lambda *_: next(left))
        return rates

    return _scripted


def test_the_first_loss_is_the_cross_entropy_of_the_solutions():
    policy, words = random_policy(), codec()
    result = run(config(max_steps=1, check_every=1), policy)
    batch = training_problems(PROBLEMS, 8, derive_seed(0, 0), 0)
    model, total, count = policy.to_hf(), 0.0, 0
    for problem in batch:
        prompt, solution = words.encode(problem.prompt), words.encode(problem.solution, end=True)
        with torch.no_grad():
            log_probs = model(torch.tensor([prompt + solution])).logits[0].double().log_softmax(-1)
        for t, token in enumerate(solution):
            total -= log_probs[len(prompt) - 1 + t, token].item()
            count += 1
    assert result.history[0]["loss"] == pytest.approx(total / count, abs=1e-5)


def test_the_loss_falls_and_the_policy_given_is_left_alone():
    policy = random_policy()
    before = policy.theta.clone()
    result = run(config(max_steps=60, check_every=20), policy)
    losses = [row["loss"] for row in result.history]
    assert losses[2] < losses[1] < losses[0] - 1
    assert torch.equal(policy.theta, before)
    assert not torch.equal(result.policy.theta, before) and not result.policy.theta.requires_grad
    assert all(0 <= row["pass1"] <= 1 for row in result.history)


def test_the_same_seed_gives_the_same_weights_and_another_seed_others():
    first, again, other = (run(config(max_steps=6, check_every=3, seed=s)) for s in (3, 3, 4))
    assert torch.equal(first.policy.theta, again.policy.theta) and first.history == again.history
    assert not torch.equal(first.policy.theta, other.policy.theta)


def test_a_target_never_reached_is_said(scripted):
    rates = scripted([0.0] * 3)
    result = run(config())
    assert result.reached_target is False
    assert [row["step"] for row in result.history] == [10, 20, 30] and len(rates) == 30


def test_it_stops_at_the_check_that_reaches_the_target(scripted):
    rates = scripted([0.0, 0.9])
    result = run(config(max_steps=100))
    assert result.reached_target is True and len(rates) == 20
    assert [(row["step"], row["pass1"]) for row in result.history] == [(10, 0.0), (20, 0.9)]


def test_it_cools_down_to_zero_after_the_target_and_is_measured_at_the_end(scripted):
    rates = scripted([0.0, 0.0, 0.95, 0.85, 0.8])
    settings = config(max_steps=1000, cooldown_steps=4)
    result = run(settings)
    assert result.reached_target is True and len(rates) == 34
    assert rates[20:30] == [settings.lr] * 10
    assert rates[30:] == pytest.approx([settings.lr * share for share in (0.8, 0.6, 0.4, 0.2)])
    assert [row["step"] for row in result.history] == [10, 20, 30, 32, 34]  # the last one is after cooling
    assert result.history[-1]["pass1"] == 0.8


def test_without_the_target_it_cools_down_before_the_last_step(scripted):
    rates = scripted([0.0] * 3)
    settings = config(cooldown_steps=4)
    run(settings)
    assert rates[20:26] == [settings.lr] * 6
    assert rates[26:] == pytest.approx([settings.lr * share for share in (0.8, 0.6, 0.4, 0.2)])


def test_the_cool_down_never_exceeds_the_step_limit(scripted):
    rates = scripted([0.0, 0.0, 0.95] + [0.95] * 20)
    result = run(config(max_steps=31, cooldown_steps=10))
    assert len(rates) == 31 and result.history[-1]["step"] == 31


def test_the_learning_rate_rises_over_the_first_twenty_steps(scripted):
    rates = scripted([0.0] * 3)
    settings = config()
    run(settings)
    assert rates[:20] == pytest.approx([settings.lr * (t + 1) / 20 for t in range(20)])
    assert rates[20:] == [settings.lr] * 10


def test_checks_come_more_often_after_a_quarter_of_the_target(scripted):
    scripted([0.19, 0.2, 0.1, 0.3, 0.8])  # target 0.8: 0.2 is a quarter, and what comes after is steep
    result = run(config(max_steps=100, target_pass1=0.8))
    assert [row["step"] for row in result.history] == [10, 20, 22, 24, 26]
    assert result.reached_target is True


def test_checks_are_never_rarer_than_every_step(scripted):
    scripted([0.5, 0.5, 0.95])
    result = run(config(max_steps=100, check_every=3))
    assert [row["step"] for row in result.history] == [3, 4, 5]


def test_the_loss_of_a_row_is_the_mean_since_the_row_before(scripted):
    scripted([0.0] * 4)
    result = run(config(max_steps=35))
    assert [row["loss"] for row in result.history] == [4.5, 14.5, 24.5, 32.0]  # a step's loss is its number
    assert [row["step"] for row in result.history] == [10, 20, 30, 35]


def test_progress_names_the_step_where_it_will_stop(scripted):
    scripted([0.0, 0.95, 0.95])
    seen = []
    run(config(max_steps=50, cooldown_steps=2), on_progress=lambda done, total: seen.append((done, total)))
    assert seen[0] == (1, 50) and seen[19] == (20, 50) and seen[-1] == (22, 22)
    assert len(seen) == 22


CORRECTIONS = {"share": 0.25, "references": (0, 1), "reference_right": 0.5}


def test_a_share_of_each_batch_are_corrections_and_the_loss_is_the_mean_over_all_tokens():
    """Solutions and corrections are packed apart; together they are one mean."""
    policy, words = random_policy(), codec()
    settings = config(max_steps=1, check_every=1, corrections=CORRECTIONS)
    result = run(settings, policy)
    pairs = [
        (words.encode(p.prompt), words.encode(p.solution, end=True))
        for p in training_problems(PROBLEMS, 6, derive_seed(0, warmup._PROBLEMS), 0)
    ]
    wrong = training_problems(PROBLEMS, 2, derive_seed(0, warmup._CORRECTED), 0)
    seed = (derive_seed(0, warmup._SLIPS), 0)
    examples = correction_examples(wrong, settings.corrections, "train", seed)
    pairs += list(zip(*encode_examples(examples, words, "compare"), strict=True))
    model, total, count = policy.to_hf(), 0.0, 0
    for prompt, target in pairs:
        with torch.no_grad():
            log_probs = model(torch.tensor([prompt + target])).logits[0].double().log_softmax(-1)
        for t, token in enumerate(target):
            total -= log_probs[len(prompt) - 1 + t, token].item()
            count += 1
    assert result.history[0]["loss"] == pytest.approx(total / count, abs=1e-5)
    assert 0 <= result.history[0]["corrected"] <= 1


def test_the_share_zero_is_the_plain_warm_up():
    plain = run(config(max_steps=4, check_every=2))
    none = run(config(max_steps=4, check_every=2, corrections=CORRECTIONS | {"share": 0.0}))
    some = run(config(max_steps=4, check_every=2, corrections=CORRECTIONS))
    assert torch.equal(plain.policy.theta, none.policy.theta)
    assert not torch.equal(plain.policy.theta, some.policy.theta)
    assert all("corrected" not in row for row in plain.history)
    assert [row["pass1"] for row in plain.history] == [row["pass1"] for row in none.history]


def test_a_warm_up_with_corrections_repeats():
    settings = config(max_steps=4, check_every=2, corrections=CORRECTIONS)
    first, again = run(settings), run(settings)
    assert torch.equal(first.policy.theta, again.policy.theta) and first.history == again.history
