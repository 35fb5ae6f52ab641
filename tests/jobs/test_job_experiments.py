"""The scale files for clusters: sourced, faithful where the texts speak; and what a wrong one says."""

import copy
import io

import pytest
from job_fixtures import ROOT, experiments
from ruamel.yaml import YAML

from rlvr import objectives
from rlvr.engines.jobs.command import data_files, hydra_value, overrides, shell_command
from rlvr.engines.jobs.experiments import leaves, load_experiments
from rlvr.engines.jobs.hardware import MODELS
from rlvr.engines.jobs.sections import SECTIONS
from rlvr.problems.benchmarks import load_benchmark
from rlvr.problems.benchmarks.sources import MissingData

FILES = {scale: experiments(scale) for scale in ("paper", "one_gpu")}


@pytest.mark.parametrize("scale", FILES)
def test_a_file_leads_back_to_itself(scale):
    file = FILES[scale]
    path = ROOT / file.scale_file
    assert path.parent.name == file.scale == scale and (path.parent / file.root).resolve() == ROOT
    assert len(set(file.names)) == len(file.names)


def test_names_are_unique_over_all_files():
    names = [name for file in FILES.values() for name in file.names]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("scale", FILES)
def test_every_value_has_a_source(scale):
    """Counted from the typed settings, not from the file: a default that nobody wrote down is found too."""
    file = FILES[scale]
    for name, setting in file.settings.items():
        for section in SECTIONS:
            for path, value in leaves(getattr(setting, section).model_dump()):
                default = type(getattr(setting, section)).model_fields[path].default
                if value != default:
                    assert f"settings.{name}.{section}.{path}" in file.sources, (name, section, path)
        for arm, values in setting.arms.items():
            for path, _ in leaves(values.parameters | values.change):
                where = "parameters" if path in values.parameters else "change"
                assert f"settings.{name}.arms.{arm}.{where}.{path}" in file.sources


def test_what_the_nfpo_text_states():
    small, large = (FILES["paper"].get(f"nfpo-{size}-nfpo") for size in ("1.7b", "8b"))
    assert (small.model, large.model) == ("Qwen/Qwen3-1.7B-Base", "Qwen/Qwen3-8B-Base")
    assert (small.data.train, small.data.levels, large.data.train) == (
        "math_train",
        (3, 4, 5),
        "dapo_math_17k",
    )
    assert large.data.levels is None
    assert (small.data.max_response_length, large.data.max_response_length) == (8192, 16384)
    assert (small.parameters["horizon"], large.parameters["horizon"]) == (4, 8)
    for experiment in (small, large):
        assert experiment.rollout.prompts_per_step * experiment.rollout.responses_per_prompt == 1024
        assert experiment.update.minibatch_responses == 256
        assert len(experiment.evaluation.benchmarks) == 7 and experiment.evaluation.samples == 32
        assert experiment.hardware.gpus == 8 and not experiment.update.recompute
        assert (
            experiment.parameters["trace_clip"] == [0.8, 1.4] and experiment.parameters["ratio_clip"] == 3.0
        )


def test_arms_differ_from_nfpo_in_what_they_say():
    file = FILES["paper"]
    nfpo = dict(leaves(file.get("nfpo-1.7b-nfpo").model_dump(exclude={"name"})))
    differ = {
        "nfpo_n2": {"parameters.horizon"},
        "nfpo_trace_06_12": {"parameters.trace_clip"},
        "nfpo_recompute": {"update.recompute"},
        "nfpo_no_ratio_clip": {"parameters.ratio_clip"},
        "nfpo_kl": {"parameters.region", "parameters.delta"},
        "nfpo_clip": {"parameters.region", "parameters.clip_low", "parameters.clip_high"},
        "nfpo_band": {"parameters.region", "parameters.band"},
    }
    for arm, expected in differ.items():
        other = dict(leaves(file.get(f"nfpo-1.7b-{arm}").model_dump(exclude={"name"})))
        assert {key for key in nfpo | other if nfpo.get(key) != other.get(key)} == expected, arm


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Qwen/Qwen3-0.6B-Base", 0.60),
        ("Qwen/Qwen3-1.7B-Base", 1.72),
        ("Qwen/Qwen3-8B-Base", 8.19),
        ("Qwen/Qwen3-32B", 32.8),
        ("meta-llama/Llama-3.2-1B-Instruct", 1.24),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", 1.78),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", 7.62),
    ],
)
def test_shapes_give_the_published_number_of_parameters(name, billions):
    assert MODELS[name].parameters / 1e9 == pytest.approx(billions, rel=0.01)


# --- what a wrong file says ---


def write(tmp_path, change):
    raw = YAML(typ="safe", pure=True).load(ROOT / "pipelines/scales/one_gpu/experiments.yaml")
    raw = copy.deepcopy(raw)
    raw["settings"] = {"nfpo-0.6b": raw["settings"]["nfpo-0.6b"]}
    change(raw["settings"]["nfpo-0.6b"], raw)
    stream = io.StringIO()
    YAML(typ="safe", pure=True).dump(raw, stream)
    (tmp_path / "experiments.yaml").write_text(stream.getvalue())
    return tmp_path / "experiments.yaml"


def value(x):
    return {"value": x, "source": "choice: a test"}


MTP = {"blocks": value(3), "lr": value(1e-5)}


def warmup(*sets):
    given = {"train": list(sets), "steps": 3, "batch_size": 2, "lr": 1e-4, "seed": 0}
    return {name: value(x) for name, x in given.items()}


WRONG = {
    "no source": (lambda s, _: s["update"].update(lr=1e-6), r"update.lr = 1e-06: has no source"),
    "empty source": (
        lambda s, _: s["update"].update(lr={"value": 1e-6, "source": "text:"}),
        r"update.lr = .*with a source of 'text: where'",
    ),
    "unknown source": (lambda s, _: s["update"].update(lr={"value": 1e-6, "source": "a blog"}), r"a blog"),
    "a further key": (lambda s, _: s["update"].update(lr=value(1e-6) | {"note": "x"}), r"allowed is \{value"),
    "quoted number": (
        lambda s, _: s["update"].update(lr=value("1e-6")),
        r"lr='1e-6' must be a number without quotes",
    ),
    "typo": (lambda s, _: s["update"].update(lrate=value(1)), r"settings.nfpo-0.6b.update.lrate = 1: Extra"),
    "missing": (lambda s, _: s["update"].pop("lr"), r"update.lr: Field required"),
    "negative": (
        lambda s, _: s["update"].update(lr=value(-1.0)),
        r"update.lr = -1.0: Input should be greater",
    ),
    "benchmark": (lambda s, _: s["data"].update(train=value("math_trian")), r"math_trian"),
    "model": (lambda s, _: s.update(model=value("Qwen/Qwen3-0.6B")), r"did you mean 'Qwen/Qwen3-0.6B-Base'"),
    "card": (lambda s, _: s["hardware"].update(gpu=value("H20O")), r"gpu='H20O': did you mean"),
    "mode": (lambda s, _: s["update"].update(loss_agg_mode=value("mean")), r"loss_agg_mode='mean': allowed"),
    "objective": (lambda s, _: s["arms"]["nfpo"].update(objective="nfop"), r"nfop"),
    "parameter": (
        lambda s, _: s["arms"]["nfpo"]["parameters"].update(horizn=value(4)),
        r"experiment nfpo-0.6b-nfpo, .*:\n  nfpo has no parameter 'horizn': did you mean 'horizon'",
    ),
    "parameter's value": (
        lambda s, _: s["arms"]["nfpo"]["parameters"].update(horizon=value(0)),
        r"experiment nfpo-0.6b-nfpo, .*:\n  horizon=0",
    ),
    "mpo without needs": (
        lambda s, _: s["arms"].update(nfpo={"objective": "mpo"}),
        r"mpo needs mtp_log_prob, old_mtp_log_prob, which verl does not hand over: a section `mtp`, or",
    ),
    "modules of an objective without": (
        lambda s, _: s["arms"]["nfpo"].update(mtp=MTP),
        r"nfpo takes no modules: allowed is no section `mtp`",
    ),
    "modules' settings": (
        lambda s, _: s["arms"].update(nfpo={"objective": "mpo", "mtp": MTP | {"depth": value(2)}}),
        r"mtp.depth",
    ),
    "a parameter that the modules decide": (
        lambda s, _: s["arms"].update(
            nfpo={
                "objective": "mpo",
                "parameters": {"mtp_gradient": value("full")},
                "mtp": MTP,
            }
        ),
        r"mtp_gradient is no parameter of an arm: allowed is mtp.policy_gradient",
    ),
    "modules warmed up on an unknown set": (
        lambda s, _: s["arms"].update(
            nfpo={
                "objective": "mpo",
                "mtp": {"blocks": value(3), "lr": value(1e-5), "warmup": warmup("gsm9k")},
            }
        ),
        r"gsm9k",
    ),
    "mask without a loss for it": (
        lambda s, _: s["arms"].update(
            nfpo={"objective": "gspo", "counterfactual": {"variant": value("mask")}}
        ),
        r"counterfactual.variant='mask' with objective='gspo': allowed",
    ),
    "a setting of corrections": (
        lambda s, _: s["arms"].update(nfpo={"objective": "gspo", "counterfactual": {"corections": value(4)}}),
        r"arms.nfpo.counterfactual.corections",
    ),
    "corrections without a length": (
        lambda s, _: s["arms"].update(
            nfpo={"objective": "gspo", "counterfactual": {"corrections": value(4)}}
        ),
        r"data.max_correction_prompt_length=None: allowed beside counterfactual are tokens",
    ),
    "self_correction without long prompts": (
        lambda s, _: s["arms"].update(nfpo={"objective": "gspo", "self_correction": {"kl": value(0.1)}}),
        r"data.max_correction_prompt_length=None: allowed beside self_correction are tokens",
    ),
    "self_correction and its share": (
        lambda s, _: s["arms"].update(
            nfpo={"objective": "gspo", "self_correction": {"stage1_share": value(1.0)}}
        ),
        r"arms.nfpo.self_correction.stage1_share.* less than 1",
    ),
    "a template that texts do not have": (
        lambda s, _: (
            s["data"].update(max_correction_prompt_length=value(1500)),
            s["arms"].update(
                nfpo={"objective": "gspo", "self_correction": {"template": value("problem_last")}}
            ),
        ),
        r"self_correction.template='problem_last'",
    ),
    "two second passes": (
        lambda s, _: s["arms"].update(
            nfpo={
                "objective": "gspo",
                "counterfactual": {"corrections": value(4)},
                "self_correction": {"kl": value(0.1)},
            }
        ),
        r"counterfactual beside self_correction: no trainer has both; allowed is one of them",
    ),
    "a second KL beside self_correction": (
        lambda s, _: (
            s["data"].update(max_correction_prompt_length=value(1500)),
            s["update"].update(kl_coef=value(0.001)),
            s["arms"].update(nfpo={"objective": "gspo", "self_correction": {"kl": value(0.1)}}),
        ),
        r"update.kl_coef=0.001: allowed beside self_correction is 0",
    ),
    "change of nothing": (
        lambda s, _: s["arms"]["nfpo"].update(change={"update": {"lrr": value(1)}}),
        r"change.update.'lrr': did you mean 'lr'",
    ),
    "sizes": (
        lambda s, _: s["update"].update(minibatch_responses=value(60)),
        r"minibatch_responses=60 must be a multiple of responses_per_prompt=8",
    ),
    "batch": (
        lambda s, _: s["update"].update(minibatch_responses=value(96)),
        r"prompts_per_step=32 \* responses_per_prompt=8 must be a multiple",
    ),
    "tokens": (
        lambda s, _: s["update"].update(tokens_per_gpu=value(2048)),
        r"tokens_per_gpu=2048 .* must hold the longest prompt and response, 3072 tokens",
    ),
    "group of one": (
        lambda s, _: s["rollout"].update(responses_per_prompt=value(1)),
        r"responses_per_prompt=1 must be at least 2",
    ),
    "run": (lambda s, _: s.update(run=["grpo", "nothing"]), r"run=\['grpo', 'nothing'\] must name arms"),
    "loop": (lambda s, _: s.update(extends="nfpo-0.6b"), r"extends='nfpo-0.6b': allowed are other settings"),
    "limit": (lambda _, raw: raw["max_gpu_hours"].pop("total"), r"max_gpu_hours.total: Field required"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_a_wrong_file_says(tmp_path, name):
    change, message = WRONG[name]
    with pytest.raises(ValueError, match=message) as error:
        load_experiments(write(tmp_path, change))
    assert "experiments.yaml" in str(error.value)


def test_the_file_of_these_tests_is_right_before_it_is_changed(tmp_path):
    assert len(load_experiments(write(tmp_path, lambda s, raw: None)).names) == 16
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load_experiments(tmp_path / "nothing.yaml")


# --- the command ---


def test_the_command_can_be_pasted_into_a_shell():
    import subprocess

    words = overrides(FILES["paper"].get("nfpo-8b-nfpo"), 0, "/a folder/of $HOME's", extra=["+x.y='q \"r\"'"])
    shown = shell_command(words, {"A": "b c"})
    done = subprocess.run(
        ["bash", "-c", 'python() { printf \'%s\\0\' "$A" "$@"; }; ' + shown], capture_output=True, text=True
    )
    assert done.stdout.split("\0")[:-1] == ["b c", "-m", "verl.trainer.main_ppo", *words]


def test_values_in_hydras_grammar():
    assert hydra_value(None) == "null" and hydra_value(True) == "True" and hydra_value(1e-6) == "1e-06"
    assert hydra_value((0.8, 1.4)) == "[0.8,1.4]" and hydra_value({"a": "b"}) == "{a:b}"
    assert (
        hydra_value("pkg://a.b") == "pkg://a.b"
        and hydra_value("a b") == '"a b"'
        and hydra_value("1e3") == '"1e3"'
    )


def test_experiments_that_need_something_are_refused_by_name():
    with pytest.raises(
        ValueError, match="ibpo-next-score cannot be run by verl yet; it needs an engine for a mixture"
    ):
        overrides(FILES["paper"].get("ibpo-next-score"), 0)
    with pytest.raises(ValueError, match=r"override='--help': allowed are settings of verl, NAME=VALUE"):
        overrides(FILES["paper"].get("nfpo-8b-nfpo"), 0, extra=["--help"])


def test_files_of_other_problems_have_other_names():
    """Two experiments share a data file only if its problems are the same."""
    seen = {}
    for file in FILES.values():
        for name in file.names:
            data = file.get(name).data
            key = (data.train, data.levels, data.split, data.exclude, data.prompt_style)
            assert seen.setdefault(data_files(file.get(name), "")[0].rpartition("/")[2], key) == key


def test_a_batch_is_not_larger_than_its_training_set():
    checked = 0
    for file in FILES.values():
        for name in file.names:
            e = file.get(name)
            try:
                count = len(load_benchmark(e.data.train, levels=e.data.levels, split=e.data.split))
            except MissingData:
                pytest.skip("the benchmarks are not on this machine: set RLVR_DATA or run `rlvr data fetch`")
            assert count >= e.rollout.prompts_per_step
            checked += 1
    assert checked


@pytest.mark.parametrize("scale", sorted(FILES))
def test_every_number_of_a_baseline_is_in_the_file(scale):
    """An objective's default would run without a source; ``mtp_gradient`` follows from ``mtp``."""
    file, checked = FILES[scale], set()
    for name in file.names:
        experiment = file.get(name)
        objective = objectives.get(experiment.objective)
        if objective.name in ("ppo", "grpo", "dapo", "mpo", "fipo") and experiment.needs is None:
            known = set(objective.parameters) - set(objective.tensors) - {"mtp_gradient"}
            assert set(experiment.parameters) == known, name
            assert (experiment.critic is not None) == (objective.advantages == "critic"), name
            checked.add(objective.name)
    assert checked == {"ppo", "grpo", "dapo", "mpo", "fipo"}


def test_a_critic_of_the_file_reaches_the_command(tmp_path):
    text = (ROOT / FILES["paper"].scale_file).read_text()
    written = "value_clip: {value: 0.5, source: verl default}"
    text = text.replace(written, "value_clip: {value: 0.2, source: release}")
    (tmp_path / "experiments.yaml").write_text(text)
    file = load_experiments(tmp_path / "experiments.yaml")
    assert "critic.cliprange_value=0.2" in overrides(file.get("mpo-qwen1.5b-math-ppo"), 0)
    assert not any("cliprange" in w for w in overrides(file.get("mpo-qwen1.5b-math-grpo"), 0))
    head, _, rest = text.partition("    critic:   #")
    (tmp_path / "experiments.yaml").write_text(head + rest[rest.index("    validation:") :])
    with pytest.raises(ValueError, match="critic=None: ppo has one; allowed is a section `critic`"):
        load_experiments(tmp_path / "experiments.yaml")
