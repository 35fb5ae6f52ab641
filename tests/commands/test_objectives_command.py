"""``rlvr objectives``: what it says is what the objectives and the engines do."""

import pytest
import torch

from pipelines.docs_commands import trainers
from rlvr import objectives
from rlvr.cli import main
from rlvr.commands.objectives import allowed, sources, uses
from rlvr.docstrings import parse
from rlvr.engines.naming import verl_name

NAMES = objectives.list_objectives()


def test_the_list(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    assert main(["objectives"]) == 0
    shown = capsys.readouterr().out
    for name in NAMES:
        summary = parse(name, objectives.get(name).__doc__).summary
        (line,) = [line for line in shown.splitlines() if line.split()[:1] == [name]]
        assert summary in line
    assert "NFPO, arXiv 2605.20865" in shown and "Eq. 8-10" in shown


@pytest.mark.parametrize("name", NAMES)
def test_one(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    objective = objectives.get(name)
    assert main(["objectives", name]) == 0
    shown = capsys.readouterr().out
    assert f"docs/objectives/{name}.md" in shown and objective.loss_agg_mode in shown
    for parameter in objective.parameters:
        assert f"\n {parameter} " in shown
    assert f"loss_mode={verl_name(objective)}\n" in shown
    assert ("none: it has nothing to give for" in shown) == bool(objective.needs)


def test_defaults_allowed_values_and_sources(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    assert main(["objectives", "nfpo"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert "  4  " in rows["horizon"] and "integers >= 1" in rows["horizon"]
    assert rows["horizon"].rstrip().endswith("text: NFPO App. C")
    assert "(0.8, 1.4)" in rows["trace_clip"] and "0 <= low <= 1 <= high" in rows["trace_clip"]
    assert "'tv', 'kl', 'clip', 'band', 'none'" in rows["region"]


def test_an_unknown_name(capsys):
    assert main(["objectives", "nfop"]) == 2
    assert "did you mean 'nfpo'" in capsys.readouterr().err


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_says_what_is_allowed(name):
    objective = objectives.get(name)
    for parameter in objective.parameters:
        if parameter not in objective.tensors:
            assert len(allowed(objective, parameter)) > 5


def test_an_objective_that_takes_anything_is_found():
    def careless(*batch, clip):
        return torch.zeros(()), {}

    careless.needs, careless.name = (), "careless"
    with pytest.raises(ValueError, match="careless takes clip="):
        allowed(careless, "clip")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("NFPO (arXiv 2605.20865) Eq. 1; sum.", ("NFPO, arXiv 2605.20865", "Eq. 1; sum")),
        ("[text: IBPO Eq. 7, G.2].", ("IBPO Eq. 7, G.2", "")),
        ("REINFORCE; a control [choice].", ("REINFORCE", "a control [choice]")),
    ],
)  # fmt: skip
def test_sources(text, shown):
    doc = parse("x", f"X.\n\nFormula: f\nDetached: d\nMetrics: m\nDeviations: d\nSources: {text}\n")
    assert sources(doc) == shown


@pytest.mark.parametrize("name", NAMES)
def test_the_names_are_those_of_the_page(name):
    """The page's commands are tested against verl and TRL; these must not say something else."""
    page, shown = trainers(objectives.get(name)), dict(uses(objectives.get(name)))
    if "verl" in shown:
        assert all(line in page for line in shown["verl"].splitlines())
        assert ("ObjectiveTrainer" in shown["TRL"]) == ("ObjectiveTrainer" in page)
    else:
        assert "have nothing to give" in page


def test_the_call_runs():
    batch = {name: torch.tensor([[-1.0, -2.0]]) for name in ("log_prob", "old_log_prob")}
    space = batch | {"objectives": objectives, "advantages": torch.ones(1), "response_mask": torch.ones(1, 2)}
    for name in NAMES:
        if not objectives.get(name).needs:
            loss, _ = eval(dict(uses(objectives.get(name)))["Python"], space)
            assert (
                loss
                == objectives.get(name)(**batch, advantages=torch.ones(1), response_mask=torch.ones(1, 2))[0]
            )
