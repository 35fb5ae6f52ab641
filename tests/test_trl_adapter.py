"""The TRL adapter: a tiny random model, TRL's own generation, and TRL's own loss as the reference."""

import inspect
import logging
import math
import os
from pathlib import Path

import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when huggingface_hub is imported
pytest.importorskip("trl", reason="TRL is not installed (`pip install -e '.[bench]'`)")

from datasets import Dataset
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from rlvr import objectives
from rlvr.engines.trl import ObjectiveTrainer
from rlvr.losses import AGGREGATIONS
from rlvr.problems.tokenizer import build_tokenizer

pytestmark = pytest.mark.verl
WIDTH, GROUP = 8, 4
TOKENIZER = build_tokenizer(["a", "b"])
SIZES = dict(
    vocab_size=len(TOKENIZER), hidden_size=16, intermediate_size=24, num_hidden_layers=2, head_dim=8,
    num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=False, initializer_range=0.3,
    eos_token_id=TOKENIZER.eos_token_id, pad_token_id=TOKENIZER.pad_token_id, bos_token_id=None,
)  # fmt: skip
# TRL's loss with its own settings, as parameters of ours: no dual clip, a symmetric clip of 0.2
SAME_CLIP = {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": None}
SHARED = {"batch_num_tokens", "global_batch_size"}  # every objective has them
SAME_MEAN = {"dapo": "token-mean", "grpo": "seq-mean-token-mean", "dr_grpo": "seq-mean-token-sum-norm"}


def further_tensors(name):
    parameters = inspect.signature(objectives.get(name)).parameters.values()
    return {p.name for p in parameters if p.kind is p.KEYWORD_ONLY and "Tensor" in str(p.annotation)}


# mpo without the MTP modules' log-probs is ppo, masked_gspo without a token mask gspo
REFUSED = [n for n in objectives.list_objectives() if further_tensors(n) - SHARED - {"rollout_log_prob"}]
NAMES = [name for name in objectives.list_objectives() if name not in REFUSED]


def tiny_model(moe=False):
    torch.manual_seed(0)
    if not moe:
        return Qwen3ForCausalLM(Qwen3Config(**SIZES))
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **experts, router_aux_loss_coef=0.1))


def digits(completions, **_):
    """Reward: the share of characters that are digits."""
    return [sum(c.isdigit() for c in text) / max(1, len(text)) for text in completions]


class Gradients(TrainerCallback):
    """Every optimizer step's gradient, as one vector."""

    def __init__(self):
        self.steps = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        self.steps.append(gradient(model))


def gradient(model):
    return torch.cat([p.grad.flatten().clone() for p in model.parameters() if p.grad is not None])


def weights_of(trainer):
    return torch.nn.utils.parameters_to_vector(trainer.model.parameters()).detach().clone()


def same(one, other, tolerance=1e-6):
    """Equal within float32's noise, relative to the largest entry."""
    assert other.abs().max() > 1e-3
    torch.testing.assert_close(one, other, rtol=0, atol=tolerance * max(1.0, other.abs().max().item()))


@pytest.fixture
def make(tmp_path, monkeypatch):
    """A trainer: TRL's own, or ours if ``objective`` is given; ``settings`` go to GRPOConfig."""
    monkeypatch.setenv("CI", "1")  # TRL sends no telemetry then

    def build(objective=None, parameters=None, moe=False, reward=digits, **settings):
        config = GRPOConfig(**{
            "output_dir": str(tmp_path), "use_cpu": True, "bf16": False, "report_to": "none",
            "save_strategy": "no", "logging_steps": 1, "disable_tqdm": True, "gradient_checkpointing": False,
            "shuffle_dataset": False, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1,
            "num_generations": GROUP, "max_completion_length": WIDTH, "max_steps": 2, "learning_rate": 0.3,
            "max_grad_norm": 0.0, "lr_scheduler_type": "constant", "optim": "sgd", **settings,
        })  # fmt: skip
        ours = {} if objective is None else {"objective": objective, "objective_parameters": parameters}
        trainer = (GRPOTrainer if objective is None else ObjectiveTrainer)(
            tiny_model(moe),
            reward,
            config,
            Dataset.from_dict({"prompt": ["1 + 2 =", "a b", "7 - 3 =", "b, a 1"] * 4}),
            processing_class=TOKENIZER,
            callbacks=[recorder := Gradients()],
            **ours,
        )
        trainer.gradients = recorder.steps
        return trainer

    return build


def logged(trainer, prefix="objective/"):
    """Values of every step that has one, by name."""
    rows = [row for row in trainer.state.log_history if "loss" in row]
    names = [name for name in rows[0] if name.startswith(prefix)]
    return {name: [row[name] for row in rows if name in row] for name in names}


# --- training -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_two_steps(make, name):
    trainer = make(name, num_iterations=2)
    before = weights_of(trainer)
    trainer.train()
    assert weights_of(trainer).isfinite().all() and not torch.equal(before, weights_of(trainer))
    metrics = logged(trainer)
    assert all(math.isfinite(value) for values in metrics.values() for value in values)
    # the second step meets the responses of the policy before the first
    on_policy, off_policy = metrics["objective/ratio_correction_strength"]
    assert on_policy < 1e-5 and off_policy > 1e-3
    assert len(set(metrics["objective/tokens"])) == 1 and logged(trainer, "entropy")["entropy"][0] > 0


def test_on_policy(make):
    """Where the policy has not moved since it sampled, TRL hands no old log-probs: every ratio is 1."""
    trainer = make("nfpo", per_device_train_batch_size=4, gradient_accumulation_steps=2)
    trainer.train()
    assert all("old_per_token_logps" not in part for part in trainer._buffered_inputs)
    metrics = logged(trainer)
    assert metrics["objective/ratio_max"] == [1.0, 1.0] and metrics["objective/kl"] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("loss_type", "accumulate"), [(name, k) for name in SAME_MEAN for k in (1, 2)] + [("bnpo", 1)]
)  # bnpo divides by each micro-batch's own tokens
def test_grpo_is_trls_own(make, loss_type, accumulate):
    """Same seed, same generations: two updates on one generation, the second off-policy."""
    size = {"per_device_train_batch_size": 8 // accumulate, "gradient_accumulation_steps": accumulate}
    size |= {"num_iterations": 2}
    theirs = make(loss_type=loss_type, **size)
    theirs.train()
    ours = make("grpo", SAME_CLIP | {"loss_agg_mode": SAME_MEAN.get(loss_type, "token-mean")}, **size)
    ours.train()
    assert len(ours.gradients) == len(theirs.gradients) == 2
    for mine, their in zip(ours.gradients, theirs.gradients, strict=True):
        assert their.abs().max() > 1e-2
        same(mine, their)
    for name in ("loss", "reward", "completions/mean_length"):
        assert logged(ours, name)[name] == pytest.approx(logged(theirs, name)[name], abs=1e-6)


@pytest.mark.fault("mean-of-means")
@pytest.mark.parametrize("loss_agg_mode", [m for m in AGGREGATIONS if m != "token-sum"])
def test_micro_batches_change_nothing(make, loss_agg_mode):
    """Real steps, the second off-policy: 8 responses at once, and as 4 x 2."""
    parameters = {"horizon": 8, "loss_agg_mode": loss_agg_mode}
    whole, split = (
        make("nfpo", parameters, num_iterations=2),
        make(
            "nfpo", parameters, num_iterations=2, per_device_train_batch_size=2, gradient_accumulation_steps=4
        ),
    )
    for trainer in (whole, split):
        torch.manual_seed(0)  # both sample alike
        trainer.train()
    assert len(whole.gradients) == len(split.gradients) == 2
    for one, other in zip(whole.gradients, split.gradients, strict=True):
        assert one.abs().max() > 1e-2
        same(one, other)
    lengths = logged(whole, "completions/m")
    assert lengths["completions/min_length"] != lengths["completions/max_length"]  # else all modes are one
    for name in ("loss", "entropy", *logged(whole)):
        assert logged(split, name)[name] == pytest.approx(logged(whole, name)[name], rel=1e-3, abs=1e-5), name


def test_several_steps_per_generation(make):
    """One generation of 16 responses, four updates of 2 x 2: each divides by its own counts."""
    size = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "steps_per_generation": 8}
    trainer = make("grpo", max_steps=4, **size)
    trainer.train()
    tokens = [
        sum(int(part["completion_mask"].sum()) for part in trainer._buffered_inputs[at : at + 2])
        for at in range(0, 8, 2)
    ]
    assert logged(trainer)["objective/tokens"] == tokens and len(set(tokens)) > 1
    first, *later = logged(trainer)["objective/ratio_correction_strength"]
    assert first < 1e-5 and min(later) > 1e-3


# --- the loss, on batches made by hand ----------------------------------------------------------------


def hand_made(count=8, width=6, seed=0):
    """What TRL hands to the loss; row 1 is a truncated response, masked, row 2 holds a tool's tokens."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([6, 0, 5, 1, 3, 6, 2, 4])
    tool_mask = torch.ones(count, width, dtype=torch.long)
    tool_mask[2, 1:3] = 0
    mask = (torch.arange(width) < lengths[:, None]).long()
    return {
        "prompt_ids": torch.randint(2, len(TOKENIZER), (count, 3), generator=generator),
        "prompt_mask": torch.ones(count, 3, dtype=torch.long),
        "completion_ids": torch.randint(2, len(TOKENIZER), (count, width), generator=generator),
        "completion_mask": mask,
        "tool_mask": tool_mask,
        "advantages": 2 * torch.rand(count, generator=generator) - 1,
        "old_per_token_logps": -3.2 + 0.8 * torch.rand(count, width, generator=generator),
        "num_items_in_batch": (mask * tool_mask).sum(),
    }


def rows(batch, first, last):
    return {name: value[first:last] if value.ndim else value for name, value in batch.items()}


def loss_and_gradient(trainer, batch, parts=1):
    """Of one optimizer step over ``batch``, cut into ``parts`` micro-batches."""
    size = len(batch["completion_ids"]) // parts
    own = [rows(batch, i * size, (i + 1) * size) for i in range(parts)]
    # the same generation has served an update before, of other lengths
    earlier = [part | {"completion_mask": torch.ones_like(part["completion_mask"])} for part in own]
    trainer._buffered_inputs = earlier + own
    trainer.args.gradient_accumulation_steps = trainer.current_gradient_accumulation_steps = parts
    trainer.model.train()
    trainer.model.zero_grad()
    total = 0.0
    for step, inputs in enumerate(own, start=parts):
        trainer._step = step
        trainer.accelerator.gradient_state._set_sync_gradients(step == 2 * parts - 1)
        loss = trainer._compute_loss(trainer.model, inputs)
        loss.backward()
        total += loss.item()
    return total, gradient(trainer.model)


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_is_the_objective(make, name):
    """The objective on TRL's log-probs, whatever the micro-batches; metrics are those of the whole step."""
    batch = hand_made()
    trainer = make(name)
    for mode in AGGREGATIONS:
        trainer.loss_agg_mode = mode
        loss, grad = loss_and_gradient(trainer, batch)
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
        attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
        logits = trainer.model(input_ids=ids, attention_mask=attention).logits[:, 2:-1]
        log_prob = logits.log_softmax(-1).gather(-1, batch["completion_ids"][..., None])[..., 0]
        mask = batch["completion_mask"] * batch["tool_mask"]
        expected, metrics = objectives.get(name)(
            log_prob, batch["old_per_token_logps"], batch["advantages"], mask,
            loss_agg_mode=mode, loss_scale_factor=WIDTH,
        )  # fmt: skip
        trainer.model.zero_grad()
        expected.backward()
        assert loss == pytest.approx(expected.item(), rel=1e-4, abs=1e-6) and grad.abs().max() > 1e-4
        same(grad, gradient(trainer.model))
        for parts in (2, 4):
            trainer._metrics["train"].clear()
            other, other_grad = loss_and_gradient(trainer, batch, parts)
            assert other == pytest.approx(loss, rel=1e-4, abs=1e-6)
            same(other_grad, grad)
            logs = trainer._metrics["train"]
            for key, value in metrics.items():
                assert logs[f"objective/{key}"] == [pytest.approx(value.item(), abs=1e-5)]


@pytest.mark.parametrize("bias_correction", [False, True])
@pytest.mark.parametrize("weights", [None, (8, 6), (8, 1)])
@pytest.mark.parametrize("parts", [1, 2])
def test_kl_and_vllm_weights_as_trl(make, bias_correction, weights, parts):
    batch = hand_made()
    generator = torch.Generator().manual_seed(1)
    batch["ref_per_token_logps"] = -3.0 + torch.rand(8, 6, generator=generator)
    if weights is not None:
        batch["importance_sampling_ratio"] = 2 * torch.rand(weights, generator=generator)
    theirs, ours = make(), make("grpo", SAME_CLIP)
    for trainer in (theirs, ours):
        trainer.use_vllm = weights is not None
        trainer.args.use_bias_correction_kl = bias_correction
    plain, _ = loss_and_gradient(ours, batch)
    for trainer in (theirs, ours):
        trainer.beta = 0.3  # after construction: no reference model on disk is needed
        trainer.args.steps_per_generation = parts
    their_loss, their_grad = loss_and_gradient(theirs, batch, parts)
    loss, grad = loss_and_gradient(ours, batch, parts)
    assert loss == pytest.approx(their_loss, rel=1e-5, abs=1e-6) and abs(loss - plain) > 1e-3
    same(grad, their_grad)
    if parts == 1:
        assert ours._metrics["train"]["kl"] == pytest.approx(theirs._metrics["train"]["kl"], rel=1e-5)


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_processes_are_as_micro_batches(make, monkeypatch, mode):
    """Two processes with half the rows each, whose gradients the trainer averages."""
    batch = hand_made()
    loss, grad = loss_and_gradient(make("nfpo", {"loss_agg_mode": mode}), batch)
    halves = [rows(batch, 0, 4), rows(batch, 4, 8)]
    lengths = [(half["completion_mask"] * half["tool_mask"]).sum(-1) for half in halves]
    trainers = [make("nfpo", {"loss_agg_mode": mode}) for _ in halves]
    monkeypatch.setattr(type(trainers[0].accelerator), "num_processes", property(lambda self: 2))
    parts = []
    for trainer, half, other in zip(trainers, halves, lengths[::-1], strict=True):
        counts = torch.stack([other.sum(), (other > 0).sum()])
        monkeypatch.setattr(trainer.accelerator, "reduce", lambda own, how, counts=counts: own + counts)
        parts.append(loss_and_gradient(trainer, half))
    (one, one_grad), (two, two_grad) = parts
    assert (one + two) / 2 == pytest.approx(loss, rel=1e-5, abs=1e-6)
    same((one_grad + two_grad) / 2, grad)


def test_masked_responses_do_not_count(make):
    """TRL's `grpo` divides by all rows, ours by rows with a token: row 1 has none."""
    theirs, ours = make(loss_type="grpo"), make("grpo", SAME_CLIP | {"loss_agg_mode": "seq-mean-token-mean"})
    their_loss, their_grad = loss_and_gradient(theirs, hand_made())
    loss, grad = loss_and_gradient(ours, hand_made())
    assert loss == pytest.approx(their_loss * 8 / 7, rel=1e-5)
    same(grad, their_grad * 8 / 7)


def test_router_loss_as_trl(make):
    theirs, ours = make(moe=True), make("grpo", SAME_CLIP, moe=True)
    for parts in (1, 2):
        for trainer in (theirs, ours):
            trainer.args.steps_per_generation = parts
        their_loss, their_grad = loss_and_gradient(theirs, hand_made(), parts)
        loss, grad = loss_and_gradient(ours, hand_made(), parts)
        assert ours.aux_loss_enabled and loss == pytest.approx(their_loss, rel=1e-5)
        same(grad, their_grad)


# --- around the loss ----------------------------------------------------------------------------------


@pytest.mark.fault("truncated-in-the-denominator")
def test_truncated_responses_masked(make):
    trainer = make("nfpo", mask_truncated_completions=True)
    trainer.train()
    unfinished = make("nfpo", mask_truncated_completions=True, max_completion_length=1, max_steps=1)
    unfinished.train()
    for run in (trainer, unfinished):
        counted, lengths = logged(run)["objective/tokens"], logged(run, "completions/mean_length")
        assert all(c < 8 * n for c, n in zip(counted, lengths["completions/mean_length"], strict=True))
        assert all(g.isfinite().all() for g in run.gradients)


def test_the_documented_run(monkeypatch, capsys):
    """The example of docs/trl.md runs, and learns."""
    monkeypatch.setenv("CI", "1")
    page = Path(__file__).parents[1] / "docs" / "trl.md"
    example = next(code for code in page.read_text().split("```python")[1:] if "GRPOConfig(" in code)
    exec(compile(example.partition("```")[0], str(page), "exec"), {"__name__": "example"})
    rewards = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines() if line[0].isdigit()]
    assert len(rewards) == 3 and rewards[-1] > rewards[0] + 0.2


def test_evaluation(make):
    trainer = make("nfpo", per_device_eval_batch_size=4)
    before = weights_of(trainer)
    result = trainer.evaluate(Dataset.from_dict({"prompt": ["1 + 2 =", "a b"]}))
    assert math.isfinite(result["eval_loss"]) and result["eval_objective/tokens"] > 4
    assert torch.equal(before, weights_of(trainer)) and not trainer._parts


# --- refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REFUSED)
def test_objectives_that_need_more(make, name):
    with pytest.raises(ValueError, match=f"objective='{name}': needs "):
        make(name)


def test_what_is_refused():
    assert REFUSED == ["masked_gspo", "mpo", "mpo_grpo"] and {"nfpo", "grpo", "gspo"} < set(NAMES)


@pytest.mark.parametrize(
    ("objective", "parameters", "message"),
    [
        ("nfop", {}, "'nfop': did you mean 'nfpo'"),
        ("nfpo", {"horizn": 8}, "nfpo has no parameter 'horizn': did you mean 'horizon'"),
        ("nfpo", {"horizon": 0}, "horizon=0"),
        ("nfpo", {"loss_agg_mode": "mean"}, "loss_agg_mode='mean'"),
        ("nfpo", {"loss_scale_factor": -1}, "loss_scale_factor=-1"),
        (
            "nfpo",
            {"rollout_log_prob": torch.zeros(8, 8)},
            "'rollout_log_prob': nfpo takes a tensor there, one per batch, and TRL's trainer has none",
        ),
        ("nfpo", {"dp_size": 2}, "has 'dp_size', which the trainer fills in: allowed are band"),
        ("grpo", {"reduction": "none"}, "objective_parameters has 'reduction'"),
    ],
)
def test_bad_objectives(make, objective, parameters, message):
    with pytest.raises(ValueError, match=message):
        make(objective, parameters)


def test_the_knobs_of_the_message_are_those_that_can_be_given(make):
    """Neither tensors nor what the trainer fills in, for a name that is near one or near none."""
    with pytest.raises(ValueError, match="nfpo has no parameter 'horizn'") as caught:
        make("nfpo", {"horizn": 8})
    listed = str(caught.value).partition("allowed are ")[2].split(", ")
    own = set(objectives.nfpo.parameters) - {"rollout_log_prob"}
    assert set(listed) == own | {"loss_agg_mode", "loss_scale_factor", "check"}


def test_a_clip_that_never_acts_is_named_once(make, caplog):
    """huggingface/trl#3834: GSPO with a token's clip. Two updates per generation, the second off-policy."""
    wide = {"clip_low": 0.9, "clip_high": 0.9}
    trainer = make("gspo", wide, num_iterations=2, max_steps=8, learning_rate=1e-3)
    trainer._idle_clip.patience = 3
    with caplog.at_level(logging.WARNING, logger="rlvr.engines.trl"):
        trainer.train()
    first, *more = [r.getMessage() for r in caplog.records if "touched no token" in r.getMessage()]
    assert "gspo: its clip or mask (clip_low=0.9, clip_high=0.9) touched no token in 3 updates" in first
    assert not more
    assert logged(trainer)["objective/clip_fraction"] == [0.0] * 8


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss_type": "grpo"}, "loss_type='grpo': allowed is TRL's default 'dapo'"),
        ({"epsilon": 0.1}, "epsilon=0.1"),
        ({"epsilon_high": 0.28}, "epsilon_high=0.28"),
        ({"delta": 3.0}, "delta=3.0"),
        ({"importance_sampling_level": "sequence"}, "importance_sampling_level='sequence'"),
        ({"use_liger_kernel": True}, "use_liger_kernel=True"),
        ({"entropy_coef": 0.01}, "entropy_coef=0.01"),
        ({"use_adaptive_entropy": True}, "use_adaptive_entropy=True"),
        ({"top_entropy_quantile": 0.2}, "top_entropy_quantile=0.2"),
        ({"off_policy_mask_threshold": 0.5}, "off_policy_mask_threshold=0.5"),
        (
            {"gradient_accumulation_steps": 2, "steps_per_generation": 1},
            "gradient_accumulation_steps=2: allowed are divisors of .* = 1",
        ),
        ({"gradient_accumulation_steps": 2, "steps_per_generation": 3}, "= 3"),
    ],
)
def test_bad_settings(make, settings, message):
    with pytest.raises(ValueError, match=message):
        make("grpo", **settings)
