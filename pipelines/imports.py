"""Which source files a notebook's results rest on: what it imports, followed through the package.

Imports are read, not run, wherever they stand: one inside a function counts too, unless the stage says that
it never gets there (``skip`` in dvc.yaml; tests look at what is really imported).
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

PACKAGE = "rlvr"
#: Modules that no result rests on, and why.
ONLY_MOVES_DATA = {
    "rlvr.notebook": "progress and display; no number passes through it",
    "rlvr.config": "reads parameters, which are inputs by value; a wrong one is an error",
    "rlvr.config_analyses": "as rlvr.config",
    "rlvr.config_base": "as rlvr.config",
    "rlvr.config_corrections": "as rlvr.config",
    "rlvr.config_mtp": "as rlvr.config",
    "rlvr.storage": "writes bytes it is given and reads JSON",
}


class Sources:
    """The package below a repository's ``lib``, each file parsed once."""

    def __init__(self, root: str | Path):
        self.root = Path(root)
        self._files: dict[str, Path | None] = {}
        self._trees: dict[Path, ast.Module] = {}
        self._imports: dict[str, tuple[str, ...]] = {}

    def file_of(self, module: str) -> Path | None:
        """The module's file, or a package's ``__init__``; None if the package has no such module."""
        if module not in self._files:
            path = self.root / "lib" / Path(*module.split("."))
            candidates = (path.with_suffix(".py"), path / "__init__.py")
            self._files[module] = next((file for file in candidates if file.is_file()), None)
        return self._files[module]

    def tree(self, file: Path) -> ast.Module:
        if file not in self._trees:
            self._trees[file] = ast.parse(file.read_text(encoding="utf-8"), str(file))
        return self._trees[file]

    def notebook(self, path: str | Path) -> ast.Module:
        """The code cells of a notebook as one module."""
        code = (source for kind, source in cells(self.root / path) if kind == "code")
        return ast.parse("\n".join(code), str(path))

    def imported(self, tree: ast.AST) -> Iterator[str]:
        """Modules of the package that a tree imports, wherever in it, with the packages around them.

        Raises:
            ValueError: a relative import, which is not followed.
        """
        for node in ast.walk(tree):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                if node.level:
                    raise ValueError(f"line {node.lineno}: relative imports are not followed")
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            for name in names:
                if name.split(".")[0] == PACKAGE:
                    yield from (module for module in packages(name) if self.file_of(module))

    def says_nothing(self, module: str) -> bool:
        """Whether a module is a package's ``__init__`` of a docstring and constants."""
        file = self.file_of(module)
        simple = all(
            isinstance(n, ast.Expr | ast.Assign) and isinstance(n.value, ast.Constant | ast.List)
            for n in self.tree(file).body
        )
        return file.name == "__init__.py" and simple

    def modules(self, notebook: str | Path, skip: Iterable[str] = (), keep: Iterable[str] = ()) -> set[str]:
        """All modules that running a notebook imports.

        Args:
            notebook: path from the root.
            skip: modules and packages that are imported only where this notebook does not get.
            keep: modules of skipped packages that are inputs all the same, with the packages around them.
        """
        skip, keep = tuple(skip), {around for module in keep for around in packages(module)}
        found: set[str] = set()
        pending = list(self.imported(self.notebook(notebook)))
        while pending:
            module = pending.pop()
            if module in found or module in ONLY_MOVES_DATA:
                continue
            if module not in keep and within(module, skip):
                continue
            found.add(module)
            if module not in self._imports:
                self._imports[module] = tuple(self.imported(self.tree(self.file_of(module))))
            pending += self._imports[module]
        return {module for module in found if not self.says_nothing(module)}

    def data_of(self, modules: Iterable[str]) -> list[Path]:
        """Files that are no Python and lie beside one of these modules, such as templates."""
        folders = {self.file_of(module).parent for module in modules}
        files = (file for folder in folders for file in folder.iterdir() if file.is_file())
        return sorted(file for file in files if file.suffix not in (".py", ".pyc"))

    @cached_property
    def every(self) -> list[str]:
        """All modules of the package."""
        files = (self.root / "lib" / PACKAGE).rglob("*.py")
        names = (file.relative_to(self.root / "lib").with_suffix("").parts for file in files)
        return sorted(".".join(parts[:-1] if parts[-1] == "__init__" else parts) for parts in names)


def packages(module: str) -> list[str]:
    """``a.b.c`` -> ``a``, ``a.b``, ``a.b.c``."""
    parts = module.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts) + 1)]


def within(module: str, packages: Iterable[str]) -> bool:
    """Whether a module is one of these, or lies in one of these packages."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def cells(notebook: str | Path) -> list[tuple[str, str]]:
    """(type, source) of a notebook's cells. Read as JSON: validating it takes longer than all the rest."""
    found = json.loads(Path(notebook).read_text(encoding="utf-8"))["cells"]
    return [(cell["cell_type"], "".join(cell["source"])) for cell in found]
