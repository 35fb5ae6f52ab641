"""Settings under which a stock job of verl 0.9.1 runs on a machine with two cores and no accelerator.

:mod:`rlvr.engines.verl.cpu` is what they name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from rlvr.engines.jobs.command import folder, hydra_value, trainer_settings
from rlvr.engines.jobs.experiments import Experiment
from rlvr.engines.jobs.policy import PLAIN_TEMPLATE

_ROLLOUT, _ACTOR, _MODEL = (f"actor_rollout_ref.{part}" for part in ("rollout", "actor", "model"))
_VLLM = f"{_ROLLOUT}.engine_kwargs.vllm"
#: The trainers of rlvr.engines.verl.cpu.
MODE, CORRECTING_MODE, SELF_CORRECTING_MODE = "sync_cpu", "ibpo_cpu", "self_correction_cpu"
#: By the block of an experiment that asks for a second pass.
MODES = {None: MODE, "counterfactual": CORRECTING_MODE, "self_correction": SELF_CORRECTING_MODE}
#: What a Ray is started with. Logical: verl's actors ask for whole cores before they do anything, and wait
#: for ever without.
RAY = {"cpus": 16, "gpus": 1}
STORE = 300_000_000  # bytes of Ray's object store; its default is 30 % of the memory
_SINGLE = dict.fromkeys(("param_dtype", "reduce_dtype", "buffer_dtype"), "fp32")

# A name with + is not in verl's own configuration file.
OVERRIDES: dict[str, Any] = {
    # --- device
    "trainer.device": "cpu",
    # our trainer on gloo (``trainer``); its section has to exist, verl reads it
    "trainer.v1.trainer_mode": MODE,
    f"+trainer.v1.{MODE}": {},
    "trainer.n_gpus_per_node": 1,  # one rank
    # --- Ray
    "+ray_kwargs.ray_init.num_gpus": RAY["gpus"],  # a logical one: verl places its workers by it
    "ray_kwargs.ray_init.num_cpus": RAY["cpus"],
    "+ray_kwargs.ray_init.include_dashboard": False,  # two processes less
    "+ray_kwargs.ray_init.object_store_memory": STORE,
    # of the 8 storage processes of verl's default each wants a core
    "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
    f"{_ROLLOUT}.agent.num_workers": 1,  # verl's default: 8 processes of 0.6 GB
    "reward.num_workers": 1,  # the same
    "data.dataloader_num_workers": 0,  # the parquet files are small
    # --- actor
    f"{_ACTOR}.strategy": "fsdp2",  # FSDP1 refuses the CPU
    f"{_ACTOR}.use_torch_compile": False,  # takes longer than a short job
    f"{_ACTOR}.fsdp_config.use_torch_compile": False,
    # bfloat16 is emulated on most CPUs, and would hide a wrong number
    f"+{_ACTOR}.fsdp_config.mixed_precision": _SINGLE,
    "+actor_rollout_ref.ref.fsdp_config.mixed_precision": _SINGLE,  # of the reference policy, if there is one
    f"{_MODEL}.use_remove_padding": False,  # needs flash-attention
    f"+{_MODEL}.override_config.attn_implementation": "sdpa",  # verl's default: flash_attention_2
    f"{_MODEL}.enable_gradient_checkpointing": False,  # memory is not what is short
    # --- critic, if there is one: as the actor
    "critic.strategy": "fsdp2",
    "critic.fsdp.use_torch_compile": False,
    "+critic.fsdp.mixed_precision": _SINGLE,
    "critic.model.use_remove_padding": False,
    "+critic.model.override_config.attn_implementation": "sdpa",
    "critic.model.enable_gradient_checkpointing": False,
    # --- rollout
    f"{_ROLLOUT}.name": "vllm",
    f"{_ROLLOUT}.dtype": "float32",
    f"{_ROLLOUT}.enforce_eager": True,  # no compilation
    f"{_ROLLOUT}.tensor_model_parallel_size": 1,
    # sleeping discards device memory; vLLM-CPU cannot
    f"+{_ROLLOUT}.enable_sleep_mode": False,
    f"{_ROLLOUT}.free_cache_engine": False,
    # share of the memory that has to be free at the start; what is used is VLLM_CPU_KVCACHE_SPACE
    f"{_ROLLOUT}.gpu_memory_utilization": 0.1,
    # from the saved weights; verl's default, random ones until the first sync, was not tried
    f"{_ROLLOUT}.load_format": "auto",
    f"+{_VLLM}.worker_extension_cls": "rlvr.engines.verl.cpu.weights.CPUWorkerExtension",
    # shared memory per sync, in MB; verl's default is 2 GB
    f"{_ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes": 32,
}

# Set in the driver's environment; Ray hands it on to all processes that it starts.
ENVIRONMENT: dict[str, str] = {
    "VERL_PLATFORM": "cpu",
    "VERL_USE_EXTERNAL_MODULES": "rlvr.engines.verl.cpu.plugin",
    "HF_HUB_OFFLINE": "1",  # everything is on disk: no look-ups that time out
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # Ray's default, 15, gives way to whatever else the machine does
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # vLLM's default reserves cores, of which there are two
    # one per process: there are more processes than cores, and sums come out in one order
    "OMP_NUM_THREADS": "1",
}

# For the embedded policy, whose prompt is the problem's text and nothing else.
EMBEDDED: dict[str, Any] = {
    f"{_MODEL}.custom_chat_template": PLAIN_TEMPLATE,
    f"{_ROLLOUT}.agent.default_agent_loop": "plain_text_agent",  # ``agent_loop``
}


#: Of a Ray that verl starts itself; on one that runs, Ray refuses them.
OF_OWN_RAY = tuple(name.lstrip("+") for name in OVERRIDES if "ray_kwargs.ray_init" in name)


def overrides(*groups: Mapping[str, Any], without: Collection[str] = ()) -> list[str]:
    """The words that verl's command line takes: ``OVERRIDES``, then ``groups``; later ones win.

    ``without`` names, without +, settings to leave out.
    """
    merged: dict[str, Any] = {}
    added: set[str] = set()  # a name that is not in verl's file stays one, whoever sets it later
    for group in (OVERRIDES, *groups):
        for name, value in group.items():
            merged[name.lstrip("+")] = value
            added.update([name[1:]] if name.startswith("+") else [])
    return [
        f"{'+' if name in added else ''}{name}={hydra_value(value)}"
        for name, value in merged.items()
        if name not in without
    ]


def job_settings(
    experiment: Experiment, root: Path, own: Mapping[str, Any]
) -> tuple[list[str], dict[str, str], dict[str, Any]]:
    """A job through a Ray that runs: (words after those of the experiment, the job's environment, what that
    Ray is started with). ``own``: settings of the job beside the experiment's."""
    where = str(folder(experiment, experiment.seeds[0], str(root)))
    mode = MODES[experiment.second_pass]
    trainer = {"trainer.v1.trainer_mode": mode, f"+trainer.v1.{mode}": trainer_settings(experiment, where)}
    words = overrides(EMBEDDED, own, trainer, without=OF_OWN_RAY)
    return words, dict(ENVIRONMENT), {**RAY, "environment": ENVIRONMENT, "store": STORE}
