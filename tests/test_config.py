"""One typed loader for the scale files: what it reads, what it refuses, and how it says so."""

from __future__ import annotations

import copy
import re

import pytest
from notebook_factory import PROJECT
from pydantic import ValidationError
from ruamel.yaml import YAML

from rlvr.config import Scale, load_scale, load_yaml

SCALES = sorted([PROJECT / "params.yaml", *PROJECT.glob("pipelines/scales/*/params.yaml")])


@pytest.fixture(scope="module")
def laptop():
    return load_yaml(PROJECT / "params.yaml")


@pytest.fixture
def load(tmp_path, laptop):
    """Write the laptop scale with changes, ``{"train.lr": 1}``, and load it. A value of ... deletes."""

    def _load(changes: dict):
        raw = copy.deepcopy(laptop)
        for path, value in changes.items():
            section = raw
            *parents, name = path.split(".")
            for parent in parents:
                section = section[parent]
            if value is ...:
                del section[name]
            else:
                section[name] = value
        file = tmp_path / "params.yaml"
        YAML(typ="safe", pure=True).dump(raw, file)
        return load_scale(file)

    return _load


@pytest.mark.parametrize("path", SCALES, ids=lambda p: p.relative_to(PROJECT).as_posix())
def test_every_scale_file_is_valid_and_points_at_itself(path):
    scale = load_scale(path)
    root = (path.parent / scale.root).resolve()
    assert root == PROJECT
    assert (root / scale.scale_file).resolve() == path.resolve()
    assert path == PROJECT / "params.yaml" or path.parent.name == scale.scale


def test_scales_have_different_names():
    names = [load_scale(path).scale for path in SCALES]
    assert len(set(names)) == len(names)


@pytest.mark.fault("number-that-is-a-string", "same-value-other-type")
@pytest.mark.parametrize("written", ["1e-6", "1.0e-6", "0.000001", "1E-6", "+1e-6"])
def test_every_way_to_write_a_rate_is_the_same_float(tmp_path, written):
    text = (PROJECT / "params.yaml").read_text()
    before, after = text.split("\ntrain:\n")
    file = tmp_path / "params.yaml"
    file.write_text(before + "\ntrain:\n" + re.sub(r"(?m)^  lr: .*$", f"  lr: {written}", after, count=1))
    lr = load_scale(file).train.lr
    assert type(lr) is float
    assert lr == 1e-6


def test_yaml_1_2_not_1_1(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text("a: 1e-6\nb: no\nc: 010\nd: 1:30\ne: -1\n")
    assert load_yaml(file) == {"a": 1e-6, "b": "no", "c": 10, "d": "1:30", "e": -1}


@pytest.mark.fault("same-value-other-type")
def test_whole_floats_are_ints_where_ints_are_asked_for(load):
    steps = load({"train.steps": 10.0}).train.steps
    assert (steps, type(steps)) == (10, int)


@pytest.mark.parametrize(
    ("changes", "field", "value", "allowed"),
    [
        ({"train.steps": "many"}, "train.steps", "'many'", "valid integer"),
        ({"train.steps": 1.5}, "train.steps", "1.5", "valid integer"),
        ({"train.steps": 0}, "train.steps", "0", "greater than 0"),
        ({"train.steps": -3}, "train.steps", "-3", "greater than 0"),
        ({"train.lr": "fast"}, "train.lr", "'fast'", "valid number"),
        ({"train.lr": 0.0}, "train.lr", "0.0", "greater than 0"),
        ({"train.learning_rate": 1}, "train.learning_rate", "1", "Extra inputs are not permitted"),
        ({"trian": {}}, "trian", "{}", "Extra inputs are not permitted"),
        (
            {"train.advantage_std": "zscore"},
            "train.advantage_std",
            "'zscore'",
            "'unbiased', 'biased' or 'none'",
        ),
        ({"warmup.target_pass1": 1.0}, "warmup.target_pass1", "1.0", "less than 1"),
        ({"report.confidence": 95}, "report.confidence", "95", "less than 1"),
        ({"engine": "vlm"}, "engine", "'vlm'", "'local'"),
        ({"seeds": [0, -1]}, "seeds.1", "-1", "greater than or equal to 0"),
        ({"train.betas": [0.9]}, "train.betas", "", "Field required"),
        ({"theory.pattern_length": 8}, "theory.pattern_length", "8", "less than or equal to 7"),
    ],
)
def test_wrong_field_is_named_with_its_value_and_what_is_allowed(load, changes, field, value, allowed):
    with pytest.raises(ValueError) as caught:
        load(changes)
    lines = str(caught.value).splitlines()
    assert lines[0].endswith("params.yaml is not a valid scale file:")
    assert len(lines) == 2
    for part in (field, value, allowed):
        assert part in lines[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train.minibatches": 5}, "prompts_per_step=16 must be a multiple of minibatches=5"),
        ({"evaluate.pass_k": [1, 16]}, "holds a k above samples=4"),
        ({"arms": ["grpo", "nfpo", "ppo"]}, r"arms \['ppo'\] have no recipe"),
        ({"surrogate.recipe": "ppo"}, "surrogate.recipe='ppo' is not one of arms"),
        ({"seeds": [0, 0]}, r"seeds=\[0, 0\] must name at least one, and each once"),
        ({"train.lr": ...}, "train.lr: Field required"),
        ({"theory": ...}, "theory: missing, paper 'nfpo' needs them"),
    ],
)
def test_fields_must_fit_together_and_be_there(load, changes, message):
    with pytest.raises(ValueError, match=message):
        load(changes)


def test_part_of_another_paper_needs_none_of_nfpos_sections_and_has_a_folder_of_its_own(load):
    own = dict.fromkeys(("ablations", "theory", "dynamics", "surrogate", "exactness"), ...)
    scale = load({"paper": "ibpo", "part": "other", **own})
    folder = scale.folder
    assert folder.parts == ("runs", scale.scale, "ibpo", "other") and load({}).folder == folder.parents[1]
    assert scale.run_folder("nfpo", 1, 0) == folder / "train/nfpo/seed1/lag0"
    assert scale.evaluation_folder("nfpo") == folder / "evaluate/nfpo"
    assert scale.lags_of("nfpo") == scale.train.lags


def test_a_paper_needs_its_own_sections(load):
    with pytest.raises(ValueError, match="correcting: missing, paper 'ibpo' needs them"):
        load({"paper": "ibpo"})


def test_all_problems_come_at_once(load):
    with pytest.raises(ValueError) as caught:
        load({"train.steps": 0, "train.lr": -1, "seedz": []})
    assert len(str(caught.value).splitlines()) == 4


def test_file_that_is_missing_or_no_mapping(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"scale file .*nowhere\.yaml does not exist"):
        load_scale(tmp_path / "nowhere.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(ValueError, match="expected a mapping of sections, got list"):
        load_scale(tmp_path / "list.yaml")


def test_a_read_scale_cannot_be_changed(load):
    scale = load({})
    assert isinstance(scale, Scale)
    with pytest.raises(ValidationError, match="frozen"):
        scale.train.steps = 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train.lr": "1e-6"}, "lr='1e-6' must be a number without quotes"),
        ({"train.steps": True}, "steps=True must be a number"),
        ({"train.lr": float("inf")}, "train.lr"),
        ({"seeds": []}, "seeds=.* at least one"),
        ({"arms": ["nfpo", "nfpo"]}, "arms=.* each once"),
        ({"train.lags": [8]}, "lags=.* must hold 0"),
        ({"train.lags": [0, 0]}, "each lag once"),
        ({"train.group_size": 1}, "group_size=1 must be at least 2"),
        ({"train.records_per_step": 3}, "records_per_step=3 must be 0 or a multiple"),
        ({"train.betas": [2, 3]}, "betas="),
        ({"problems.operations": [6, 3]}, "operations=.* fewest, then most"),
        ({"model.num_attention_heads": 5}, "num_attention_heads"),
    ],
)
def test_values_that_would_only_fail_later_are_refused_at_once(load, changes, message):
    with pytest.raises(ValueError, match=message):
        load(changes)
