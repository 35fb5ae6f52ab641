"""What the hand-written documents say of commands, messages and names is so."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from rlvr.config import load_yaml

PROJECT = Path(__file__).resolve().parents[1]
TROUBLES = (PROJECT / "docs/troubleshooting.md").read_text(encoding="utf-8")
CONTRIBUTING = (PROJECT / "CONTRIBUTING.md").read_text(encoding="utf-8")
CHANGELOG = (PROJECT / "CHANGELOG.md").read_text(encoding="utf-8")
#: Messages of other programs, and what is no message.
OTHERS = {
    "The virtual environment was not created successfully because ensurepip is not available",
    "ModuleNotFoundError: No module named 'rlvr'",
    "cannot import name 'AutoModelForCausalLMWithValueHead'",
    "ANTLR runtime and generated code versions disagree",
    "Unable to acquire lock",
    "is busy, it is being blocked by",
    "JSONDecodeError",
    ".dvc/tmp/rwlock",
    "make",
    "reports/laptop",
    "rlvr data fetch",
    "timeout",
    "paper",
    "ratio_correction_strength",
    "seq-mean-token-sum-norm",
    "SUCCEEDED",
}


def rows(text: str) -> list[list[str]]:
    """The cells of every row of a page's tables, headings left out."""
    lines = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [row for row in cells if row[0] not in ("you see", "changed")]


def codes(text: str) -> list[str]:
    return [found.strip() for _, found in re.findall(r"(``?)(?!`)(.+?)(?<!`)\1(?!`)", text)]


@cache
def printed() -> str:
    """Every text in the code, one a line, with "\\0" where a value goes; and the Makefile's."""
    found = [(PROJECT / "Makefile").read_text(encoding="utf-8").replace("{v.major}.{v.minor}", "\0")]
    for path in [*PROJECT.glob("lib/**/*.py"), *PROJECT.glob("pipelines/*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [p.value if isinstance(p, ast.Constant) else "\0" for p in node.values]
                found.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(text.replace("\n", " ") for text in found)


def is_printed(message: str) -> bool:
    parts = [re.escape(part.strip()) for part in message.split("...") if part.strip()]
    return re.search(".*".join(parts), printed()) is not None


SEEN = [code for row in rows(TROUBLES) for code in codes(row[0]) if code not in OTHERS]


def test_there_are_messages_and_nothing_is_excused_in_vain():
    assert len(SEEN) > 30
    assert OTHERS <= {code for row in rows(TROUBLES) for code in codes(row[0])}
    assert not is_printed("... is not a valid scael file:") and not is_printed("nothing of this is printed")


@pytest.mark.parametrize("message", SEEN)
def test_a_message_is_one_that_is_printed(message):
    assert is_printed(message)


def test_every_trouble_has_a_cause_and_a_remedy():
    assert len(rows(TROUBLES)) > 40
    for row in rows(TROUBLES):
        assert len(row) == 3 and all(row), row


# --- CONTRIBUTING -------------------------------------------------------------------------------------


def test_commands_of_contributing_exist():
    commands = [code for row in rows(CONTRIBUTING) for code in codes(row[1])]
    makefile = (PROJECT / "Makefile").read_text(encoding="utf-8")
    kinds = set()
    for command in commands:
        program, *words = command.split()
        kinds.add(program)
        if program == "make":
            targets = [word for word in words if "=" not in word]
            assert targets and all(re.search(rf"(?m)^{target}:", makefile) for target in targets), command
        elif program == "pytest":
            assert words
            for word in words:
                assert list(PROJECT.glob(word)), f"{command}: {word}"
        elif command.startswith("python -m pipelines."):
            assert (PROJECT / "pipelines" / f"{words[1].split('.')[1]}.py").is_file(), command
        elif program == "python":
            assert (PROJECT / words[0]).is_file(), command
        elif program == "dvc":
            stages = load_yaml(PROJECT / "dvc.yaml")["stages"]
            assert words[0] == "repro" and all(word.split("@")[0] in stages for word in words[1:]), command
    assert {"make", "pytest", "python", "dvc"} <= kinds


def test_every_environment_of_the_tests_has_a_row():
    folders = [path.name.removeprefix("with_") for path in PROJECT.glob("tests/with_*")]
    assert len(folders) >= 3
    for name in folders:
        assert f"`make test-{name}`" in CONTRIBUTING, name


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "CHANGELOG.md", "docs/README.md", "docs/how-to-add.md"])
def test_links_resolve(name):
    path = PROJECT / name
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        assert "://" in target or (path.parent / target).exists(), target


# --- citation and changelog ---------------------------------------------------------------------------


def test_the_citation_is_complete():
    """The keys that the schema of the Citation File Format 1.2.0 requires, and what other files say too."""
    citation = load_yaml(PROJECT / "CITATION.cff")
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert citation["cff-version"] == "1.2.0" and citation["message"] and citation["title"]
    assert str(citation["version"]) == project["version"] and citation["license"] == project["license"]
    assert citation["type"] in ("software", "dataset")
    known = {
        "cff-version", "message", "type", "title", "abstract", "authors", "version", "license", "keywords",
        "references",
    }  # fmt: skip
    assert set(citation) == known
    for work in (citation, *citation["references"]):
        assert work["title"] and work["type"] and work["authors"]
        for author in work["authors"]:
            assert set(author) in ({"name"}, {"given-names", "family-names"}) and all(author.values())


def test_the_papers_of_the_citation_are_those_of_the_registry():
    cited = {work["url"]: work["title"] for work in load_yaml(PROJECT / "CITATION.cff")["references"]}
    papers = [load_yaml(PROJECT / f"data/paper/{name}.yaml") for name in ("nfpo", "ibpo", "mpo")]
    assert cited == {f"https://arxiv.org/abs/{paper['arxiv']}": paper["title"] for paper in papers}


def test_the_form_of_the_changelog():
    versions = re.findall(r"(?m)^## (.+)$", CHANGELOG)
    assert versions[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d{2}-\d{2}", version) for version in versions[1:])
    kinds = re.findall(r"(?m)^### (.+)$", CHANGELOG)
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    for kind, body in re.findall(r"(?ms)^### (\w+)\n\n(.*?)(?=^##|\Z)", CHANGELOG):
        lines = body.strip().splitlines()
        assert lines and all(line.startswith("- ") and line.endswith(".") for line in lines), kind
