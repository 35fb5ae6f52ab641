"""The same inputs give the same bytes: what is taken out of an executed notebook before it is kept.

Removed: times, run ids, kernel versions, widget state. Renumbered: cell ids, execution counts, the random ids
of pandas' styled tables. Replaced: folders of this run by the final ones, object addresses, secrets.
"""

from __future__ import annotations

import fnmatch
import html
import re
from collections.abc import Callable, Mapping
from typing import Any

import nbformat

SECRET_NAMES = ("*TOKEN*", "*KEY*", "*SECRET*", "*PASSWORD*")
SHORTEST_SECRET = (
    6  # shorter values (`1`, `true`, `us`) are settings, and masking them would eat ordinary text
)
BINARY = ("image/png", "image/jpeg", "application/pdf")
_ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]{6,16}\b")
_STYLER = re.compile(r"\bT_([0-9a-f]{5})(?=[_\s\"'{#,]|$)")


def secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Values in the environment that must not be seen, longest first, with the variable's name."""
    found: dict[str, str] = {}
    for name in sorted(environment):
        if not any(fnmatch.fnmatchcase(name.upper(), pattern) for pattern in SECRET_NAMES):
            continue
        value = environment[name]
        for form in (value, *value.splitlines(), repr(value)[1:-1], html.escape(value)):
            if len(form.strip()) >= SHORTEST_SECRET:
                found.setdefault(form.strip(), name)
    return dict(sorted(found.items(), key=lambda item: (-len(item[0]), item[0])))


def mask(text: str, hidden: Mapping[str, str]) -> str:
    """Replace every secret in ``text`` by the name of its variable."""
    for value, name in hidden.items():
        text = text.replace(value, f"<{name} masked>")
    return text


def normalise(
    notebook: nbformat.NotebookNode, *, replacements: Mapping[str, str], hidden: Mapping[str, str]
) -> nbformat.NotebookNode:
    """A copy of an executed notebook that depends on its inputs alone.

    Args:
        notebook: executed, nbformat 4.
        replacements: text of this run -> text that is kept (e.g. the staging folder -> the output folder),
            applied in the given order to sources and outputs.
        hidden: from :func:`secrets`.
    """

    def clean(text: str) -> str:
        for old, new in replacements.items():
            text = text.replace(old, new)
        return mask(text, hidden)

    result = nbformat.v4.new_notebook(
        metadata={
            "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    count = 0
    for index, cell in enumerate(notebook.cells):
        new = nbformat.from_dict({"cell_type": cell.cell_type, "source": clean(cell.source)})
        new["id"] = f"cell-{index + 1:02d}"
        new["metadata"] = {
            key: sorted(value) if key == "tags" else value
            for key, value in cell.metadata.items()
            if key in ("tags", "jupyter", "slideshow") and value
        }
        if cell.cell_type == "code":
            new["outputs"] = [_output(o, clean) for o in merge_streams(cell.outputs)]
            new["execution_count"] = None
            if cell.get("execution_count") is not None:
                count += 1
                new["execution_count"] = count
            for output in new["outputs"]:
                if "execution_count" in output:
                    output["execution_count"] = count
        elif cell.get("attachments"):
            new["attachments"] = cell.attachments
        result.cells.append(new)
    result = nbformat.from_dict(result)
    nbformat.validate(result)
    return result


def merge_streams(outputs: list[Any]) -> list[Any]:
    """Join neighbouring text outputs, stdout before stderr: how they were cut up depends on timing only."""
    merged: list[Any] = []
    run: dict[str, str] = {}

    def flush() -> None:
        for name in ("stdout", "stderr"):
            if name in run:
                merged.append(nbformat.v4.new_output("stream", name=name, text=run[name]))
        run.clear()

    for output in outputs:
        if output.output_type == "stream":
            run[output.name] = run.get(output.name, "") + output.text
        else:
            flush()
            merged.append(output)
    flush()
    return merged


def _output(output: Any, clean: Callable[[str], str]) -> Any:
    new = nbformat.from_dict(dict(output))
    if "text" in new:
        new["text"] = _text(new["text"], clean)
    if "traceback" in new:
        new["traceback"] = [_text(line, clean) for line in new["traceback"]]
        new["evalue"] = _text(new["evalue"], clean)
    for mime, value in list(new.get("data", {}).items()):
        if mime not in BINARY:
            new["data"][mime] = _walk(value, clean, mime)
    return new


def _walk(value: Any, clean: Callable[[str], str], mime: str) -> Any:
    if isinstance(value, str):
        value = _text(value, clean)
        return _number_styled_tables(value) if mime == "text/html" else value
    if isinstance(value, list):
        return [_walk(item, clean, mime) for item in value]
    if isinstance(value, dict):
        return {clean(key): _walk(item, clean, mime) for key, item in value.items()}
    return value


def _text(text: str, clean: Callable[[str], str]) -> str:
    return _ADDRESS.sub("at 0x0", clean(text))


def _number_styled_tables(text: str) -> str:
    if "<style" not in text:
        return text
    order: dict[str, str] = {}
    return _STYLER.sub(lambda match: "T_" + order.setdefault(match[1], f"{len(order):05d}"), text)
