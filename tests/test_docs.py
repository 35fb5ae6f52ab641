"""The page of an objective says what its docstring, its signature and its numbers say, and is current."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import torch

from pipelines import docs, docs_example, docstrings
from rlvr import objectives, registry
from rlvr.config import load_scale
from rlvr.losses import AGGREGATIONS, aggregation_scale, masked_policy_gradient
from rlvr.registry import Objective, Terms
from rlvr.storage import write_text

PROJECT = Path(__file__).resolve().parents[1]
NAMES = objectives.list_objectives()
GOOD = """Policy gradient with a *fixed* weight_, see :func:`nfpo`.

A second paragraph,
wrapped.

Formula:
    L_t = -c A | M_t |
      M_t = 1   # keeps_this * as it is

Args:
    scale: c, the weight [text: NFPO App. C];
        larger is |faster| [public: verl] [choice]
    band: unused [choice].

In short: sg(c) | none
Detached: the weight,
and `rho`.
Metrics: ``weight_mean`` is E|w|.
Deviations:
    - none
    - a*b*c stays
Sources: [text: NFPO App. C]
"""


def recipe(batch, *, scale: float = 1 / 3, band: tuple[float, float] = (0.5, float("inf"))):
    weight = torch.full_like(batch.log_ratio, scale)
    return Terms(
        masked_policy_gradient(batch.log_prob, weight, batch.advantages, batch.valid),
        batch.log_ratio.exp(),
    )


def make(text=GOOD, function=recipe, name="synthetic"):
    def copy(*args, **kwargs):
        return function(*args, **kwargs)

    copy.__name__, copy.__doc__, copy.__signature__ = name, text, inspect.signature(function)
    return Objective(copy, "token-mean")


def without(section):
    lines = GOOD.split("\n")
    start = next(i for i, line in enumerate(lines) if line.startswith(section + ":"))
    end = next(i for i in range(start + 1, len(lines)) if re.match(r"[A-Z][\w ]*:|$", lines[i]))
    return "\n".join(lines[:start] + lines[end:])


@pytest.fixture
def project(tmp_path, monkeypatch):
    """An otherwise empty project with the default scale and one registered objective."""
    monkeypatch.setattr(docs, "PAGES", {})
    write_text(tmp_path / "params.yaml", (PROJECT / "params.yaml").read_text())
    monkeypatch.setattr(registry, "_REGISTRY", {"synthetic": make()})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def the_page(objective=None):
    objective = objective or make()
    return docs.page(
        objective, docs.documented(objective), load_scale(PROJECT / "params.yaml"), frozenset(NAMES)
    )


# --- what a docstring must hold -----------------------------------------------------------------------


def test_the_parts_of_a_docstring():
    doc = docstrings.parse("synthetic", GOOD)
    assert doc.summary == "Policy gradient with a *fixed* weight_, see :func:`nfpo`."
    assert doc.description == "A second paragraph,\nwrapped."
    assert doc.sections["Formula"] == "L_t = -c A | M_t |\n  M_t = 1   # keeps_this * as it is"
    assert doc.sections["Detached"] == "the weight,\nand `rho`."
    assert doc.sections["Deviations"] == "- none\n- a*b*c stays"
    assert doc.args == {
        "scale": "c, the weight [text: NFPO App. C]; larger is |faster| [public: verl] [choice]",
        "band": "unused [choice].",
    }


@pytest.mark.parametrize("section", docstrings.REQUIRED)
def test_a_missing_section_fails_by_name(section):
    with pytest.raises(ValueError, match=f"objective synthetic: section '{section}' is missing"):
        docs.documented(make(without(section)))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("    scale: c, the", "    scal: c, the", "section 'Args' lacks the parameter 'scale'"),
        ("    band: unused", "    bands: unused", "section 'Args' lacks the parameter 'band'"),
        ("    band: ", "    more: of it\n    band: ", "section 'Args' documents 'more', which it does not"),
        ("    band: ", "    band: once\n    band: ", "section 'Args' documents 'band' twice"),
        ("    band: unused", "    band unused", "section 'Args' holds 'band unused"),
        ("Sources: [text: NFPO App. C]", "Sources:", "section 'Sources' is empty"),
        ("Sources: ", "Metrics: none\nSources: ", "section 'Metrics' is there twice"),
        ("Sources: ", "Remarks:\n    none\nSources: ", "section 'Remarks' is unknown: allowed are Formula"),
    ],
)
def test_a_wrong_docstring_fails_by_name(old, new, message):
    assert old in GOOD
    with pytest.raises(ValueError, match=f"objective synthetic: {re.escape(message)}"):
        docs.documented(make(GOOD.replace(old, new)))


def test_no_docstring_and_no_parameters():
    with pytest.raises(ValueError, match="synthetic: it has no docstring"):
        docs.documented(make(None))
    with pytest.raises(ValueError, match="synthetic: section 'Args' lacks the parameter 'scale'"):
        docs.documented(make(without("Args")))
    bare = make(without("Args"), lambda batch: recipe(batch, scale=1.0))
    assert "None of its own." in the_page(bare)


# --- from docstring to Markdown -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("rho_t * G_{t+1} and _t of E|w|", r"rho_t * G\_{t+1} and \_t of E|w|"),
        ("a*b*c, *x*", r"a\*b\*c, \*x\*"),
        (
            "``a|b_*`` in :func:`ppo`, :func:`~rlvr.losses.agg`",
            "`a|b_*` in [`ppo`](ppo.md), `rlvr.losses.agg`",
        ),
        ("A <= 0, B<pi>, cost $5~", r"A <= 0, B\<pi>, cost \$5\~"),
        ("E[x](y)", r"E[x\](y)"),
        ("[text]: x", r"\[text]: x"),
        ("- M sg(rho)\n  A", r"\- M sg(rho) A"),
        ("as in ppo, the ppo_x of ppo-y", "as in [`ppo`](ppo.md), the ppo_x of ppo-y"),
        ("verl's ppo, or nfpo itself", "verl's ppo, or `nfpo` itself"),
        ('clip_low="kl" and [1/clip_low, "kl", 2]', '`clip_low="kl"` and [1/`clip_low`, "kl", 2]'),
        ("ratio_* and rlvr.clip_low", "`ratio_*` and rlvr.clip_low"),
        ("P (arXiv 2605.20865)", "P ([arXiv 2605.20865](https://arxiv.org/abs/2605.20865))"),
        ("see docs/verl.md", "see [docs/verl.md](../verl.md)"),
    ],
)
def test_inline_text(text, shown):
    assert docstrings.Writer("nfpo", ["ppo", "nfpo"], ["clip_low", "kl"]).inline(text) == shown


def test_prose_keeps_paragraphs_lists_and_indented_lines():
    text = "one\ntwo\n\n- a\n  b\n- c\n\n    x = y\n      z\n\nend"
    shown = "one two\n\n- a b\n- c\n\n```text\nx = y\n  z\n```\n\nend"
    assert docstrings.Writer().prose(text) == shown
    assert docstrings.Writer().sentence(text).startswith("One two")
    for kept in ("f, the weight", "`x` is", "verl reads", "3 of"):
        assert docstrings.Writer().sentence(kept) == kept


@pytest.mark.parametrize(
    ("text", "meaning", "marks"),
    [
        ("the clip [text: NFPO App. C] [choice].", "the clip", ["[text: NFPO App. C]", "[choice]"]),
        ("in [lo, hi] or [1/3, 3]", "in [lo, hi] or [1/3, 3]", []),
        ("0.2 [text]; inf = no mask [choice]", "0.2 [text]; inf = no mask", ["[text]", "[choice]"]),
        ("cap [public: verl]; [choice: C]", "cap", ["[public: verl]", "[choice: C]"]),
    ],
)
def test_source_marks(text, meaning, marks):
    assert docstrings.split_marks(text) == (meaning, marks)


@pytest.mark.parametrize(
    ("value", "source"),
    [
        (1 / 3, "1 / 3"),
        ((1 / 3, 3.0), "(1 / 3, 3.0)"),
        (((0.5,), 2), "((0.5,), 2)"),
        (float("inf"), 'float("inf")'),
        ("tv", '"tv"'),
        (None, "None"),
        (0.28, "0.28"),
    ],
)
def test_defaults_are_python_source(value, source):
    assert docstrings.literal(value) == source
    assert eval(source) == value


def test_a_page_of_a_synthetic_objective():
    page = the_page()
    assert page.startswith(f"# synthetic\n\n{docs.WRITTEN}\n\nPolicy gradient with a \\*fixed\\* weight\\_")
    assert "```text\nL_t = -c A | M_t |\n  M_t = 1   # keeps_this * as it is\n```" in page
    assert (
        r"| `scale` | `1 / 3` | c, the weight [text: NFPO App. C]; larger is \|faster\| | text: NFPO App. C; "
        in page
    )
    assert '| `band` | `(0.5, float("inf"))` | unused | choice |' in page
    assert 'objectives.get("synthetic")(' in page and "    scale=1 / 3,\n" in page
    assert "`synthetic: {objective: synthetic}` to `recipes`" in page
    # rho of the first token is e^0.1; loss -c A log pi = 0.5, gradient -c A
    assert "| 1 | -1.5 | -1.6 | 1.1052 | 0.5000 | -0.3333 | -0.5000 | 0.3333 |" in page
    assert "-0.0000" not in page


def test_a_required_tensor_needs_an_example_and_is_refused_elsewhere(monkeypatch):
    def function(batch, *, mark: torch.Tensor, scale: float = 0.5, other: torch.Tensor | None = None):
        terms = recipe(batch, scale=scale)
        keep = batch.valid & mark.bool()
        terms.loss = masked_policy_gradient(batch.log_prob, terms.ratio, batch.advantages, keep)
        return terms

    text = GOOD.replace(
        "    band: unused", "    mark: [B, T] 0/1 [choice]\n    other: none\n    band: unused"
    )
    text = text.replace("    band: unused [choice].\n", "")
    objective = make(text, function)
    assert objective.needs == ("mark",) and objective.tensors == ("mark", "other")
    with pytest.raises(ValueError, match="objective synthetic: the example's TENSORS have no 'mark'"):
        the_page(objective)
    monkeypatch.setitem(docs_example.TENSORS, "mark", (1.0, 0.0, 1.0, 1.0, 1.0))
    page = the_page(objective)
    assert "| `mark` | required | [B, T] 0/1 | choice |" in page
    assert "| 2 | -1.0 | -0.3 | 0.4966 | 0.0000 | 0.0000 | 0.0000 | 0.0000 |" in page
    assert (
        "\n\n\n" not in page
        and "loss_mode" not in page
        and "dvc repro" not in page
        and "    mark=mark,\n" in page
    )


def test_formulas_of_aggregation_are_those_of_the_code():
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]])
    formulas = docs.aggregation_formulas()
    assert tuple(formulas) == AGGREGATIONS
    for mode, formula in formulas.items():
        scale = aggregation_scale(mask, mode, dp_size=2, loss_scale_factor=8).expand(3, 1)
        for row, n_i in enumerate((3, 1)):
            source = formula.replace("B n_i", "B * n_i").replace("B L", "B * L")
            assert scale[row].item() == pytest.approx(
                eval(source, {"D": 2, "M": 4, "B": 2, "L": 8, "n_i": n_i})
            )


# --- the command --------------------------------------------------------------------------------------


def test_writing_then_checking(project, capsys):
    assert docs.main(["--check"]) == 1
    assert "docs/objectives/synthetic.md is missing" in capsys.readouterr().err
    assert docs.main([]) == 0
    assert docs.main(["--check"]) == 0
    page = project / docs.FOLDER / "synthetic.md"
    first = page.read_bytes()
    page.write_text(page.read_text().replace("token-mean", "token-mode"))
    assert docs.main(["--check"]) == 1
    assert "docs/objectives/synthetic.md is stale" in capsys.readouterr().err
    assert docs.main([]) == 0 and page.read_bytes() == first


def test_a_page_without_an_objective_is_found_and_removed(project, capsys):
    docs.main([])
    orphan = project / docs.FOLDER / "gone.md"
    orphan.write_text("# gone\n")
    assert docs.main(["--check"]) == 1
    assert "docs/objectives/gone.md has no objective" in capsys.readouterr().err
    assert docs.main([]) == 0 and not orphan.exists()


def test_a_changed_docstring_makes_pages_stale(project, monkeypatch):
    docs.main([])
    changed = make(GOOD.replace("the weight,", "the weights,").replace("sg(c) | none", "sg(c) | some"))
    monkeypatch.setitem(registry._REGISTRY, "synthetic", changed)
    stale = ["docs/objectives/README.md is stale", "docs/objectives/synthetic.md is stale"]
    assert docs.differences() == stale


def test_a_broken_docstring_writes_nothing(project, monkeypatch, capsys):
    monkeypatch.setitem(registry._REGISTRY, "synthetic", make(without("Deviations")))
    assert docs.main([]) == 2
    assert "objective synthetic: section 'Deviations' is missing" in capsys.readouterr().err
    assert not (project / docs.FOLDER).exists()


def test_the_index_compares(project):
    row = "| [`synthetic`](synthetic.md) | sg(c) | none | `token-mean` | `log pi` | NFPO App. C |"
    assert row in docs.render()["README.md"]
    registry._REGISTRY["synthetic"] = make(without("In short"))
    assert r"| Policy gradient with a \*fixed\* weight\_, see `nfpo`. | see its page |" in docs.index(
        {"synthetic": docs.documented(objectives.get("synthetic"))}
    )


@pytest.mark.parametrize(
    ("name", "through"),
    [
        ("uncorrected", "`log pi`"),
        ("dppo_tv", "`log pi`"),
        ("grpo", "ratio of the token"),
        ("mpo", "ratio of the token"),
        ("gspo_token", "ratio of the token"),
        ("gspo", "ratio of the response"),
        ("gmpo", "ratio of the response"),
    ],
)
def test_what_the_gradient_runs_through(name, through):
    assert docs_example.gradient_through(objectives.get(name)) == through


@pytest.mark.parametrize(
    ("sources", "shown"),
    [
        (
            "Dr. GRPO (arXiv 2503.20783); more (arXiv 1111.11111)",
            "[Dr. GRPO](https://arxiv.org/abs/2503.20783)",
        ),
        ("[text: IBPO Eq. 7].", "IBPO Eq. 7"),
        ("FIPO [public fork]; none", "FIPO"),
        ("A baseline of verl 0.9. More.", "A baseline of verl 0.9"),
    ],
)
def test_the_paper_in_the_index(sources, shown):
    assert docs.paper(docstrings.Docstring("", sections={"Sources": sources})) == shown


def test_shared_text_comes_from_the_package(monkeypatch):
    write = docstrings.Writer()
    text = docs.inputs(objectives.grpo, write)
    assert text.count("\n| `") == 3 and "| `advantages` | [B] or [B, T] | one per response" in text
    monkeypatch.setattr(
        objectives, "__doc__", objectives.__doc__.replace("``response_mask`` [B, T]", "the mask")
    )
    with pytest.raises(ValueError, match="gives no shape of ``response_mask``"):
        docs.inputs(objectives.grpo, write)
    monkeypatch.setattr(objectives, "__doc__", "Nothing.")
    with pytest.raises(ValueError, match="no paragraph that starts with 'Metrics are '"):
        docs.shared("Metrics are ")


def test_numbers_have_four_digits_and_no_negative_zero():
    assert [docs_example.number(x) for x in (-1e-9, 2 / 3, -1.0)] == ["0.0000", "0.6667", "-1.0000"]


def test_presets_mark_what_is_not_the_default():
    text = docs.presets(objectives.nfpo)
    assert "| `horizon` | `4` | `4` | **`8`** |" in text and '| `region` | `"tv"` | `"tv"` | `"tv"` |' in text
    assert docs.presets(objectives.grpo) == ""
