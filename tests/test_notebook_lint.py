"""Rules for notebooks, and that the repository's own keep them."""

from __future__ import annotations

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output
from notebook_factory import PROJECT, notebook, write

from pipelines.lint import lint, main, notebooks


def checked(*cells: str, **parts):
    """A notebook without problems, as long as its cells have none."""
    book = notebook("print('accuracy 0.5')", *cells, **parts)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    code[2 if parts.get("parameters", "") is not None else 1].outputs = [
        new_output("stream", name="stdout", text="accuracy 0.5\n")
    ]
    code[-1].outputs = [new_output("stream", name="stdout", text="notebook complete\n")]
    return book


def problems(tmp_path, book, name="n.ipynb"):
    return lint(write(tmp_path / name, book))


def test_repository_notebooks_are_clean():
    found = {str(path): lint(path) for path in notebooks([PROJECT / "notebooks"])}
    assert {path: problem for path, problem in found.items() if problem} == {}


def test_a_good_notebook_has_no_problem(tmp_path):
    five = "def f(x):\n    a = 1\n    b = 2\n    c = 3\n    d = 4\n    return x"
    magics = "%matplotlib inline\n%config InlineBackend.figure_formats = ['svg']"
    text = "ratios at http://example.org/home/page, `.work/tmp/x`, $A:\\mathbb{R}\\to/$, 3/4, and/or"
    book = checked(five, magics, "n = 1  # 0x1f77b4", "x = 3 / 4")
    book.cells.append(new_markdown_cell(text))
    assert problems(tmp_path, book) == []


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("!ls", "shell command `!ls` is not allowed"),
        ("!!ls", "shell command `!ls` is not allowed"),
        ("files = !ls", "shell command `!ls` is not allowed"),
        ("%%bash\nls", "cell magic `%%bash`"),
        ("%%time\n1", "cell magic `%%time`"),
        ("%sx ls", "magic `%sx` is not allowed"),
        ("%system ls", "is not allowed"),
        ("%pip install x", "magic `%pip`"),
        ("%run other.py", "magic `%run`"),
        ("shell = get_ipython()\nshell.system('ls')", "shell command `!ls`"),
        ("import os\nos.popen('ls')", "shell command `!ls`"),
        ("import subprocess", "import of subprocess: use rlvr.notebook.run"),
        ("from subprocess import run", "import of subprocess"),
        ("from tqdm.notebook import tqdm", "import of tqdm.notebook: use rlvr.notebook.progress"),
        ("from tqdm import tqdm", "import of tqdm: use rlvr.notebook.progress"),
        ("import ipywidgets as w", "import of ipywidgets: no widgets"),
        ("def f():\n" + "    x = 1\n" * 6, "function f has 6 lines, at most 5"),
        ("class A:\n" + "    x = 1\n" * 6, "class A has 6 lines, at most 5"),
        ("async def f():\n" + "    x = 1\n" * 6, "function f has 6 lines"),
        ("if 1:\n    def f():\n" + "        x = 1\n" * 6, "function f has 6 lines"),
        ("p = '/home/me/data'", "absolute path '/home/me' in source"),
        ("p = '/tmp/x'", "absolute path '/tmp/x' in source"),
        ("p = '/root/x'", "absolute path '/root/x' in source"),
        ("p = r'C:\\Users\\me'", "absolute path 'C:\\\\Users' in source"),
        ("# NBVAL_RAISES_EXCEPTION\n1/0", "`# NBVAL_RAISES_EXCEPTION` is not allowed"),
        ("quit()", "quit() is not allowed: it ends the notebook early"),
        ("def f(:", "not valid Python"),
    ],
)
def test_sources_that_are_refused(tmp_path, cell, message):
    found = problems(tmp_path, checked(cell))
    assert [number for number, _ in found] == [5]
    assert message in found[0][1]


@pytest.mark.parametrize(
    "tag", ["raises-exception", "nbval-raises-exception", "skip-execution", "injected-parameters"]
)
def test_tags_that_are_refused(tmp_path, tag):
    book = checked("1")
    book.cells[4].metadata["tags"] = [tag]
    ((number, message),) = problems(tmp_path, book)
    assert number == 5
    assert message.startswith(f"tag `{tag}` is not allowed: ")


@pytest.mark.parametrize(
    ("parameters", "cell", "message"),
    [
        (None, 0, "exactly one cell must be tagged `parameters`, found none"),
        (
            "out = 'runs/laptop/theory'",
            3,
            "the default of `out` must lie under .work/, not 'runs/laptop/theory'",
        ),
        ("scratch = 'runs/x'", 3, "the default of `scratch` must lie under .work/"),
        ("seed = int(3)", 3, "the default of seed must be a literal"),
    ],
)
def test_parameters_cell(tmp_path, parameters, cell, message):
    ((number, text),) = problems(tmp_path, checked(parameters=parameters))
    assert number == cell
    assert message in text


def test_first_and_last_cell(tmp_path):
    found = problems(tmp_path, checked(first="import os", last="print('done()')"))
    assert found == [
        (2, "the first code cell must call start(), from rlvr.notebook"),
        (5, "the last code cell must end with done(), the completion marker"),
    ]


def test_parameters_may_come_before_start(tmp_path):
    book = checked()
    book.cells[1], book.cells[2] = book.cells[2], book.cells[1]
    assert problems(tmp_path, book) == []


def _outputs(book, *outputs):
    book.cells[3].outputs = list(outputs)
    return book


def test_outputs_must_be_there(tmp_path):
    """The marker alone, a picture alone, or an ignored output is nothing that nbval compares."""
    nothing = [(0, "nbval would compare nothing")]
    picture = new_output("display_data", data={"image/png": "eA==", "text/plain": "<Figure size 640x480>"})
    text = new_output("stream", name="stdout", text="accuracy 0.5\n")

    ignored = _outputs(checked(), text)
    ignored.cells[3].metadata["tags"] = ["nbval-ignore-output"]
    commented = _outputs(checked(), text)
    commented.cells[3].source = "# NBVAL_SKIP\n" + commented.cells[3].source
    for book in (_outputs(checked()), _outputs(checked(), picture), ignored, commented):
        found = problems(tmp_path, book)
        assert [(number, message[:27]) for number, message in found] == nothing
    assert problems(tmp_path, _outputs(checked(), picture, text)) == []


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (
            new_output("error", ename="KeyError", evalue="'x'", traceback=[]),
            "stored error output KeyError: 'x'",
        ),
        (
            new_output(
                "display_data", data={"application/vnd.jupyter.widget-view+json": {}, "text/plain": "x"}
            ),
            "stored output is a widget",
        ),
        (
            new_output("stream", name="stdout", text="at /root/x/y.csv\n"),
            "absolute path '/root/x' in a stored",
        ),
        (
            new_output("display_data", data={"text/html": "<b>/tmp/z</b>"}),
            "absolute path '/tmp/z' in a stored",
        ),
        (
            new_output("execute_result", data={"text/plain": "[<matplotlib.lines.Line2D at 0x7f12ab34cd>]"}),
            "end the cell with `;`",
        ),
        (
            new_output("execute_result", data={"text/plain": "Text(0.5, 91.2, 'Longitude')"}),
            "stored output shows an object, \"Text(0.5, 91.2, 'Longitude')\"; end the cell with `;`",
        ),
    ],
)
def test_outputs_that_are_refused(tmp_path, output, message):
    text = new_output("stream", name="stdout", text="accuracy 0.5\n")
    ((number, found),) = problems(tmp_path, _outputs(checked(), text, output))
    assert number == 4
    assert message in found


def test_home_folder_is_an_absolute_path(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/srv/people/ada")
    ((_, message),) = problems(tmp_path, checked("p = '/srv/people/ada/x'"))
    assert "absolute path '/srv/people/ada'" in message


def test_explore_notebooks_may_play_but_not_shell_out(tmp_path):
    book = nbformat.v4.new_notebook(cells=[new_code_cell("import ipywidgets"), new_code_cell("!ls")])
    assert problems(tmp_path, book, "explore_ratios.ipynb") == [
        (
            2,
            "shell command `!ls` is not allowed: its failure would not stop the notebook; "
            "use rlvr.notebook.run([...])",
        )
    ]


def test_notebooks_of_language_models_have_no_outputs(tmp_path):
    """Nothing here executes them; what they show is in the runs of those who have a GPU."""
    bare = notebook("print('accuracy 0.5')")
    assert problems(tmp_path, bare, "models.ipynb") == problems(tmp_path, bare, "model_ablations.ipynb") == []
    assert (
        [message for _, message in problems(tmp_path, bare, "accuracy.ipynb")]
        == [
            message
            for _, message in problems(tmp_path, bare)
            if message.startswith("nbval would compare nothing")
        ]
        != []
    )
    ((_, message), *_) = problems(tmp_path, checked(), "models.ipynb")
    assert message.startswith("a stored output, which nobody here can compare")


def test_command_line(tmp_path, capsys):
    good, bad = tmp_path / "a/good.ipynb", tmp_path / "a/b/bad.ipynb"
    write(good, checked())
    assert main([str(tmp_path)]) == 0
    write(bad, checked("!ls"))
    write(tmp_path / "a/.ipynb_checkpoints/old.ipynb", checked("!ls"))
    assert main([str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert out.startswith(f"{bad}:5: shell command `!ls`")
    assert out.count("\n") == 1
    assert err.endswith("2 notebooks, 1 problem\n")
    assert main([str(tmp_path / "nowhere")]) == 2
    assert main([str(tmp_path / "a/.ipynb_checkpoints")]) == 2
    assert "no notebook in" in capsys.readouterr().err


def test_unreadable_notebook_is_a_problem(tmp_path):
    (tmp_path / "n.ipynb").write_text("{}")
    ((number, message),) = lint(tmp_path / "n.ipynb")
    assert number == 0
    assert message.startswith("not a readable notebook")
