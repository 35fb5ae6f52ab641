"""Evaluation files of the experiments, their choices in the list of decisions, and what the document says."""

import os.path
import re
from functools import reduce

import pytest
from job_fixtures import ROOT, experiments

from pipelines import job_graph
from rlvr.cli import main
from rlvr.config import load_yaml
from rlvr.engines.jobs import collect
from rlvr.engines.jobs.evaluation import evaluation_settings
from rlvr.engines.jobs.sections import SECTIONS
from rlvr.evaluation.files import Settings, load_settings

DOCUMENT = (ROOT / "docs" / "cluster.md").read_text()
SCALES = ("paper", "one_gpu")
EVERY = [(scale, name) for scale in SCALES for name in experiments(scale).names]


# --- evaluation files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", SCALES)
def test_every_experiment_has_a_valid_evaluation_file(scale):
    file = experiments(scale)
    for name in file.names:
        experiment = file.get(name)
        values = evaluation_settings(experiment, 1)
        settings = Settings.model_validate(values)
        assert [source.benchmark for source in settings.problems] == list(experiment.evaluation.benchmarks)
        sampling = settings.sampling_config
        assert (sampling.samples, sampling.temperature) == (
            experiment.evaluation.samples,
            experiment.evaluation.temperature,
        )
        assert sampling.max_tokens == experiment.data.max_response_length
        cards = sampling.tensor_parallel_size * sampling.data_parallel_size
        assert cards == experiment.hardware.gpus_per_node
        assert os.path.normpath(os.path.join(os.path.dirname(settings.scale_file), settings.root)) == "."


def test_an_evaluation_file(tmp_path):
    job_graph.write_settings(experiments("paper"), tmp_path / "settings")
    path = tmp_path / "settings/nfpo-1.7b-nfpo/evaluation-s2.yaml"
    assert load_yaml(path) == {
        "scale": "paper",
        "root": "../../../..",
        "scale_file": "runs/paper/settings/nfpo-1.7b-nfpo/evaluation-s2.yaml",
        "engine": "vllm",
        "model": "runs/paper/models/nfpo-1.7b-nfpo-s2",
        "name": "nfpo-1.7b-nfpo-s2",
        "workers": 8,
        "problems": [
            {"benchmark": name}
            for name in "aime24 aime25 aime26 amc23 math500 minerva_math olympiadbench".split()
        ],
        "subset_seed": 0,
        "sampling": {
            "max_tokens": 8192, "samples": 32, "seeds": [0], "temperature": 0.7, "chat_template": "model",
            "tensor_parallel_size": 1, "data_parallel_size": 8,
        },
        "training_sets": ["math_train"],
        "confidence": 0.95,
    }  # fmt: skip
    assert load_settings(path).name == "nfpo-1.7b-nfpo-s2"
    for written in (tmp_path / "settings").glob("*/evaluation-s*.yaml"):
        load_settings(written)


def test_prompts_are_worded_as_in_training():
    experiment = experiments().get("nfpo-0.6b-nfpo")
    assert "prompt_style" not in evaluation_settings(experiment, 0)["sampling"]
    plain = experiment.model_copy(
        update={"data": experiment.data.model_copy(update={"prompt_style": "plain"})}
    )
    assert evaluation_settings(plain, 0)["sampling"]["prompt_style"] == "plain"


# --- decisions ---------------------------------------------------------------------------------------------

#: Choices that no number of a training or a table depends on: how work is shared out, what is kept, the plan.
NO_NUMBER = {"checkpoints", "hardware", "expected"}
NO_NUMBER_OF = {"tokens_per_gpu", "sequence_parallel", "offload", "tensor_parallel", "gpu_memory_utilization"}


def choices():
    """(class, field) of every value whose source is a choice; parameters of objectives as (arm, field)."""
    for scale in SCALES:
        file = experiments(scale)
        for path, source in file.sources.items():
            if not source.startswith("choice"):
                continue
            if path.startswith("analysis."):
                section = path.split(".")[2]
                owner = {"report": "Report", "dynamics": "Dynamics", "reach": "Reach"}.get(
                    section, "Analysis"
                )
                yield owner, path.rpartition(".")[2]
                continue
            setting = max((n for n in file.settings if path.startswith(f"settings.{n}.")), key=len)
            parts = path.removeprefix(f"settings.{setting}.").split(".")
            if parts[2:3] == ["counterfactual"]:
                yield "Counterfactual", parts[3]
            elif parts[2:3] == ["self_correction"]:
                yield "SelfCorrection", parts[3]
            elif parts[2:3] == ["mtp"]:
                yield ("ModuleWarmUp" if "warmup" in parts else "Modules"), parts[-1]
            elif parts[0] == "arms" and parts[-1] in NO_NUMBER_OF:
                continue
            elif parts[2:3] == ["change"] and parts[-1] in ("steps", "responses_per_prompt"):  # an arm's own
                yield SECTIONS[parts[3]].__name__, parts[-1]
            elif parts[0] == "arms":
                own = next(
                    (name for name in ("nfpo", "gspo", "mpo_d10") if parts[1].startswith(name)), parts[1]
                )
                yield own.removesuffix("_d10"), parts[-1]
            elif len(parts) == 1:
                yield "Setting", parts[0]
            elif parts[0] not in NO_NUMBER and parts[1] not in NO_NUMBER_OF:
                yield SECTIONS[parts[0]].__name__, parts[1]


def test_every_choice_of_the_experiments_is_a_listed_decision():
    named = {
        (called, argument)
        for entry in load_yaml(ROOT / "data/decisions.yaml")
        for called, arguments in re.findall(r"(\w+)\(([^)]*)\)", entry["where"])
        for argument in re.findall(r"(\w+)=", arguments)
    }
    found = set(choices())
    assert {("Data", "split"), ("nfpo", "horizon"), ("nfpo", "band"), ("Setting", "seeds")} <= found
    assert {("Report", "margin"), ("Dynamics", "horizons"), ("Reach", "reward")} <= found
    assert found <= named, found - named


@pytest.mark.parametrize("scale", SCALES)
def test_a_source_is_of_the_setting_s_own_paper(scale):
    """What a setting takes over from another paper's has sources of its own: only NFPO has a release, and
    sections of NFPO's text and a paper's number of seeds say nothing of another paper."""
    file = experiments(scale)
    for path, source in file.sources.items():
        setting = max((n for n in file.settings if path.startswith(f"settings.{n}.")), key=len, default=None)
        if setting is None or file.settings[setting].paper == "nfpo":
            continue
        parts = path.removeprefix(f"settings.{setting}.").split(".")
        if parts[0] == "arms" and parts[1] not in file.settings[setting].run:
            continue  # an arm that is inherited and not run
        assert not source.startswith("release"), path
        assert source != "text: App. C" and "Ablation" not in source, path
        if path.endswith(("data.train", "data.levels")) and file.settings[setting].paper == "ibpo":
            assert source.startswith("choice"), path


def test_numbers_of_the_decisions_are_those_of_the_experiments():
    text = {entry["topic"]: entry["here"] for entry in load_yaml(ROOT / "data/decisions.yaml")}
    paper, one = experiments("paper"), experiments("one_gpu")
    horizons = [paper.get(f"nfpo-1.7b-nfpo{n}").parameters["horizon"] for n in ("_n2", "_n8", "_n16", "")]
    assert horizons == [2, 8, 16, 4] and "2, 8 and 16 beside 4" in text["N of Figure 4, in the experiments"]
    gspo, mpo = paper.get("ibpo-32b-gspo"), paper.get("mpo-qwen1.5b-humaneval-grpo")
    assert (gspo.rollout.prompts_per_step, gspo.rollout.responses_per_prompt) == (32, 64)
    assert gspo.update.steps == 100
    assert gspo.data.exclude == ("aime25", "hmmt_feb_2025") and gspo.evaluation.temperature == 1
    assert mpo.data.split == "train" and mpo.rollout.prompts_per_step == 64
    kept = [paper.get(name).records for name in ("nfpo-1.7b-nfpo", "ibpo-32b-gspo", "mpo-qwen1.5b-math-ppo")]
    kept.append(one.get("nfpo-0.6b-nfpo").records)
    assert [(r.responses, r.every, r.megabytes) for r in kept] == [
        (16, 4, 500), (16, 10, 500), (16, 10, 500), (16, 1, 500),
    ]  # fmt: skip
    for file in (paper, one):
        report, dynamics = file.analysis["nfpo"].report, file.analysis["nfpo"].dynamics
        assert (
            f"margin of {report.margin}"
            in text["Intervals, margin and horizons of the experiments' analysis"]
        )
        assert (report.confidence, report.bootstrap, report.margin) == (0.95, 2000, 0.02)
        assert all(one.report == report for one in file.analysis.values())
        assert dynamics.horizons == (1, *sorted(horizons)) and dynamics.segment == 50
    small = one.get("nfpo-0.6b-nfpo")
    assert (small.rollout.prompts_per_step, small.data.max_response_length) == (32, 2048)
    assert small.update.steps == 200
    for scale, arms in ((paper, "nfpo-1.7b"), (one, "nfpo-0.6b")):
        updates = [scale.get(f"{arms}-{arm}").update for arm in ("grpo", "dppo", "nfpo", "fipo")]
        assert [update.recompute for update in updates] == [True, False, False, True]
        modes = [update.loss_agg_mode for update in updates]
        assert modes == ["seq-mean-token-sum-norm"] * 3 + ["token-mean"]
        assert not any(update.divide_by_std for update in updates)


# --- the document ------------------------------------------------------------------------------------------


def rows(head):
    """Rows of the table of the document under this head, as tuples without backticks."""
    lines = DOCUMENT.split(f"{head}\n| --- | --- |\n")[1].splitlines()
    table = lines[: next(i for i, line in enumerate(lines) if not line.startswith("|"))]
    return [tuple(cell.strip().replace("`", "") for cell in line.strip("|").split("|")) for line in table]


def test_the_tables_of_metrics_are_those_of_the_code():
    assert dict(rows("| here | verl's |")) == collect.NAMES
    assert dict(rows("| here | what differs |")) == collect.DIFFERENCES
    assert all(f"`{name}`" in DOCUMENT for name in collect.KEPT_VERL)


def test_the_columns_of_records_are_those_that_are_kept():
    source = (ROOT / "lib/rlvr/engines/verl/recording.py").read_text()
    kept = re.findall(r'(?m)^    "(\w+)": pa\.', source)
    (sentence,) = re.findall(r"a row per token, with (.*)\. At about", DOCUMENT)
    assert re.findall(r"`(\w+)`", sentence) == [*kept, "rho", "trace"]
    assert kept[:5] == collect.RECORDS


def test_the_rate_of_records():
    paper, one = experiments("paper"), experiments("one_gpu")
    records = paper.get("nfpo-1.7b-nfpo").records
    assert f"{records.responses} responses of every {records.every}th step" in DOCUMENT
    assert f"each GPU stops at {records.megabytes:.0f} MB" in DOCUMENT
    assert one.get("nfpo-0.6b-nfpo").records.every == 1
    assert {paper.get(n).records.every for n in ("ibpo-32b-gspo", "mpo-llama1b-math-ppo")} == {10}
    steps = paper.get("nfpo-1.7b-nfpo").update.steps
    assert steps // records.every * records.responses * 1500 == 3_000_000  # of about 1500 tokens


def test_the_runs_of_the_document_exist():
    commands = re.findall(r"(?m)^\s*dvc repro (\S+)", DOCUMENT)
    assert len(commands) >= 8
    for command in commands:
        graph, stage, item = re.fullmatch(r"(.*):(\$?\w+)@(.*)", command).groups()
        stages, scale = load_yaml(ROOT / graph)["stages"], ROOT / "/".join(graph.split("/")[:3])
        lists = load_yaml(scale / "jobs.yaml")
        for arm in ("grpo", "dppo", "nfpo"):
            for table in ("training", "accuracy", "dynamics", "ablations"):
                found = stages[stage.replace("$table", table)]["foreach"].removeprefix("${").removesuffix("}")
                listed = reduce(lambda values, key: values[key], found.split("."), lists)
                assert item.replace("$arm", arm) in listed


def test_the_tables_of_the_document_are_stages_and_their_notebooks_make_them():
    (section,) = re.findall(r"\| `training@nfpo-1.7b` \|.*?\n\n", DOCUMENT, re.DOTALL)
    stages = load_yaml(ROOT / "pipelines/scales/paper/dvc.yaml")["stages"]
    named = re.findall(r"\| `(\w+)@nfpo-1\.7b` \| (.*?) \|", section)
    assert [name for name, _ in named] == ["training", "accuracy", "dynamics", "ablations"]
    for name, text in named:
        assert name in stages
        notebook = (ROOT / f"notebooks/nfpo/{name}.ipynb").read_text()
        for kind, number in re.findall(
            r"(Tables?|Figures?|cases of) ((?:[A-Z]?\.?\d)(?:(?:, | and )[A-Z]?\.?\d)*)", text
        ):
            for one in re.split(", | and ", number):
                prefix = {"T": "tab", "F": "fig", "c": "case"}[kind[0]]
                assert f'id=\\"nfpo-{prefix}{one.replace(".", "")}\\"' in notebook, (name, kind, one)


def test_show_prints_the_variable_in_front(capsys):
    assert main(["job", "show", "nfpo-1.7b-nfpo"]) == 0
    first = "VERL_USE_EXTERNAL_MODULES=rlvr.engines.verl.trainer"
    assert capsys.readouterr().out.startswith(f"{first} python -m verl.trainer.main_ppo")
    assert f"with `{first}` in front" in DOCUMENT
