"""Rules for notebooks: `python -m pipelines.lint [paths]` prints `path:cell: message` for every breach.

Cells are counted from 1, Markdown included; cell 0 is the notebook as a whole. Two groups of rules:
:func:`structure` is what the stage runner needs and checks again before it runs anything; :func:`document` is
what a committed notebook owes its reader and nbval. A notebook with `explore` in its name is for playing: it
need not be a stage, have outputs, or avoid widgets. One that is named as :data:`OF_MODELS` reads runs of
language models, which no graph of a laptop has: nothing executes it here, and it is saved without outputs.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import nbformat
from IPython.core.inputtransformer2 import TransformerManager

from pipelines.parameters import RESERVED, TAG, declared, tagged_cells
from rlvr.notebook import COMPLETION_MARKER

Problem = tuple[int, str]  # cell, message

#: Names of the notebooks that need runs of experiments: `models.ipynb`, `model_ablations.ipynb`.
OF_MODELS = "model*.ipynb"
STARTERS = ("spawnl", "spawnv", "posix_spawn", "create_subprocess", "execl", "execv")
LONGEST_BODY = 5  # lines of a function or class; more belongs into lib/
ALLOWED_MAGICS = {"matplotlib", "config", "load_ext", "autoreload"}
FORBIDDEN_TAGS = {
    "raises-exception": "nbclient goes on after the error, papermill stops; assert on the error instead",
    "nbval-raises-exception": "the runner stops at the error; assert on the error instead",
    "skip-execution": "the runner would silently leave the cell out",
    "injected-parameters": "this is an executed copy; commit the notebook itself",
}
SHELL_CALLS = {"system", "getoutput", "popen", "run_line_magic", "run_cell_magic"}
EARLY_EXITS = {"exit", "quit", "_exit"}
MODULES = {
    "ipywidgets": "no widgets in checked notebooks",
    "tqdm": "use rlvr.notebook.progress, which reports beside the notebook",
}
IGNORED_BY_NBVAL = {"image/png", "image/jpeg", "application/vnd.jupyter.widget-view+json"}
WIDGET = "application/vnd.jupyter.widget-view+json"

_ABSOLUTE = re.compile(
    r"(?<![\w:/.~*-])/(?:home|root|tmp|Users|mnt|opt|work|private|var/folders)/[\w.-]+"
    r"|\b[A-Za-z]:\\(?:Users|Windows|Temp|Program Files)\b"
)
_ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]{6,16}\b")
_PLOT_OBJECT = re.compile(r"^\s*[\[(<]?(?:Text\(|<?matplotlib\.|<Axes|array\(\[<Axes|\[<matplotlib)")
_NBVAL_COMMENT = re.compile(r"^\s*#\s*(?:NBVAL|PYTEST_VALIDATE)_(\w+)", re.MULTILINE)


def structure(notebook: nbformat.NotebookNode) -> list[Problem]:
    """What the runner needs: parameters, first and last cell, no shell, no tag that changes what runs."""
    problems: list[Problem] = []
    try:
        names = declared(notebook)
        for name in set(RESERVED) & set(names):
            if names[name].kind.scalar != "str" or names[name].kind.is_list:
                problems.append(
                    (tagged_cells(notebook)[0] + 1, f"`{name}` must be a str, the runner puts a path there")
                )
    except ValueError as error:
        problems.append((_cell_of(str(error)), re.sub(r"^cell \d+ ", "", str(error))))
    problems += _first_and_last(notebook)
    for index, cell in enumerate(notebook.cells, start=1):
        for tag in sorted(set(cell.metadata.get("tags", [])) & set(FORBIDDEN_TAGS)):
            problems.append((index, f"tag `{tag}` is not allowed: {FORBIDDEN_TAGS[tag]}"))
        if cell.cell_type == "code":
            problems += [(index, message) for message in _shell(cell.source)]
    return sorted(set(problems))


def document(
    notebook: nbformat.NotebookNode, *, explore: bool = False, of_models: bool = False
) -> list[Problem]:
    """What a committed notebook owes its reader and nbval."""
    problems: list[Problem] = []
    for index, cell in enumerate(notebook.cells, start=1):
        problems += [(index, m) for m in _paths(cell.source, "source")]
        if cell.cell_type != "code":
            continue
        tree = _parse(cell.source)
        if tree is not None:
            problems += [(index, m) for m in _long_definitions(tree)]
            if not explore:
                problems += [(index, m) for m in _imports(tree)]
        for output in cell.outputs:
            problems += [(index, m) for m in _stored(output, explore)]
        if "RAISES_EXCEPTION" in _NBVAL_COMMENT.findall(cell.source):
            problems.append((index, "`# NBVAL_RAISES_EXCEPTION` is not allowed: assert on the error instead"))
    if not explore:
        problems += _defaults(notebook)
        if of_models:
            problems += [
                (index, "a stored output, which nobody here can compare: no run of a language model is here")
                for index, cell in enumerate(notebook.cells, start=1)
                if cell.get("outputs")
            ]
        elif not any(_is_compared(cell) for cell in _code(notebook)[:-1]):
            problems.append(
                (
                    0,
                    "nbval would compare nothing: no cell but the last has a stored output that it checks; "
                    "run the notebook and save it with its outputs",
                )
            )
    return sorted(set(problems))


def lint(path: Path) -> list[Problem]:
    """All problems of one notebook file."""
    try:
        notebook = nbformat.read(path, as_version=4)
    except Exception as error:  # nbformat raises many kinds
        return [(0, f"not a readable notebook: {error}")]
    explore = "explore" in path.stem
    found = document(notebook, explore=explore, of_models=path.match(OF_MODELS))
    if explore:
        code = [(i, cell) for i, cell in enumerate(notebook.cells, 1) if cell.cell_type == "code"]
        found += [(i, message) for i, cell in code for message in _shell(cell.source)]
    else:
        found += structure(notebook)
    return sorted(set(found))


def notebooks(paths: Iterable[Path]) -> list[Path]:
    """The notebooks in files and folders, without Jupyter's checkpoints.

    Raises:
        ValueError: a path that does not exist, or none holds a notebook.
    """
    found: list[Path] = []
    paths = list(paths)
    for path in paths:
        if not path.exists():
            raise ValueError(f"{path} does not exist")
        members = sorted(path.rglob("*.ipynb")) if path.is_dir() else [path]
        found += [m for m in members if ".ipynb_checkpoints" not in m.parts]
    if not found:
        raise ValueError(f"no notebook in {', '.join(map(str, paths))}")
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipelines.lint", description=__doc__.split("\n")[0])
    parser.add_argument("paths", nargs="*", type=Path, default=[Path("notebooks")], help="default: notebooks")
    args = parser.parse_args(argv)
    try:
        files = notebooks(args.paths)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    count = 0
    for path in files:
        for cell, message in lint(path):
            count += 1
            print(f"{path}:{cell}: {message}")
    print(f"{len(files)} notebooks, {count or 'no'} problem{'' if count == 1 else 's'}", file=sys.stderr)
    return 1 if count else 0


def _code(notebook: nbformat.NotebookNode) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]


def _cell_of(message: str) -> int:
    match = re.match(r"cell (\d+) ", message)
    return int(match[1]) if match else 0


def _parse(source: str) -> ast.Module | None:
    """The cell as the kernel sees it: magics and ``!`` become calls of ``get_ipython()``."""
    try:
        return ast.parse(TransformerManager().transform_cell(source))
    except (SyntaxError, ValueError):
        return None


def _calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                yield node.func.id, node
            elif isinstance(node.func, ast.Attribute):
                yield node.func.attr, node


def _first_and_last(notebook: nbformat.NotebookNode) -> list[Problem]:
    code = [
        (i, c) for i, c in enumerate(notebook.cells, start=1) if c.cell_type == "code" and c.source.strip()
    ]
    problems: list[Problem] = []
    work = [(i, c) for i, c in code if TAG not in c.metadata.get("tags", [])]
    if not work:
        return [(0, "no code cell besides the parameters: call start() in the first and done() in the last")]
    index, first = work[0]
    tree = _parse(first.source)
    if tree is None or "start" not in [name for name, _ in _calls(tree)]:
        problems.append((index, "the first code cell must call start(), from rlvr.notebook"))
    index, last = code[-1]
    tree = _parse(last.source)
    end = tree.body[-1] if tree is not None and tree.body else None
    if not (isinstance(end, ast.Expr) and isinstance(end.value, ast.Call) and _name(end.value) == "done"):
        problems.append((index, "the last code cell must end with done(), the completion marker"))
    for i, cell in code[:-1]:
        tree = _parse(cell.source)
        if tree is not None and "done" in [n for n, call in _calls(tree) if isinstance(call.func, ast.Name)]:
            problems.append((i, "done() belongs into the last code cell only"))
        if COMPLETION_MARKER in cell.source:
            problems.append((i, f"only done() prints {COMPLETION_MARKER!r}"))
    return problems


def _name(call: ast.Call) -> str | None:
    return getattr(call.func, "id", None) or getattr(call.func, "attr", None)


def _shell(source: str) -> Iterator[str]:
    """Everything whose failure would go unseen, or that hides code from these rules."""
    tree = _parse(source)
    if tree is None:
        yield "not valid Python"
        return
    yield from _processes(tree)
    for name, call in _calls(tree):
        if name in EARLY_EXITS:
            yield f"{name}() is not allowed: it ends the notebook early without an error; raise an exception"
        if name not in SHELL_CALLS:
            continue
        argument = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else None
        if name == "run_line_magic" and argument in ALLOWED_MAGICS:
            continue
        if name == "run_line_magic":
            what = f"magic `%{argument}`"
        elif name == "run_cell_magic":
            what = f"cell magic `%%{argument}`"
        else:
            what = f"shell command `!{argument}`" if argument else f"`.{name}(...)`"
        yield f"{what} is not allowed: its failure would not stop the notebook; use rlvr.notebook.run([...])"


def _processes(tree: ast.Module) -> Iterator[str]:
    """Ways to start a program whose failure nobody would see."""
    for node in ast.walk(tree):
        found = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            found = [f"import of {n}" for n in names if n.split(".")[0] == "subprocess"]
        elif isinstance(node, ast.ImportFrom) and node.module == "subprocess":
            found = ["import of subprocess"]
        elif isinstance(node, ast.ImportFrom) and node.module in ("os", "pty", "asyncio"):
            names = [alias.name for alias in node.names]
            found = [
                f"import of {node.module}.{n}" for n in names if n in SHELL_CALLS or n.startswith(STARTERS)
            ]
        elif isinstance(node, ast.Attribute) and node.attr.startswith(STARTERS):
            found = [f".{node.attr}"]
        elif isinstance(node, ast.Call) and _name(node) in ("__import__", "import_module"):
            argument = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
            found = [f"{_name(node)}({argument!r})"] if argument in ("subprocess", None) else []
        for what in found:
            yield f"{what}: use rlvr.notebook.run([...]), which fails when the program does"


def _long_definitions(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            lines = node.body[-1].end_lineno - node.body[0].lineno + 1
            if lines > LONGEST_BODY:
                kind = "class" if isinstance(node, ast.ClassDef) else "function"
                yield f"{kind} {node.name} has {lines} lines, at most {LONGEST_BODY}; move it to lib/rlvr"


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        for name in names:
            if name.split(".")[0] in MODULES:
                yield f"import of {name}: {MODULES[name.split('.')[0]]}"


def _paths(text: str, where: str) -> Iterator[str]:
    found = set(_ABSOLUTE.findall(text))
    home = str(Path.home())
    if len(home) > 2 and home in text and not any(path.startswith(home) for path in found):
        found.add(home)
    for path in sorted(found):
        yield f"absolute path {path!r} in {where}; use paths from the repository root"


def _texts(output: Any) -> Iterator[str]:
    if output.output_type == "stream":
        yield output.text
    for mime, value in output.get("data", {}).items():
        if isinstance(value, str) and not mime.startswith("image/"):
            yield value


def _stored(output: Any, explore: bool) -> Iterator[str]:
    if output.output_type == "error":
        yield f"stored error output {output.ename}: {output.evalue}; fix the cell and run the notebook again"
        return
    if WIDGET in output.get("data", {}) and not explore:
        yield "stored output is a widget; nbval cannot compare it and it is blank without a kernel"
    for text in _texts(output):
        yield from _paths(text, "a stored output")
        if _ADDRESS.search(text) or _PLOT_OBJECT.match(text):
            shown = text.strip().splitlines()[0][:60]
            yield f"stored output shows an object, {shown!r}; end the cell with `;` or print what matters"


def _defaults(notebook: nbformat.NotebookNode) -> list[Problem]:
    """Opening a notebook, or nbval, must never write over what the pipeline made."""
    try:
        names = declared(notebook)
    except ValueError:
        return []  # reported by `structure`
    cell = tagged_cells(notebook)[0] + 1
    return [
        (
            cell,
            f"the default of `{name}` must lie under .work/, not {names[name].default!r}: "
            "running by hand must not touch the pipeline's outputs",
        )
        for name in RESERVED
        if name in names
        and isinstance(names[name].default, str)
        and not names[name].default.startswith(".work/")
    ]


def _is_compared(cell: Any) -> bool:
    """Whether nbval compares something in this cell: not skipped, and not only pictures."""
    options = {tag.lower().replace("_", "-") for tag in cell.metadata.get("tags", [])}
    options |= {"nbval-" + name.lower().replace("_", "-") for name in _NBVAL_COMMENT.findall(cell.source)}
    if options & {"nbval-ignore-output", "nbval-skip"}:
        return False
    for output in cell.outputs:
        if output.output_type == "stream" and output.text.strip():
            return True
        for mime, value in output.get("data", {}).items():
            if mime not in IGNORED_BY_NBVAL and not str(value).startswith("<Figure size"):
                return True
    return False


if __name__ == "__main__":
    sys.exit(main())
