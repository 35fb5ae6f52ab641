"""What each stage of the graph rests on, besides the results of other stages: one small file per stage.

    python -m pipelines.inputs params.yaml

reads the dvc.yaml beside that file and writes ``runs/<scale>/inputs/<stage>.json`` (``<stage>-<arm>.json``
where a stage runs per arm; in ``runs/<scale>/<paper>`` for another paper than NFPO): a hash of the
notebook's cells and of the syntax of every module that they import, and the values of the parameters that the
stage names. A stage depends on its own file. So dvc.yaml needs no lists of modules that could be incomplete,
and DVC, which writes its whole lock file anew after every stage, has a short one to write.

In dvc.yaml a stage says, under ``meta``:

    params: parameters that it reads, as paths in the scale file; ``${item.arm}`` stands for the arm, and
        ``recipes.{ablations.arms}`` for each of these arms
    skip: modules and packages that it imports only where it does not get
    keep: modules of those packages that it does import
    verl: packages that count as a whole at a scale whose engine is verl, and are then not skipped

What changed since the last time is printed, by stage.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.imports import Sources, cells, within
from rlvr.config import load_yaml, results_folder
from rlvr.storage import atomic_dir, read_json, write_json

ARM = "${item.arm}"


def inputs(root: Path, scale_file: str) -> dict[str, dict[str, Any]]:
    """Name of a stage, with its arm -> what its results rest on.

    Raises:
        ValueError: a stage without ``meta.params``, or a parameter that the scale file lacks.
    """
    scale = load_yaml(root / scale_file)
    graph = load_yaml((root / scale_file).parent / "dvc.yaml")["stages"]
    sources, hashes, found = Sources(root), {}, {}

    def hash_of(module: str) -> tuple[str, str]:
        if module not in hashes:
            file = sources.file_of(module)
            # of the syntax tree: comments and line breaks decide nothing
            hashes[module] = (file.relative_to(root).as_posix(), short_hash(ast.dump(sources.tree(file))))
        return hashes[module]

    for name, stage in graph.items():
        if name == "inputs":
            continue
        meta = stage.get("meta") or {}
        if "params" not in meta:
            raise ValueError(f"dvc.yaml, stage {name}: meta.params is missing")
        notebook = notebook_of(stage)
        verl = tuple(meta.get("verl", ())) if scale["engine"] == "verl" else ()
        skip = [module for module in meta.get("skip", ()) if module not in verl]
        modules = sources.modules(notebook, skip, meta.get("keep", ()))
        modules |= {module for module in sources.every if within(module, verl)}
        code = {"notebook": {notebook: short_hash(json.dumps(cells(root / notebook)))}}
        files = [(file.relative_to(root).as_posix(), file) for file in sources.data_of(modules)]
        data = {path: short_hash(file.read_text(encoding="utf-8")) for path, file in files}
        code |= {"code": dict(sorted(map(hash_of, modules))) | data}
        for title, arm in instances(name, stage, scale):
            values = {}
            for named in meta["params"]:
                for path in expanded(named.replace(ARM, arm), scale):
                    try:
                        values[path] = value_of(scale, path)
                    except KeyError:
                        raise ValueError(
                            f"{scale_file}: {path} is missing, a parameter of stage {title}"
                        ) from None
            found[title] = code | {"parameters": values}
    return found


def instances(name: str, stage: Mapping[str, Any], scale: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(file's name, arm) of a stage; one per arm where dvc.yaml runs it over ``${arms}``."""
    if "matrix" not in stage:
        yield name, ""
        return
    for arm in value_of(scale, stage["matrix"]["arm"].removeprefix("${").removesuffix("}")):
        yield f"{name}-{arm}", arm


def notebook_of(stage: Mapping[str, Any]) -> str:
    words = stage["cmd"].split()
    return words[words.index("pipelines.stage") + 1]


def value_of(tree: Mapping[str, Any], path: str) -> Any:
    for part in path.split("."):
        tree = tree[part]
    return tree


def expanded(path: str, scale: Mapping[str, Any]) -> list[str]:
    """``recipes.{ablations.arms}`` -> a path for each of ``ablations.arms``; any other path alone."""
    if not (several := re.search(r"\{([\w.]+)\}", path)):
        return [path]
    return [path.replace(several[0], one) for one in value_of(scale, several[1])]


def short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What of one stage's inputs changed: files and parameters by name."""
    names = []
    for section in ("notebook", "code", "parameters"):
        before, after = old.get(section, {}), new[section]
        names += sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    return names


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """One line for the stages that share what changed."""
    shared: dict[tuple[str, ...], list[str]] = {}
    for name, content in after.items():
        if found := differences(before.get(name, {}), content):
            shared.setdefault(tuple(found), []).append(name)
    return [f"{_few(names)}: {_few(found)}" for found, names in shared.items()]


def _few(names: Sequence[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipelines.inputs", description=__doc__.split("\n")[0])
    parser.add_argument("scale_file", help="params.yaml, or a file in pipelines/scales")
    scale_file = parser.parse_args(words).scale_file
    try:
        found = inputs(Path(), scale_file)
        folder = results_folder(load_yaml(scale_file))
    except (FileNotFoundError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    out = folder / "inputs"
    # DVC removes an output before it makes it anew: the last one is kept beside the runs' timings.
    memory = Path(".work/inputs", *folder.parts[1:]).with_suffix(".json")
    before = read_json(memory) if memory.is_file() else None
    with atomic_dir(out) as partial:
        for name, content in found.items():
            write_json(partial / f"{name}.json", content)
    write_json(memory, found)
    if before is not None:
        for line in changes(before, found):
            print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
