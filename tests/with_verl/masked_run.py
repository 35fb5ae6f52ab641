"""One update of masked GSPO through verl's FSDP2 engine, as a step with corrections hands it over: rows that
only fill the update up, masks in place of weights. And the same through the local engine; prints numbers.

Run as a program by ``test_plugin_engine.py``, like ``engine_run.py``.
"""

import json
import sys
from functools import partial
from pathlib import Path

from engine_run import GROUPS, LR, NO_CLIP, SIZE, full, make_batch, make_worker, nested

import torch  # isort: skip  engine_run hides TRL before anything imports it
from local_fixtures import codec, random_policy
from verl.utils import tensordict_utils as tu
from verl.workers.config import FSDPActorConfig
from verl.workers.utils.losses import ppo_loss

from rlvr import objectives
from rlvr.engines.local.policy import flatten, unflatten
from rlvr.engines.local.update import MiniBatch, Updater
from rlvr.engines.verl import PolicyLossConfig
from rlvr.engines.verl.two_pass import TwoPassTrainingWorker

FILLER, PAD = 4, 0
ROWS = GROUPS * SIZE + FILLER
PARAMETERS = {"clip_low": 0.2, "clip_high": 0.2}


def verl_batch(batch, marks, end):
    lengths = batch.lengths
    prompts = [torch.tensor(batch.prompts[i // SIZE]) for i in range(len(lengths))]
    responses = [row[:n] for row, n in zip(batch.tokens, lengths, strict=True)]
    masks = [torch.ones(n, dtype=torch.int64) for n in lengths]
    old = [row[:n] for row, n in zip(batch.old_log_prob, lengths, strict=True)]
    advantages = [a.expand(n).clone() for a, n in zip(batch.advantages, lengths, strict=True)]
    weights = [row[:n].float() for row, n in zip(marks, lengths, strict=True)]
    for _ in range(FILLER):  # as verl's padding makes them
        prompts.append(torch.tensor([end]))
        responses.append(torch.tensor([end]))
        masks.append(torch.zeros(1, dtype=torch.int64))
        old.append(torch.zeros(1))
        advantages.append(torch.zeros(1))
        weights.append(torch.ones(1))
    ids = [torch.cat(pair) for pair in zip(prompts, responses, strict=True)]
    data = {
        "prompts": nested(prompts),
        "responses": nested(responses),
        "input_ids": nested(ids),
        "position_ids": nested(torch.arange(len(i)) for i in ids),
        "response_mask": nested(masks),
        "loss_mask": nested(masks),
        "old_log_probs": nested(old),
        "advantages": nested(advantages),
        "rollout_is_weights": nested(weights),
    }
    return tu.get_tensordict(
        data,
        non_tensor_dict={
            "temperature": 1.0,
            "calculate_entropy": False,
            "compute_loss": True,
            "global_batch_size": ROWS,  # verl's count
            "mini_batch_size": ROWS,
            "epochs": 1,
            "global_token_num": [len(i) for i in ids],
        },
    )


def local(theta, shape, batch, marks, objective, rows):
    loss = partial(
        objectives.get(objective), loss_agg_mode="seq-mean-token-mean", global_batch_size=rows, **PARAMETERS
    )
    updater = Updater(theta, shape, loss, LR, (0.9, 0.95), 0.0, NO_CLIP, temperature=1.0)
    metrics, _, _ = updater.step(
        MiniBatch(batch.packed, batch.old_log_prob, batch.advantages, 0, token_mask=marks)
    )
    return updater.theta.grad, metrics["loss"]


def main(folder):
    policy = random_policy(seed=0)
    noise = torch.randn(policy.theta.shape, generator=torch.Generator().manual_seed(9))
    batch = make_batch(policy.with_theta(policy.theta + 0.02 * noise), lowest=2)
    marks = torch.rand(batch.old_log_prob.shape, generator=torch.Generator().manual_seed(2)) < 0.6
    marks[0] = True  # a response that is updated as a whole
    policy.save_pretrained(folder)
    codec().tokenizer.save_pretrained(folder)
    worker, engine = make_worker(folder, TwoPassTrainingWorker, ROWS // 2)
    theta = flatten(
        {n: full(p).detach().clone() for n, p in worker.engine.module.named_parameters()}, policy.shape
    )
    actor = FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=SIZE,
        ppo_mini_batch_size=ROWS // SIZE,
        ppo_micro_batch_size_per_gpu=ROWS // 2,
        fsdp_config=engine,
        policy_loss=PolicyLossConfig("masked_gspo", **PARAMETERS),
        loss_agg_mode="seq-mean-token-mean",
        use_torch_compile=False,
    )
    gradient, step = {}, type(worker.engine).optimizer_step

    def keep_gradient():  # verl frees it at the end of the update
        for name, parameter in worker.engine.module.named_parameters():
            gradient[name] = full(parameter.grad).detach().clone()
        return step(worker.engine)

    worker.engine.optimizer_step = keep_gradient
    worker.set_loss_fn(partial(ppo_loss, config=actor))
    out = tu.get(worker.train_mini_batch(verl_batch(batch, marks, codec().eos_id)), "metrics")
    theirs = flatten(gradient, policy.shape)

    def difference(ours):
        values = theirs - ours
        unflatten(values, policy.shape).embed[PAD] = 0.0
        return values.abs().max().item()

    rows = GROUPS * SIZE
    ours, loss = local(theta, policy.shape, batch, marks, "masked_gspo", rows)
    every = torch.ones_like(marks)
    whole, _ = local(theta, policy.shape, batch, every, "masked_gspo", rows)
    sixteen, _ = local(theta, policy.shape, batch, marks, "masked_gspo", ROWS)
    valid = batch.packed.response_mask.bool()
    results = {
        "rows": ROWS,
        "marked": float(marks[valid].float().mean()),
        "largest_gradient": ours.abs().max().item(),
        "gradient_difference": difference(ours),
        "loss": [out["loss"][0], loss],
        "difference_without_mask": difference(whole),
        "difference_of_sixteen": difference(sixteen),
    }
    print("engine-run:" + json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
