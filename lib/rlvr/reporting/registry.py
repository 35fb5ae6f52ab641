"""What the papers state: every table, figure and checkable claim, read from ``data/paper/*.yaml``.

The registry decides which artifacts exist and in which order they are shown, so that one nobody built yet is
listed as such. ``None`` in a reported value means that the paper's text does not state it.
"""

from __future__ import annotations

import difflib
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from rlvr.config import load_yaml

PAPER_ORDER = ("nfpo", "ibpo", "mpo")

#: A stated value: a number or text, ``(mean, half width)``, or None where the text gives none.
StatedCell = float | int | str | tuple[float, float] | None


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Reported(_Entry):
    """Values as the paper states them: one row per label, one cell per column."""

    columns: tuple[str, ...]
    rows: dict[str, tuple[StatedCell, ...]]
    note: str = ""

    @model_validator(mode="after")
    def _rectangular(self) -> Reported:
        for label, cells in self.rows.items():
            if len(cells) != len(self.columns):
                raise ValueError(f"row {label!r} has {len(cells)} cells for {len(self.columns)} columns")
        return self


class ArtifactEntry(_Entry):
    """A table or figure of a paper, or an extra of this project."""

    id: str
    kind: Literal["table", "figure"]
    title: str
    reported: Reported | None = None


class ClaimEntry(_Entry):
    """A statement of a paper that an experiment at some scale can support or contradict."""

    id: str
    statement: str


class Paper(_Entry):
    """One file of the registry."""

    paper: str
    title: str
    arxiv: str
    artifacts: tuple[ArtifactEntry, ...]
    claims: tuple[ClaimEntry, ...]
    extras: tuple[ArtifactEntry, ...] = ()  # of this project, not in the paper

    @model_validator(mode="after")
    def _ids(self) -> Paper:
        ids = [e.id for e in (*self.artifacts, *self.extras, *self.claims)]
        repeated = sorted({i for i in ids if ids.count(i) > 1})
        if repeated:
            raise ValueError(f"ids {repeated} appear more than once")
        foreign = [i for i in ids if not i.startswith(f"{self.paper}-")]
        if foreign:
            raise ValueError(f"ids {foreign} do not start with '{self.paper}-'")
        misplaced = [e.id for e in self.extras if not e.id.startswith(f"{self.paper}-x")]
        if misplaced:
            raise ValueError(f"extras {misplaced} do not start with '{self.paper}-x'")
        return self


class Registry:
    """All papers, with look-up by id."""

    def __init__(self, papers: list[Paper]):
        self.papers = tuple(papers)
        self._artifacts = {e.id: (p.paper, e) for p in papers for e in (*p.artifacts, *p.extras)}
        self._claims = {e.id: (p.paper, e) for p in papers for e in p.claims}
        self._extras = {e.id for p in papers for e in p.extras}

    def artifact(self, id: str) -> ArtifactEntry:
        """The artifact with this id; ValueError with the nearest ids if there is none."""
        return self._find(self._artifacts, id, "artifact")[1]

    def claim(self, id: str) -> ClaimEntry:
        """The claim with this id; ValueError with the nearest ids if there is none."""
        return self._find(self._claims, id, "claim")[1]

    def paper_of(self, id: str) -> str:
        """Key of the paper that an artifact or claim belongs to."""
        return self._find({**self._artifacts, **self._claims}, id, "artifact or claim")[0]

    def is_extra(self, id: str) -> bool:
        """Whether the artifact is this project's own and in no paper."""
        return id in self._extras

    @staticmethod
    def _find(table: dict, id: str, what: str):
        if id in table:
            return table[id]
        near = difflib.get_close_matches(id, table, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(table)}"
        raise ValueError(f"id={id!r} is no {what} of the registry data/paper/*.yaml; {hint}")


def registry_dir() -> Path:
    """``data/paper`` of the repository: above the working directory, else above this source file."""
    here = Path.cwd()
    for root in (here, *here.parents, *Path(__file__).resolve().parents):
        if (root / "data" / "paper" / "nfpo.yaml").is_file():
            return root / "data" / "paper"
    raise FileNotFoundError(f"data/paper/nfpo.yaml is in no folder above {here} nor above {Path(__file__)}")


def load_registry(directory: str | Path | None = None) -> Registry:
    """Read every ``*.yaml`` of the registry, in the order NFPO, IBPO, MPO, then by name.

    Raises:
        FileNotFoundError: the directory holds no YAML file.
        ValueError: a file is not a valid list of artifacts and claims; names the file and field.
    """
    return _load(Path(directory if directory is not None else registry_dir()).resolve())


@lru_cache(maxsize=4)
def _load(directory: Path) -> Registry:
    files = sorted(directory.glob("*.yaml"), key=lambda f: (_rank(f.stem), f.stem))
    if not files:
        raise FileNotFoundError(f"registry {directory} holds no *.yaml")
    papers = []
    for file in files:
        try:
            papers.append(Paper.model_validate(load_yaml(file)))
        except ValidationError as error:
            lines = [f"  {'.'.join(map(str, e['loc'])) or '(file)'}: {e['msg']}" for e in error.errors()]
            raise ValueError(f"{file.name} is not a valid paper registry:\n" + "\n".join(lines)) from None
    return Registry(papers)


def _rank(paper: str) -> int:
    return PAPER_ORDER.index(paper) if paper in PAPER_ORDER else len(PAPER_ORDER)
