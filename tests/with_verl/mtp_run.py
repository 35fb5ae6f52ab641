"""An actor update with MTP modules through verl's FSDP2 engine, and the same by the local engine.

Run as a program by ``test_mtp_engine.py``: ``mtp_run.py FOLDER CASE ...``. No Ray; gloo, as many processes as
``WORLD_SIZE`` says, each with its share of the rows.
"""

import json
import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from engine_run import (
    GROUPS,
    LR,
    SIZE,
    codec,
    full,
    make_batch,
    nested,
    random_policy,
    verl_batch,
)
from safetensors import safe_open
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
from verl.workers.utils.losses import ppo_loss

from rlvr import objectives
from rlvr.config_mtp import Mtp, MtpWarmUp
from rlvr.engines.jobs.updates import read_updates
from rlvr.engines.local.flat import FlatTrainer
from rlvr.engines.local.method_update import MethodBatch, MethodUpdater, Modules
from rlvr.engines.local.mtp import MtpModules, new_modules, predict
from rlvr.engines.local.network import packed_states
from rlvr.engines.local.policy import flatten, unflatten
from rlvr.engines.verl import PolicyLossConfig
from rlvr.engines.verl.mtp_stack import OLD, SAID, of_responses, padded
from rlvr.engines.verl.mtp_worker import MtpTrainingWorker
from rlvr.engines.verl.updates import FOLDER
from rlvr.ratios import block_weights

BETAS, CLIP, MODULES_LR = (0.9, 0.95), 0.05, 3e-3  # a clip that acts
BLOCKS = 4
CASES = {
    # name: variant, hidden, policy_gradient, train, reshard_after_forward
    "parallel": ("parallel", "last", "stop", "cross_entropy", True),
    "chained": ("chained", "trunk", "modules", "cross_entropy", False),
    "policy-only": ("parallel", "trunk", "modules", "none", True),
    "frozen": ("parallel", "last", "stop", "none", True),
}
PARAMETERS = {"mtp_weight": 0.4, "decay": 0.7}


def stirred(policy, variant, hidden, seed):
    modules = new_modules(policy, BLOCKS, variant, hidden)
    noise = torch.randn(modules.phi.shape, generator=torch.Generator().manual_seed(seed))
    return MtpModules(modules.shape, modules.phi + 0.05 * noise)


def said(policy, modules, packed):
    weights = unflatten(policy.theta.detach(), policy.shape)
    states = packed_states(weights, policy.shape, packed)
    return predict(modules.phi, modules.shape, weights, states, packed, 1.0).log_prob.detach()


def make_worker(path, settings, reshard):
    initialize_global_process_group_ray(backend="gloo")
    rows = GROUPS * SIZE // 2 // dist.get_world_size()  # two micro-batches
    model = HFModelConfig(
        path=str(path),
        use_remove_padding=False,
        enable_gradient_checkpointing=reshard,
        override_config={"attn_implementation": "sdpa"},
    )
    engine = FSDPEngineConfig(
        strategy="fsdp2",
        mixed_precision=dict.fromkeys(("param_dtype", "reduce_dtype", "buffer_dtype"), "fp32"),
        model_dtype="fp32",
        use_torch_compile=False,
        use_dynamic_bsz=False,
        micro_batch_size_per_gpu=rows,
        infer_micro_batch_size_per_gpu=rows,
        reshard_after_forward=reshard,
    )
    optimizer = FSDPOptimizerConfig(
        lr=LR, betas=BETAS, weight_decay=0.0, clip_grad=CLIP, total_training_steps=10
    )
    contents = ["model", "optimizer", "extra"]
    checkpoint = CheckpointConfig(save_contents=[*contents, "hf_model"], load_contents=contents)
    policy_loss = PolicyLossConfig("mpo", mtp=settings, **PARAMETERS)
    config = TrainingWorkerConfig(
        model_type="language_model",
        model_config=model,
        engine_config=engine,
        optimizer_config=optimizer,
        checkpoint_config=checkpoint,
    )
    worker = MtpTrainingWorker(config, policy_loss=policy_loss)
    worker.reset()
    actor = FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=SIZE,
        ppo_mini_batch_size=GROUPS,
        ppo_micro_batch_size_per_gpu=rows,
        fsdp_config=engine,
        policy_loss=policy_loss,
        loss_agg_mode="token-mean",
        use_torch_compile=False,
    )
    worker.set_loss_fn(partial(ppo_loss, config=actor))
    return worker


def policy_of(worker, shape):
    return flatten({name: full(p).detach() for name, p in worker.engine.module.named_parameters()}, shape)


def modules_of(worker):
    return {name: full(p).detach().clone() for name, p in worker.engine.stack.mtp.state_dict().items()}


def distance(ours, theirs):
    assert ours.keys() == theirs.keys()
    return sum(float((ours[name] - theirs[name]).pow(2).sum()) for name in ours) ** 0.5


def run_case(folder, policy, behaviour, batch, variant, hidden, policy_gradient, train, reshard):
    start = stirred(policy, variant, hidden, 1)
    start.save(folder)
    old = said(behaviour, stirred(policy, variant, hidden, 2), batch.packed)
    settings = {"blocks": BLOCKS, "variant": variant, "hidden": hidden, "policy_gradient": policy_gradient}
    settings |= {"train": train, "lr": MODULES_LR}
    worker = make_worker(folder, settings | {"start": str(folder)}, reshard)
    kept = folder.parents[1] / "updates" / folder.name  # of all ranks

    def given():
        data = verl_batch(batch, folder / "records")
        tu.assign_non_tensor(data, **{FOLDER: {"folder": str(kept), "step": 3}})
        data[OLD] = nested(row[:n].flatten() for row, n in zip(old, batch.lengths, strict=True))
        return tu.chunk_tensordict(data, dist.get_world_size())[dist.get_rank()]

    # what the trainer asks for before the first update
    data = given()
    tu.assign_non_tensor(data, compute_loss=False)
    inferred = padded(of_responses(worker.infer_batch(data)[SAID], given()["responses"], BLOCKS), BLOCKS)

    # the local engine
    warmup = MtpWarmUp(seed=0, steps=1, lr=1.0, betas=BETAS, batch_size=1, check_every=1)
    own = Mtp(**settings, warmup=warmup)
    gradient = "stop" if policy_gradient == "stop" else "full"
    loss = partial(objectives.get("mpo"), loss_agg_mode="token-mean", mtp_gradient=gradient, **PARAMETERS)
    trainer = FlatTrainer("modules", start.phi, MODULES_LR, BETAS, CLIP)
    modules = Modules(trainer, start.shape, own, block_weights(BLOCKS, *PARAMETERS.values()))
    updater = MethodUpdater(
        policy.theta, policy.shape, loss, LR, BETAS, 0.0, CLIP, temperature=1.0, modules=modules
    )
    step = MethodBatch(batch.packed, batch.old_log_prob, batch.advantages, 0, old_mtp_log_prob=old)

    before, share = said(policy, start, batch.packed), GROUPS * SIZE // dist.get_world_size()
    own_rows = slice(share * dist.get_rank(), share * (dist.get_rank() + 1))
    metrics = tu.get(worker.train_mini_batch(given()), "metrics")
    ours, _, _ = updater.step(step)
    dist.barrier()
    (row,) = read_updates(kept, 3).to_dict("records")
    phi = MtpModules(start.shape, trainer.snapshot()).state_dict()
    flat = {name: values[0] for name, values in metrics.items()}
    theirs = {name.removeprefix("actor/"): float(value) for name, value in flat.items()}
    found = {
        "inferred": float((inferred - before[own_rows, : inferred.shape[1]]).abs().max()),
        "metrics": {n: [theirs[n], v] for n, v in ours.items() if n in theirs},
        "missing": sorted(set(ours) - set(theirs)),
        "update": {name: [row[name], value] for name, value in ours.items() if name in row},
        "update_lacks": sorted(set(ours) - set(row)),
        "update_adds": sorted(set(row) - set(ours)),
        "update_files": sorted(path.name for path in kept.iterdir()),
        "policy_moved": float((updater.theta.detach() - policy.theta).norm()),
        "policy_difference": float((policy_of(worker, policy.shape) - updater.theta.detach()).norm()),
        "modules_moved": distance(start.state_dict(), phi),
        "modules_difference": distance(phi, modules_of(worker)),
    }
    return found, worker, given


def checkpoint_round_trip(worker, given, folder, settings_of):
    """Save, update once more; load into a fresh worker that starts from other weights, and update that."""
    saved = folder / "checkpoint"
    worker.save_checkpoint(str(saved))
    at_save = modules_of(worker)
    worker.train_mini_batch(given())
    fresh = make_worker(folder, settings_of, True)
    apart = distance(at_save, modules_of(fresh))
    fresh.load_checkpoint(str(saved))
    loaded = distance(at_save, modules_of(fresh))
    fresh.train_mini_batch(given())
    with safe_open(saved / "huggingface" / "model.safetensors", "pt") as file:
        names = list(file.keys())
    synced, _ = fresh.engine.get_per_tensor_param()
    return {
        "apart": apart,
        "loaded": loaded,
        "after_update": distance(modules_of(worker), modules_of(fresh)),
        "files": sorted(path.name for path in saved.iterdir()),
        "hf_files": sorted(path.name for path in (saved / "huggingface").iterdir()),
        "hf_names": names,
        "synced": [name for name, _ in synced],
        "named": [name for name, _ in fresh.engine.module.named_parameters()],
    }


def main(folder, *cases):
    policy = random_policy(seed=0)
    noise = torch.randn(policy.theta.shape, generator=torch.Generator().manual_seed(9))
    behaviour = policy.with_theta(policy.theta + 0.02 * noise)
    batch = make_batch(behaviour, lowest=2)
    results = {}
    for name in cases:
        here = folder / name
        policy.save_pretrained(here)
        codec().tokenizer.save_pretrained(here)
        results[name], worker, given = run_case(here, policy, behaviour, batch, *CASES[name])
        if name == "parallel" and dist.get_world_size() == 1:
            plain = {"blocks": BLOCKS, "lr": MODULES_LR}
            results["checkpoint"] = checkpoint_round_trip(worker, given, here, plain)
    print("engine-run:" + json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
