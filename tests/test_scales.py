"""The graph against the sources: scale files fit it, each stage depends on the code and numbers it uses."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from notebook_factory import PROJECT

from rlvr.config import Scale, load_scale, load_yaml

ROOT_SCALE = PROJECT / "params.yaml"
SCALES = [ROOT_SCALE, *sorted(PROJECT.glob("pipelines/scales/*/params.yaml"))]
STAGES: dict[str, dict] = load_yaml(PROJECT / "dvc.yaml")["stages"]
PRETRAINED: dict[str, dict] = load_yaml(PROJECT / "pipelines/scales/pretrained/dvc.yaml")["stages"]
EVERY = STAGES | PRETRAINED

#: Local modules that no stage need depend on, and why.
ONLY_MOVES_DATA = {
    "rlvr.notebook": "progress and display; no number passes through it",
    "rlvr.config": "reads parameters, which DVC hashes by value; a wrong one is an error",
    "rlvr.storage": "writes bytes it is given and reads JSON",
    "rlvr.reporting.style": "colours and fonts; stages whose figures are kept list lib/rlvr/reporting anyway",
}
#: Modules that are imported inside functions which a stage does not call: stage -> modules.
#: The evaluation notebook: tests/test_evaluate_notebook.py runs it both ways and looks at what was imported.
OF_TEXTS = tuple(  # verifiers of free text and programs; generated problems need those that are left
    f"rlvr.verifiers.{path.stem}"
    for path in sorted((PROJECT / "lib/rlvr/verifiers").glob("[a-z]*"))
    if path.stem not in ("base", "integer")
)
OF_FILES = (
    "rlvr.evaluation.files",
    "rlvr.engines.pretrained",
    "rlvr.engines.vllm",
    "rlvr.problems.benchmarks",
    *OF_TEXTS,
)
#: What a study of a setting of experiments takes beside that of a scale; tests/test_study.py looks at what a
#: scale imports.
OF_EXPERIMENTS = ("rlvr.analysis.setting_study", "rlvr.engines.jobs")
BRANCHES = {
    # of engine verl, whose scales name all engines in `engine_code`
    **dict.fromkeys(("train", "ablate"), ("rlvr.engines.jobs",)),
    "evaluate_base": OF_FILES,
    "evaluate": OF_FILES,
    "evaluate_ablations": OF_FILES,
    "pretrained": ("rlvr.engines.local.workers", "rlvr.evaluation.sampled"),
    # Tables of benchmarks and the notes under them ask verifiers and catalogues; these stages have neither.
    **dict.fromkeys(("theory", "objectives", "report"), ("rlvr.verifiers", "rlvr.problems")),
    **dict.fromkeys(("training", "ablations"), ("rlvr.verifiers", "rlvr.problems", *OF_EXPERIMENTS)),
    **dict.fromkeys(("accuracy", "dynamics"), ("rlvr.problems.benchmarks", *OF_TEXTS, *OF_EXPERIMENTS)),
    "surrogate": ("rlvr.problems.benchmarks", *OF_TEXTS),
}
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


def scale_id(path: Path) -> str:
    return path.parent.name if path != ROOT_SCALE else "root"


# --- scale files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SCALES, ids=scale_id)
def test_a_scale_file_loads_and_leads_back_to_itself(path):
    scale = load_scale(path)
    assert (path.parent / scale.root).resolve() == PROJECT
    assert (PROJECT / scale.scale_file).resolve() == path.resolve()
    if path != ROOT_SCALE:
        assert path.parent.name == scale.scale


@pytest.mark.parametrize("path", SCALES[1:], ids=scale_id)
def test_every_scale_has_the_same_graph(path):
    graph = path.with_name("dvc.yaml")
    if graph.is_symlink():
        assert graph.resolve() == PROJECT / "dvc.yaml"
    assert graph.read_bytes() == (PROJECT / "dvc.yaml").read_bytes()


@pytest.mark.parametrize("path", SCALES, ids=scale_id)
def test_every_parameter_a_stage_names_is_in_the_scale_file(path):
    raw = load_yaml(path)
    for name, stage in STAGES.items():
        for key in parameters_of(stage):
            for arm in raw["arms"]:
                value = raw
                for part in key.replace("${item.arm}", arm).split("."):
                    assert part in value, f"stage {name}: {key} is not in {path.relative_to(PROJECT)}"
                    value = value[part]


# --- stages ------------------------------------------------------------------------------------------------


def parameters_of(stage: dict) -> list[str]:
    (entry,) = stage["params"]
    (keys,) = entry.values()
    assert list(entry) == ["${scale_file}"]
    return keys


def notebook_of(stage: dict) -> str:
    words = stage["cmd"].split()
    return words[words.index("pipelines.stage") + 1]


def outs_of(stage: dict) -> list[str]:
    return [next(iter(out)) if isinstance(out, dict) else out for out in stage["outs"]]


LOCAL = load_scale(ROOT_SCALE)


def deps_of(stage: dict) -> list[str]:
    """As scale `laptop` resolves them, but for what names an arm or a scale's own folder."""
    return [dep.replace("${engine_code}", LOCAL.engine_code) for dep in stage["deps"]]


def code_deps(stage: dict) -> list[str]:
    return [dep for dep in deps_of(stage) if "${" not in dep]


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
    assert notebook_of(stage) in stage["deps"]
    words = stage["cmd"].split()
    assert words[words.index("--out") + 1] == outs_of(stage)[0] and len(outs_of(stage)) == 1
    given = "evaluation_file" if name in PRETRAINED else "params_file"
    assert words[words.index(given) + 1] == "${scale_file}"


@pytest.mark.parametrize("name", EVERY)
def test_every_dependency_exists_or_is_made_by_another_stage(name):
    made = [out for other, stage in STAGES.items() if other != name for out in outs_of(stage)]
    for dep in deps_of(EVERY[name]):
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


@functools.cache
def module_file(module: str) -> Path | None:
    path = PROJECT / "lib" / Path(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return file
    return None


@functools.cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


@functools.cache
def notebook_tree(notebook: str) -> ast.Module:
    cells = nbformat.read(PROJECT / notebook, as_version=4).cells
    return ast.parse("\n".join(c.source for c in cells if c.cell_type == "code"), notebook)


def local_imports(tree: ast.AST) -> Iterator[str]:
    """Modules of rlvr that a tree imports, wherever in it, with the packages around them."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}: relative imports are not followed"
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            parts = name.split(".")
            if parts[0] == "rlvr":
                prefixes = (".".join(parts[:n]) for n in range(1, len(parts) + 1))
                yield from (module for module in prefixes if module_file(module))


def says_nothing(module: str) -> bool:
    """Whether a module is a package's ``__init__`` of a docstring and constants: nothing to depend on."""
    body = parsed(module_file(module)).body
    simple = all(
        isinstance(n, ast.Expr | ast.Assign) and isinstance(n.value, ast.Constant | ast.List) for n in body
    )
    return module_file(module).name == "__init__.py" and simple


@functools.cache
def modules_of(notebook: str, branches: tuple[str, ...] = ()) -> frozenset[str]:
    """All local modules that running a notebook imports, but those that only move data, and those that are
    reached through ``branches`` alone."""
    found: set[str] = set()
    pending = list(local_imports(notebook_tree(notebook)))
    while pending:
        module = pending.pop()
        if module in found or module in ONLY_MOVES_DATA:
            continue
        if any(module == branch or module.startswith(f"{branch}.") for branch in branches):
            continue
        found.add(module)
        pending += local_imports(parsed(module_file(module)))
    return frozenset(module for module in found if not says_nothing(module))


def is_covered(file: str | Path, deps: list[str]) -> bool:
    file = file.relative_to(PROJECT).as_posix() if isinstance(file, Path) else file
    return any(file == dep or file.startswith(f"{dep}/") for dep in deps)


def files_of(name: str) -> list[str]:
    """The files of the local modules that a stage imports."""
    modules = modules_of(notebook_of(EVERY[name]), BRANCHES.get(name, ()))
    return sorted(module_file(module).relative_to(PROJECT).as_posix() for module in modules)


def evaluation_deps(name: str) -> list[str]:
    """What a stage depends on, and what only moves data or says nothing."""
    free = [module_file(m) for m in (*ONLY_MOVES_DATA, "rlvr", "rlvr.engines", "rlvr.engines.local")]
    return code_deps(EVERY[name]) + [file.relative_to(PROJECT).as_posix() for file in free]


def test_imports_are_found():
    tree = ast.parse(
        "import rlvr.ratios\nfrom rlvr import objectives, __version__\n"
        "def f():\n    from rlvr.analysis.runs import load_metrics\n    import numpy.linalg\n"
    )
    assert set(local_imports(tree)) == {
        "rlvr", "rlvr.ratios", "rlvr.objectives", "rlvr.analysis", "rlvr.analysis.runs",
    }  # fmt: skip
    modules = modules_of("notebooks/03_train.ipynb")
    assert {
        "rlvr.engines.local.training",
        "rlvr.objectives",
        "rlvr.registry",
        "rlvr.verifiers.integer",
    } <= modules
    assert not modules & set(ONLY_MOVES_DATA) and "rlvr" not in modules
    assert "rlvr.analysis.surrogate" not in modules


def test_the_allowed_modules_exist():
    assert all(module_file(module) for module in ONLY_MOVES_DATA)


@pytest.mark.parametrize("name", EVERY)
def test_the_code_that_a_notebook_imports_is_a_dependency_of_its_stage(name):
    missing = [file for file in files_of(name) if not is_covered(file, code_deps(EVERY[name]))]
    assert not missing, f"dvc.yaml, stage {name}: deps lack {missing}"


TRAINED = {"train", "ablate", "evaluate_base", "evaluate", "evaluate_ablations", "pretrained"}


@pytest.mark.parametrize("name", sorted(set(BRANCHES) - TRAINED))
def test_a_stage_without_benchmarks_makes_no_table_of_them(name):
    """Which is why what such a table may import is no dependency."""
    notebook = notebook_of(EVERY[name])
    own = [m for m in modules_of(notebook, BRANCHES[name]) if not m.startswith("rlvr.evaluation")]
    trees = [notebook_tree(notebook), *(parsed(module_file(m)) for m in own)]
    called = {getattr(n, "id", getattr(n, "attr", None)) for tree in trees for n in ast.walk(tree)}
    assert not called & {"accuracy_table", "notes_under"}


@pytest.mark.parametrize("name", EVERY)
def test_code_that_a_notebook_never_imports_is_no_dependency(name):
    """A change there would run the stage again for nothing."""
    unused = [
        dep for dep in code_deps(EVERY[name])
        if dep.startswith("lib/") and not any(is_covered(file, [dep]) for file in files_of(name))
    ]  # fmt: skip
    assert not unused, f"dvc.yaml, stage {name}: nothing imports {unused}"


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_that_reads_the_registry_depends_on_it(name):
    reads = "rlvr.reporting.registry" in modules_of(notebook_of(STAGES[name]))
    assert reads == is_covered("data/paper", code_deps(STAGES[name]))


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
            parts.append(node.slice.value if isinstance(node.slice, ast.Constant) else "*")
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
    found = chains(notebook_tree(notebook), "scale") | chains(notebook_tree(notebook), "study")
    functions: dict[str, list[ast.FunctionDef]] = {}
    classes: dict[str, list[ast.ClassDef]] = {}
    for module in modules_of(notebook, OF_EXPERIMENTS):
        for node in ast.walk(parsed(module_file(module))):
            if isinstance(node, ast.FunctionDef) and node.name != "of_scale":
                functions.setdefault(node.name, []).append(node)
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(node)
    seen: set[str] = set()
    pending = [n.id for n in ast.walk(notebook_tree(notebook)) if isinstance(n, ast.Name)]
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
    found |= {("train", "lags") for c in found if c[0] == "lags_of"}  # a method of Scale
    return {".".join(c) for c in found if c[0] in sections}


def names(parameter: str, read: str) -> bool:
    """Whether a change of what is read is a change of the named parameter."""
    wanted, got = parameter.replace("${item.arm}", "*").split("."), read.split(".")
    return len(wanted) <= len(got) and wanted == got[: len(wanted)]


def test_every_exception_is_still_read():
    for stage, parameter in NO_PARAMETER_OF_RESULTS:
        assert parameter in parameters_read(notebook_of(STAGES[stage])), (stage, parameter)


def test_what_is_read_is_found():
    assert "seeds" in parameters_read("notebooks/nfpo/training.ipynb")
    assert {"recipes.nfpo.parameters", "dynamics.segment"} <= parameters_read("notebooks/nfpo/dynamics.ipynb")
    assert "problems" in parameters_read("notebooks/01_problems.ipynb")
    assert "evaluate" in parameters_read("notebooks/nfpo/training.ipynb")  # by hyperparameter_table


@pytest.mark.parametrize("name", STAGES)
def test_a_parameter_that_a_notebook_reads_is_a_parameter_of_its_stage(name):
    allowed = {parameter for stage, parameter in NO_PARAMETER_OF_RESULTS if stage == name}
    named = parameters_of(STAGES[name])
    missing = sorted(
        read
        for read in parameters_read(notebook_of(STAGES[name])) - allowed
        if not any(names(parameter, read) for parameter in named)
    )
    assert not missing, f"dvc.yaml, stage {name}: params lack {missing}"
