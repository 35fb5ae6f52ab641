"""``rlvr objectives [NAME]``: which there are; of one, its parameters and its name in each engine."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlvr.commands.base import completion, guarded, print_table

if TYPE_CHECKING:
    from rlvr.docstrings import Docstring
    from rlvr.registry import Objective


def names() -> list[str]:
    """Names of all objectives, read off their source: importing it imports torch."""
    found = []
    for path in (Path(__file__).parents[1] / "objectives").glob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and any(
                isinstance(d, ast.Call) and getattr(d.func, "id", None) == "register"
                for d in node.decorator_list
            ):
                found.append(node.name)
    return sorted(found)


@guarded
def objectives(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="One of them, in full; default: all.", autocompletion=completion(names)
        ),
    ] = None,
) -> int:
    """The objectives: paper, equation, one line; of one, its parameters and how to name it.

    With NAME: every parameter with its default, what is allowed and its source, and the name in Python,
    params.yaml, verl and TRL.
    """
    from rlvr import objectives
    from rlvr.docstrings import parse

    if name is not None:
        objective = objectives.get(name)
        _show(objective, parse(name, objective.__doc__))
        return 0
    docs = {name: parse(name, objectives.get(name).__doc__) for name in objectives.list_objectives()}
    rows = [(name, *sources(doc), doc.summary) for name, doc in docs.items()]
    print_table(("objective", "paper", "where", "what it is"), rows, fixed=("objective",))
    print("`rlvr objectives NAME` shows parameters and how to name it in verl, TRL and params.yaml")
    return 0


def sources(doc: Docstring) -> tuple[str, str]:
    """The paper with its arXiv number, and the equations or other sources."""
    from rlvr.docstrings import paper

    title, number = paper(doc)
    text = re.sub(r"\s+", " ", doc.sections["Sources"]).rstrip(".")
    rest = re.sub(rf"^(\[\w+: {re.escape(title)}\]|{re.escape(title)}(?: \(arXiv [\d.]+\))?)[,; ]*", "", text)
    return (f"{title}, arXiv {number}" if number else title), rest


def allowed(objective: Objective, parameter: str) -> str:
    """What a parameter may be, in the words of the error that refuses another value.

    Raises:
        ValueError: the objective takes anything for it.
    """
    import torch

    width = 2
    tensors = {}
    for name in objective.needs:
        shape = (1, width, 1) if "mtp" in name else (1, width)
        tensors[name] = torch.full(shape, -1.0) if "log_prob" in name else torch.ones(shape)
    log_prob = torch.full((1, width), -1.0)
    try:
        objective(log_prob, log_prob, torch.ones(1), torch.ones(1, width), **tensors, **{parameter: "?"})
    except ValueError as error:
        if found := re.match(rf"{parameter}='\?': allowed (?:are|is) (.*)", str(error), re.DOTALL):
            return found[1]
        raise
    raise ValueError(f"{objective.name} takes {parameter}='?'")


def _show(objective: Objective, doc: Docstring) -> None:
    from rlvr.docstrings import literal, split_marks

    paper, rest = sources(doc)
    print(f"{objective.name}: {doc.summary}\n")
    print(f"source: {paper}{', ' + rest if rest else ''}")
    print(f"page:   docs/objectives/{objective.name}.md\n")
    print("\n".join(f"  {line}" for line in doc.sections["Formula"].splitlines()))
    rows = []
    for name, default in objective.parameters.items():
        meaning, marks = split_marks(doc.args[name])
        tensor = name in objective.tensors
        required = name in objective.needs
        rows.append(
            (
                name,
                "required" if required else literal(default),
                "a tensor" if tensor else allowed(objective, name),
                re.sub(r"\s+", " ", meaning),
                "; ".join(mark[1:-1] for mark in marks),
            )
        )
    if rows:
        header = ("parameter", "default", "allowed", "meaning", "source")
        print_table(header, rows, fixed=("parameter", "default"))
    else:
        print("\nno parameters of its own\n")
    for where, lines in uses(objective):
        print(f"{where}:")
        print("\n".join(f"  {line}" for line in lines.splitlines()))


def uses(objective: Objective) -> list[tuple[str, str]]:
    """(engine, how the objective is named there) for Python, the local engine, verl and TRL."""
    from rlvr.docstrings import literal
    from rlvr.engines.naming import method_blocks, verl_overrides

    name, blocks = objective.name, method_blocks(objective)
    given = [p for p in objective.parameters if p not in objective.tensors]
    example = f"{given[0]}={literal(objective.parameters[given[0]])}" if given else ""
    needs = "".join(f", {tensor}={tensor}" for tensor in objective.needs)
    own = f", {example}" if example else ""
    out = [
        ("Python", f"objectives.{name}(log_prob, old_log_prob, advantages, response_mask{needs}{own})"),
        ("aggregation", f"loss_agg_mode={objective.loss_agg_mode} (the method's; trainers have their own)"),
    ]
    recipe = f"{name}: {{objective: {name}}}"
    if blocks:
        what = f"with {' and '.join(f'a block `{b}`' for b in blocks)} in the recipe (rlvr.config_mtp)"
        out.append(("params.yaml", f"recipes: {recipe}, {what}; {name} in arms"))
    elif not objective.needs:
        out.append(("params.yaml", f"recipes: {recipe}; {name} in arms; then dvc repro train@{name}"))
    lacking, masked = " and ".join(objective.needs), objective.needs == ("token_mask",)
    if masked:
        what = "with a block `counterfactual` of the variant mask in the recipe (rlvr.config_corrections)"
        out.append(("params.yaml", f"recipes: {recipe}, {what}; {name} in arms"))
    if masked or "mtp" in blocks:
        out.append(("verl", "\n".join(map(shlex.quote, verl_overrides(objective)))))
        return [*out, ("TRL", f"none: it has nothing to give for {lacking}")]
    if objective.needs:
        return [*out, ("verl, TRL", f"none: both have nothing to give for {lacking}")]
    out.append(("verl", "\n".join(map(shlex.quote, verl_overrides(objective)))))
    if objective.advantages == "critic":
        return [*out, ("TRL", "none: GRPOTrainer has no critic")]
    settings = f", objective_parameters={{{given[0]!r}: {objective.parameters[given[0]]!r}}}" if given else ""
    trainer = f'ObjectiveTrainer(model, reward, args, data, objective="{name}"{settings})'
    if objective.advantages == "centred":
        trainer += '\nwith args = GRPOConfig(..., scale_rewards="none")'
    return [*out, ("TRL", f"from rlvr.engines.trl import ObjectiveTrainer\n{trainer}")]
