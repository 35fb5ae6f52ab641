"""Gathers the facts of this machine, and has them checked."""

from __future__ import annotations

import configparser
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from packaging.utils import canonicalize_name

from rlvr.doctor import machine, packages, services
from rlvr.doctor.finding import Finding
from rlvr.doctor.machine import MEASURED, Needs, Torch
from rlvr.doctor.packages import Environment

TIMEOUT = 3.0  # seconds for Ray's dashboard to answer
JOBS = ("verl", "cluster", "gpu")  # environments that have Ray
NOTEBOOKS = ("laptop", "vllm", "cluster")  # environments in which stages run


def examine(root: Path, scale: str = "laptop") -> tuple[Environment, list[Finding]]:
    """The environment, and what every check found for a scale; a check that breaks is a note.

    Raises:
        ValueError: no such scale.
    """
    needs = needs_of(root, scale)
    installed = installed_packages()
    environment = packages.environment_of(installed)
    findings: list[Finding] = []
    for check, look in _looks(root, needs, installed, environment):
        try:
            found = look()
        except Exception as error:  # a doctor that stops at the first oddity helps nobody
            text = f"could not be looked at ({type(error).__name__}: {str(error)[:200]})"
            found = Finding(check, "note", text)
        findings += [found] if isinstance(found, Finding) else found or []
    return environment, findings


def needs_of(root: Path, scale: str) -> Needs:
    """What a scale takes; of experiments, what the largest takes that verl can run, one at a time.

    Raises:
        ValueError: no such scale.
    """
    if scale in MEASURED:
        return MEASURED[scale]
    path = root / "pipelines" / "scales" / scale / "experiments.yaml"
    if not path.is_file():
        found = sorted(file.parent.name for file in root.glob("pipelines/scales/*/experiments.yaml"))
        raise ValueError(f"scale={scale!r}: allowed are {', '.join([*MEASURED, *found])}")
    from rlvr.engines.jobs.experiments import load_experiments
    from rlvr.engines.jobs.plan import plan

    file = load_experiments(path)
    runnable = [e for e in map(file.get, file.names) if e.needs is None]
    return Needs(
        scale,
        runs=max(plan(e).disk for e in runnable),
        cache=1e9,
        memory=0,
        gpus=max(e.hardware.gpus_per_node for e in runnable),
    )


def _looks(
    root: Path, needs: Needs, installed: dict[str, str], environment: Environment
) -> Iterator[tuple[str, Callable[[], Finding | list[Finding] | None]]]:
    runs, cache = root / "runs", cache_folder(root)
    jobs, notebooks = environment.name in JOBS, environment.name in NOTEBOOKS
    yield "python", lambda: packages.python(sys.version_info)
    yield (
        "versions",
        lambda: packages.versions(
            environment, packages.read_lock((root / environment.lock).read_text()), installed
        ),
    )
    yield (
        "requirements",
        lambda: packages.requirements(
            requirements_of(("rlvr", "verl", "trl"), installed), installed, environment.install
        ),
    )
    yield "antlr", lambda: packages.antlr(copies("antlr4-python3-runtime"), installed)
    yield (
        "verl plugin",
        lambda: packages.plugin(
            environment, [e.name for e in importlib.metadata.entry_points(group="verl.plugins")]
        ),
    )
    yield "runs", lambda: machine.disk("runs", *free_at(runs), needs.runs, needs.scale)
    yield "cache", lambda: machine.disk("cache", *free_at(cache), needs.cache, needs.scale)
    yield "memory", lambda: machine.memory(*memory_bytes(), needs)
    yield "cores", lambda: machine.cores(len(os.sched_getaffinity(0)), needs)
    yield "threads", lambda: machine.threads(os.environ)
    yield "gpu", lambda: machine.gpu(torch_facts(), driver_version(), needs, environment.name)
    yield "ray", lambda: look_at_ray(installed.get("ray"), jobs)
    yield "data", lambda: look_at_data("datasets" in installed)
    yield "dvc", lambda: services.dvc(installed.get("dvc"), repository(root), notebooks)
    yield "kernel", lambda: services.kernel("python3", kernel_command("python3"), sys.executable, notebooks)


# --- packages ------------------------------------------------------------------------------------------


def installed_packages() -> dict[str, str]:
    """Canonical name -> version; of several copies the one that is imported."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(canonicalize_name(name), distribution.version)
    return found


def copies(name: str) -> list[str]:
    """Versions of all copies of a package on the path, the one that is imported first."""
    return [distribution.version for distribution in importlib.metadata.distributions(name=name)]


def requirements_of(names: tuple[str, ...], installed: dict[str, str]) -> dict[str, list[str]]:
    return {name: importlib.metadata.requires(name) or [] for name in names if name in installed}


# --- machine -------------------------------------------------------------------------------------------


def free_at(folder: Path) -> tuple[str, float]:
    """(folder that exists, free bytes there): the folder itself, or the nearest one above it."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return str(folder), float(shutil.disk_usage(folder).free)


def cache_folder(root: Path) -> Path:
    """DVC's cache, also where its configuration puts it elsewhere."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read([root / ".dvc" / "config", root / ".dvc" / "config.local"])
    folder = parser.get("cache", "dir", fallback="cache").strip("'\"")
    return root / ".dvc" / folder


def memory_bytes() -> tuple[float, float]:
    """(available, total) memory, less where a container is allowed less."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    values = {
        name: 1024.0 * int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)
    }
    available, total = values["MemAvailable"], values["MemTotal"]
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.is_file() and (text := limit.read_text().strip()) != "max":
        total = min(total, float(text))
        available = min(available, total - float(used.read_text()))
    return available, total


def torch_facts() -> Torch | None:
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    cards = []
    if torch.cuda.is_available():
        properties = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
        cards = [(card.name, float(card.total_memory)) for card in properties]
    return Torch(torch.__version__, torch.version.cuda, cards)


def driver_version() -> str | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    return done.stdout.splitlines()[0].strip() if done.returncode == 0 and done.stdout.strip() else None


# --- services ------------------------------------------------------------------------------------------


def look_at_ray(installed: str | None, needed: bool) -> Finding:
    from rlvr.engines.jobs.client import LOCAL
    from rlvr.engines.jobs.redaction import redact

    address, given = services.ray_address(os.environ, LOCAL)
    mode, token = os.environ.get("RAY_AUTH_MODE"), ray_token()
    answer = None
    if installed is not None and address.startswith(("http://", "https://")):
        answer = ask(address, token if (mode or "").lower() == "token" else None)
    return services.ray(installed, redact(address), given, answer, mode, token is not None, needed)


def ray_token() -> str | None:
    """The token that Ray would send from here, looked for as Ray does."""
    if os.environ.get("RAY_AUTH_TOKEN"):
        return os.environ["RAY_AUTH_TOKEN"].strip()
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token").expanduser()
    return (path.read_text().strip() or None) if path.is_file() else None


def ask(address: str, token: str | None) -> services.Answer:
    """What Ray's dashboard says to a question for its version."""
    from rlvr.engines.jobs.redaction import redact

    request = urllib.request.Request(f"{address.rstrip('/')}/api/version")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as reply:
            text = reply.read(65536).decode(errors="replace")
            status = reply.status
    except urllib.error.HTTPError as error:
        return services.Answer(error.code)
    except OSError as error:
        return services.Answer(None, redact(str(getattr(error, "reason", error)))[:120])
    try:
        return services.Answer(status, version=json.loads(text).get("ray_version"))
    except (ValueError, AttributeError):
        return services.Answer(404)  # something else lives there


def look_at_data(fetches: bool) -> Finding:
    from rlvr.problems.benchmarks.catalogue import load_catalogue
    from rlvr.problems.benchmarks.sources import VARIABLE, MissingData, find_file

    variable, names, found = os.environ.get(VARIABLE), list(load_catalogue()), []
    for name in names:
        try:
            find_file(name)
            found.append(name)
        except MissingData:
            continue
    return services.data(variable, bool(variable) and Path(variable).is_dir(), found, len(names), fetches)


def repository(root: Path) -> services.Repository:
    lock, rwlock = root / ".dvc" / "tmp" / "lock", root / ".dvc" / "tmp" / "rwlock"
    holder, locks = None, Path("/proc/locks")
    if lock.is_file() and locks.is_file():
        status = lock.stat()
        holder = services.lock_holder(locks.read_text(), status.st_dev, status.st_ino)
    return services.Repository(
        git=any((folder / ".git").exists() for folder in (root, *root.parents)),
        dvc=(root / ".dvc").is_dir(),
        lock=rwlock.read_text() if rwlock.is_file() else None,
        holder=holder,
    )


def kernel_command(name: str) -> list[str] | None:
    """The argv of a kernel as Jupyter finds it here; None if it finds none, or is not installed."""
    if importlib.util.find_spec("jupyter_client") is None:
        return None
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    try:
        return list(KernelSpecManager().get_kernel_spec(name).argv)
    except NoSuchKernel:
        return None
