"""Keep generated documents equal to what they are made of.

The page of every objective is made of its docstring, its signature and what it computes; the pages of
``PAGES`` of files in ``data`` and ``pipelines/scales``, and of the tests.

python -m pipelines.docs            # write docs/objectives and the pages of PAGES
python -m pipelines.docs --check    # exit 1 if a page is stale, missing, or has no objective
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from pipelines import docs_command_line, docs_decisions, docs_faults, docs_papers, docstrings
from pipelines.docs_commands import call, local, trainers
from pipelines.docs_example import gradient_through, show
from pipelines.docstrings import Docstring, Writer, fenced, literal, parse, split_marks, table
from rlvr import losses, objectives
from rlvr.config import Scale, load_scale
from rlvr.docstrings import paper as source
from rlvr.registry import Objective
from rlvr.storage import write_text

FOLDER = Path("docs/objectives")
#: Page -> the function that makes its text of the files below a root.
PAGES: dict[Path, Callable[[Path], str]] = {
    docs_command_line.PAGE: lambda root: docs_command_line.page(),
    Path("docs/decisions.md"): docs_decisions.page,
    Path("docs/paper-index.md"): docs_papers.page,
    Path("docs/what-goes-wrong.md"): docs_faults.page,
}
WRITTEN = docstrings.WRITTEN.format("the docstring")


def documented(objective: Objective) -> Docstring:
    """The objective's docstring, checked against its signature.

    Raises:
        ValueError: see :func:`pipelines.docstrings.parse`; or a parameter without a meaning, or a meaning
            without a parameter.
    """
    doc = parse(objective.name, objective.__doc__)
    for name in objective.parameters:
        if name not in doc.args:
            raise ValueError(f"objective {objective.name}: section 'Args' lacks the parameter {name!r}")
    for name in doc.args:
        if name not in objective.parameters:
            raise ValueError(
                f"objective {objective.name}: section 'Args' documents {name!r}, which it does not take"
            )
    return doc


# --- the parts of a page ------------------------------------------------------------------------------


def shared(start: str) -> str:
    """The paragraph of the package's docstring that starts so: what is said of every objective, once."""
    for paragraph in inspect.cleandoc(objectives.__doc__).split("\n\n"):
        if paragraph.startswith(start):
            return re.sub(r"\s+", " ", paragraph)
    raise ValueError(f"rlvr.objectives: its docstring has no paragraph that starts with {start!r}")


def inputs(objective: Objective, write: Writer) -> str:
    """The shared tensors as a table, then what else the package's docstring says of a call.

    Raises:
        ValueError: that docstring does not give names and shape of a positional argument.
    """
    text = shared("Arguments of every objective: ").partition(": ")[2]
    rows, rest, named = [], [], []
    shape = r"(\[[BT, ]+\])"
    for clause in re.split(r"(?<=\S); (?=``)|\. (?=Then)", text):
        match = re.fullmatch(rf"((?:``\w+``(?:, )?)+) {shape}(?: \((.*)\) or {shape}|,? ?(.*))", clause)
        if match:
            names = re.findall(r"\w+", match[1])
            named += names
            shapes = " or ".join(filter(None, [match[2], match[4]]))
            meaning = write.inline(match[3] or match[5] or "")
            rows.append([", ".join(f"`{name}`" for name in names), shapes, meaning])
        else:
            rest.append(clause)
    for parameter in inspect.signature(objective).parameters.values():
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and parameter.name not in named:
            raise ValueError(f"rlvr.objectives: its docstring gives no shape of ``{parameter.name}``")
    return table(["input", "shape", "meaning"], rows) + "\n\n" + write.inline("; ".join(rest))


def parameters(objective: Objective, doc: Docstring, write: Writer) -> str:
    if not doc.args:
        return "None of its own."
    rows = []
    for name in objective.parameters:
        meaning, marks = split_marks(doc.args[name])
        default = inspect.signature(objective).parameters[name].default
        shown = "required" if default is inspect.Parameter.empty else f"`{literal(default)}`"
        source = "; ".join(write.inline(mark[1:-1]) for mark in marks)
        rows.append([f"`{name}`", shown, write.inline(meaning), source])
    return table(["parameter", "default", "meaning", "source"], rows)


def presets(objective: Objective) -> str:
    """The table of ``<NAME>_PRESETS``, for an objective that has one; else nothing."""
    constant = f"{objective.name.upper()}_PRESETS"
    given = getattr(objectives, constant, None)
    if given is None:
        return ""
    defaults = objective.parameters | {"loss_agg_mode": objective.loss_agg_mode}
    rows = []
    for name in (name for name in defaults if any(name in preset for preset in given.values())):
        cells = []
        for preset in given.values():
            value = preset.get(name, defaults[name])
            cells.append(f"`{literal(value)}`" if value == defaults[name] else f"**`{literal(value)}`**")
        rows.append([f"`{name}`", f"`{literal(defaults[name])}`", *cells])
    shown = table(["parameter", "default", *(f'"{name}"' for name in given)], rows)
    call = f'objectives.{objective.name}(..., **objectives.{constant}["{list(given)[-1]}"])'
    return f"{shown}\n\nBold: not the default. In use: `{call}`."


def aggregation_formulas() -> dict[str, str]:
    """Mode -> weight of a token's loss, from the docstring of ``aggregation_scale``."""
    text = losses.aggregation_scale.__doc__
    formulas = {
        mode: found[1]
        for mode in losses.AGGREGATIONS
        if (found := re.search(rf"(?<![\w-]){mode}  +(D(?: / \S.*?)?)(?:  |\n)", text))
    }
    if missing := [mode for mode in losses.AGGREGATIONS if mode not in formulas]:
        raise ValueError(f"rlvr.losses.aggregation_scale: its docstring lacks {', '.join(missing)}")
    return formulas


def aggregation(objective: Objective) -> str:
    rows = [
        [f"`{mode}`" + (" (default)" if mode == objective.loss_agg_mode else ""), f"`{weight}`"]
        for mode, weight in aggregation_formulas().items()
    ]
    return table(["`loss_agg_mode`", "weight of a token's loss"], rows) + (
        "\n\nD is `dp_size`; M the valid tokens and B the rows that have one, of this batch or of all "
        "(`batch_num_tokens`, `global_batch_size`); n_i the valid tokens of row i; L is `loss_scale_factor`, "
        "by default the width."
    )


# --- pages --------------------------------------------------------------------------------------------


def page(objective: Objective, doc: Docstring, scale: Scale, pages: Iterable[str]) -> str:
    example, metrics = show(objective)
    known = [*inspect.signature(objective).parameters, *metrics, f"{objective.name.upper()}_PRESETS"]
    write = Writer(objective.name, pages, [name for name in known if "_" in name or name == "kl"])
    text = {title: write.sentence(body) for title, body in doc.sections.items() if title != "Formula"}
    parts = {
        "": "\n\n".join(filter(None, [write.inline(doc.summary), write.prose(doc.description)])),
        "Formula": fenced(doc.sections["Formula"]),
        "Inputs": inputs(objective, write),
        "Parameters": parameters(objective, doc, write),
        "Presets": presets(objective),
        "What is detached": text["Detached"],
        "Aggregation": aggregation(objective),
        "Metrics": text["Metrics"] + "\n\n" + write.inline(shared("Metrics are ")),
        "Errors": text.get("Raises", ""),
        "Deviations": text["Deviations"],
        "Sources": text["Sources"],
        "What it does to a token": example,
        "Exact commands": "\n\n".join(
            filter(None, [fenced(call(objective), "python"), local(objective, scale), trainers(objective)])
        ),
    }
    shown = [f"## {title}\n\n{body}" if title else body for title, body in parts.items() if body]
    return "\n\n".join([f"# {objective.name}", WRITTEN, *shown]) + "\n"


def index(docs: dict[str, Docstring]) -> str:
    """The comparison of all objectives."""
    write = Writer("", docs)
    rows = []
    for name, doc in docs.items():
        weight, _, region = (doc.sections.get("In short") or f"{doc.summary}|see its page").partition("|")
        objective = objectives.get(name)
        rows.append(
            [
                f"[`{name}`]({name}.md)",
                write.inline(weight),
                write.inline(region),
                f"`{objective.loss_agg_mode}`",
                gradient_through(objective),
                paper(doc),
            ]
        )
    header = ["objective", "weight or ratio", "region", "aggregation", "gradient through", "paper"]
    text = (
        "By their defaults. `rho_t` is the token's ratio pi/mu, `s_i` one ratio per response, `sg` stops "
        "the gradient; a token outside its region gets no gradient. *Gradient through* is read off "
        "the derivative: with `log pi` the weight is a constant, otherwise the ratio itself is "
        "differentiated."
    )
    return "\n\n".join(["# Objectives", WRITTEN, text, table(header, rows)]) + "\n"


def paper(doc: Docstring) -> str:
    """What 'Sources' names first, with its address."""
    title, number = source(doc)
    return f"[{title}](https://arxiv.org/abs/{number})" if number else Writer().inline(title)


def render(root: Path = Path()) -> dict[str, str]:
    """File name -> text of every page of an objective; writes nothing."""
    docs = {name: documented(objectives.get(name)) for name in objectives.list_objectives()}
    scale = load_scale(root / "params.yaml")
    pages = {f"{name}.md": page(objectives.get(name), doc, scale, docs) for name, doc in docs.items()}
    return {"README.md": index(docs), **pages}


def documents(root: Path = Path()) -> dict[Path, str]:
    """Path from the root -> text of everything that this module writes; writes nothing."""
    pages = {FOLDER / name: text for name, text in render(root).items()}
    return pages | {path: make(root) for path, make in PAGES.items()}


def differences(root: Path = Path()) -> list[str]:
    """One line per page that is stale or missing, and per page of an objective that is none."""
    wanted = documents(root)
    found = {path: (root / path).read_text(encoding="utf-8") for path in wanted if (root / path).is_file()}
    own = sorted(path.relative_to(root) for path in (root / FOLDER).glob("*.md"))
    return [
        *(f"{path} is missing" for path in wanted if path not in found),
        *(f"{path} is stale" for path in wanted if path in found and found[path] != wanted[path]),
        *(f"{path} has no objective" for path in own if path not in wanted),
    ]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipelines.docs", description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args(argv)
    try:
        if args.check:
            wrong = differences()
            if wrong:
                print("\n".join([*wrong, "run `python -m pipelines.docs`"]), file=sys.stderr)
            return int(bool(wrong))
        pages = documents()
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    for path, text in pages.items():
        write_text(path, text)
    for path in FOLDER.glob("*.md"):
        if path not in pages:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
