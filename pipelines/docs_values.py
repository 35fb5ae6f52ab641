"""Values of the scale files as the paper index shows them, and where they are from."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Collection, Mapping
from typing import Any

from pipelines.docstrings import literal


class Cell:
    """The values of one key over the settings of a paper, each with its source.

    Args:
        given: setting -> (value, source), of the settings that have the key.
        settings: all settings of the paper.
    """

    def __init__(self, given: Mapping[str, tuple[Any, str | None]], settings: Collection[str]):
        self.groups: dict[tuple[str, str | None], list[str]] = {}
        self.settings = settings
        for setting, (value, source) in given.items():
            self.groups.setdefault((shown(value), source), []).append(setting)

    @property
    def values(self) -> set[str]:
        return {value for value, _ in self.groups}

    @property
    def sections(self) -> str:
        found = [section(source) for _, source in self.groups if from_text(source)]
        return ", ".join(dict.fromkeys(found)) or "-"

    @property
    def paper(self) -> str:
        """What the text states, in brackets in which words, and under which settings."""
        cells = {}
        for (value, source), names in self.groups.items():
            if from_text(source):
                words = re.fullmatch(r"text: [^,]+(?:, (.*))?", source)[1]
                cells.setdefault(f"{value} ({words})" if words else value, []).extend(names)
        return self._by_setting(cells) if cells else "not stated"

    @property
    def ours(self) -> str:
        """What the jobs use; in brackets, where a value is from that the text does not state."""
        cells = {}
        for (value, source), names in self.groups.items():
            cell = value if from_text(source) or not source else f"{value} ({source})"
            cells.setdefault(cell, []).extend(names)
        return self._by_setting(cells)

    def _by_setting(self, cells: Mapping[str, list[str]]) -> str:
        every = sum(map(len, self.groups.values()))
        if len(cells) == 1 and len(next(iter(cells.values()))) == every:
            return next(iter(cells))
        return "<br>".join(
            f"{', '.join(shortest(names, self.settings))}: {cell}" for cell, names in cells.items()
        )


def shortest(names: Collection[str], settings: Collection[str]) -> list[str]:
    """``names`` by their models, or by their tasks, alone where they are all that have them.

    >>> shortest(["a-x", "b-x"], ["a-x", "a-y", "b-x", "b-y"])
    ['x']
    """
    for part in (0, 2):
        parts = list(dict.fromkeys(name.partition("-")[part] for name in names))
        having = {name for name in settings if name.partition("-")[part] in parts}
        if all(parts) and having == set(names) and len(parts) < len(names):
            return parts
    return list(names)


def from_text(source: str | None) -> bool:
    return bool(source) and source.startswith("text: ")


def section(source: str) -> str:
    """Of "text: 4, 8k": "Sec. 4"; of "text: I.2": "App. I.2"; a table or figure by its own name."""
    where = re.match(r"text: ([^,]+)", source)[1]
    if re.match(r"\d", where):
        return f"Sec. {where}"
    return f"App. {where}" if re.fullmatch(r"[A-Z](\.\d+)*", where) else where


def shown(value: Any) -> str:
    """A value as the scale files have it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value))
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else literal(value)


def value_at(item: Any, path: str) -> Any:
    """``item.a.b`` through attributes and mappings; KeyError where a part is not there."""
    for name in path.split("."):
        if not (name in item if isinstance(item, Mapping) else hasattr(item, name)):
            raise KeyError(path)
        item = item[name] if isinstance(item, Mapping) else getattr(item, name)
    return item


def default_of(code: str) -> Any:
    """The default of an argument: ``rlvr.module.function(argument)``."""
    path, argument = re.fullmatch(r"([\w.]+)\((\w+)\)", code).groups()
    module, _, name = path.rpartition(".")
    return inspect.signature(getattr(importlib.import_module(module), name)).parameters[argument].default
