"""What a notebook declares in its ``parameters`` cell, and command-line values turned into exactly that.

The cell is read, never run: plain assignments of literals, ``steps = 40``, ``lr: float = 1``,
``horizons: list[int] = []``. The default's type (or the annotation) is the parameter's type. Values are read
as YAML 1.2, the dialect of `rlvr.config.load_yaml` and of DVC, so ``1e-6`` is a float everywhere.
"""

from __future__ import annotations

import ast
import difflib
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import nbformat
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

TAG = "parameters"
RESERVED = ("out", "scratch")  # given by the runner, never on the command line
_SCALARS = {"int": int, "float": float, "str": str, "bool": bool}
_ALLOWED = "int, float, str, bool, or list[...] of one of them, each optionally `| None`"


@dataclass(frozen=True)
class Kind:
    """A parameter's type: a scalar, or a list of scalars; ``optional`` adds None."""

    scalar: str
    is_list: bool = False
    optional: bool = False

    def __str__(self) -> str:
        name = f"list[{self.scalar}]" if self.is_list else self.scalar
        return f"{name} | None" if self.optional else name


@dataclass(frozen=True)
class Parameter:
    name: str
    kind: Kind
    default: Any


def tagged_cells(notebook: nbformat.NotebookNode, tag: str = TAG) -> list[int]:
    """Indices of the cells that carry ``tag``."""
    return [i for i, cell in enumerate(notebook.cells) if tag in cell.metadata.get("tags", [])]


def declared(notebook: nbformat.NotebookNode) -> dict[str, Parameter]:
    """The parameters a notebook declares, in order.

    Raises:
        ValueError: not exactly one cell tagged ``parameters``, a line in it that is not the assignment of a
            literal to one name, a type other than the allowed ones, or a name assigned twice.
    """
    cells = tagged_cells(notebook)
    if len(cells) != 1:
        found = "none" if not cells else "cells " + ", ".join(str(i + 1) for i in cells)
        raise ValueError(f"exactly one cell must be tagged `{TAG}`, found {found}")
    cell = notebook.cells[cells[0]]
    where = f"cell {cells[0] + 1} (`{TAG}`)"
    if cell.cell_type != "code":
        raise ValueError(f"{where}: must be a code cell, is a {cell.cell_type} cell")
    try:
        body = ast.parse(cell.source).body
    except SyntaxError as error:
        raise ValueError(f"{where}, line {error.lineno}: {error.msg}") from None

    parameters: dict[str, Parameter] = {}
    for node in body:
        line = cell.source.splitlines()[node.lineno - 1].strip()
        try:
            parameter = _declaration(node)
        except ValueError as error:
            raise ValueError(f"{where}, `{line}`: {error}") from None
        if parameter.name in parameters:
            raise ValueError(f"{where}, `{line}`: {parameter.name} is assigned twice")
        parameters[parameter.name] = parameter
    return parameters


def resolve(
    parameters: Mapping[str, Parameter], given: Iterable[tuple[str, str]], *, notebook: str
) -> dict[str, Any]:
    """Turn ``-p NAME VALUE`` pairs into typed values.

    Args:
        parameters: from :func:`declared`.
        given: names and values as written on the command line.
        notebook: for the messages.

    Raises:
        ValueError: unknown, reserved or repeated name; a value of the wrong type. One message holds all.
    """
    values: dict[str, Any] = {}
    problems = []
    settable = [name for name in parameters if name not in RESERVED]
    for name, text in given:
        if name in RESERVED:
            problems.append(f"parameter {name!r} is set by the runner; use --out for the output folder")
        elif name not in parameters:
            close = difflib.get_close_matches(name, settable, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]!r}? " if close else ""
            problems.append(
                f"unknown parameter {name!r}; {hint}{notebook} declares {', '.join(settable) or 'none'}"
            )
        elif name in values:
            problems.append(f"parameter {name!r} is given twice")
        else:
            try:
                values[name] = parse(name, text, parameters[name].kind)
            except ValueError as error:
                problems.append(str(error))
    if problems:
        raise ValueError("\n".join(problems))
    return values


def parse(name: str, text: str, kind: Kind) -> Any:
    """Read one value from its text.

    A ``str`` is the text itself (``no``, ``1`` and ``1e-6`` stay text). Everything else is YAML 1.2. A whole
    number is a float where a float is asked for, and a float without fraction is an int where an int is asked
    for: ``2.0`` means 2, as in the scale files, because DVC too takes 2 and 2.0 for the same value.

    Raises:
        ValueError: naming the parameter, the value and the allowed type.
    """
    if kind.scalar == "str" and not kind.is_list and not (kind.optional and text == "null"):
        return text
    try:
        value = YAML(typ="safe", pure=True).load(io.StringIO(text))
        return coerce(value, kind)
    except (YAMLError, ValueError):
        raise ValueError(f"parameter {name!r} = {text!r} is not of type {kind}{_example(kind)}") from None


def coerce(value: Any, kind: Kind) -> Any:
    """``value`` as ``kind``; ValueError if that would change what it says."""
    if value is None and kind.optional:
        return None
    if kind.is_list:
        if not isinstance(value, list):
            raise ValueError("not a list")
        return [coerce(item, Kind(kind.scalar)) for item in value]
    if kind.scalar == "bool" and isinstance(value, bool):
        return value
    if kind.scalar == "str" and isinstance(value, str):
        return value
    if kind.scalar in ("int", "float") and isinstance(value, (int, float)) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise ValueError("not finite")
        if kind.scalar == "float":
            return float(value)
        if float(value).is_integer():
            return int(value)
    raise ValueError("wrong type")


def _example(kind: Kind) -> str:
    scalar = {"int": "40", "float": "1e-6", "bool": "true or false", "str": "text"}[kind.scalar]
    return f" (write e.g. [{scalar}])" if kind.is_list else f" (write e.g. {scalar})"


def _declaration(node: ast.stmt) -> Parameter:
    annotation = None
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        target, annotation, value = node.target, node.annotation, node.value
    elif isinstance(node, ast.Assign) and len(node.targets) == 1:
        target, value = node.targets[0], node.value
    else:
        raise ValueError("only assignments `name = literal` are allowed in this cell")
    if not isinstance(target, ast.Name):
        raise ValueError("only assignments `name = literal` are allowed in this cell")
    try:
        default = ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError):
        raise ValueError(f"the default of {target.id} must be a literal, not an expression") from None
    kind = _annotated(annotation) if annotation is not None else _inferred(default, target.id)
    try:
        return Parameter(target.id, kind, coerce(default, kind))
    except ValueError:
        raise ValueError(f"the default of {target.id}, {default!r}, is not of type {kind}") from None


def _annotated(node: ast.expr) -> Kind:
    text = ast.unparse(node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        sides = [node.left, node.right]
        rest = [s for s in sides if not (isinstance(s, ast.Constant) and s.value is None)]
        if len(rest) == 1:
            inner = _annotated(rest[0])
            return Kind(inner.scalar, inner.is_list, optional=True)
    if isinstance(node, ast.Name) and node.id in _SCALARS:
        return Kind(node.id)
    if (
        isinstance(node, ast.Subscript)
        and ast.unparse(node.value) == "list"
        and isinstance(node.slice, ast.Name)
        and node.slice.id in _SCALARS
    ):
        return Kind(node.slice.id, is_list=True)
    raise ValueError(f"annotation `{text}` is not supported; allowed are {_ALLOWED}")


def _inferred(default: Any, name: str) -> Kind:
    if isinstance(default, list):
        scalars = {type(item).__name__ for item in default}
        if scalars == {"int", "float"}:
            scalars = {"float"}
        if len(scalars) != 1 or not scalars <= set(_SCALARS):
            raise ValueError(
                f"cannot tell what {name} is a list of; annotate it, e.g. `{name}: list[int] = []`"
            )
        return Kind(scalars.pop(), is_list=True)
    scalar = type(default).__name__
    if scalar not in _SCALARS:
        raise ValueError(f"{name} has type {scalar}; allowed are {_ALLOWED} (annotate a None)")
    return Kind(scalar)
