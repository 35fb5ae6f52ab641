"""The first hour with a mouse: notebooks opened and run in JupyterLab, in a real browser."""

import os
import subprocess
import sys
import urllib.request

import pytest
from browser import CHROMIUM, Browser, free_port, wait_for
from temporary_clone import make_clone

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: JupyterLab is not opened in a browser"),
]
ITEM = "[...document.querySelectorAll('{kind}')].find(e => e.textContent.trim().startsWith('{text}'))"
PROMPTS = "[...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')].map(e => e.textContent.trim())"
IDLE = "document.querySelector('.jp-Notebook-ExecutionIndicator[data-status=idle]')"
ERROR = '.jp-RenderedText[data-mime-type="application/vnd.jupyter.error"]'
ERRORS = f"document.querySelectorAll('{ERROR}').length"
HANDLES = "document.querySelectorAll('.noUi-handle')"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The address of a JupyterLab on a clone without results, as a stranger has it."""
    clone = make_clone(tmp_path_factory.mktemp("lab") / "repository")
    port, home = free_port(), tmp_path_factory.mktemp("home")
    places = {"JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data", "IPYTHONDIR": "ipython"}
    # a notebook asks by this whether somebody looks
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    process = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}"]
        + ["--ServerApp.token=t", f"--ServerApp.root_dir={clone}", "--LabApp.news_url=None"],
        cwd=clone,
        env=environment | {name: str(home / folder) for name, folder in places.items()},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"

    def answers():
        assert process.poll() is None, "JupyterLab ended"
        try:
            return urllib.request.urlopen(f"{address}/api?token=t", timeout=5).status == 200
        except OSError:
            return False

    wait_for(answers, 120, "JupyterLab's start")
    yield address
    process.terminate()
    process.wait(30)


def run_all(browser: Browser, lab: str, notebook: str) -> list[str]:
    """Open a notebook, choose Run, Run All Cells; the prompts of its code cells when all have run."""
    browser.open(f"{lab}/lab/tree/notebooks/{notebook}.ipynb?token=t&reset")
    wait_for(lambda: browser.value(f"({PROMPTS}).length > 3"), 120, f"{notebook} opened")
    wait_for(lambda: browser.value(f"!!{IDLE}"), 120, "its kernel")
    browser.click(ITEM.format(kind=".lm-MenuBar-item", text="Run"))
    browser.click(ITEM.format(kind=".lm-Menu-item", text="Run All Cells"))

    def ended():
        prompts = browser.value(PROMPTS)
        return prompts if all(p not in ("[ ]:", "[*]:") for p in prompts if p) else None

    wait_for(lambda: "[*]:" in browser.value(PROMPTS), 30, "the first cell")
    return wait_for(ended, 180, f"{notebook} run")


def test_a_stranger_runs_start_here(lab, tmp_path):
    with Browser(tmp_path / "profile", height=3000) as browser:
        prompts = run_all(browser, lab, "00_start_here")
        assert len(prompts) >= 7 and browser.value(ERRORS) == 0
        assert browser.value("document.querySelectorAll('.jp-RenderedImage img').length") >= 1


def test_sliders_move_the_picture(lab, tmp_path):
    with Browser(tmp_path / "profile", height=3000) as browser:
        run_all(browser, lab, "nfpo/explore")
        assert browser.value(ERRORS) == 0
        # JupyterLab draws the cells that are in sight
        scroll = "document.querySelector('.jp-WindowedPanel-outer').scrollBy(0, 400)"
        wait_for(lambda: browser.value(f"{scroll}, {HANDLES}.length >= 4"), 60, "sliders")
        shown = "[...document.querySelectorAll('.widget-readout')].map(e => e.textContent.trim())"
        pictures = "[...document.querySelectorAll('.jupyter-widgets img')].map(e => e.src)"
        before, picture = browser.value(shown), browser.value(pictures)
        browser.value(f"{HANDLES}[1].focus()")  # N
        browser.press("ArrowRight", 39)
        wait_for(lambda: browser.value(shown) != before, 30, "the number beside the slider")
        assert picture
        wait_for(lambda: browser.value(pictures) not in (picture, []), 30, "another picture")
