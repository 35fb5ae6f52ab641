"""A small repository with one policy and its problems, in which the evaluation notebook runs as it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from local_fixtures import codec, random_policy
from notebook_factory import PROJECT

from rlvr.problems import get_task
from rlvr.problems.files import write_problems

NOTEBOOK = PROJECT / "notebooks/04_evaluate.ipynb"
FILE = {
    "scale": "try", "root": ".", "scale_file": "e.yaml",
    "engine": "transformers", "model": "runs/tiny/base/model", "name": "tiny",
    "problems": [{"file": "runs/tiny/problems/problems/held_out.jsonl", "number": 5}],
    "subset_seed": 0, "sampling": {"max_tokens": 6, "samples": 2, "skip_special_tokens": False},
    "training_sets": [], "confidence": 0.95,
}  # fmt: skip

# The cells, with other parameters, and then what has been imported.
_RUN = """
import json, sys
cells, parameters = json.loads(sys.argv[1]), json.loads(sys.argv[2])
names = {"__name__": "__main__", "display": lambda *_: None}
for cell in cells:
    if "parameters" in cell["metadata"].get("tags", []):
        names.update(parameters)
    elif cell["cell_type"] == "code":
        exec("".join(cell["source"]), names)
print(json.dumps(sorted(m for m in sys.modules if m.split(".")[0] in ("rlvr", "vllm"))))
"""


def small_repository(root: Path, policy=None) -> Path:
    """With scale `tiny`: 12 held-out problems and a random policy as its base model."""
    (root / "dvc.yaml").write_text("stages: {}\n")
    text = (PROJECT / "pipelines/scales/smoke/params.yaml").read_text()
    (root / "params.yaml").write_text(text.replace("scale: smoke", "scale: tiny"))
    problems = get_task("word").generate("held_out", 12, 0, (1, 2))
    write_problems(root / "runs/tiny/problems/problems/held_out.jsonl", problems)
    save_policy(root / "runs/tiny/base/model", policy)
    return root


def save_policy(folder: Path, policy=None) -> Path:
    (policy or random_policy()).save_pretrained(folder)
    codec().save(folder)
    return folder


def write_file(root: Path, **changes) -> str:
    """An evaluation file (JSON is YAML); returns its path from ``root``."""
    (root / "e.yaml").write_text(json.dumps(FILE | changes))
    return "e.yaml"


def run_notebook(root: Path, **parameters) -> tuple[str, set[str]]:
    """What its cells print, and the modules of rlvr (and vllm) that were imported. Fails if a cell does."""
    given = {
        "params_file": "params.yaml",
        "arm": "base",
        "evaluation_file": "",
        "out": "out",
        "scratch": "scratch",
    }
    cells = json.dumps(json.loads(NOTEBOOK.read_text())["cells"])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
    result = subprocess.run(
        [sys.executable, "-c", _RUN, cells, json.dumps(given | parameters)],
        cwd=root, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert result.returncode == 0, (result.stdout + result.stderr)[-4000:]
    printed, _, modules = result.stdout.rstrip().rpartition("\n")
    return printed, set(json.loads(modules))
