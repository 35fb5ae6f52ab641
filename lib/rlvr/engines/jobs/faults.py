"""What a dead job's log says, as what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

COMMAND = "Running entrypoint for job"  # Ray's first line: the job's settings, which say nothing of its end
ERROR = re.compile(r"(?:^|[\s.])(?P<what>\w*(?:Error|Exception): .+)")
RESUME = "what is saved stays; the same `rlvr job submit` goes on from the last checkpoint"


@dataclass(frozen=True)
class Fault:
    name: str
    pattern: re.Pattern[str]
    advice: str


def _fault(name: str, pattern: str, advice: str) -> Fault:
    return Fault(name, re.compile(pattern, re.IGNORECASE), advice)


#: Causes before effects: of all that match a log, the first in this list is reported.
FAULTS = (
    _fault(
        "preflight",
        r"rlvr preflight: (?P<what>.+)",
        "the job checks this on the cluster before it starts verl",
    ),
    _fault(
        "disk full",
        r"No space left on device|Errno 28\b|Disk quota exceeded|ObjectStoreFullError"
        # torch.save does not hand on the system's own words
        r"|inline_container\.cc:\d+\] \. unexpected pos \d+ vs \d+|PytorchStreamWriter failed writing",
        "the disk of the checkpoints or of Ray's temporary files (/tmp/ray) is full: free space, lower "
        "checkpoints.keep, or start Ray with --temp-dir on a larger disk",
    ),
    _fault(
        "host out of memory",
        r"node running low on memory|ray\.exceptions\.OutOfMemoryError|oom-?kill",
        "a node's main memory (not the GPU's) ran out and Ray killed a worker: set update.offload=false if "
        "the GPUs have room, or lower actor_rollout_ref.rollout.agent.num_workers and reward.num_workers",
    ),
    _fault(
        "GPU memory taken at start",
        r"Free memory on device.*less than desired GPU memory utilization|No available memory for the "
        r"cache blocks"
        r"|max seq len .* is larger than the maximum number of tokens that can be stored in KV cache",
        "the rollout engine found no room: lower rollout.gpu_memory_utilization if another process is on "
        "the GPU (nvidia-smi), raise it or rollout.tensor_parallel if the cache is what is short",
    ),
    _fault(
        "GPU out of memory",
        r"CUDA out of memory|torch\.(cuda\.)?OutOfMemoryError|CUDA error: out of "
        r"memory|cudaErrorMemoryAllocation",
        "in the update: halve update.tokens_per_gpu (not below the longest prompt and response; then raise "
        "update.sequence_parallel), or set update.offload=true; while writing: lower "
        "rollout.gpu_memory_utilization. None of these changes what is trained",
    ),
    _fault(
        "model missing",
        r"not a valid model identifier|does not appear to have a file named|Repository Not "
        r"Found|RepositoryNotFoundError"
        r"|LocalEntryNotFoundError|OfflineModeIsEnabled|Incorrect path_or_model_id|HFValidationError"
        r"|Can't load (the )?(configuration|tokenizer|model)",
        "the model is not where the job looks: download it on the cluster (hf download NAME --local-dir "
        "DIR) and give --model DIR, a folder that every node sees",
    ),
    _fault(
        "model gated",
        r"GatedRepoError|gated repo|401 Client Error.*huggingface",
        "accept the model's licence on its page, and set HF_TOKEN in the environment in which Ray is "
        "started on each node",
    ),
    _fault(
        "data missing",
        r"(FileNotFoundError|Unable to find|No such file).*\.parquet|\.parquet.*(FileNotFoundError|No "
        r"such file)",
        "the data files are not where the job looks: `rlvr job prepare EXPERIMENT`, on a file system that "
        "every node sees",
    ),
    _fault(
        "not installed",
        r"No module named "
        r"'?(?P<what>(verl|vllm|rlvr|ray|transformers|flash_attn|transfer_queue|tensordict)\b[\w.]*)"
        r"|FlashAttention\d? has been toggled on, but it cannot be used|flash_attn seems to be not installed",
        "install the environment of docs/cluster.md on every node, and start Ray in it",
    ),
    _fault(
        "versions",
        r"vllm version \S+ not supported|cannot import name '[^']+' from "
        r"'(verl|vllm|transformers|ray|tensordict)[^']*'"
        r"|undefined symbol|Version mismatch|Unsupported loss mode|verl is \S+, tested is"
        r"|unexpected keyword argument .*(vllm|verl)",
        "versions do not go together: verl 0.9.1, vllm 0.24.0, torch 2.11.0, transformers 5.9.0 are meant "
        "(docs/cluster.md); the same ones, and the same Python and Ray, on every node and where you submit",
    ),
    _fault(
        "too few GPUs",
        r"Total available GPUs (?P<what>\S+ is less than total desired GPUs \S+)|Insufficient resources|"
        r"cannot be scheduled right now",
        "the cluster has fewer free GPUs than hardware.gpus_per_node * nodes: `ray status` shows what is "
        "there and who holds it",
    ),
    _fault(
        "configuration",
        r"(ConfigAttributeError|ConfigKeyError|ConfigCompositionException|Could not "
        r"override|policy_loss[.:] ?\S).*",
        "verl does not take a setting: `python -m rlvr.engines.verl.check` with the same overrides says "
        "which",
    ),
    _fault(
        "communication",
        r"NCCL error|NCCL WARN|Watchdog caught collective operation "
        r"timeout|ncclUnhandledCudaError|ncclSystemError",
        "GPUs or nodes could not talk to each other: look at the first node that stopped; between nodes "
        "set NCCL_SOCKET_IFNAME (and NCCL_IB_HCA) where Ray is started; " + RESUME,
    ),
    _fault(
        "driver or GPU fault",
        r"CUDA error: (?!out of memory)|uncorrectable ECC|Xid \d+|CUDA driver version is "
        r"insufficient|NVIDIA driver on your system is too old|no CUDA-capable device",
        "`nvidia-smi` on that node; a driver that is too old for torch 2.11.0 (CUDA 13) or a broken card; "
        + RESUME,
    ),
    _fault(
        "other number of GPUs",
        r"No such file or directory: \S*_world_size_\d+_rank_\d+\.pt"
        r"|FileNotFoundError.*_world_size_\d+_rank_\d+",
        "the checkpoint was written by another number of GPUs, and FSDP goes on with the same number only: "
        "give the job as many as before, or merge the checkpoint (verl.model_merger) and start from it anew",
    ),
    _fault(
        "dead worker",
        r"ActorDiedError|ActorUnavailableError|WorkerCrashedError|RayActorError|NodeDiedError|EngineDeadError"
        r"|The actor died unexpectedly|died unexpectedly before finishing",
        "a worker or its node died without saying why: `ray logs` and the node's own log; " + RESUME,
    ),
    _fault(
        "disk nearly full",
        r"is over \d+% full",
        "Ray stops taking objects on a disk that is 95 % full: free space where Ray's temporary files are "
        "(/tmp/ray), or start Ray with --temp-dir on a larger disk",
    ),
)


def diagnose(lines: Iterable[str]) -> tuple[Fault, str] | None:
    """(the fault that explains the log best, the line that shows it); None if nothing is recognised."""
    found: dict[str, str] = {}
    for line in lines:
        if line.startswith(COMMAND):
            continue
        for fault in FAULTS:
            if fault.name not in found and fault.pattern.search(line):
                found[fault.name] = line.strip()
    for fault in FAULTS:
        if fault.name in found:
            return fault, found[fault.name]
    return None


def explain(lines: Iterable[str]) -> str:
    """What happened and what to do, for a job that ended before its last step."""
    lines = list(lines)
    found = diagnose(lines)
    if found is None:
        errors = [match["what"] for line in lines if (match := ERROR.search(line))]
        said = f"its last error is {errors[-1][:300]!r}" if errors else "it names no error"
        return (
            f"nothing in the log is a known fault; {said}; read its end with `rlvr job logs --raw`; {RESUME}"
        )
    fault, line = found
    return f"{fault.name}: {line[:300]}\n  do: {fault.advice}"
