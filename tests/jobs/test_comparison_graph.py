"""Tables and figures of experiments in the graph: true dependencies, and no training started by them."""

import re

import pytest
from job_fixtures import ROOT, experiments, make_job, save_checkpoint
from test_job_graph import GRAPH, dvc, pretend, repository  # noqa: F401
from test_scales import SOURCES, code_deps, is_covered

from pipelines import job_graph
from pipelines.job_confirmation import check_comparison, names_runs
from rlvr.config import load_yaml

STAGES = {name: stage["do"] for name, stage in load_yaml(GRAPH)["stages"].items() if "do" in stage}
COMPARISONS = ("training", "accuracy", "dynamics", "ablations")
SCALES = ("paper", "one_gpu")
#: What reads experiments.yaml, whose numbers are in the setting's file; generated problems, of which
#: experiments have none; and, where objectives are not looked at, the words for a name that is not known.
CONFIGURATION = ("rlvr.engines.jobs", "rlvr.problems", "rlvr.verifiers")
BRANCHES = {name: (*CONFIGURATION, "rlvr.registry") for name in COMPARISONS[:3]}
BRANCHES["ablations"] = CONFIGURATION


def files_of(name):
    modules = SOURCES.modules(f"notebooks/nfpo/{name}.ipynb", BRANCHES[name])
    return sorted(SOURCES.file_of(module).relative_to(ROOT).as_posix() for module in modules)


@pytest.mark.parametrize("name", COMPARISONS)
def test_the_code_of_a_comparison_is_what_it_depends_on(name):
    deps = code_deps(STAGES[name])
    assert all((ROOT / dep).exists() for dep in deps)
    missing = [file for file in files_of(name) if not is_covered(file, deps)]
    assert not missing, f"{GRAPH.relative_to(ROOT)}, stage {name}: deps lack {missing}"
    code = [dep for dep in deps if dep.startswith("lib/")]
    unused = [dep for dep in code if not any(is_covered(file, [dep]) for file in files_of(name))]
    assert not unused, f"{GRAPH.relative_to(ROOT)}, stage {name}: nothing imports {unused}"
    assert {f"notebooks/nfpo/{name}.ipynb", "data/paper"} <= set(deps)


def runs_of(name, scale, setting):
    """(folder, arm) of the runs that a stage depends on."""
    filled = [re.sub(r"\$\{item(\.setting)?\}", setting, dep) for dep in STAGES[name]["deps"]]
    found = [re.fullmatch(rf"runs/\$\{{scale\}}/(train|evaluate)/{setting}-(\w+)", dep) for dep in filled]
    return {(match[1], match[2]) for match in found if match}


@pytest.mark.parametrize("scale", SCALES)
def test_a_comparison_depends_on_the_runs_of_its_arms(scale):
    file, listed = experiments(scale), load_yaml(ROOT / f"pipelines/scales/{scale}/jobs.yaml")
    arms = file.analysis["nfpo"].arms
    for setting in listed["compared"]["nfpo"]:
        assert runs_of("training", scale, setting) == {("train", arm) for arm in arms}
        assert runs_of("accuracy", scale, setting) == {("evaluate", arm) for arm in arms}
        assert runs_of("dynamics", scale, setting) == {("train", "nfpo")}
    for setting in listed["ablated"]["nfpo"]:
        run = [arm for arm in file.settings[setting].run if not file.get(f"{setting}-{arm}").needs]
        changed = [arm for arm in run if arm not in arms]
        assert runs_of("ablations", scale, setting) == {
            *(("evaluate", arm) for arm in ("dppo", "nfpo", *changed)),
            *(("train", arm) for arm in ("nfpo", *changed)),
        }


@pytest.mark.parametrize("name", COMPARISONS)
def test_a_comparison_depends_on_the_numbers_of_its_setting(tmp_path, name):
    item = "${item}" if name == "ablations" else "${item.setting}"
    assert f"runs/${{scale}}/settings/{item}.json" in STAGES[name]["deps"]
    job_graph.write_settings(experiments("paper"), tmp_path / "settings")
    for setting in job_graph.analysed(experiments("paper")):
        assert (tmp_path / f"settings/{setting}.json").is_file()


# --- nothing is trained for a table ------------------------------------------------------------------------

ONE_GPU = "pipelines/scales/one_gpu/dvc.yaml"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (f"repro {ONE_GPU}:accuracy@nfpo-0.6b", True),
        ("repro -s training@nfpo-0.6b dynamics@nfpo-0.6b ablations@nfpo-0.6b", True),
        ("repro accuracy@nfpo-0.6b evaluate@nfpo-0.6b-nfpo-0", True),
        ("repro -P accuracy@nfpo-0.6b", False),
        (f"repro {ONE_GPU} accuracy@nfpo-0.6b", False),
        ("repro evaluate@nfpo-0.6b-nfpo-0", False),
        ("exp run accuracy@nfpo-0.6b", False),
        ("", False),
    ],
)
def test_a_table_starts_no_training(tmp_path, words, named):
    job, _ = make_job(tmp_path)
    assert not (named and names_runs(words.split()))
    if named:
        with pytest.raises(ValueError, match=r"seed 0 of nfpo-0\.6b-nfpo is not trained") as refused:
            check_comparison(words.split(), job)
        assert f"dvc repro {ONE_GPU}:evaluate@nfpo-0.6b-nfpo-0" in str(refused.value)
    save_checkpoint(job, job.experiment.update.steps)
    assert check_comparison(words.split(), job) is named  # what is done is collected anew, and costs nothing


def test_a_training_that_a_table_lacks_says_so_before_ray_is_asked(tmp_path, monkeypatch):
    file = experiments()
    monkeypatch.setattr(job_graph, "words_of_dvc", lambda: ["repro", f"{ONE_GPU}:accuracy@nfpo-0.6b"])
    with pytest.raises(ValueError, match="tables and figures start no training"):
        job_graph.check_run(file, file.get("nfpo-0.6b-grpo"), 2, tmp_path)


@pytest.mark.slow
def test_dvc_finds_the_runs_of_a_setting(repository):  # noqa: F811
    for arm in ("grpo", "dppo", "nfpo"):
        for seed in (0, 1, 2):
            pretend("one_gpu", f"nfpo-0.6b-{arm}", seed)
            (repository / f"runs/one_gpu/evaluate/nfpo-0.6b-{arm}/seed{seed}").mkdir(parents=True)
    (repository / "runs/one_gpu/settings/nfpo-0.6b.json").touch()
    status, text = dvc("repro", "--dry", f"{ONE_GPU}:accuracy@nfpo-0.6b")
    assert status == 0, text
    names = re.findall(rf"Running stage '{ONE_GPU}:(.*)'", text)
    runs = {f"evaluate@nfpo-0.6b-{arm}-{seed}" for arm in ("grpo", "dppo", "nfpo") for seed in (0, 1, 2)}
    assert names[-1] == "accuracy@nfpo-0.6b"
    assert {name for name in names if name.startswith("evaluate")} == runs
    assert "--out runs/one_gpu/nfpo/nfpo-0.6b/accuracy" in text and "-p setting nfpo-0.6b" in text
