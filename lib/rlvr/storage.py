"""Files that are either complete or absent: every output of a stage is written through here."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary sibling of ``path``; rename it onto ``path`` only if the block succeeds.

    A killed process leaves at most a ``.partial-*`` sibling, never half of ``path``.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".partial-{path.name}-", suffix=path.suffix)
    os.close(fd)
    partial = Path(name)
    try:
        yield partial
        partial.chmod(0o644)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def atomic_dir(path: str | Path) -> Iterator[Path]:
    """Yield a temporary directory; it replaces ``path`` as a whole if the block succeeds."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".partial-{path.name}-"))
    try:
        yield partial
        partial.chmod(0o755)
        if path.exists():
            shutil.rmtree(path)
        os.replace(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_text(path: str | Path, text: str) -> None:
    with atomic_path(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: str | Path, value: Any) -> None:
    """Write JSON with sorted keys; a NaN or infinity is an error, since no JSON reader need accept it."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: str | Path) -> Any:
    return json.loads(Path(path).read_text(encoding="utf-8"))


def finite_or_none(value: float | None) -> float | None:
    """NaN and infinities become None, which tables print as 'not measured'."""
    return None if value is None or not math.isfinite(value) else float(value)


def fingerprint(value: Any, *files: str | Path) -> str:
    """A short hash of a JSON-able value and the contents of files and directories, for resuming safely."""
    digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode())
    for root in files:
        root = Path(root)
        members = sorted(p for p in root.rglob("*") if p.is_file()) if root.is_dir() else [root]
        for member in members:
            if member.suffix == ".pyc":
                continue
            digest.update(str(member.relative_to(root)).encode())
            digest.update(member.read_bytes())
    return digest.hexdigest()[:16]
