"""The graph of a scale of experiments: its runs, what makes a run stale, and that none starts by accident."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from job_fixtures import ROOT, experiments

from pipelines import job_graph, job_settings
from pipelines.parameters import declared
from rlvr.config import load_yaml
from rlvr.engines.jobs.experiments import load_experiments
from rlvr.storage import read_json, write_json

SCALES = ROOT / "pipelines" / "scales"
GRAPH = SCALES / "paper" / "dvc.yaml"
STAGES = load_yaml(GRAPH)["stages"]
OF_MPO = [
    (model, task) for model in ("qwen1.5b", "qwen7b", "llama1b") for task in ("gsm8k", "math", "humaneval")
]
RUN = "nfpo-0.6b-nfpo-0"
COMPARED = "nfpo-0.6b.json"  # what the tables of the setting are made of
ONE_GPU = "pipelines/scales/one_gpu/dvc.yaml"


def changed(tmp_path, old, new, count=1):
    """The experiments of scale one_gpu with one text replaced."""
    text = (SCALES / "one_gpu" / "experiments.yaml").read_text()
    assert text.count(old) == count
    path = tmp_path / "experiments.yaml"
    path.write_text(text.replace(old, new))
    return load_experiments(path)


# --- runs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scale", "number", "runs"), [("paper", 82, 284), ("one_gpu", 47, 141)])
def test_the_lists_are_those_of_the_experiments(scale, number, runs):
    path = SCALES / scale / "jobs.yaml"
    file, values = experiments(scale), load_yaml(path)
    assert path.read_text() == job_graph.lists_text(file), "python -m pipelines.job_graph write"
    assert values == job_graph.lists(file)
    assert (path.parent / values["root"]).resolve() == ROOT
    # and once more, without the code that wrote them
    wanted = [name for name in file.names if not file.get(name).needs]
    assert values["experiments"] == wanted and len(wanted) == number
    pairs = [(run["experiment"], run["seed"]) for run in values["runs"].values()]
    assert pairs == [(name, seed) for name in wanted for seed in file.get(name).seeds] and len(pairs) == runs
    assert all(name == f"{run['experiment']}-{run['seed']}" for name, run in values["runs"].items())
    compared = {"nfpo": ["nfpo-0.6b"], "ibpo": ["ibpo-0.6b"], "mpo": ["mpo-0.6b"]}
    if scale == "paper":
        trained = [f"mpo-{model}-{task}" for model, task in OF_MPO]
        compared = {"nfpo": ["nfpo-1.7b", "nfpo-8b"], "ibpo": ["ibpo-32b"], "mpo": trained}
    assert {paper: list(items) for paper, items in values["compared"].items()} == compared
    again = [name for name in wanted if re.fullmatch(r"ibpo-(32b|0\.6b)-(gspo|score)", name)]
    assert list(values["revised"]) == [f"{name}-{seed}" for name in again for seed in file.get(name).seeds]
    assert values["ablated"] == {paper: names[:1] for paper, names in compared.items()}
    items = {name: item for each in values["compared"].values() for name, item in each.items()}
    assert all(item["setting"] == name for name, item in items.items())
    for run in values["runs"].values():
        assert file.get(run["experiment"]).model.endswith(f"/{run['model']}")
    for name, item in items.items():
        assert file.settings[name].model.endswith(f"/{item['model']}")


def test_a_setting_without_an_arm_of_the_comparison_has_no_tables(tmp_path):
    file = changed(tmp_path, "run: [grpo, dppo, nfpo, nfpo_release,", "run: [grpo, nfpo, nfpo_release,")
    found = job_graph.lists(file)
    assert found["compared"]["nfpo"] == {} and found["ablated"]["nfpo"] == []
    (tmp_path / "jobs.yaml").write_text(job_graph.lists_text(file))
    assert load_yaml(tmp_path / "jobs.yaml") == found


def test_a_setting_that_verl_cannot_run_has_no_tables():
    file = experiments("paper")
    assert file.settings["ibpo-next"].needs and "ibpo-next" not in job_settings.analysed(file)


def test_both_scales_have_one_graph():
    assert os.readlink(SCALES / "one_gpu" / "dvc.yaml") == "../paper/dvc.yaml"


def test_lists_are_written_beside_the_experiments(tmp_path):
    (tmp_path / "one_gpu").mkdir()
    shutil.copy(SCALES / "one_gpu" / "experiments.yaml", tmp_path / "one_gpu")
    assert job_graph.write_lists(tmp_path) == [tmp_path / "one_gpu" / "jobs.yaml"]
    assert (tmp_path / "one_gpu/jobs.yaml").read_bytes() == (SCALES / "one_gpu/jobs.yaml").read_bytes()


NOTEBOOKS = [("train", "03_train"), ("evaluate", "04_evaluate")]
NOTEBOOKS += [(name, f"nfpo/{name}") for name in ("training", "accuracy", "dynamics", "ablations")]


@pytest.mark.parametrize(("stage", "notebook"), NOTEBOOKS)
def test_the_notebooks_take_what_the_stages_give(stage, notebook):
    command = STAGES[stage]["do"]["cmd"]
    command = command if isinstance(command, str) else " ".join(command)
    assert f"notebooks/{notebook}.ipynb" in command
    given = re.findall(r"-p (\w+) ", command)
    parameters = declared(nbformat.read(ROOT / f"notebooks/{notebook}.ipynb", as_version=4))
    assert given and set(given) <= set(parameters)


def test_what_a_training_may_start_with_is_looked_at_first():
    first, second = STAGES["train"]["do"]["cmd"]
    assert "job_graph check" in first and "pipelines.stage" in second


# --- what makes a run stale --------------------------------------------------------------------------------


def tree(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def differing(tmp_path, file):
    """Files of the settings that differ from those of the committed experiments."""
    job_settings.write_settings(experiments(), tmp_path / "before")
    job_settings.write_settings(file, tmp_path / "after")
    before, after = tree(tmp_path / "before"), tree(tmp_path / "after")
    return {name for name in before | after if before.get(name) != after.get(name)}


def test_the_settings_of_an_experiment(tmp_path):
    job_settings.write_settings(experiments(), tmp_path / "settings")
    found = tree(tmp_path / "settings")
    names = {"training.json", "data.json", *(f"evaluation-s{seed}.yaml" for seed in (0, 1, 2))}
    assert {name for name in found if name.startswith("nfpo-0.6b-nfpo/")} == {
        f"nfpo-0.6b-nfpo/{name}" for name in names
    }
    assert len(found) == 47 * 5 + 3 + 2 + 6  # of settings, of two untrained models, of revisions
    compared = read_json(tmp_path / "settings/nfpo-0.6b.json")
    assert compared["analysis"]["dynamics"]["horizons"] == [1, 2, 4, 8, 16]
    assert compared["setting"]["arms"]["nfpo"]["parameters"]["horizon"] == 4
    training = read_json(tmp_path / "settings/nfpo-0.6b-nfpo/training.json")
    assert training["update"]["lr"] == 1e-6 and training["parameters"]["horizon"] == 4
    assert read_json(tmp_path / "settings/nfpo-0.6b-nfpo/data.json") == {
        "train": "math_train", "levels": [3, 4, 5], "split": None, "exclude": [], "prompt_style": None,
        "validation": ["amc23", "math500"],
    }  # fmt: skip


def test_a_learning_rate_of_one_arm_changes_its_training_and_the_comparison(tmp_path):
    old = "objective: nfpo\n        parameters: &n4"
    new = 'objective: nfpo\n        change: {update: {lr: {value: 2.0e-6, source: "choice: try"}}}\n'
    file = changed(tmp_path, old, f"{new}        parameters: &n4")
    assert file.get("nfpo-0.6b-nfpo").update.lr == 2e-6
    assert differing(tmp_path, file) == {"nfpo-0.6b-nfpo/training.json", COMPARED}


def test_a_learning_rate_of_a_setting_changes_its_trainings_alone(tmp_path):
    file = changed(tmp_path, "lr: {value: 1.0e-6, source: release}", "lr: {value: 2.0e-6, source: release}")
    of = [name for name in file.names if not file.get(name).needs and name.startswith("nfpo")]
    assert len(of) == 15  # the other papers' settings have their own
    assert differing(tmp_path, file) == {COMPARED, *(f"{name}/training.json" for name in of)}


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        (
            'samples: {value: 8, source: "choice: a quarter',
            'samples: {value: 16, source: "choice: a quarter',
            r"nfpo-.*/evaluation-s[012]\.yaml",
        ),
        ("mean_response_length: {value: [200, 500]", "mean_response_length: {value: [200, 600]", None),
        (
            'seeds: {value: [0, 1, 2], source: "choice: the text states',
            'seeds: {value: [0, 1, 2, 3], source: "choice: the text states',
            r"nfpo-.*/evaluation-s3\.yaml",
        ),
    ],
)
def test_what_is_not_of_the_training_leaves_it_as_it_is(tmp_path, old, new, wanted):
    found = differing(tmp_path, changed(tmp_path, old, new))
    assert bool(found) == (COMPARED in found) == (wanted is not None)
    found -= {f"{name}-0.6b.json" for name in ("nfpo", "ibpo", "mpo")}
    assert all(re.fullmatch(wanted, name) for name in found)


# --- DVC ---------------------------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """What DVC needs of this repository: graphs, experiments, dependencies."""
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "--quiet", "."], check=True)
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc/config").write_text("[core]\n    analytics = false\n")
    for scale in ("paper", "one_gpu"):
        (tmp_path / "pipelines/scales" / scale).mkdir(parents=True)
        for name in ("dvc.yaml", "jobs.yaml", "experiments.yaml"):
            source = SCALES / scale / name
            shutil.copy(source, tmp_path / "pipelines/scales" / scale, follow_symlinks=False)
    deps = {dep for stage in STAGES.values() for dep in stage.get("do", stage)["deps"] if "$" not in dep}
    for dep in sorted(deps):
        (tmp_path / dep).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / dep).is_dir():
            shutil.copytree(ROOT / dep, tmp_path / dep, dirs_exist_ok=True)
        else:
            shutil.copy(ROOT / dep, tmp_path / dep)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'lib'}")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def dvc(*words):
    done = subprocess.run([sys.executable, "-m", "dvc", *words], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def pretend(scale, experiment, seed):
    """Files where the stages before the evaluation leave theirs."""
    runs = Path("runs") / scale
    for name in (
        f"settings/{experiment}/training.json",
        f"settings/{experiment}/data.json",
        f"settings/{experiment}/evaluation-s{seed}.yaml",
        f"data/{experiment}.json",
        f"train/{experiment}/seed{seed}/lag0/metrics.parquet",
        f"train/{experiment}/seed{seed}/lag0/summary.json",
        f"models/{experiment}-s{seed}/config.json",
    ):
        (runs / name).parent.mkdir(parents=True, exist_ok=True)
        (runs / name).touch()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scale", "experiment", "seed"), [("paper", "nfpo-1.7b-nfpo", 2), ("one_gpu", "nfpo-0.6b-nfpo", 0)]
)
def test_one_run_is_one_chain_of_stages(repository, scale, experiment, seed):
    pretend(scale, experiment, seed)
    graph = f"pipelines/scales/{scale}/dvc.yaml"
    status, text = dvc("repro", "--dry", f"{graph}:evaluate@{experiment}-{seed}")
    assert status == 0, text
    names = re.findall(rf"Running stage '{graph}:(.*)'", text)
    run = f"{experiment}-{seed}"
    assert names == ["settings", f"data@{experiment}", f"train@{run}", f"merge@{run}", f"evaluate@{run}"]
    assert f"-p arm {experiment} -p seed {seed} -p engine verl" in text
    assert '"${RLVR_MODELS:+$RLVR_MODELS/Qwen3-' in text
    assert '> "${RLVR_EVALUATION_PYTHON:-.venv-evaluation/bin/python}" -m pipelines.stage' in text


@pytest.mark.slow
def test_the_whole_graph_of_the_paper(repository):
    status, text = dvc("stage", "list", "--name-only", "pipelines/scales/paper/dvc.yaml")
    assert status == 0, text
    kinds = [re.search(r":(\w+)", line)[1] for line in text.splitlines() if "dvc.yaml:" in line]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "settings": 1, "data": 82, "train": 284, "merge": 284, "evaluate": 284,
        "training": 2, "accuracy": 2, "dynamics": 2, "ablations": 1,
    }  # fmt: skip


@pytest.mark.slow
def test_dvc_writes_the_settings_and_sees_whose_changed(repository):
    graph = f"{ONE_GPU}:settings"
    assert dvc("repro", graph)[0] == 0
    assert (repository / "runs/one_gpu/settings/nfpo-0.6b-nfpo/training.json").is_file()
    assert dvc("status", graph)[1].startswith("Data and pipelines are up to date")
    for name in ("nfpo-0.6b-nfpo", "nfpo-0.6b-dppo"):  # as if both were trained
        pretend("one_gpu", name, 0)
        assert dvc("commit", "--force", f"{ONE_GPU}:train@{name}-0")[0] == 0
    path = repository / "pipelines/scales/one_gpu/experiments.yaml"
    text = path.read_text()
    old = "        parameters: &n4\n"
    assert text.count(old) == 1
    lr = '        change: {update: {lr: {value: 2.0e-6, source: "choice: try"}}}\n'
    path.write_text(text.replace(old, lr + old))
    assert dvc("repro", graph)[0] == 0
    assert "training.json" in dvc("status", f"{ONE_GPU}:train@{RUN}")[1]
    assert "training.json" not in dvc("status", f"{ONE_GPU}:train@nfpo-0.6b-dppo-0")[1]


# --- data and models ---------------------------------------------------------------------------------------


def test_the_data_stage_keeps_hashes_of_what_was_written_anew(tmp_path, monkeypatch, capsys):
    from rlvr.engines.jobs import data

    asked = []

    def prepare(experiment, root, data_dir=None, force=False):
        asked.append((experiment.name, force))
        for name in ("train-math_train-l345", "validate-amc23", "validate-math500"):
            path = root / f"one_gpu/data/{name}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(name.encode())
            yield f"{path}: 1 problems"

    monkeypatch.setattr(data, "prepare", prepare)
    job_graph.write_data(experiments().get("nfpo-0.6b-nfpo"), tmp_path)
    assert asked == [("nfpo-0.6b-nfpo", True)]
    assert read_json(tmp_path / "one_gpu/data/nfpo-0.6b-nfpo.json") == {
        f"{name}.parquet": hashlib.sha256(name.encode()).hexdigest()
        for name in ("train-math_train-l345", "validate-amc23", "validate-math500")
    }
    assert capsys.readouterr().out.count("1 problems") == 3


@pytest.fixture
def trained(tmp_path):
    """(experiment, summary of a training whose checkpoint exists, folder for the model)."""
    checkpoint = tmp_path / "global_step_200/actor"
    checkpoint.mkdir(parents=True)
    write_json(tmp_path / "summary.json", {"checkpoint": str(checkpoint)})
    return experiments().get("nfpo-0.6b-nfpo"), tmp_path / "summary.json", tmp_path / "models/m"


def test_a_merged_model_is_complete_or_absent(trained, monkeypatch):
    experiment, summary, out = trained
    called, files = [], ["config.json", "model.safetensors"]

    def run(command, check):
        called.append(command)
        for name in files:
            (Path(command[-1]) / name).touch()

    monkeypatch.setattr(job_graph.subprocess, "run", run)
    job_graph.merge(experiment, 0, summary, out)
    assert sorted(p.name for p in out.iterdir()) == files
    assert called[0][1:6] == ["-m", "verl.model_merger", "merge", "--backend", "fsdp"]
    assert called[0][6:8] == ["--local_dir", str(summary.parent / "global_step_200/actor")]

    shutil.rmtree(out)
    files = ["model.safetensors"]
    with pytest.raises(ValueError, match=r"left no config\.json"):
        job_graph.merge(experiment, 0, summary, out)
    assert not out.exists()


def test_a_checkpoint_that_is_gone_is_said(trained):
    experiment, summary, out = trained
    shutil.rmtree(summary.parent / "global_step_200")
    with pytest.raises(ValueError, match="its checkpoints were removed"):
        job_graph.merge(experiment, 0, summary, out)


def test_wrong_words_are_one_message(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert job_graph.main(["settings", "laptop"]) == 2
    assert "pipelines/scales/laptop/experiments.yaml does not exist" in capsys.readouterr().err
    assert job_graph.main(["check", "paper", "nfpo-1.7b-nfpoo", "0"]) == 2
    assert "nfpo-1.7b-nfpo" in capsys.readouterr().err
