"""The command line as a whole: what it costs to start, its help, its completion, its page."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from pipelines import docs_command_line
from rlvr import __version__, objectives
from rlvr.cli import app, main
from rlvr.commands import base, job
from rlvr.commands import objectives as objectives_command
from rlvr.engines.jobs.experiments import load_experiments

PROJECT = Path(__file__).resolve().parents[2]
COMMANDS = list(docs_command_line.commands(typer.main.get_command(app)))


def python(*arguments, **environment):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=PROJECT,
        env=os.environ | {"PYTHONPATH": str(PROJECT / "lib")} | environment,
        capture_output=True,
        text=True,
    )


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from rlvr.cli import main; status = main(['--help']);"
        "heavy = {'torch', 'numpy', 'pandas', 'transformers', 'ray', 'sympy', 'ruamel'} & set(sys.modules);"
        "print(status, sorted(heavy))"
    )
    done = python("-c", code)
    assert done.stdout.rstrip().endswith("0 []"), done.stderr
    for name in ("objectives", "data", "job", "report", "plan", "doctor"):
        assert name in done.stdout


@pytest.mark.parametrize("words", [path for path, _ in COMMANDS], ids=" ".join)
def test_every_command_has_help(words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main([*words, "--help"]) == 0
    long = capsys.readouterr().out
    assert main([*words, "-h"]) == 0
    assert capsys.readouterr().out == long and " ".join(("rlvr", *words)) in long


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"rlvr {__version__}\n"


@pytest.mark.parametrize(
    ("words", "path", "message"),
    [
        ([], "rlvr", "Missing command"),
        (["objectivs"], "rlvr", "objectives"),
        (["data", "fetch"], "rlvr data fetch", "NAME"),
        (["job", "show", "x", "--seed", "one"], "rlvr job show", "integer"),
        (["doctor", "--jsonn"], "rlvr doctor", "--json"),
    ],
)
def test_a_command_line_that_cannot_be_read(words, path, message, capsys):
    with pytest.raises(SystemExit) as end:
        main(words)
    shown = capsys.readouterr()
    assert end.value.code == 2 and shown.out == ""
    first, last = shown.err.strip().splitlines()[0], shown.err.strip().splitlines()[-1]
    assert first.startswith(f"usage: {path} ") and last.startswith(f"{path}: error: ") and message in last


def test_how_a_command_ends(capsys):
    def raising(error):
        @base.guarded
        def run():
            raise error

        return run

    assert raising(ValueError("seed=-1: allowed are counts"))() == 2
    assert capsys.readouterr().err == "rlvr: seed=-1: allowed are counts\n"
    assert raising(FileNotFoundError("no file"))() == 2
    assert raising(KeyboardInterrupt())() == 130
    assert "interrupted" in capsys.readouterr().err
    with pytest.raises(ZeroDivisionError):  # an error of the program is not a line
        raising(ZeroDivisionError())()


def test_a_reader_that_leaves_early_is_no_error():
    done = subprocess.run(
        f"{sys.executable} -m rlvr.cli data list | head -n 1; exit ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        cwd=PROJECT,
        env=os.environ | {"PYTHONPATH": str(PROJECT / "lib"), "PYTHONUNBUFFERED": "1"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("name") and "Traceback" not in done.stderr


# --- completion ----------------------------------------------------------------------------------------


def complete(words, word):
    """What bash is offered, by the protocol of its completion."""
    line = " ".join(["rlvr", *words, word])
    asked = {"_RLVR_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) + 1)}
    return python("-m", "rlvr.cli", **asked).stdout.split()


def test_a_shell_completes_commands_and_names():
    assert complete([], "ob") == ["objectives"]
    assert complete(["objectives"], "nf") == ["nfpo"]
    assert complete(["data", "fetch"], "math5") == ["math500"]
    assert "--open" in complete(["report"], "--")


def test_names_that_are_completed_are_all_there_are():
    assert objectives_command.names() == objectives.list_objectives()
    files = [load_experiments(path) for path in PROJECT.glob("pipelines/scales/*/experiments.yaml")]
    assert len(files) > 1 and job._names() == sorted(name for file in files for name in file.names)
    assert base.scales("experiments.yaml") == ["one_gpu", "paper"]


def test_a_completion_that_fails_offers_nothing():
    def fails():
        raise FileNotFoundError

    assert base.completion(fails)("n") == []
    assert base.completion(lambda: ["nfpo", "mpo"])("n") == ["nfpo"]


# --- the page ------------------------------------------------------------------------------------------


def test_the_committed_page_is_current():
    assert (PROJECT / docs_command_line.PAGE).read_text() == docs_command_line.page()


def test_the_page_has_every_command_and_option():
    page = docs_command_line.page()
    for path, command in COMMANDS:
        assert f" `rlvr {' '.join(path)}" in page
        for parameter in command.params:
            assert (
                parameter.name == "help"
                or f"| `{parameter.opts[0] if parameter.opts[0][0] == '-' else parameter.metavar}" in page
            )
    assert "### `rlvr data fetch NAME...`" in page and "## `rlvr report [SCALE]`" in page
    assert "Exit codes: 0 all is well, 1 " in page


def test_a_command_without_help_is_refused():
    bare = typer.Typer(add_completion=False)

    @bare.command()
    def one(name: str = typer.Option("x", metavar="X")) -> None:
        """Help."""

    with pytest.raises(ValueError, match="rlvr one name has no help"):
        docs_command_line.section(("one",), typer.main.get_command(bare))
