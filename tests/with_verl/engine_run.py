"""One actor update through verl's FSDP2 engine, and the same through the local engine; prints numbers.

Run as a program by ``test_plugin_engine.py``, so that the process group lives and dies here:
``engine_run.py FOLDER``. One process, gloo, no Ray.
"""

import json
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.modules["trl"] = None  # verl's engine patches TRL when it finds it, and fails with TRL 1.x

import pandas as pd
import ray
import torch
from local_fixtures import codec, random_policy, random_prompts
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils as tu
from verl.utils.distributed import initialize_global_process_group_ray
from verl.workers.config import (
    FSDPActorConfig,
    FSDPEngineConfig,
    FSDPOptimizerConfig,
    HFModelConfig,
    TrainingWorkerConfig,
)
from verl.workers.config import PolicyLossConfig as StockConfig
from verl.workers.utils.losses import ppo_loss

from rlvr import objectives
from rlvr.engines.jobs.updates import read_updates
from rlvr.engines.local.packing import PackedGroups, pack
from rlvr.engines.local.policy import flatten, unflatten
from rlvr.engines.local.update import MiniBatch, Updater, response_log_prob
from rlvr.engines.verl import PolicyLossConfig
from rlvr.engines.verl.recording import ROW, SETTINGS, RecordingTrainingWorker
from rlvr.engines.verl.updates import FOLDER

RECORDED = [1, 6, 7, 11]  # rows of the batch, in both micro-batches
GROUPS, SIZE, LR, NO_CLIP, PAD = 3, 4, 1e-3, 1e9, 0
SCALE = "seq-mean-token-sum-norm"
CASES = {
    # name: policy_loss, loss_agg_mode, loss_scale_factor, the objective's parameters, tokens
    "nfpo": (StockConfig(loss_mode="nfpo"), SCALE, 16, {}, "words"),
    "nfpo-parameters": (
        PolicyLossConfig("nfpo", horizon=8, trace_clip=[0.7, 1.2], region="kl", delta=0.001),
        "token-mean",
        None,
        {"horizon": 8, "trace_clip": (0.7, 1.2), "region": "kl", "delta": 0.001},
        "words",
    ),
    "rlvr.gspo": (
        PolicyLossConfig("rlvr.gspo", clip_low=0.2, clip_high=0.2),
        "seq-mean-token-mean",
        None,
        {"clip_low": 0.2, "clip_high": 0.2},
        "words",
    ),
    "with-pad": (StockConfig(loss_mode="nfpo"), SCALE, 16, {}, "any"),
}


class Batch(NamedTuple):
    prompts: list[list[int]]
    tokens: torch.Tensor  # [B, T]
    lengths: list[int]
    packed: PackedGroups
    old_log_prob: torch.Tensor  # [B, T]
    advantages: torch.Tensor  # [B]


def make_batch(behaviour, lowest):
    """Random responses of token ids >= ``lowest`` with their log-probs under ``behaviour``."""
    g = torch.Generator().manual_seed(4)
    rows = GROUPS * SIZE
    prompts = random_prompts(GROUPS, seed=3)
    lengths = torch.randint(2, 13, (rows,), generator=g)
    tokens = torch.randint(lowest, 60, (rows, 12), generator=g)
    if lowest == PAD:
        tokens[::2, 1] = PAD
    packed = pack(prompts, tokens, lengths, SIZE)
    old, _ = response_log_prob(behaviour.theta, behaviour.shape, packed, 1.0)
    return Batch(prompts, tokens, lengths.tolist(), packed, old.detach(), torch.randn(rows, generator=g))


def nested(rows):
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


def verl_batch(batch, folder):
    """The batch as our trainer hands it to the actor: nested tensors, one mini-batch, some rows marked."""
    lengths = batch.lengths
    prompts = [torch.tensor(batch.prompts[i // SIZE]) for i in range(len(lengths))]
    responses = [row[:n] for row, n in zip(batch.tokens, lengths, strict=True)]
    ids = [torch.cat(pair) for pair in zip(prompts, responses, strict=True)]
    ones = [torch.ones(n, dtype=torch.int64) for n in lengths]
    data = {
        "prompts": nested(prompts),
        "responses": nested(responses),
        "input_ids": nested(ids),
        "position_ids": nested(torch.arange(len(i)) for i in ids),
        "response_mask": nested(ones),
        "loss_mask": nested(ones),
        "old_log_probs": nested(row[:n] for row, n in zip(batch.old_log_prob, lengths, strict=True)),
        "advantages": nested(a.expand(n).clone() for a, n in zip(batch.advantages, lengths, strict=True)),
    }
    rows = len(lengths)
    data[ROW] = torch.tensor([row if row in RECORDED else -1 for row in range(rows)])
    return tu.get_tensordict(
        data,
        non_tensor_dict={
            "temperature": 1.0,
            "calculate_entropy": True,
            SETTINGS: {"folder": str(folder), "step": 3, "megabytes": 1.0},
            FOLDER: {"folder": str(folder), "step": 3},
            "compute_loss": True,
            "global_batch_size": rows,
            "mini_batch_size": rows,
            "epochs": 1,
            "global_token_num": [len(i) for i in ids],
        },
    )


def make_worker(path, kind=RecordingTrainingWorker, micro_batch=GROUPS * SIZE // 2):
    initialize_global_process_group_ray(backend="gloo")
    single = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    model = HFModelConfig(
        path=str(path),
        use_remove_padding=False,
        enable_gradient_checkpointing=False,
        override_config={"attn_implementation": "sdpa"},
    )
    engine = FSDPEngineConfig(
        strategy="fsdp2",
        mixed_precision=single,
        model_dtype="fp32",
        use_torch_compile=False,
        use_dynamic_bsz=False,
        micro_batch_size_per_gpu=micro_batch,
        infer_micro_batch_size_per_gpu=micro_batch,
    )
    optimizer = FSDPOptimizerConfig(
        lr=LR, betas=(0.9, 0.95), weight_decay=0.0, clip_grad=NO_CLIP, total_training_steps=10
    )
    worker = kind(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=model,
            engine_config=engine,
            optimizer_config=optimizer,
            checkpoint_config=CheckpointConfig(),
        )
    )
    worker.reset()
    return worker, engine


def full(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def record_differences(folder, batch, log_prob, slope):
    """Largest difference of each recorded column from what the local engine holds."""
    frame = pd.read_parquet(folder / "records-000003-rank0.parquet")
    assert sorted(frame["response"].unique()) == RECORDED
    assert (frame["step"] == 3).all() and (frame["minibatch"] == 0).all()
    row, position = torch.tensor(frame["response"].to_numpy()), torch.tensor(frame["position"].to_numpy())
    assert len(frame) == sum(batch.lengths[i] for i in RECORDED)
    ours = {
        "token": batch.tokens[row, position],
        "log_prob": log_prob[row, position],
        "old_log_prob": batch.old_log_prob[row, position],
        "advantage": batch.advantages[row],
        "mask": (slope[row, position] != 0).int(),
    }
    found = {
        name: (torch.tensor(frame[name].to_numpy()) - values).abs().max().item()
        for name, values in ours.items()
    }
    return found | {"masked": int((frame["mask"] == 0).sum())}


def run_case(worker, engine, folder, shape, batch, policy_loss, mode, scale, parameters):
    state = {name: full(p).detach().clone() for name, p in worker.engine.module.named_parameters()}
    theta = flatten(state, shape)

    actor = FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=SIZE,
        ppo_mini_batch_size=GROUPS,
        ppo_micro_batch_size_per_gpu=GROUPS * SIZE // 2,
        fsdp_config=engine,
        policy_loss=policy_loss,
        loss_agg_mode=mode,
        loss_scale_factor=scale,
        use_torch_compile=False,
    )
    calls, gradient = [], {}

    def loss_fn(*args, **kwargs):
        loss, metrics = ppo_loss(*args, config=actor, **kwargs)
        calls.append(metrics)
        return loss, metrics

    step = type(worker.engine).optimizer_step

    def keep_gradient():  # verl frees it at the end of the update
        for name, parameter in worker.engine.module.named_parameters():
            gradient[name] = full(parameter.grad).detach().clone()
        return step(worker.engine)

    worker.engine.optimizer_step = keep_gradient
    worker.set_loss_fn(loss_fn)
    out = tu.get(worker.train_mini_batch(verl_batch(batch, folder)), "metrics")
    theirs = flatten(gradient, shape)
    after = flatten({name: full(p) for name, p in worker.engine.module.named_parameters()}, shape)

    loss_mode = policy_loss.loss_mode
    objective = objectives.get(loss_mode.removeprefix("rlvr."))
    loss = partial(objective, loss_agg_mode=mode, loss_scale_factor=scale, **parameters)
    updater = Updater(theta, shape, loss, LR, (0.9, 0.95), 0.0, NO_CLIP, temperature=1.0)
    (row,) = read_updates(folder, 3).to_dict("records")
    metrics, log_prob, slope = updater.step(MiniBatch(batch.packed, batch.old_log_prob, batch.advantages, 0))
    ours = updater.theta.grad
    moved = updater.theta.detach() - theta
    token = (log_prob - batch.old_log_prob)[batch.packed.response_mask.bool()].double().exp()
    ours_of_update = metrics | {"token_ratio_variance": float(token.var())}
    difference = theirs - ours
    unflatten(difference, shape).embed[PAD] = 0.0  # a view
    return {
        "micro_batches": len(calls),
        "metrics": sorted(calls[0]),
        "largest_gradient": ours.abs().max().item(),
        "gradient_difference": difference.abs().max().item(),
        "gradient_difference_of_pad": unflatten(theirs - ours, shape).embed[PAD].abs().max().item(),
        "grad_norm": [out["grad_norm"][0], metrics["grad_norm"]],
        "loss": [out["loss"][0], metrics["loss"]],
        "step_norm": moved.norm().item(),
        "step_difference": (after - theta - moved).norm().item(),
        "correction_strength": metrics["correction_strength"],
        "records": record_differences(folder, batch, log_prob, slope),
        "entropy": [sum(call["actor/token_entropy"].values[0] for call in calls), metrics["entropy"]],
        "grad_norm_max": out["grad_norm_max"][0],
        "update": {name: [row[name], value] for name, value in ours_of_update.items() if name in row},
        "update_lacks": sorted(set(ours_of_update) - set(row)),
        "update_adds": sorted(set(row) - set(ours_of_update)),
    }


def main(folder):
    policy = random_policy(seed=0)
    noise = torch.randn(policy.theta.shape, generator=torch.Generator().manual_seed(9))
    behaviour = policy.with_theta(policy.theta + 0.02 * noise)  # stale, so that ratios differ from 1
    batches = {"words": make_batch(behaviour, lowest=2), "any": make_batch(behaviour, lowest=PAD)}
    policy.save_pretrained(folder)
    codec().tokenizer.save_pretrained(folder)
    worker, engine = make_worker(folder)
    results = {}
    for name, (*case, tokens) in CASES.items():
        results[name] = run_case(worker, engine, folder, policy.shape, batches[tokens], *case)
    results["ray_initialised"] = ray.is_initialized()
    print("engine-run:" + json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
