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


def test_the_hours_of_mpo_in_the_document():
    file = experiments("paper")
    for arm in ("ppo", "mpo"):
        low, high = plan(file.get(f"mpo-qwen1.5b-gsm8k-{arm}")).hours
        assert low > 7 and f"| {arm.upper()} | {low:.1f} - {high:.0f} | about 7 |" in DOCUMENT
    low, high = (tokens / 1e6 for tokens in plan(file.get("mpo-qwen1.5b-gsm8k-mpo")).tokens)
    assert f"{low:.0f} to {high:.0f} million tokens" in DOCUMENT
    ppo = file.get("mpo-qwen1.5b-gsm8k-ppo")
    rollout = ppo.rollout.model_copy(update={"responses_per_prompt": 1})
    low, high = plan(ppo.model_copy(update={"rollout": rollout})).hours
    assert f"the plan of PPO is {low:.1f} to {high:.0f} hours" in DOCUMENT


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


STANDINS = ("ray", "rlvr", "python", "python3.11", "pip", "sleep", "pgrep", "srun", "scontrol")


def calls(tmp_path, script, **variables):
    """The lines of what a job file runs, by programs that only say how they were called."""
    programs, log = tmp_path / "programs", tmp_path / "log"
    programs.mkdir()
    for name in STANDINS:
        cores = "${SRUN_CPUS_PER_TASK:+ cpus=$SRUN_CPUS_PER_TASK}"
        (programs / name).write_text(
            f'#!/bin/bash\necho "{name} $*{cores}" >> {log}\n'
            f'if [ "{name} $1" = "ray status" ]; then exit $RAY_DOWN; fi\n'
            f'if [ "{name}" = pgrep ]; then exit 1; fi\n'
            f'if [ "{name}" = scontrol ]; then echo node1; fi\n'
            f'if [ "{name}" = python ]; then echo "nodes $SKYPILOT_NUM_NODES"; fi\n'
        )
        (programs / name).chmod(0o755)
    (tmp_path / ".venv-gpu" / "bin").mkdir(parents=True)
    (tmp_path / ".venv-gpu" / "bin" / "activate").touch()
    environment = {"PATH": f"{programs}:/usr/bin:/bin", **variables}
    subprocess.run(["bash"], input=script, text=True, cwd=tmp_path, env=environment, check=True)
    return log.read_text().splitlines()


def sky(tmp_path, part, **variables):
    job = YAML(typ="safe", pure=True).load(SKYPILOT)
    fixed = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NUM_NODES": "2"}
    fixed |= {"SKYPILOT_NUM_GPUS_PER_NODE": "8", "RAY_DOWN": "1", **job["envs"]}
    return calls(tmp_path, job[part], **fixed, **variables)


@pytest.mark.parametrize("rank", ["0", "1"])
def test_skypilot_prepares_the_data_on_its_first_node(tmp_path, rank):
    """Setup has a rank of its own name; that of ``run`` is not set there."""
    ran = sky(tmp_path, "setup", SKYPILOT_SETUP_NODE_RANK=rank)
    assert ("rlvr job prepare nfpo-1.7b-nfpo --root /runs" in ran) == (rank == "0")


def test_skypilot_starts_a_ray_of_its_own_and_stops_none(tmp_path):
    ran = sky(tmp_path, "run", SKYPILOT_NODE_RANK="0")
    (started,) = [line for line in ran if line.startswith("ray start")]
    assert started.startswith("ray start --head --port 6379 --dashboard-port 8280 --num-gpus 8 ")
    assert ran[-1] == "rlvr job submit nfpo-1.7b-nfpo --seed 0 --root /runs --address http://127.0.0.1:8280"
    assert not any(word in line for line in ran for word in ("ray stop", "symmetric-run"))


def test_skypilots_other_nodes_join_and_submit_nothing(tmp_path):
    ran = sky(tmp_path, "run", SKYPILOT_NODE_RANK="1")
    assert any(line.startswith("ray start --address 10.0.0.1:6379 --num-gpus 8 ") for line in ran)
    assert not any(line.startswith(("rlvr", "ray stop")) for line in ran)


def test_slurm_hands_its_cores_to_srun(tmp_path):
    variables = {
        "EXPERIMENT": "nfpo-1.7b-nfpo",
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_JOB_NUM_NODES": "1",
    }
    variables |= {"SLURM_JOB_NODELIST": "node[1]", "SLURM_CPUS_PER_TASK": "64"}
    *_, ran = calls(tmp_path, SLURM.read_text(), **variables)
    assert (
        ran.startswith("srun ") and ran.endswith(" cpus=64") and "symmetric-run --address node1:6379" in ran
    )


def test_the_lock_for_gpus_holds_what_the_job_checks():
    from rlvr.engines.jobs.start import TESTED

    pins = dict(
        line.split("==") for line in (ROOT / "constraints-gpu.txt").read_text().splitlines() if line[0] != "#"
    )
    assert {name: pins[name] for name in TESTED} == TESTED
