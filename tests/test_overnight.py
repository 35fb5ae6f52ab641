"""Scale `overnight` is `laptop` with more seeds and steps, nothing else; its cost is told from laptop's."""

import json
import shutil
from pathlib import Path

import pytest

from pipelines.expected_time import expected_seconds, expected_time, scales_of
from rlvr.reporting.outlook import OVERNIGHT_SEEDS

PROJECT = Path(__file__).parents[1]
FOLDERS = ("", "ibpo", "mpo", "mpo/program")
LAPTOP, OVERNIGHT = scales_of(PROJECT, "laptop"), scales_of(PROJECT, "overnight")
STEPS = 2


def differences(ours, theirs, path=""):
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        return [d for key in ours for d in differences(ours[key], theirs[key], f"{path}.{key}".strip("."))]
    return [] if ours == theirs else [path]


@pytest.mark.parametrize("folder", FOLDERS)
def test_nothing_but_seeds_and_steps_differs(folder):
    laptop, overnight = LAPTOP[folder], OVERNIGHT[folder]
    changed = set(differences(laptop.model_dump(mode="json"), overnight.model_dump(mode="json")))
    assert changed - {"train.budget", "ablations.seeds"} == {
        "scale",
        "root",
        "scale_file",
        "seeds",
        "train.steps",
    } - ({"root"} if folder else set())
    assert len(overnight.seeds) == OVERNIGHT_SEEDS * len(laptop.seeds)
    assert set(laptop.seeds) <= set(overnight.seeds)
    assert overnight.train.steps == STEPS * laptop.train.steps
    if laptop.train.budget:
        assert overnight.train.budget == STEPS * laptop.train.budget
    if laptop.ablations and laptop.ablations.seeds:
        assert len(overnight.ablations.seeds) == OVERNIGHT_SEEDS * len(laptop.ablations.seeds)


def test_the_graphs_are_those_of_laptop():
    for folder in FOLDERS:
        ours = PROJECT / "pipelines/scales/overnight" / folder / "dvc.yaml"
        theirs = PROJECT / ("dvc.yaml" if not folder else f"pipelines/scales/laptop/{folder}/dvc.yaml")
        assert ours.resolve() == theirs.resolve()


def test_seconds_by_hand():
    stages = {"train": 100.0, "evaluate": 10.0, "base": 5.0, "nfpo/accuracy": 2.0, "nfpo/theory": 7.0}
    stages |= {
        "ibpo/train": 20.0,
        "ibpo/revise": 1.0,
        "mpo/program/train": 30.0,
        "mpo/base": 4.0,
        "reports": 3.0,
    }
    factors = [6, 3, 1, 3, 1, 6, 3, 6, 1, 1]
    by_hand = sum(s * f for s, f in zip(stages.values(), factors, strict=True))
    assert expected_seconds(stages, LAPTOP, OVERNIGHT) == pytest.approx(by_hand)


def test_the_cost_is_told(tmp_path):
    for name in ("params.yaml", "pipelines/scales/laptop", "pipelines/scales/overnight"):
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (PROJECT / name).is_dir() else shutil.copy
        copy(PROJECT / name, target)
    with pytest.raises(FileNotFoundError, match=r"cost.json does not exist; `make repro SCALE=laptop`"):
        expected_time("overnight", root=tmp_path)
    (tmp_path / "reports/laptop").mkdir(parents=True)
    rows = [{"stage": "train", "seconds": 600}, {"stage": "base", "seconds": 60}]
    rows.append({"stage": "all stages", "seconds": 660})
    (tmp_path / "reports/laptop/cost.json").write_text(json.dumps(rows))
    assert "about 1.0 hours where laptop takes 11 minutes" in expected_time("overnight", root=tmp_path)
