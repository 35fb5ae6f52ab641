"""What the numbers were made with: versions, machine and commit."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess

from rlvr.config import Scale

PACKAGES = ("torch", "transformers", "numpy", "scipy", "pandas", "pyarrow", "dvc", "papermill")


def describe_environment(scale: Scale) -> dict[str, str]:
    """Names to text; a package that is not installed is left out."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "commit": commit(),
        "engine": f"{scale.engine}, {scale.workers} processes of one thread side by side",
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors, no GPU used",
        "processor": processor(),
        "python": platform.python_version(),
        **versions,
        "determinism": "same machine, same versions: same bytes of every table, figure and checkpoint",
    }


def processor(path: str = "/proc/cpuinfo") -> str:
    """Its name, family and model: another one gives other last digits (docs/determinism.md)."""
    try:
        with open(path) as lines:
            pairs = [line.partition(":") for line in lines]
    except OSError:
        return platform.processor() or "unknown"
    found = {name.strip(): value.strip() for name, _, value in reversed(pairs)}
    if not found.get("model name"):
        return platform.processor() or "unknown"
    return f"{found['model name']}, family {found.get('cpu family')}, model {found.get('model')}"


def commit() -> str:
    """The checked-out commit, with ``+ changes`` if the tree differs from it."""
    try:
        head = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "not under version control"
    return f"{head} + changes" if changed else head
