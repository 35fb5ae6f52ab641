"""``rlvr doctor``: whether this environment can do its work, and what mends it where it cannot."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from rlvr.commands.base import completion, guarded, scales

if TYPE_CHECKING:
    from rlvr.doctor.finding import Finding

COLOURS = {"ok": typer.colors.GREEN, "note": typer.colors.YELLOW, "fault": typer.colors.RED}


def _scales() -> list[str]:
    from rlvr.doctor.machine import MEASURED

    return [*MEASURED, *scales("experiments.yaml")]


@guarded
def doctor(
    scale: Annotated[
        str,
        typer.Option(
            "--scale",
            metavar="SCALE",
            help="Whose needs of disk, memory and GPUs to check; default: laptop.",
            autocompletion=completion(_scales),
        ),
    ] = "laptop",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Versions, antlr, disk, memory, cores, GPU, Ray, data, DVC, kernel; says how to fix what is wrong.

    Each line is ok, a note (something to know that breaks nothing) or a fault (something that will fail,
    with a command that fixes it). Exit code 1 if there is a fault.
    """
    from rlvr.doctor.look import examine
    from rlvr.problems.benchmarks.catalogue import project_root

    environment, findings = examine(project_root(), scale)
    faults = sum(finding.state == "fault" for finding in findings)
    if as_json:
        rows = [dataclasses.asdict(finding) for finding in findings]
        print(json.dumps({"environment": environment.name, "faults": faults, "findings": rows}, indent=2))
    else:
        for line in lines(findings):
            typer.echo(line)  # without colours where the output is no terminal
    return 1 if faults else 0


def lines(findings: Iterable[Finding]) -> list[str]:
    """One line per finding, one more for what fixes it, and the sum."""
    findings = list(findings)
    width = max(len(finding.check) for finding in findings)
    out = []
    for finding in findings:
        state = typer.style(f"{finding.state:5}", fg=COLOURS[finding.state])
        out.append(f"{state}  {finding.check:{width}}  {finding.text}")
        if finding.fix:
            label = "fix" if finding.state == "fault" else "try"
            out.append(f"{'':5}  {'':{width}}  {label}: {finding.fix}")
    count = {state: sum(finding.state == state for finding in findings) for state in COLOURS}
    out.append(f"{count['fault']} faults, {count['note']} notes, {count['ok']} ok")
    return out
