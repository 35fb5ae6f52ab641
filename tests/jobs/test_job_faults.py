"""Lines that verl, vLLM, torch, Ray and huggingface_hub write when a job dies, and the advice for each."""

import resource

import pytest
import torch
from job_fixtures import step_line

from rlvr.engines.jobs.faults import FAULTS, diagnose, explain
from rlvr.engines.jobs.progress import Progress, duration, parse_step
from rlvr.engines.jobs.redaction import SECRET_NAME, check_no_secret, redact, redact_all

DIED = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."
LINES = {
    "preflight": "rlvr preflight: vllm is 0.10.0, tested is 0.24.0",
    "disk full": "OSError: [Errno 28] No space left on device: '/checkpoints/global_step_50/actor/model.pt'",
    "host out of memory": "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low "
    "on memory.",
    "GPU memory taken at start": "ValueError: Free memory on device (12.1/79.1 GiB) on startup is less "
    "than desired GPU "
    "memory utilization (0.7, 55.4 GiB).",
    "GPU out of memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 18.55 GiB.",
    "model missing": "OSError: Qwen/Qwen3-1.7-Base is not a local folder and is not a valid model "
    "identifier listed on",
    "model gated": "huggingface_hub.errors.GatedRepoError: 401 Client Error.",
    "data missing": "FileNotFoundError: Unable to find '/runs/paper/data/train-math_train-l345.parquet'",
    "not installed": "ModuleNotFoundError: No module named 'vllm'",
    "versions": "ValueError: vllm version 0.8.5 not supported and SGLang also not Found.",
    "too few GPUs": "ValueError: Total available GPUs 4 is less than total desired GPUs 8",
    "configuration": "hydra.errors.ConfigCompositionException: Could not override 'trainer.sav_freq'.",
    "communication": "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3356, "
    "unhandled system error",
    "driver or GPU fault": "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "dead worker": DIED,
    "other number of GPUs": "FileNotFoundError: [Errno 2] No such file or directory: "
    "'/checkpoints/global_step_50/actor/model_world_size_4_rank_0.pt'",
    "disk nearly full": "(raylet) file_system_monitor.cc: /tmp/ray is over 95% full, available space: 81 GB",
}
HARMLESS = [
    step_line(3),
    "INFO 11-30 02:00:00 [gpu_worker.py:298] Available KV cache memory: 92.06 GiB",
    "WARNING: no disk offload; OutOfVocab tokens: 0",
    "Loading checkpoint shards: 100%",
    "(TaskRunner pid=1) policy loss registered",
]


@pytest.mark.parametrize("name", sorted(set(LINES) - {"disk nearly full"}))
def test_each_fault_is_recognised_behind_a_dead_worker(name):
    """A worker that dies for any cause is reported dead too, before or after: the cause is named."""
    for log in ([*HARMLESS, LINES[name], DIED], [DIED, *HARMLESS, LINES[name]]):
        fault, line = diagnose(log)
        assert fault.name == name and line == LINES[name]
    assert "\n  do: " in explain([LINES[name]])


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534", "disk full"),
        ("RuntimeError: PytorchStreamWriter failed writing file data/0: file write failed", "disk full"),
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 12040).",
         "driver or GPU fault"),
        ("ImportError: FlashAttention2 has been toggled on, but it cannot be used due to the following "
         "error: the package flash_attn seems to be not installed.", "not installed"),
    ],
)  # fmt: skip
def test_other_words_for_a_fault(line, name):
    fault, found = diagnose([*HARMLESS, line, DIED])
    assert fault.name == name and found == line


@pytest.mark.parametrize("size", [100_000, 3_000_000])
def test_a_disk_that_ends_while_torch_saves(tmp_path, size):
    """A file that may not grow stands for the disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        with pytest.raises((RuntimeError, OSError)) as error:
            torch.save({"weight": torch.zeros(size)}, tmp_path / "model.pt")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    fault, _ = diagnose(f"{error.typename}: {error.value}".splitlines())
    assert fault.name == "disk full"


def test_every_fault_has_a_line_here():
    assert {fault.name for fault in FAULTS} == set(LINES)


def test_a_healthy_log_has_no_fault():
    assert diagnose(HARMLESS) is None
    assert "nothing in the log is a known fault" in explain(HARMLESS)


def test_steps_are_read_from_verls_console_line():
    line = "(TaskRunner pid=12) step:37 - actor/lr:1e-06 - timing_s/step:np.float64(168.25)"
    line += " - perf/x:nan - a:None"
    step, metrics = parse_step(line)
    assert step == 37 and metrics["timing_s/step"] == 168.25 and metrics["actor/lr"] == 1e-06
    assert "a" not in metrics and metrics["perf/x"] != metrics["perf/x"]
    assert parse_step("Total training step:3 of") is None and parse_step("global_step:3") is None
    assert parse_step("step:0")[0] == 0


def test_the_time_left_is_by_the_median_of_the_last_steps():
    progress = Progress(500)
    for step, seconds in enumerate([900, 100, 100, 100, 100, 5000], start=1):
        shown = progress.line(step_line(step, seconds))
    assert shown == "step 6 of 500 · 100 s a step · about 13 h 43 min left · reward 0.25"
    assert progress.line("anything else") is None and progress.reached == 6
    assert duration(50 * 3600 + 1) == "2.1 days" and duration(89) == "1 min"


def test_a_warning_about_the_disk_does_not_hide_what_happened():
    fault, _ = diagnose([LINES["disk nearly full"], LINES["GPU out of memory"], DIED])
    assert fault.name == "GPU out of memory"


@pytest.mark.parametrize(
    "name",
    "HF_TOKEN WANDB_API_KEY WANDB_KEY OPENAI_KEY HF_TOKEN_2 GH_PAT DB_PASS DB_PWD SLACK_WEBHOOK_URL "
    "HF_TOKEN_READ PASSWD AWS_SECRET_ACCESS_KEY".split(),
)
def test_names_of_secrets(name):
    assert SECRET_NAME.search(name)


@pytest.mark.parametrize(
    "name", "PWD OLDPWD PATH KEYBOARD HOME NCCL_SOCKET_IFNAME TOKENIZERS_PARALLELISM".split()
)
def test_names_of_no_secrets(name):
    assert not SECRET_NAME.search(name)


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer SWORDFISH-SWORDFISH",
        "wandb: logging in with SWORDFISH".replace("SWORDFISH", "0123456789abcdef0123456789abcdef01234567"),
        "x-api-key: SWORDFISHSWORDFISH",
        "HF_TOKEN_READ=SWORDFISHSWORDFISH",
        "PASSWD=SWORDFISH",
        "password: 'SWORDFISH with spaces'",
        "wandb_key=0123456789abcdef0123456789abcdef01234567",
        "https://hooks.slack.com/services/T000/B000/SWORDFISH",
        "AccountKey=SWORDFISHSWORDFISH",
        "github_pat_SWORDFISHSWORDFISHSWORDFISH",
        "glpat-SWORDFISHSWORDFISH",
        "nvapi-SWORDFISHSWORDFISH",
        "api_key=abc",
    ],
)
def test_secrets_are_struck_out_of_any_line(text):
    shown = redact(text, {})
    assert "[redacted]" in shown
    assert not any(part in shown for part in ("SWORDFISH", "0123456789abcdef", "=abc"))


def test_redaction():
    environment = {"HF_TOKEN": "swordfish-swordfish", "MY_API_KEY": "short", "PATH": "/usr/bin-directory"}
    text = (
        "swordfish-swordfish /usr/bin-directory short ghp_abcdefghijklmnopqrstuvwx sk-abcdefghijklmnopqrstuv"
    )
    assert redact(text, environment) == "[HF_TOKEN] /usr/bin-directory short [redacted] [redacted]"
    assert redact("api_key: 'abcdefgh123'", {}) == "api_key: '[redacted]'"
    assert redact("http://me:pw@head:8265/x", {}) == "http://head:8265/x"
    kept = (
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384 perf/max_token: 12345.678 prompt_token=None"
    )
    assert redact(kept, {}) == kept
    assert redact_all({"a": ["swordfish-swordfish"], "b": 1}, environment) == {"a": ["[HF_TOKEN]"], "b": 1}
    with pytest.raises(ValueError, match="holds a secret"):
        check_no_secret(["+x=swordfish-swordfish"], environment)
    check_no_secret(["data.max_response_length=8192"], environment)
