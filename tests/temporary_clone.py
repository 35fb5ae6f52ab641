"""A clone of this repository with the working tree's tracked and new files, so that what is tested is what is
here, and the programs that run in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
SMOKE = "pipelines/scales/smoke"
BIN = Path(sys.executable).parent


def make_clone(folder: Path) -> Path:
    """``folder`` as a clone in which scale smoke never ran."""
    subprocess.run(["git", "clone", "--quiet", "--local", str(PROJECT), str(folder)], check=True)
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=PROJECT, capture_output=True, check=True
    ).stdout.decode()
    for name in filter(None, listed.split("\0")):
        source, target = PROJECT / name, folder / name
        if not source.exists() and not source.is_symlink():
            target.unlink(missing_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_symlink() or target.exists():
            target.unlink()
        shutil.copy2(source, target, follow_symlinks=False)
    for lock in (folder / SMOKE).rglob("dvc.lock"):
        lock.unlink()
    shutil.rmtree(folder / "reports/smoke", ignore_errors=True)
    return folder


def environment(clone: Path) -> dict[str, str]:
    """The clone's own sources and this environment's programs."""
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "PYTHONPATH": str(clone / "lib"), "OMP_NUM_THREADS": "1"}
