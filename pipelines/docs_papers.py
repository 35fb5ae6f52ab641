"""The index of the papers' settings: section, key, the paper's value, ours at two scales, why another.

Made of ``pipelines/scales/paper/experiments.yaml``, where every value has its source, of the laptop's scale
files, and of ``data/paper-index.yaml``, which says what belongs together. What a source calls ``text`` is the
paper's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from pipelines.docs_values import Cell, default_of, section, shown, value_at
from pipelines.docstrings import WRITTEN, table, unwrapped
from rlvr import objectives
from rlvr.config import Recipe, Scale, fault_lines, load_scale, load_yaml
from rlvr.config_base import Section
from rlvr.engines.jobs.experiments import Experiments, Setting, leaves, load_experiments
from rlvr.engines.local.methods import resolve

INDEX = Path("data/paper-index.yaml")
EXPERIMENTS = Path("pipelines/scales/paper/experiments.yaml")
PAPERS = ("nfpo", "ibpo", "mpo")
BLOCKS = ("counterfactual", "self_correction", "mtp")  # of an arm; a recipe has them by the same names
ABSENT, NOTHING = "not an arm", "-"
INTRODUCTION = f"""
What each paper states of its settings, and what is used here. *Paper* is the value of the text, with the
section that states it and, in brackets, its words; "not stated" means that the public text gives none. *Scale
paper* is our job at the paper's size ([experiments.yaml](../{EXPERIMENTS})); in brackets stands where a value
is from that is not the text's. *Laptop* is the scale that trains here. Values are read from the scale files
when this page is made; where a paper has several settings, a value is given by model or by task.

What a paper leaves open is argued in [decisions](decisions.md); what its tables and figures state is in
[data/paper](../data/paper).
"""

#: Rows whose value on the laptop is not the value of one key.
COMPUTED: dict[str, Callable[[Scale], Any]] = {
    "seeds": lambda s: len(s.seeds),
    "model": lambda s: f"Qwen3, {s.model.num_hidden_layers} layers of {s.model.hidden_size}",
    "data.levels": lambda s: list(s.problems.operations),
    "update.minibatch_responses": lambda s: (
        s.train.prompts_per_step * s.train.group_size // s.train.minibatches
    ),
    "update.divide_by_std": lambda s: s.train.advantage_std != "none",
    "update.recompute": lambda s: s.train.recompute != "none",
}


class Shared(Section):
    what: str
    laptop: str | None = None
    engine: str | None = None
    why: str | None = None


class StatedRow(Section):
    section: str
    what: str
    paper: Any
    laptop: str | None = None
    code: str | None = None
    why: str | None = None


class Paper(Section):
    laptop: str
    base: str
    own: dict[str, str] = Field(default_factory=dict)
    arms: dict[str, str] = Field(default_factory=dict)
    method: dict[str, str] = Field(default_factory=dict)
    stated: tuple[StatedRow, ...] = ()


class Index(Section):
    shared: dict[str, Shared]
    papers: dict[str, Paper]


def load_index(root: Path) -> Index:
    """``data/paper-index.yaml``; ValueError with one line per wrong field."""
    try:
        return Index.model_validate(load_yaml(root / INDEX))
    except ValidationError as error:
        raise ValueError(f"{INDEX}:\n{fault_lines(error, '(file)')}") from None


# --- the tables ---------------------------------------------------------------------------------------


def settings_of(experiments: Experiments, paper: str) -> dict[str, Setting]:
    """The paper's settings by their names without the paper's."""
    return {
        name.removeprefix(f"{paper}-"): setting
        for name, setting in experiments.settings.items()
        if setting.paper == paper
    }


def on_laptop(scale: Scale, key: str, row: Shared) -> str:
    """The value of a shared row in the laptop's scale file."""
    return shown(COMPUTED[key](scale) if key in COMPUTED else value_at(scale, row.laptop))


def shared_rows(index: Index, paper: str, experiments: Experiments, scale: Scale | None) -> list[list[str]]:
    """One row per shared setting that this paper's experiments have."""
    about, rows = index.papers[paper], []
    settings = settings_of(experiments, paper)
    for key, row in index.shared.items():
        given = {
            name: (value_at(setting, key), experiments.sources.get(f"settings.{paper}-{name}.{key}"))
            for name, setting in settings.items()
        }
        if all(source is None for _, source in given.values()):
            continue  # left at its default, which no paper speaks of
        if key == "seeds":
            given = {name: (len(value), source) for name, (value, source) in given.items()}
        cell, laptop, why = Cell(given, settings), row.engine or "", ""
        if row.laptop and scale is not None:
            laptop = on_laptop(scale, key, row)
            why = "" if cell.values == {laptop} else about.own.get(key, row.why or "")
        rows.append(
            [
                row.what,
                cell.sections,
                f"`{key}`",
                f"`{row.laptop}`" if row.laptop else "",
                *(cell.paper, cell.ours, laptop, why),
            ]
        )
    return rows


def arm_rows(index: Index, paper: str, experiments: Experiments, scale: Scale | None) -> list[list[str]]:
    """One row per number of an arm; of those that are the base with changes, what they change."""
    about, rows = index.papers[paper], []
    settings = settings_of(experiments, paper)
    for arm in dict.fromkeys(arm for setting in settings.values() for arm in setting.run):
        having = {name: setting for name, setting in settings.items() if arm in setting.run}
        given, base = (_numbers(name, paper, having, experiments) for name in (arm, about.base))
        if arm != about.base and set(base) <= set(given):
            given = {key: at for key, at in given.items() if _values(at) != _values(base.get(key, {}))}
        recipe = scale.recipes.get(about.arms.get(arm, arm)) if scale else None
        for key, at in (given or {"": {}}).items():
            cell, laptop, why = Cell(at, having), "", ""
            if scale is not None:
                laptop = ABSENT if recipe is None else of_recipe(scale, recipe, key, index, paper)
            if laptop not in ("", ABSENT, NOTHING) and key and laptop not in cell.values:
                shared = index.shared.get(key.partition(".")[2])
                why = about.own.get(key, (shared.why if shared else None) or "")
            numbers = (
                [f"`{key}`", cell.sections, cell.paper, cell.ours] if key else ["its defaults", "", "", ""]
            )
            objective = next(iter(having.values())).arms[arm].objective
            rows.append([f"`{arm}`", f"`{objective}`", *numbers, laptop, why])
    return rows


def _values(at: Mapping[str, tuple[Any, str | None]]) -> dict[str, Any]:
    return {setting: value for setting, (value, _) in at.items()}


def _numbers(
    arm: str, paper: str, settings: Mapping[str, Setting], experiments: Experiments
) -> dict[str, dict[str, tuple[Any, str | None]]]:
    """Path below an arm -> setting -> (value, source), of everything that the arm sets."""
    found: dict[str, dict[str, tuple[Any, str | None]]] = {}
    for name, setting in settings.items():
        for part in ("parameters", "method", "change"):
            for key, value in leaves(getattr(setting.arms[arm], part), part):
                source = experiments.sources.get(f"settings.{paper}-{name}.arms.{arm}.{key}")
                found.setdefault(key, {})[name] = (value, source)
        above = f"settings.{paper}-{name}.arms.{arm}."
        for path, source in experiments.sources.items():
            key = path.removeprefix(above)
            if path.startswith(above) and key.partition(".")[0] in BLOCKS:
                found.setdefault(key, {})[name] = (value_at(setting.arms[arm], key), source)
    return found


def of_recipe(scale: Scale, recipe: Recipe, key: str, index: Index, paper: str) -> str:
    """What the laptop's recipe has at an arm's key, "-" where it has nothing of that name."""
    part, _, name = key.partition(".")
    if not key:
        return f"`{recipe.objective}`"
    if part == "method":
        try:
            return shown(value_at(recipe, index.papers[paper].method[name]))
        except KeyError:
            return NOTHING
    if part in BLOCKS:
        try:
            return shown(value_at(recipe, key))
        except KeyError:
            return NOTHING
    train, parameters = resolve(scale.train, recipe)
    if part == "change":
        row = index.shared.get(name)
        known = row is not None and row.laptop is not None
        return on_laptop(scale.model_copy(update={"train": train}), name, row) if known else NOTHING
    defaults = objectives.get(recipe.objective).parameters
    return shown(parameters.get(name, defaults.get(name, NOTHING)))


def stated_rows(index: Index, paper: str, scale: Scale | None) -> list[list[str]]:
    """One row per number of the text that belongs to no experiment."""
    rows = []
    for row in index.papers[paper].stated:
        ours, where = "", row.laptop or row.code
        if row.code:
            ours = shown(default_of(row.code))
        elif scale is not None:
            try:
                ours = shown(value_at(scale, row.laptop))
            except KeyError:
                ours = NOTHING
        stated = "not stated" if row.paper is None else shown(row.paper)
        why = row.why or "" if ours not in ("", stated) else ""
        rows.append([row.what, section(f"text: {row.section}"), f"`{where}`", stated, ours, why])
    return rows


def page(root: Path) -> str:
    """docs/paper-index.md.

    Raises:
        ValueError: one of the files that it is made of is not valid.
    """
    index, experiments = load_index(root), load_experiments(root / EXPERIMENTS)
    parts = ["# Paper index", WRITTEN.format("the scale files or data/paper-index.yaml")]
    parts.append(unwrapped(INTRODUCTION))
    for paper in PAPERS:
        about = load_yaml(root / "data" / "paper" / f"{paper}.yaml")
        file = index.papers[paper].laptop
        scale = load_scale(root / file) if (root / file).is_file() else None
        parts.append(f"## {paper.upper()}")
        parts.append(f"*{about['title']}*, [arXiv {about['arxiv']}](https://arxiv.org/abs/{about['arxiv']}).")
        parts.append(f"Laptop: [{file}](../{file})." if scale else "It has no scale file for the laptop yet.")
        why = "why the laptop differs"
        header = ["setting", "section", "key", "key of the laptop", "paper", "scale paper", "laptop", why]
        parts += ["### What all arms share", table(header, shared_rows(index, paper, experiments, scale))]
        header = ["arm", "objective", "key", "section", "paper", "scale paper", "laptop", why]
        text = (
            f"Of an arm that is `{index.papers[paper].base}` with changes, what it changes; of others, all."
        )
        parts += ["### Arms", text, table(header, arm_rows(index, paper, experiments, scale))]
        if rows := stated_rows(index, paper, scale):
            header = ["what", "section", "key", "paper", "ours", "why ours differs"]
            parts += ["### Beside the experiments", table(header, rows)]
    return "\n\n".join(parts) + "\n"
