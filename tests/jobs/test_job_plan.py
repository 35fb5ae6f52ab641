"""The plan against the times that the papers state, its parts against sums on paper, and its limits."""

import numpy as np
import pytest
from job_fixtures import experiments
from pydantic import ValidationError

from rlvr.cli import main
from rlvr.engines.jobs.costs import summary
from rlvr.engines.jobs.experiments import Experiment, GPUHours
from rlvr.engines.jobs.hardware import CARDS, MODELS
from rlvr.engines.jobs.plan import (
    HIGH,
    LOW,
    PROMPT,
    plan,
    refusals,
    second_answers,
    step_flops,
    steps_at_equal_compute,
    survival,
    training_seconds,
    writing_seconds,
)
from rlvr.engines.jobs.sections import Expected
from rlvr.engines.local.accounting import Compute, table_of
from rlvr.evaluation.compute import Ledger, ModelShape

PAPER = experiments("paper")
STATED = [name for name in PAPER.names if PAPER.get(name).expected.stated_hours]


def changed(experiment, section, **values):
    raw = experiment.model_dump()
    raw[section] |= values
    return Experiment.model_validate(raw)


@pytest.mark.parametrize("name", STATED)
def test_the_stated_time_lies_in_the_band(name):
    experiment = PAPER.get(name)
    low, high = plan(experiment).hours
    assert low <= experiment.expected.stated_hours <= high
    assert high / low <= 4


def test_both_sizes_are_stated():
    assert {PAPER.get(name).model for name in STATED} == {"Qwen/Qwen3-1.7B-Base", "Qwen/Qwen3-8B-Base"}


@pytest.mark.parametrize("scale", ["paper", "one_gpu"])
def test_no_band_is_wider_than_a_factor_of_four(scale):
    file = experiments(scale)
    for name in file.names:
        low, high = plan(file.get(name)).hours
        # of dynamic sampling one thing more is unknown
        assert 1 < high / low <= (5 if file.get(name).dynamic_sampling else 4), name


@pytest.mark.parametrize("scale", ["paper", "one_gpu"])
def test_what_verl_can_run_fits_its_cards(scale):
    file = experiments(scale)
    assert [n for n in file.names if file.get(n).needs is None and not plan(file.get(n)).fits] == []


def test_training_time_by_hand():
    """8 N FLOPs a token, and attention's, at 40 % of eight H200."""
    experiment = PAPER.get("nfpo-8b-nfpo")
    model, card = MODELS[experiment.model], CARDS["H200"]
    seconds = training_seconds(1e6, 0, model, card, experiment, LOW)
    flops = 8 * (8.19e9 + 36 * 32 * 128 * 150) * 1e6
    assert seconds == pytest.approx(flops / (8 * 989e12 * 0.40), rel=0.01)
    recomputed = changed(experiment, "update", recompute=True)
    assert training_seconds(1e6, 0, model, card, recomputed, LOW) == pytest.approx(1.25 * seconds)


def test_one_short_response_takes_the_weights_once_a_token():
    experiment = PAPER.get("nfpo-8b-nfpo")
    model, card = MODELS[experiment.model], CARDS["H200"]
    seconds = writing_seconds(
        8, 999, 1000, model, card, experiment, LOW
    )  # one a GPU, nearly all of full length
    cache = model.cache_per_token * (150 + 500)
    token = LOW.token + (2 * 8.19e9 + cache) / (4.8e12 * LOW.bandwidth)
    assert seconds == pytest.approx(1000 * token, rel=0.01)


def test_more_never_costs_less():
    experiment = PAPER.get("nfpo-1.7b-nfpo")
    before = plan(experiment)
    for section, values in {
        "update": {"steps": 600},
        "data": {"max_response_length": 12288},
        "rollout": {"prompts_per_step": 256},
        "validation": {"every": 5},
        "checkpoints": {"every": 5},
        "evaluation": {"samples": 64},
        "expected": {"mean_response_length": [1600, 5000]},
    }.items():
        after = plan(changed(experiment, section, **values))
        assert after.hours[0] > before.hours[0] and after.hours[1] > before.hours[1], section
    slower = plan(changed(experiment, "hardware", gpu="A100"))
    assert slower.hours[0] > before.hours[0]
    fewer = plan(changed(experiment, "hardware", gpus_per_node=4))
    assert before.hours[0] < fewer.hours[0] and fewer.gpu_hours[0] < before.gpu_hours[0] * 1.05


def test_waves():
    """Twice the responses beyond what is written at once take twice as long, less the shared tail."""
    experiment = PAPER.get("nfpo-1.7b-nfpo")
    model, card = MODELS[experiment.model], CARDS["H200"]
    times = [writing_seconds(n * 8 * 256, 1000, 8192, model, card, experiment, LOW) for n in (1, 2, 3)]
    assert times[2] - times[1] == pytest.approx(times[1] - times[0]) and times[1] < 2 * times[0]


def test_lengths_have_the_mean_that_was_asked_for():
    for mean, longest in ((500, 8192), (3000, 8192), (7000, 8192), (4, 8)):
        at, share = survival(mean, longest, points=20_000)
        assert np.sum(share) * longest / len(at) == pytest.approx(mean, rel=1e-3)
        assert (np.diff(share) < 0).all() and 0 < share[-1] < share[0] <= 1
    with pytest.raises(
        ValueError, match="mean_response_length=9000: allowed are lengths below the longest, 8192"
    ):
        survival(9000, 8192)


def test_tokens_and_disk():
    p = plan(PAPER.get("nfpo-1.7b-nfpo"))
    assert p.tokens[0] == 800 * (500 * 1024 + 20 * 130 * 32)
    assert p.disk == pytest.approx(3 * 12 * 1.72e9, rel=0.01)
    critic = plan(PAPER.get("mpo-qwen1.5b-gsm8k-ppo"))
    assert critic.disk == 2 * plan(PAPER.get("mpo-qwen1.5b-gsm8k-grpo")).disk


@pytest.mark.parametrize(("train", "checkpoint", "state"), [("cross_entropy", 12, 16), ("none", 4, 4)])
def test_modules_cost_memory_time_and_disk(train, checkpoint, state):
    """Bytes a parameter: float32, and where they learn, both moments and, in memory, the gradient."""
    experiment, without = PAPER.get("mpo-qwen1.5b-gsm8k-mpo"), plan(PAPER.get("mpo-qwen1.5b-gsm8k-ppo"))
    modules = experiment.mtp.model_copy(update={"train": train})
    with_modules = plan(experiment.model_copy(update={"mtp": modules}))
    # four of a layer and a head each: 0.047e9 + 151936 * 1536 parameters
    parameters = 4 * (46.8e6 + 151936 * 1536)
    assert with_modules.disk - without.disk == pytest.approx(3 * checkpoint * parameters, rel=0.01)
    assert with_modules.memory[0] - without.memory[0] == pytest.approx(state * parameters / 8, rel=0.01)
    assert with_modules.memory[1] > without.memory[1] + 4 * parameters
    assert with_modules.hours[0] > without.hours[0]


def test_limits():
    plans = [plan(PAPER.get(f"nfpo-8b-{arm}")) for arm in ("grpo", "nfpo")]
    assert refusals(plans, GPUHours(experiment=1e6, total=1e6)) == []
    (one, other) = refusals(plans, GPUHours(experiment=500, total=1e6))
    assert one.startswith("nfpo-8b-grpo: up to") and "max_gpu_hours.experiment is 500" in other
    (total,) = refusals(plans, GPUHours(experiment=1e6, total=3000))
    assert "max_gpu_hours.total is 3,000" in total and "all" not in total


@pytest.mark.parametrize("scale", ["paper", "one_gpu"])
def test_the_table(capsys, scale):
    assert main(["plan", scale]) == (scale == "paper")  # IBPO at 32B is refused there
    shown = capsys.readouterr().out
    for name in experiments(scale).names:
        assert name in shown
    assert "not counted, needs a worker loss" in shown


def test_the_command_refuses(capsys, monkeypatch):
    assert main(["plan", "nothing"]) == 2
    assert "allowed are one_gpu, paper" in capsys.readouterr().err
    assert main(["plan", "paper", "--only", "xyz"]) == 2
    capsys.readouterr()
    assert main(["plan", "paper", "--only", "nfpo-8b-*", "--gpus", "7"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("rlvr: nfpo-8b-grpo on 7 x H200:\n  together: ")
    assert "must be a multiple of the 7 GPUs" in said and "pydantic" not in said
    file = PAPER.model_copy(update={"max_gpu_hours": GPUHours(experiment=1000, total=100)})
    monkeypatch.setattr("rlvr.engines.jobs.experiments.load_experiments", lambda path: file)
    assert main(["plan", "paper", "--only", "nfpo-8b-*"]) == 1
    assert "REFUSED: together up to" in capsys.readouterr().err


def test_what_is_refused_is_summed_apart(capsys):
    assert main(["plan", "paper", "--only", "ibpo-32b-shaping_only"]) == 1
    assert main(["plan", "paper", "--only", "nfpo-1.7b-nfpo"]) == 0
    assert "of them within" not in capsys.readouterr().out.partition("nfpo-1.7b-nfpo")[2]
    plans = [plan(PAPER.get(name)) for name in ("nfpo-1.7b-nfpo", "ibpo-32b-shaping_only")]
    first, second, *_ = summary(plans, plans[1:])
    assert first.startswith("2 experiments that verl can run: ")
    assert second.startswith("1 of them within max_gpu_hours.experiment: ")
    alone = summary(plans[:1])[0]
    assert second.partition(": ")[2] == alone.partition(": ")[2]


def test_other_hardware(capsys):
    assert main(["plan", "paper", "--only", "nfpo-1.7b-nfpo", "--gpu", "A100", "--gpus", "16"]) == 0
    assert "16 x A100" in capsys.readouterr().out


def test_groups_that_dynamic_sampling_discards_are_written_too():
    """Half of the groups are discarded: twice as many responses are written, as many are trained on."""
    experiment = PAPER.get("mpo-qwen1.5b-gsm8k-dapo")
    ends = []
    for share in (0.0, 0.5):
        expected = experiment.expected.model_copy(update={"discarded_share": (share, share)})
        ends.append(plan(experiment.model_copy(update={"expected": expected})))
    responses = experiment.rollout.prompts_per_step * experiment.rollout.responses_per_prompt
    for before, after, mean in zip(
        ends[0].tokens, ends[1].tokens, experiment.expected.mean_response_length, strict=True
    ):
        assert after - before == pytest.approx(experiment.update.steps * responses * mean)
    assert ends[0].hours[1] < ends[1].hours[1] < 2 * ends[0].hours[1]
    assert plan(PAPER.get("mpo-qwen1.5b-gsm8k-grpo")).hours < plan(experiment).hours
    with pytest.raises(ValidationError, match=r"expected.discarded_share=None: .*two shares, low and high"):
        Experiment(**{**dict(experiment), "expected": Expected(mean_response_length=(250, 700))})
    with pytest.raises(ValidationError, match="discarded_share: allowed are shares below 1"):
        Expected(mean_response_length=(1, 2), discarded_share=(0.5, 1.0))


def test_corrections_are_written_and_trained_on_too():
    """Two of eight responses are wrong, four corrections each: as many again as there are responses."""
    experiment = PAPER.get("ibpo-32b-ibpo")
    plain = experiment.model_copy(update={"counterfactual": None})
    wrong = experiment.expected.model_copy(update={"wrong_share": (0.25, 0.25)})
    experiment = experiment.model_copy(update={"expected": wrong})
    assert second_answers(plain, 0) == 0 and second_answers(experiment, 0) == 256
    responses = experiment.update.steps * 256
    ends = zip(
        plan(plain).tokens, plan(experiment).tokens, experiment.expected.mean_response_length, strict=True
    )
    for before, after, mean in ends:
        assert after - before == pytest.approx(responses * mean)
    shaping = experiment.counterfactual.model_copy(update={"joint": False})
    hours = [
        plan(e).hours[1]
        for e in (plain, experiment.model_copy(update={"counterfactual": shaping}), experiment)
    ]
    assert hours[0] < hours[1] < hours[2] < 4 * hours[0]
    some = experiment.counterfactual.model_copy(update={"targets": 1})
    assert second_answers(experiment.model_copy(update={"counterfactual": some}), 0) == 128


def test_every_response_has_a_second_turn_in_the_plan_of_score():
    """As many answers again, each with a prompt of its own, and a pass of the base model over every row."""
    experiment = experiments("one_gpu").get("ibpo-0.6b-score")
    known, rollout = MODELS[experiment.model], experiment.rollout
    shape = ModelShape(known.parameters, known.layers, known.heads, known.head_dim)
    responses = rollout.prompts_per_step * rollout.responses_per_prompt
    for which in (0, 1):
        assert second_answers(experiment, which) == responses
        mean = experiment.expected.mean_response_length[which]
        long = min(PROMPT + mean, experiment.data.max_correction_prompt_length)
        counts = Compute()
        counts.add("base", "prefill", [PROMPT] * rollout.prompts_per_step)
        counts.add("base", "decode", [mean] * responses, [PROMPT] * responses)
        counts.add("correction", "prefill", [long] * responses)
        counts.add("correction", "decode", [mean] * responses, [long] * responses)
        for purpose, before in (("base", PROMPT), ("correction", long)):
            for activity in ("train", "score", "score"):  # recomputed, and the base model's
                counts.add(purpose, activity, [before + mean] * responses)
        found = Ledger.from_dict(table_of(counts.row(0))).flops(shape)
        assert step_flops(experiment, which) == pytest.approx(found, rel=1e-9)
    free = experiment.self_correction.model_copy(update={"first_turn_kl": 0.0, "kl": 0.0})
    free = experiment.model_copy(update={"self_correction": free})
    assert experiment.anchored and not free.anchored
    assert plan(free).hours < plan(experiment).hours
    single = experiment.model_copy(update={"self_correction": None})
    more = plan(experiment).tokens[1] - plan(single).tokens[1]
    assert more == pytest.approx(experiment.update.steps * responses * mean)


def test_a_correction_prompt_shows_what_follows_the_reasoning():
    """150 tokens of problem, and 500 to 3000 each of a response and a reference, not all of them."""
    experiment = PAPER.get("ibpo-32b-ibpo")
    settings, expected = experiment.counterfactual, experiment.expected
    assert expected.shown_length == (500, 3000)
    whole = experiment.model_copy(update={"expected": expected.model_copy(update={"shown_length": None})})
    shape = MODELS[experiment.model].shape
    for which, shorter, longer in ((0, 1150, 12288), (1, 6150, 12288)):
        mean, corrections = expected.mean_response_length[which], second_answers(experiment, which)
        of_each = []
        for long in (shorter, longer):
            counts = Compute()
            counts.add("correction", "prefill", [long])
            counts.add("correction", "decode", [mean] * 4, [long] * 4)
            for activity in ("score", "train"):
                counts.add("correction", activity, [long + mean] * 4)
            of_each.append(Ledger.from_dict(table_of(counts.row(0))).flops(shape))
        less = (of_each[1] - of_each[0]) * corrections / settings.corrections
        assert step_flops(whole, which) - step_flops(experiment, which) == pytest.approx(less, rel=1e-9)
    assert plan(experiment).compute_seconds < plan(whole).compute_seconds
    with pytest.raises(ValidationError, match=r"shown_length=\[500, 3000\]: allowed are parts of a response"):
        Expected(mean_response_length=(400, 4000), shown_length=(500, 3000))
    with pytest.raises(ValidationError, match=r"shown_length=\[30, 5\] must be the low one"):
        Expected(mean_response_length=(400, 4000), shown_length=(30, 5))


@pytest.mark.parametrize("scale", ["paper", "one_gpu"])
def test_arms_of_ibpo_have_equal_planned_compute(scale):
    """FLOPs of writing and training of all steps, at the middle of what is expected, within half a step of
    GSPO's."""
    file = experiments(scale)
    names = [name for name in file.names if name.startswith("ibpo-")]
    arms = 0
    for name in names:
        experiment, gspo = file.get(name), file.get(f"{name.rsplit('-', 1)[0]}-gspo")
        if experiment.second_pass is None and not name.endswith("-gspo8"):
            continue
        arms += 1
        assert experiment.update.steps == steps_at_equal_compute(experiment, gspo), name
        step, of_gspo = (sum(step_flops(e, which) for which in (0, 1)) / 2 for e in (experiment, gspo))
        assert abs(experiment.update.steps * step - gspo.update.steps * of_gspo) <= step / 2, name
    assert arms == {"paper": 23, "one_gpu": 18}[scale]


def test_flops_of_a_step_are_those_of_the_ledger():
    """A step of expected sizes, counted as a job's trainer counts it, sequence by sequence."""
    experiment = experiments("one_gpu").get("ibpo-0.6b-ibpo")
    known, rollout = MODELS[experiment.model], experiment.rollout
    shape = ModelShape(known.parameters, known.layers, known.heads, known.head_dim)
    for which in (0, 1):
        mean = experiment.expected.mean_response_length[which]
        responses = rollout.prompts_per_step * rollout.responses_per_prompt
        targets = experiment.expected.wrong_share[which] * responses
        long = min(PROMPT + 2 * mean, experiment.data.max_correction_prompt_length)
        counts = Compute()
        counts.add("base", "prefill", [PROMPT] * rollout.prompts_per_step)
        counts.add("base", "decode", [mean] * responses, [PROMPT] * responses)
        for activity in ("score", "train"):
            counts.add("base", activity, [PROMPT + mean] * responses)
        found = Ledger.from_dict(table_of(counts.row(0))).flops(shape)
        corrections = Compute()  # of one wrong response; their number need not be whole
        corrections.add("correction", "prefill", [long])
        corrections.add("correction", "decode", [mean] * 4, [long] * 4)
        for activity in ("score", "train"):
            corrections.add("correction", activity, [long + mean] * 4)
        found += targets * Ledger.from_dict(table_of(corrections.row(0))).flops(shape)
        assert step_flops(experiment, which) == pytest.approx(found, rel=1e-9)
    alone = experiments("one_gpu").get(
        "ibpo-0.6b-shaping_only"
    )  # its corrections are written, not trained on
    assert step_flops(alone, 0) < 0.6 * step_flops(experiment, 0)


def test_seconds_of_a_step_without_what_is_around_it():
    """What is around a step does not count: a constant, and weights and offloaded state over the bus."""
    experiment = experiments("one_gpu").get("ibpo-0.6b-gspo")
    found = plan(experiment)
    assert steps_at_equal_compute(experiment, experiment) == experiment.update.steps == 200
    for which, a in ((0, LOW), (1, HIGH)):
        around = found.step_seconds[which] - found.compute_seconds[which]
        moved = 2 * MODELS[experiment.model].parameters * (1 + 16 * experiment.update.offload)
        assert around == pytest.approx(a.step + moved / 10e9)
