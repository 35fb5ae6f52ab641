"""The graph against the sources: scale files fit it, each stage depends on the code and numbers it uses."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from notebook_factory import PROJECT

from pipelines.imports import Sources
from pipelines.inputs import ARM, expanded, instances, notebook_of
from rlvr.config import Scale, load_scale, load_yaml

ROOT_SCALE = PROJECT / "params.yaml"
SCALES = [ROOT_SCALE, *sorted(PROJECT.glob("pipelines/scales/*/params.yaml"))]
GRAPH: dict[str, dict] = load_yaml(PROJECT / "dvc.yaml")["stages"]
#: Graphs of papers and of their parts: the folder below that of the scale -> stages.
PAPERS: dict[str, dict[str, dict]] = {
    path.parent.relative_to(PROJECT / "pipelines/scales/laptop").as_posix(): load_yaml(path)["stages"]
    for path in sorted(PROJECT.glob("pipelines/scales/laptop/**/dvc.yaml"))
}
PAPER_SCALES = sorted(
    path for paper in PAPERS for path in PROJECT.glob(f"pipelines/scales/*/{paper}/params.yaml")
)
#: Stages that run a notebook; those of papers as ``mpo:train``.
STAGES = {name: stage for name, stage in GRAPH.items() if name != "inputs"} | {
    f"{paper}:{name}": stage
    for paper, graph in PAPERS.items()
    for name, stage in graph.items()
    if name != "inputs"
}
MADE = {  # by stages of all graphs
    f"{paper}:{name}" if paper else name: stage
    for paper, graph in {"": GRAPH, **PAPERS}.items()
    for name, stage in graph.items()
}
PRETRAINED: dict[str, dict] = load_yaml(PROJECT / "pipelines/scales/pretrained/dvc.yaml")["stages"]
EVERY = STAGES | PRETRAINED

SOURCES = Sources(PROJECT)
#: Of the graph with a list of its own: modules that its notebook imports where that stage does not get.
SKIPPED = {"pretrained": ("rlvr.engines.local.workers", "rlvr.evaluation.sampled")}
#: What a study of a setting of experiments takes beside that of a scale.
OF_EXPERIMENTS = ("rlvr.analysis.setting_study", "rlvr.engines.jobs")
#: Parameters a stage's code names without their deciding its results: (stage, parameter) -> why.
NO_PARAMETER_OF_RESULTS = {
    ("ablate", "recipes"): "as train",
    ("train", "recipes"): "only whether the arm exists; its recipe is a parameter",
    ("evaluate_base", "seeds"): "read for trained arms alone",
    ("evaluate_base", "train.lags"): "read for trained arms alone",
    ("evaluate_ablations", "train.lags"): "ablations have a lag of their own",
    **{
        (stage, "workers"): "how many single-threaded processes run side by side changes no number"
        for stage in ("train", "ablate", "evaluate", "evaluate_ablations", "evaluate_base", "surrogate")
    },
}


#: Of graphs of papers, whose training stages name the recipes of their arms one by one, and whose stages
#: of analysis read a few of them: the rest of a recipe decides through the runs, which are dependencies.
NO_PARAMETER_OF_GROUPS = {"workers", "recipes", "ablations", "arms", "scale_file"}


def scale_id(path: Path) -> str:
    return path.parent.relative_to(PROJECT / "pipelines/scales").as_posix() if path != ROOT_SCALE else "root"


def stages_of(path: Path) -> dict[str, dict]:
    """The stages of a scale file's own graph."""
    own = path.parent.relative_to(PROJECT / "pipelines/scales").as_posix() if path != ROOT_SCALE else ""
    paper = own.partition("/")[2]
    graph = PAPERS[paper] if paper else GRAPH
    return {name: stage for name, stage in graph.items() if name != "inputs"}


# --- scale files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SCALES + PAPER_SCALES, ids=scale_id)
def test_a_scale_file_loads_and_leads_back_to_itself(path):
    scale = load_scale(path)
    assert (path.parent / scale.root).resolve() == PROJECT
    assert (PROJECT / scale.scale_file).resolve() == path.resolve()
    if path != ROOT_SCALE:
        paper = [scale.paper] if scale.paper != "nfpo" else []
        assert scale_id(path) == "/".join([scale.scale, *paper, *([scale.part] if scale.part else [])])


@pytest.mark.parametrize("path", PAPER_SCALES, ids=scale_id)
def test_a_paper_s_graph_is_the_laptop_s_at_every_scale(path):
    graph, paper = path.with_name("dvc.yaml"), scale_id(path).partition("/")[2]
    assert graph.resolve() == PROJECT / "pipelines/scales/laptop" / paper / "dvc.yaml"
    folder = load_scale(path).folder.as_posix().replace(f"runs/{load_scale(path).scale}", "runs/${scale}")
    for stage in load_yaml(graph)["stages"].values():
        assert all(out.startswith(f"{folder}/") for out in outs_of(stage))


@pytest.mark.parametrize("path", SCALES[1:], ids=scale_id)
def test_every_scale_has_the_same_graph(path):
    graph = path.with_name("dvc.yaml")
    if graph.is_symlink():
        assert graph.resolve() == PROJECT / "dvc.yaml"
    assert graph.read_bytes() == (PROJECT / "dvc.yaml").read_bytes()


@pytest.mark.parametrize("path", SCALES + PAPER_SCALES, ids=scale_id)
def test_every_parameter_a_stage_names_is_in_the_scale_file(path):
    raw = load_yaml(path)
    for name, stage in stages_of(path).items():
        for key in parameters_of(stage):
            paths = [one for arm in raw["arms"] for one in expanded(key.replace("${item.arm}", arm), raw)]
            for one in paths:
                value = raw
                for part in one.split("."):
                    assert part in value, f"stage {name}: {key} is not in {path.relative_to(PROJECT)}"
                    value = value[part]


# --- stages ------------------------------------------------------------------------------------------------


def parameters_of(stage: dict) -> list[str]:
    return stage["meta"]["params"]


def outs_of(stage: dict) -> list[str]:
    return [next(iter(out)) if isinstance(out, dict) else out for out in stage["outs"]]


def code_deps(stage: dict) -> list[str]:
    return [dep for dep in stage["deps"] if "${" not in dep]


def same(part: str, other: str) -> bool:
    """Components of two paths with DVC's templates, where a template may stand for anything."""
    return part == other or "${item" in part + other or "${surrogate" in part + other


def overlaps(path: str, other: str) -> bool:
    """Whether one path is the other or lies in it."""
    return all(same(a, b) for a, b in zip(path.split("/"), other.split("/"), strict=False))


@pytest.mark.parametrize("name", EVERY)
def test_a_stage_runs_at_the_root_on_its_own_notebook(name):
    stage = EVERY[name]
    assert stage["wdir"] == "${root}"
    words = stage["cmd"].split()
    assert words[words.index("--out") + 1] == outs_of(stage)[0] and len(outs_of(stage)) == 1
    given = "evaluation_file" if name in PRETRAINED else "params_file"
    assert words[words.index(given) + 1] == "${scale_file}"


@pytest.mark.parametrize("name", EVERY)
def test_every_dependency_exists_or_is_made_by_another_stage(name):
    made = [out for other, stage in MADE.items() if other != name for out in outs_of(stage)]
    for dep in EVERY[name]["deps"]:
        if "${" in dep:
            assert any(overlaps(dep, out) for out in made), f"no stage makes {dep}"
        else:
            assert (PROJECT / dep).exists(), f"{dep} does not exist"


@pytest.mark.parametrize("name", STAGES)
def test_what_a_command_says_it_reads_is_a_dependency(name):
    words = STAGES[name]["cmd"].split()
    for i, word in enumerate(words):
        if word == "--dep":
            assert any(overlaps(words[i + 1], dep) for dep in STAGES[name]["deps"] if "${" in dep), words[
                i + 1
            ]


# --- code of a stage ---------------------------------------------------------------------------------------


def modules_of(name: str) -> set[str]:
    """What a stage's notebook imports, where the stage gets."""
    meta = EVERY[name].get("meta", {})
    return SOURCES.modules(
        notebook_of(EVERY[name]), SKIPPED.get(name, meta.get("skip", ())), meta.get("keep", ())
    )


def is_covered(file: str | Path, deps: list[str]) -> bool:
    file = file.relative_to(PROJECT).as_posix() if isinstance(file, Path) else file
    return any(file == dep or file.startswith(f"{dep}/") for dep in deps)


def files_of(name: str) -> list[str]:
    """The files of the modules that a stage's results rest on."""
    return sorted(SOURCES.file_of(module).relative_to(PROJECT).as_posix() for module in modules_of(name))


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_depends_on_its_own_inputs(name):
    paper, _, short = name.rpartition(":")
    folder = f"{paper}/inputs" if paper else "inputs"
    own = f"runs/${{scale}}/{folder}/{short}" + (f"-{ARM}" if "matrix" in STAGES[name] else "") + ".json"
    assert STAGES[name]["deps"][0] == own
    assert not [dep for dep in STAGES[name]["deps"] if dep.startswith(("lib/", "notebooks/"))]


@pytest.mark.parametrize("path", SCALES, ids=scale_id)
def test_every_arm_of_a_matrix_has_its_file(path):
    raw = load_yaml(path)
    for name, stage in stages_of(path).items():
        if "matrix" in stage:
            (arms,) = stage["matrix"].values()
            wanted = raw["ablations"]["arms"] if arms == "${ablations.arms}" else raw["arms"]
            assert list(instances(name, stage, raw)) == [(f"{name}-{arm}", arm) for arm in wanted]


@pytest.mark.parametrize("name", STAGES)
def test_what_a_stage_skips_and_keeps_exists_and_matters(name):
    meta = STAGES[name]["meta"]
    whole = SOURCES.modules(notebook_of(STAGES[name]))
    for module in (*meta.get("skip", ()), *meta.get("keep", ()), *meta.get("verl", ())):
        assert SOURCES.file_of(module), f"{module} does not exist"
    for module in meta.get("skip", ()):
        assert any(m == module or m.startswith(f"{module}.") for m in whole), f"nothing imports {module}"
    assert set(meta.get("keep", ())) <= modules_of(name)


def test_the_code_that_a_notebook_imports_is_a_dependency_of_its_stage():
    """Of the one stage that lists its modules itself."""
    deps = code_deps(PRETRAINED["pretrained"])
    missing = [file for file in files_of("pretrained") if not is_covered(file, deps)]
    assert not missing, f"stage pretrained: deps lack {missing}"
    unused = [
        dep for dep in deps
        if dep.startswith("lib/") and not any(is_covered(file, [dep]) for file in files_of("pretrained"))
    ]  # fmt: skip
    assert not unused, f"stage pretrained: nothing imports {unused}"


#: Stages that evaluate, and may make tables of benchmarks; the others skip what such a table asks.
EVALUATING = {"evaluate_base", "evaluate", "evaluate_ablations", "revise", "train", "ablate", "base"}


@pytest.mark.parametrize("name", sorted(n for n, s in STAGES.items() if s["meta"].get("skip")))
def test_a_stage_without_benchmarks_makes_no_table_of_them(name):
    """Which is why what such a table may import is no input."""
    if name.rpartition(":")[2] in EVALUATING:
        return
    own = [m for m in modules_of(name) if not m.startswith("rlvr.evaluation")]
    trees = [SOURCES.notebook(notebook_of(STAGES[name])), *(SOURCES.tree(SOURCES.file_of(m)) for m in own)]
    called = {getattr(n, "id", getattr(n, "attr", None)) for tree in trees for n in ast.walk(tree)}
    assert not called & {"accuracy_table", "notes_under"}


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_that_reads_the_registry_depends_on_it(name):
    reads = "rlvr.reporting.registry" in modules_of(name)
    assert reads == any(dep == "data" or dep.startswith("data/paper") for dep in STAGES[name]["deps"])


# --- parameters of a stage ---------------------------------------------------------------------------------


def chain(node: ast.AST, name: str) -> tuple[str, ...] | None:
    """``scale.recipes["nfpo"].parameters`` -> (recipes, nfpo, parameters); a computed key is ``*``."""
    parts: list[str] = []
    if name == "self.scale":  # of a class that keeps its Scale
        found = chain(node, "self")
        return found[1:] if found and found[0] == "scale" and found[1:] else None
    while isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Attribute):
            parts.append(node.attr)
        else:
            parts.append(str(node.slice.value) if isinstance(node.slice, ast.Constant) else "*")
        node = node.value
    is_loader = isinstance(node, ast.Call) and ast.unparse(node.func) == "load_scale"
    if parts and (is_loader or (isinstance(node, ast.Name) and node.id == name)):
        return tuple(reversed(parts))
    return None


def chains(tree: ast.AST, name: str) -> set[tuple[str, ...]]:
    """Everything read from the variable ``name``, each at its longest."""
    inner = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Attribute | ast.Subscript)}
    found = (chain(node, name) for node in ast.walk(tree) if id(node) not in inner)
    return {c for c in found if c}


def parameters_read(notebook: str) -> set[str]:
    """Parameters that a notebook reads itself, or through functions that it hands its Scale or Study to.

    A study has a scale's sections as they are (tests/test_study.py), so that ``study.train.lags`` is a read
    of ``train.lags``; the function that hands them over reads none.
    """
    tree = SOURCES.notebook(notebook)
    found = chains(tree, "scale") | chains(tree, "study")
    functions: dict[str, list[ast.FunctionDef]] = {}
    classes: dict[str, list[ast.ClassDef]] = {}
    for module in SOURCES.modules(notebook, OF_EXPERIMENTS):
        for node in ast.walk(SOURCES.tree(SOURCES.file_of(module))):
            if isinstance(node, ast.FunctionDef) and node.name != "of_scale":
                functions.setdefault(node.name, []).append(node)
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(node)
    seen: set[str] = set()
    pending = [n.id for n in ast.walk(SOURCES.notebook(notebook)) if isinstance(n, ast.Name)]
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        for kept in classes.get(name, []):
            if read := chains(kept, "self.scale"):
                found |= read
                pending += [n.id for n in ast.walk(kept) if isinstance(n, ast.Name)]
        for function in functions.get(name, []):
            if any(n.id in classes and chains(c, "self.scale") for n in ast.walk(function)
                   if isinstance(n, ast.Name) for c in classes.get(n.id, [])):  # fmt: skip
                pending += [n.id for n in ast.walk(function) if isinstance(n, ast.Name)]
            for argument in function.args.args:
                if argument.annotation is not None and ast.unparse(argument.annotation) in ("Scale", "Study"):
                    found |= chains(function, argument.arg)
                    pending += [n.id for n in ast.walk(function) if isinstance(n, ast.Name)]
    sections = Scale.model_fields
    of_methods = {"lags_of": ("train", "lags"), "seeds_of": ("seeds",)}  # of Scale
    found |= {of_methods[c[0]] for c in found if c[0] in of_methods}
    return {".".join(c) for c in found if c[0] in sections}


def names(parameter: str, read: str) -> bool:
    """Whether a change of what is read is a change of the named parameter."""
    wanted = re.sub(r"\$?\{[\w.]+\}", "*", parameter).split(".")
    got = read.split(".")
    return len(wanted) <= len(got) and wanted == got[: len(wanted)]


def test_every_exception_is_still_read():
    for stage, parameter in NO_PARAMETER_OF_RESULTS:
        assert parameter in parameters_read(notebook_of(STAGES[stage])), (stage, parameter)


@pytest.mark.fault("stale-results")
def test_what_is_read_is_found():
    assert "seeds" in parameters_read("notebooks/nfpo/training.ipynb")
    assert {"recipes.nfpo.parameters", "dynamics.segment"} <= parameters_read("notebooks/nfpo/dynamics.ipynb")
    assert "problems" in parameters_read("notebooks/01_problems.ipynb")
    assert "evaluate" in parameters_read("notebooks/nfpo/training.ipynb")  # by hyperparameter_table


@pytest.mark.fault("stale-results")
@pytest.mark.parametrize("name", STAGES)
def test_a_parameter_that_a_notebook_reads_is_a_parameter_of_its_stage(name):
    allowed = {parameter for stage, parameter in NO_PARAMETER_OF_RESULTS if stage == name.rpartition(":")[2]}
    named = parameters_of(STAGES[name])
    missing = sorted(
        read
        for read in parameters_read(notebook_of(STAGES[name])) - allowed
        if not (":" in name and read.split(".")[0] in NO_PARAMETER_OF_GROUPS)
        and not any(names(parameter, read) for parameter in named)
    )
    assert not missing, f"dvc.yaml, stage {name}: params lack {missing}"
