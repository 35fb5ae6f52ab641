"""Tables and figures of experiments in the graph: true dependencies, and no training started by them."""

import os
import re
from pathlib import Path

import pytest
from job_fixtures import ROOT, experiments, make_job, save_checkpoint
from test_job_graph import GRAPH, dvc, pretend, repository  # noqa: F401
from test_scales import SOURCES, code_deps, is_covered

from pipelines import job_graph, job_settings
from pipelines.job_confirmation import check_comparison, names_runs
from rlvr.analysis.setting_study import of_setting
from rlvr.config import load_yaml
from rlvr.engines.jobs.evaluation import evaluation_settings
from rlvr.evaluation.files import load_settings
from rlvr.storage import read_json

SCALES = ("paper", "one_gpu")
#: What reads experiments.yaml, whose numbers are in the setting's file; generated problems, of which
#: experiments have none; and, where objectives are not looked at, the words for a name that is not known.
CONFIGURATION = ("rlvr.engines.jobs", "rlvr.problems", "rlvr.verifiers")
WITHOUT_OBJECTIVES = (*CONFIGURATION, "rlvr.registry")
#: Not of the scale file: what a token of a published model computes.
SHAPES = ("rlvr.engines.jobs.hardware",)
#: The counts of a run are read, not made.
COUNTS = ("rlvr.engines.local.packing", "rlvr.engines.local.sampling")
#: Graph below pipelines/scales/paper, stage: its notebook, and what that does not reach with experiments.
COMPARISONS = {
    ("", "training"): ("nfpo/training", WITHOUT_OBJECTIVES),
    ("", "accuracy"): ("nfpo/accuracy", WITHOUT_OBJECTIVES),
    ("", "dynamics"): ("nfpo/dynamics", WITHOUT_OBJECTIVES),
    ("", "ablations"): ("nfpo/ablations", CONFIGURATION),
    ("ibpo", "tables"): ("ibpo/models", (*WITHOUT_OBJECTIVES, *COUNTS)),
    ("ibpo", "ablations"): ("ibpo/model_ablations", (*WITHOUT_OBJECTIVES, *COUNTS)),
    ("mpo", "tables"): ("mpo/models", CONFIGURATION),
    ("mpo", "ablations"): ("mpo/model_ablations", CONFIGURATION),
}
#: Runs of a setting that its ablations do not read.
UNREAD = {
    "ibpo": {(what, "score") for what in ("train", "evaluate", "revise")},
    "mpo": {("train", "grpo"), ("train", "dapo"), ("evaluate", "dapo")},
}
GRAPHS = {folder: GRAPH.parent / folder / GRAPH.name for folder, _ in COMPARISONS}
STAGES = {
    (folder, name): stage["do"]
    for folder, path in GRAPHS.items()
    for name, stage in load_yaml(path)["stages"].items()
    if "do" in stage
}


def files_of(key):
    notebook, skip = COMPARISONS[key]
    modules = SOURCES.modules(f"notebooks/{notebook}.ipynb", skip, SHAPES if "ibpo" in notebook else ())
    return sorted(SOURCES.file_of(module).relative_to(ROOT).as_posix() for module in modules)


@pytest.mark.parametrize("key", COMPARISONS)
def test_the_code_of_a_comparison_is_what_it_depends_on(key):
    where = f"{GRAPHS[key[0]].relative_to(ROOT)}, stage {key[1]}"
    deps = code_deps(STAGES[key])
    assert all((ROOT / dep).exists() for dep in deps)
    missing = [file for file in files_of(key) if not is_covered(file, deps)]
    assert not missing, f"{where}: deps lack {missing}"
    code = [dep for dep in deps if dep.startswith("lib/")]
    unused = [dep for dep in code if not any(is_covered(file, [dep]) for file in files_of(key))]
    assert not unused, f"{where}: nothing imports {unused}"
    assert {f"notebooks/{COMPARISONS[key][0]}.ipynb", "data/paper"} <= set(deps)


def runs_of(key, setting):
    """(folder, arm) of the runs that a stage depends on."""
    filled = [re.sub(r"\$\{item(\.setting)?\}", setting, dep) for dep in STAGES[key]["deps"]]
    found = [
        re.fullmatch(rf"runs/\$\{{scale\}}/(train|evaluate|revise)/{setting}-(\w+)", dep) for dep in filled
    ]
    return {(match[1], match[2]) for match in found if match}


def both(arms):
    return {(folder, arm) for folder in ("train", "evaluate") for arm in arms}


def run_by_verl(file, setting):
    return [arm for arm in file.settings[setting].run if not file.get(f"{setting}-{arm}").needs]


@pytest.mark.parametrize("scale", SCALES)
def test_a_comparison_depends_on_the_runs_of_its_arms(scale):
    file, listed = experiments(scale), load_yaml(ROOT / f"pipelines/scales/{scale}/jobs.yaml")
    arms = file.analysis["nfpo"].arms
    for setting in listed["compared"]["nfpo"]:
        assert runs_of(("", "training"), setting) == {("train", arm) for arm in arms}
        assert runs_of(("", "accuracy"), setting) == {("evaluate", arm) for arm in arms}
        assert runs_of(("", "dynamics"), setting) == {("train", "nfpo")}
    for setting in listed["ablated"]["nfpo"]:
        changed = [arm for arm in run_by_verl(file, setting) if arm not in arms]
        assert runs_of(("", "ablations"), setting) == {
            *(("evaluate", arm) for arm in ("dppo", "nfpo", *changed)),
            *(("train", arm) for arm in ("nfpo", *changed)),
        }


@pytest.mark.parametrize("paper", ["ibpo", "mpo"])
@pytest.mark.parametrize("scale", SCALES)
def test_tables_depend_on_the_runs_of_their_arms_and_of_the_untrained_model(scale, paper):
    file, listed = experiments(scale), load_yaml(ROOT / f"pipelines/scales/{scale}/jobs.yaml")
    assert listed["compared"][paper] and listed["ablated"][paper]
    beside = {("evaluate", "base")} | {
        ("revise", arm) for arm, _ in job_settings.REVISED.get(paper, {}).values()
    }
    for setting in listed["compared"][paper]:
        assert runs_of((paper, "tables"), setting) == both(file.analysis[paper].arms) | beside
        (made,) = STAGES[paper, "base"]["outs"]
        assert made.replace("${item.setting}", setting) == f"runs/${{scale}}/evaluate/{setting}-base"
    for setting in listed["ablated"][paper]:
        read = (both(run_by_verl(file, setting)) | beside) - UNREAD[paper]
        assert runs_of((paper, "ablations"), setting) == read


def test_a_revision_is_of_the_evaluation_and_as_long_as_in_training(tmp_path):
    (stage,) = [stage for (_, name), stage in STAGES.items() if name == "revise"]
    file = experiments("paper")
    job_settings.write_settings(file, tmp_path)
    found = read_json(tmp_path / "ibpo-32b-gspo/revision-s3.json")
    assert found["samples_file"] == "runs/paper/evaluate/ibpo-32b-gspo/seed3/samples.parquet"
    assert (found["longest"], found["max_tokens"], found["context"]) == (12288, 30720, 32768)
    second = read_json(tmp_path / "ibpo-32b-score/revision-s3.json")
    assert (found["references"], second["references"]) == (1, 0)
    assert second["samples_file"] == "runs/paper/evaluate/ibpo-32b-score/seed3/samples.parquet"
    filled = [
        dep.replace("${scale}", "paper")
        .replace("${item.experiment}", "ibpo-32b-gspo")
        .replace("${item.seed}", "3")
        for dep in stage["deps"]
    ]
    assert {found["samples_file"], found["evaluation_file"]} <= set(filled)
    assert not (tmp_path / "ibpo-32b-ibpo/revision-s3.json").exists()


def test_a_block_that_an_arm_lacks_is_no_setting_of_its_training():
    """Else every training would be another one as soon as there is a new kind of block."""
    file = experiments("one_gpu")
    assert "self_correction" not in job_settings.settings_files(file.get("nfpo-0.6b-nfpo"))["training.json"]
    assert job_settings.settings_files(file.get("ibpo-0.6b-score"))["training.json"]["self_correction"]


def test_a_setting_without_score_has_its_other_tables(tmp_path):
    file = experiments("one_gpu")
    arms = [arm for arm in file.analysis["ibpo"].arms if arm != "score"]
    analysis = file.analysis | {"ibpo": file.analysis["ibpo"].model_copy(update={"arms": arms})}
    whole = file.settings["ibpo-0.6b"]
    setting = whole.model_copy(update={"run": [arm for arm in whole.run if arm != "score"]})
    settings = file.settings | {"ibpo-0.6b": setting}
    file = file.model_copy(update={"analysis": analysis, "settings": settings})
    assert [one.name for one in job_settings.revised(file)] == ["ibpo-0.6b-gspo"]
    study = of_setting(file, "ibpo-0.6b", tmp_path)
    assert "score" not in study.arms and "score_second" not in study.left_out
    assert "gspo_prompt" in study.left_out  # it was not run


@pytest.mark.parametrize("paper", ["ibpo", "mpo"])
def test_both_scales_have_one_graph_of_tables(paper):
    assert os.readlink(ROOT / f"pipelines/scales/one_gpu/{paper}/dvc.yaml") == f"../../paper/{paper}/dvc.yaml"


@pytest.mark.parametrize("key", COMPARISONS)
def test_a_comparison_depends_on_the_numbers_of_its_setting(tmp_path, key):
    item = "${item}" if key[1] == "ablations" else "${item.setting}"
    assert f"runs/${{scale}}/settings/{item}.json" in STAGES[key]["deps"]
    job_settings.write_settings(experiments("paper"), tmp_path / "settings")
    for setting in job_settings.analysed(experiments("paper")):
        assert (tmp_path / f"settings/{setting}.json").is_file()
        is_asked = (tmp_path / f"settings/{setting}-base.json").is_file()
        assert is_asked == (not setting.startswith("nfpo"))


def test_the_untrained_model_is_asked_what_every_arm_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = experiments("paper")
    model = tmp_path / "models/Qwen3-32B"
    with pytest.raises(ValueError, match=r"allowed is a folder with Qwen/Qwen3-32B: hf download"):
        job_settings.write_base(file, "ibpo-32b", str(model), Path("runs/paper/base/ibpo-32b.yaml"))
    assert not (tmp_path / "runs").exists()
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    out = Path("runs/paper/base/ibpo-32b.yaml")
    job_settings.write_base(file, "ibpo-32b", str(model), out)
    asked = load_settings(out)
    assert (asked.model, asked.name) == (str(model), "Qwen/Qwen3-32B")
    assert (out.parent / asked.root).resolve() == tmp_path and asked.scale_file == str(out)
    of_arm = evaluation_settings(file.get("ibpo-32b-ibpo"), 0)
    for part in ("problems", "sampling", "training_sets", "engine"):
        assert asked.model_dump(mode="json", exclude_unset=True)[part] == of_arm[part]


# --- nothing is trained for a table ------------------------------------------------------------------------

ONE_GPU = "pipelines/scales/one_gpu/dvc.yaml"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (f"repro {ONE_GPU}:accuracy@nfpo-0.6b", True),
        ("repro -s training@nfpo-0.6b dynamics@nfpo-0.6b ablations@nfpo-0.6b", True),
        ("repro accuracy@nfpo-0.6b evaluate@nfpo-0.6b-nfpo-0", True),
        ("repro pipelines/scales/one_gpu/ibpo/dvc.yaml:tables@ibpo-0.6b", True),
        ("repro pipelines/scales/one_gpu/mpo/dvc.yaml:tables@mpo-0.6b", True),
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
