"""One update of both turns through verl's FSDP2 engine, each with its own weight of the KL penalty, as a step
of two turns hands it over; and the same through the local engine. Prints numbers.

Run as a program by ``test_plugin_engine.py``, like ``engine_run.py``: ``anchored_run.py FOLDER ROWS``, so
many rows in a micro-batch.
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
from rlvr.engines.local.packing import pack
from rlvr.engines.local.policy import flatten, unflatten
from rlvr.engines.local.update import MiniBatch, Updater, response_log_prob
from rlvr.engines.verl import PolicyLossConfig
from rlvr.engines.verl.self_correcting import KL_COEF, TURN, SelfCorrectingTrainingWorker

FIRST, FILLER, PAD = 2 * SIZE, 4, 0  # rows of the first turn; the third group stands for second turns
ROWS = GROUPS * SIZE + FILLER
HOLD, KL = 0.7, 0.2  # large enough to be seen beside the policy's gradient
PARAMETERS = {"clip_low": 0.2, "clip_high": 0.2}


def verl_batch(batch, advantages, anchor, end):
    lengths = [*batch.lengths, *[1] * FILLER]
    none = torch.tensor([end])
    prompts = [torch.tensor(batch.prompts[i // SIZE]) for i in range(GROUPS * SIZE)] + [none] * FILLER
    rows = {
        "responses": [*batch.tokens, *[none] * FILLER],
        "old_log_probs": [*batch.old_log_prob, *[torch.zeros(1)] * FILLER],
        "ref_log_prob": [*anchor, *[torch.full((1,), -9.0)] * FILLER],
        "advantages": [*(a.expand(99) for a in advantages), *[torch.zeros(1)] * FILLER],
        "response_mask": [torch.ones(99, dtype=torch.int64)] * (GROUPS * SIZE)
        + [torch.zeros(1, dtype=torch.int64)] * FILLER,
    }
    data = {
        name: [row[:n].clone() for row, n in zip(values, lengths, strict=True)]
        for name, values in rows.items()
    }
    ids = [torch.cat(pair) for pair in zip(prompts, data["responses"], strict=True)]
    data |= {"prompts": prompts, "input_ids": ids, "loss_mask": data["response_mask"]}
    data["position_ids"] = [torch.arange(len(i)) for i in ids]
    second = GROUPS * SIZE - FIRST
    found = {name: nested(values) for name, values in data.items()}
    found[TURN] = torch.tensor([1] * FIRST + [2] * second + [0] * FILLER)
    found[KL_COEF] = torch.tensor([HOLD] * FIRST + [KL] * second + [0.0] * FILLER)
    return tu.get_tensordict(
        found,
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


def local(theta, shape, batch, advantages, anchor, weights=(HOLD, KL)):
    """Both turns in one update, as ``SelfCorrectionRun`` makes it."""
    loss = partial(objectives.get("gspo"), loss_agg_mode="seq-mean-token-mean", **PARAMETERS)
    updater = Updater(theta, shape, loss, LR, (0.9, 0.95), 0.0, NO_CLIP, temperature=1.0)
    parts = []
    for rows, prompts, size, weight in (
        (slice(FIRST), batch.prompts[:2], SIZE, weights[0]),
        (slice(FIRST, GROUPS * SIZE), [batch.prompts[2]] * SIZE, 1, weights[1]),
    ):
        packed = pack(prompts, batch.tokens[rows], torch.tensor(batch.lengths[rows]), size)
        width = packed.size[1]
        old, held = batch.old_log_prob[rows, :width], anchor[rows, :width]
        part = MiniBatch(packed, old, advantages[rows], 0, anchor_log_prob=held, kl_coef=weight)
        parts.append(part)
    metrics, _, _ = updater.step(parts[0], parts[1:])
    return updater.theta.grad, metrics


def main(folder, micro):
    policy = random_policy(seed=0)
    g = torch.Generator().manual_seed(9)
    noise = torch.randn(policy.theta.shape, generator=g)
    batch = make_batch(policy.with_theta(policy.theta + 0.02 * noise), lowest=2)
    base = policy.theta + 0.05 * torch.randn(policy.theta.shape, generator=g)
    with torch.no_grad():
        anchor = response_log_prob(base, policy.shape, batch.packed, 1.0)[0]
    advantages = batch.advantages.clone()
    advantages[:FIRST] = 0.0  # stage 1
    policy.save_pretrained(folder)
    codec().tokenizer.save_pretrained(folder)
    worker, engine = make_worker(folder, SelfCorrectingTrainingWorker, micro)
    theta = flatten(
        {n: full(p).detach().clone() for n, p in worker.engine.module.named_parameters()}, policy.shape
    )
    actor = FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=SIZE,
        ppo_mini_batch_size=ROWS // SIZE,
        ppo_micro_batch_size_per_gpu=micro,
        fsdp_config=engine,
        policy_loss=PolicyLossConfig("rlvr.gspo", **PARAMETERS),
        loss_agg_mode="seq-mean-token-mean",
        use_kl_loss=True,
        kl_loss_coef=0.0,
        use_torch_compile=False,
    )
    gradient, step = {}, type(worker.engine).optimizer_step

    def keep_gradient():  # verl frees it at the end of the update
        for name, parameter in worker.engine.module.named_parameters():
            gradient[name] = full(parameter.grad).detach().clone()
        return step(worker.engine)

    worker.engine.optimizer_step = keep_gradient
    worker.set_loss_fn(partial(ppo_loss, config=actor))
    data = verl_batch(batch, advantages, anchor, codec().eos_id)
    out = tu.get(worker.train_mini_batch(data), "metrics")
    theirs = flatten(gradient, policy.shape)

    def difference(ours):
        values = theirs - ours
        unflatten(values, policy.shape).embed[PAD] = 0.0
        return values.abs().max().item()

    ours, said = local(theta, policy.shape, batch, advantages, anchor)
    free, _ = local(theta, policy.shape, batch, advantages, anchor, (0.0, 0.0))
    swapped, _ = local(theta, policy.shape, batch, advantages, anchor, (KL, HOLD))
    results = {
        "largest_gradient": ours.abs().max().item(),
        "gradient_difference": difference(ours),
        "difference_without_penalty": difference(free),
        "difference_of_swapped_weights": difference(swapped),
        "loss": [out["loss"][0], said["loss"]],
        "anchor_kl": [out["actor/anchor_kl"][0], said["anchor_kl"]],
        "correction_anchor_kl": [out["actor/correction_anchor_kl"][0], said["more"][0]["anchor_kl"]],
    }
    print("engine-run:" + json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
