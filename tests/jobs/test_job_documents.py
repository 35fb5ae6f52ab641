"""The commands of docs/cluster.md and of the job files exist, with experiments that exist."""

import re
import shlex
import subprocess

import pytest
import typer
from job_fixtures import ROOT, experiments
from ruamel.yaml import YAML

from rlvr.cli import app, main
from rlvr.engines.jobs.plan import plan
from rlvr.problems.benchmarks.catalogue import get_benchmark

DOCUMENT = (ROOT / "docs" / "cluster.md").read_text()
SLURM = ROOT / "pipelines" / "cluster" / "slurm.sbatch"
SKYPILOT = ROOT / "pipelines" / "cluster" / "skypilot.yaml"
NAMES = {name for scale in ("paper", "one_gpu") for name in experiments(scale).names}


def commands(text, start):
    """Commands that begin with ``start``, their variables filled in."""
    text = text.replace("\\\n", " ").replace('"$EXPERIMENT"', "nfpo-1.7b-nfpo")
    text = re.sub(r'"\$\{?SEED(:-0)?\}?"', "0", text)
    text = text.replace('${MODEL:+--model "$MODEL"}', "--model DIR")
    return [
        shlex.split(found, comments=True)
        for found in re.findall(rf"(?m)(?:^|then |-- )\s*({start} [^;\n`]+)", text)
    ]


@pytest.mark.parametrize(
    "words", commands(DOCUMENT + SLURM.read_text() + SKYPILOT.read_text(), "rlvr"), ids=" ".join
)
def test_a_command_of_rlvr_parses(words):
    command = typer.main.get_command(app)
    while hasattr(command, "commands"):
        command, words = command.commands[words[1]], words[1:]
    options = command.make_context("rlvr", words[1:]).params
    if "names" in options:
        assert all(get_benchmark(name) for name in options["names"])
    elif "experiment" in options:
        assert options["experiment"] in NAMES


def test_there_were_commands():
    found = {tuple(words[1:3]) for words in commands(DOCUMENT, "rlvr")}
    wanted = "list show submit status logs stop prepare modules".split()
    assert found == {("data", "fetch"), ("plan", "paper"), *(("job", name) for name in wanted)}
    assert len(commands(SLURM.read_text(), "rlvr")) == 1 and len(commands(SKYPILOT.read_text(), "rlvr")) == 3


def test_the_plan_of_the_document(capsys):
    (words,) = commands(DOCUMENT, "rlvr plan")
    assert main(words[1:]) == 0
    assert "nfpo-1.7b-nfpo" in capsys.readouterr().out
    file = experiments("paper")
    for size, row in (("1.7b", "Qwen3-1.7B-Base"), ("8b", "Qwen3-8B-Base")):
        bands = [plan(file.get(f"nfpo-{size}-{arm}")).hours for arm in ("grpo", "dppo", "nfpo")]
        low, high = min(b[0] for b in bands), max(b[1] for b in bands)
        assert f"| {row}, one arm | {low:.0f} - {high:.0f} |" in DOCUMENT


def test_the_evaluation_of_the_document_is_the_experiments():
    evaluation = experiments("paper").get("nfpo-1.7b-nfpo").evaluation
    (listed,) = re.findall(r"for benchmark in (.*); do", DOCUMENT)
    assert tuple(listed.split()) == evaluation.benchmarks
    assert f"samples={evaluation.samples} temperature={evaluation.temperature} " in DOCUMENT


def test_job_files():
    subprocess.run(["bash", "-n", SLURM], check=True)
    job = YAML(typ="safe", pure=True).load(SKYPILOT)
    for part in ("setup", "run"):
        subprocess.run(["bash", "-n"], input=job[part], text=True, check=True)
    assert job["envs"]["EXPERIMENT"] in NAMES
    hardware = experiments("paper").get(job["envs"]["EXPERIMENT"]).hardware
    assert job["resources"]["accelerators"] == f"{hardware.gpu}:{hardware.gpus_per_node}"
    assert job["num_nodes"] == hardware.nodes


def test_the_lock_for_gpus_holds_what_the_job_checks():
    from rlvr.engines.jobs.start import TESTED

    pins = dict(
        line.split("==") for line in (ROOT / "constraints-gpu.txt").read_text().splitlines() if line[0] != "#"
    )
    assert {name: pins[name] for name in TESTED} == TESTED
