"""Papermill with a kernel that is this Python, guarded, and closely watched."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ipykernel.kernelspec
import nbformat
import papermill
import zmq
from jupyter_client.kernelspec import KernelSpec
from nbclient.exceptions import DeadKernelError
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine, papermill_engines
from papermill.exceptions import PapermillExecutionError
from papermill.execute import ERROR_MARKER_TAG
from traitlets import Any as AnyTrait

from pipelines import warm_kernel
from pipelines.processes import Watchdog
from pipelines.progress import Reporter

_log = logging.getLogger("pipelines.kernel")
_log.setLevel(logging.CRITICAL)  # what matters of it is in the error that follows

ENGINE = "rlvr"
START_TIMEOUT = 180  # seconds; the first start after an installation, on a busy machine
OUTPUT_TIMEOUT = 120  # seconds a finished cell's outputs may take to arrive


@dataclass
class Session:
    """What a run needs from outside, and what it leaves behind even if it fails."""

    environment: dict[str, str]
    root: Path
    connection_file: Path
    on_kernel: Callable[[int], None]
    reporter: Reporter
    notebook: nbformat.NotebookNode | None = None
    process: Any = None  # subprocess.Popen of the kernel
    finished: set[int] = field(default_factory=set)  # indices of the cells that ran to their end
    asked_exit: set[int] = field(default_factory=set)  # indices of the cells that called exit() or quit()

    def cell_starts(self, cell: Any, cell_index: int) -> None:
        self.reporter.cell_starts()

    def cell_ends(self, cell: Any, cell_index: int, execute_reply: dict[str, Any]) -> None:
        self.reporter.cell_ends()
        content = execute_reply["content"]
        if content["status"] == "ok":
            self.finished.add(cell_index)
        if any(item.get("source") == "ask_exit" for item in content.get("payload", [])):
            self.asked_exit.add(cell_index)


@dataclass(frozen=True)
class Result:
    """How far a notebook came. Indices are those of ``notebook``, which holds the injected cell too."""

    notebook: nbformat.NotebookNode
    finished: frozenset[int]  # cells that ran to their end
    asked_exit: frozenset[int]  # cells that called exit() or quit(), which the kernel only notes
    death: str | None  # how the kernel ended, if it died


class _Client(PapermillNotebookClient):
    session = AnyTrait()

    def create_kernel_manager(self) -> Any:
        """This interpreter's kernel, whatever kernels the user has registered under the notebook's name."""
        manager = super().create_kernel_manager()
        manager._kernel_spec = KernelSpec(
            resource_dir=ipykernel.kernelspec.RESOURCES, **warm_kernel.specification()
        )
        manager.connection_file = str(self.session.connection_file)
        if manager.has_trait("transport_encryption") and zmq.has("curve"):
            manager.transport_encryption = "auto"
        return manager

    def start_new_kernel(self, **kwargs: Any) -> None:
        super().start_new_kernel(**kwargs)
        self.session.process = self.km.provisioner.process
        self.session.on_kernel(self.km.provisioner.pgid)


class _Engine(NBClientEngine):
    @classmethod
    def execute_managed_notebook(
        cls, nb_man: Any, kernel_name: str, *, session: Session, **_: Any
    ) -> nbformat.NotebookNode:
        session.notebook = nb_man.nb
        client = _Client(
            nb_man,
            session=session,
            kernel_name=kernel_name,
            timeout=None,
            startup_timeout=START_TIMEOUT,
            iopub_timeout=OUTPUT_TIMEOUT,
            record_timing=False,
            on_cell_execute=session.cell_starts,
            on_cell_executed=session.cell_ends,
            extra_arguments=["--log-level=CRITICAL"],
            log=_log,
        )
        return client.execute(env=session.environment, cwd=str(session.root))


papermill_engines.register(ENGINE, _Engine)


def run_cells(
    notebook: nbformat.NotebookNode,
    values: dict[str, Any],
    environment: dict[str, str],
    root: Path,
    watchdog: Watchdog,
    reporter: Reporter,
    staging: Path,
) -> Result:
    """Run a notebook with these parameters until its end or its first error; raises for neither.

    Args:
        notebook: the source; it is left as it is.
        values: parameters to inject, already checked.
        environment: of the kernel.
        root: its working folder.
        watchdog: told about the kernel's process group.
        reporter: told about cells.
        staging: a private folder.
    """
    session = Session(
        environment=environment,
        root=root,
        connection_file=(root / staging / "kernel.json"),
        on_kernel=watchdog.guard,
        reporter=reporter,
    )
    source = staging / "source.ipynb"
    bare = nbformat.from_dict(notebook)
    bare.metadata["kernelspec"] = {"display_name": "Python 3", "language": "python", "name": "python3"}
    bare.metadata.setdefault("language_info", {"name": "python"})
    nbformat.write(bare, source)
    death = None
    try:
        papermill.execute_notebook(
            source,
            None,
            parameters=values,
            engine_name=ENGINE,
            kernel_name="python3",
            language="python",
            progress_bar=False,
            session=session,
        )
    except PapermillExecutionError:
        pass  # the error is in the notebook's outputs, where `diagnosis.diagnose` finds it
    except (DeadKernelError, RuntimeError, TimeoutError) as error:
        ran = isinstance(error, DeadKernelError) and session.process is not None
        death = _death(session.process) if ran else f"{type(error).__name__}: {error}"
    left = session.notebook
    left.cells = [c for c in left.cells if ERROR_MARKER_TAG not in c.metadata.get("tags", [])]
    return Result(left, frozenset(session.finished), frozenset(session.asked_exit), death)


def _death(process: Any) -> str:
    code = process.poll()
    if code is None:
        return "and how is not known"
    if code < 0:
        name = signal.Signals(-code).name
        hint = "; out of memory?" if name == "SIGKILL" else ""
        return f"killed by {name}{hint}"
    return f"it ended itself with exit code {code} (os._exit, or a crash of a library)"
