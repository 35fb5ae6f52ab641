"""What the job runs on the cluster: a look at what is there, then verl in this same process.

    python -m rlvr.engines.jobs.start NAME=VALUE ...

Everything that would end the job only after minutes, or in words of another library, ends it here, with a
line ``rlvr preflight: ...`` that says what to do. ``RLVR_PREFLIGHT=off`` leaves the checks out,
``RLVR_OTHER_VERSIONS=1`` those of versions.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from rlvr.engines.jobs.command import ENTRY, MODEL
from rlvr.engines.jobs.progress import checkpoint_step
from rlvr.engines.jobs.rows import check_dataset

#: What ``verl[vllm]`` 0.9.1 pins. The build of vLLM for CPU has versions of its own.
TESTED = {"verl": "0.9.1", "vllm": "0.24.0", "torch": "2.11.0", "transformers": "5.9.0"}
GPU = Path("/dev/nvidiactl")  # of a machine with an NVIDIA driver
FREE = "RLVR_DISK_GB"  # free space that the checkpoints need, from the plan


def faults(words: list[str]) -> list[str]:
    """What keeps this job from running here; empty if nothing does."""
    pairs = (word.lstrip("+").split("=", 1) for word in words if "=" in word)
    given = {name: value.strip("'\"") for name, value in pairs}
    return [
        *_versions(given),
        *_attention(given),
        *_model(given.get(f"{MODEL}.path", "")),
        *_files(given),
        *_disk(given.get("trainer.default_local_dir", ".")),
    ]


def _versions(given: dict[str, str]) -> list[str]:
    if os.environ.get("RLVR_OTHER_VERSIONS") == "1" or given.get("trainer.device") == "cpu":
        return []
    out = []
    for name, wanted in TESTED.items():
        try:
            found = version(name).partition("+")[0]
        except PackageNotFoundError:
            out.append(
                f"{name} is not installed here ({sys.prefix}): pip install {name}=={wanted}, on every node"
            )
            continue
        if found != wanted:
            out.append(
                f"{name} is {found}, tested is {wanted}: pip install {name}=={wanted} on every node, or "
                "submit with --other-versions and look twice at the first steps"
            )
    return out


def _attention(given: dict[str, str]) -> list[str]:
    """verl's default is use_remove_padding=True, whose rows without padding flash-attn alone takes."""
    unpadded = given.get(f"{MODEL}.use_remove_padding", "True").lower() != "false"
    if not unpadded or given.get("trainer.device") == "cpu" or not GPU.exists() or find_spec("flash_attn"):
        return []
    return [
        f"flash_attn is not installed here ({sys.prefix}): pip install flash-attn==2.8.3 "
        f"--no-build-isolation on every node, or submit with --set {MODEL}.use_remove_padding=False "
        f"--set +{MODEL}.override_config.attn_implementation=sdpa (slower)"
    ]


def _model(path: str) -> list[str]:
    path = path.strip("'\"")
    local = path.startswith(("/", ".", "~"))
    if local and not (Path(path).expanduser() / "config.json").is_file():
        return [
            f"model path {path} has no config.json here: download the model there (hf download NAME "
            f"--local-dir {path}), on a file system that every node sees, or give --model"
        ]
    if not local and path and os.environ.get("HF_HUB_OFFLINE") == "1":
        from huggingface_hub import try_to_load_from_cache

        if not isinstance(try_to_load_from_cache(path, "config.json"), str):
            return [f"model {path} is not in the cache and HF_HUB_OFFLINE=1: unset it, or give --model DIR"]
    return []


def _files(given: dict[str, str]) -> list[str]:
    names = [
        name.strip(" '\"")
        for key in ("data.train_files", "data.val_files")
        for name in given.get(key, "").strip("[]").split(",")
    ]
    for path in (Path(name).expanduser() for name in names if name):
        if not path.is_file():
            return [
                f"data file {path} is not here ({Path.cwd()}): `rlvr job prepare EXPERIMENT` on a file "
                "system that every node sees, and --root as the cluster sees it"
            ]
        try:
            check_dataset(path)
        except ValueError as error:
            return [f"{error}; `rlvr job prepare EXPERIMENT --force` writes the data files anew"]
    return []


def _disk(folder: str) -> list[str]:
    needed = float(os.environ.get(FREE, "0"))
    path = Path(folder.strip("'\"")).expanduser().absolute()
    there = next(p for p in (path, *path.parents) if p.exists())
    held = sum(p.stat().st_size for p in path.rglob("*") if p.is_file()) / 1e9 if path.is_dir() else 0.0
    free = shutil.disk_usage(there).free / 1e9
    if free + held >= needed:
        return []
    return [
        f"disk of {path}: {free:.0f} GB free, the checkpoints need {needed:.0f} GB: free space, give "
        "--root another disk, or lower checkpoints.keep"
    ]


def _folder(words: list[str]) -> Path | None:
    """The job's own folder, if its checkpoints lie where `rlvr job` puts them."""
    pairs = (word.lstrip("+").split("=", 1) for word in words if "=" in word)
    where = Path(dict(pairs).get("trainer.default_local_dir", "").strip("'\""))
    return where.absolute().parent if where.name == "checkpoints" else None


def _lock(folder: Path) -> bool:
    """Hold the folder for as long as this process lives, also as verl: a lock of the kernel, on an open file
    that survives ``exec`` and dies with the process. Two clusters may both be asked for one job."""
    folder.mkdir(parents=True, exist_ok=True)
    held = os.open(folder / "lock", os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        return False
    except OSError:  # a file system without locks
        return True
    os.set_inheritable(held, True)
    return True


def _prune(checkpoints: Path) -> None:
    """Remove checkpoints older than the one that the job goes on from: verl keeps count of its own alone, so
    those of earlier attempts would stay for ever."""
    marked = checkpoint_step(checkpoints)
    for old in checkpoints.glob("global_step_*"):
        number = old.name.removeprefix("global_step_")
        if number.isdigit() and int(number) < marked:
            print(f"rlvr: removes {old}, older than step {marked}", flush=True)
            shutil.rmtree(old, ignore_errors=True)


def loss_faults(words: list[str]) -> list[str]:
    """Whether verl will run the loss that is meant, with these settings (``rlvr.engines.verl.check``)."""
    from rlvr.engines.verl.check import check
    from rlvr.engines.verl.surroundings import Failed

    try:
        lines = check(words, other_version=os.environ.get("RLVR_OTHER_VERSIONS") == "1")
    except Failed as error:
        return [str(error).replace("\n", " ")]
    print("\n".join(lines), flush=True)
    return []


def main(words: list[str]) -> int:
    if os.environ.get("RLVR_PREFLIGHT") != "off":
        found = faults(words) or loss_faults(words)
        for fault in found:
            print(f"rlvr preflight: {fault}", flush=True)
        if found:
            return 3
    folder = _folder(words)
    if folder is not None:
        if not _lock(folder):
            print(
                f"rlvr preflight: another job writes into {folder}: stop that one, or give --root another "
                "folder; two would spoil each other's checkpoints",
                flush=True,
            )
            return 3
        _prune(folder / "checkpoints")
    Path(os.environ.get("VERL_FILE_LOGGER_PATH", "metrics.jsonl")).absolute().parent.mkdir(
        parents=True, exist_ok=True
    )
    os.execv(sys.executable, [sys.executable, *ENTRY[1:], *words])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
