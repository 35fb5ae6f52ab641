"""The comparison operator ``M`` of IBPO as an interface: what a correction says about a response.

The framework leaves open how trajectories are compared [text: IBPO 3.1]; its experiments use token edit
alignment for everything, and name signals of programs as extensions [text: G.3]. An operator sees a problem,
a response, its references and its corrections, and answers which tokens were kept and how far apart they are;
:mod:`~rlvr.counterfactual.rewrite` and :mod:`rlvr.rewards` do the rest. What an operator may look at comes as
data (:class:`Candidate`): nothing is run, generated or graded here.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from rlvr.checks import check_choice, describe, refuse
from rlvr.counterfactual import programs
from rlvr.counterfactual.alignment import (
    INSERTIONS,
    Ids,
    Insertions,
    align_batch,
    reference_distances,
)
from rlvr.registry import suggest
from rlvr.tensor_checks import check_mask


@dataclass(frozen=True)
class Candidate:
    """A response, a reference or a correction, with what the operators for programs look at."""

    ids: Ids  # its tokens, without padding
    program: str | None = None  # of rlvr.verifiers.programs.extract_program
    tests: Mapping[str, bool | None] | None = None  # of rlvr.counterfactual.programs.outcomes, or a task's


class Comparison(NamedTuple):
    """One response (dimensions [C, T] and [C]), or of :func:`compare_batch` a batch (with B in front)."""

    unchanged: Tensor  # bool, tokens of the response that the correction kept
    distance: Tensor  # float64, d(y, y_hat) in [0, 1]; NaN without a correction
    reference_distance: Tensor  # float64, d(y_hat, y_ref) to the nearest reference; NaN without one


class Operator(Protocol):
    """What an operator has to be; :func:`register_operator` gives it a name."""

    def compare(
        self,
        problem: Any,
        response: Candidate,
        references: Sequence[Candidate],
        corrected: Sequence[Candidate | None],
    ) -> Comparison:
        """``corrected``: C of them, None is missing. ``problem`` is handed through; ours do not read it."""
        ...


@dataclass(frozen=True)
class CompareAndCorrect:
    """The operator of the experiments: token edit alignment [text: IBPO G.1 to G.3]."""

    insertions: Insertions = "next"  # as in rlvr.counterfactual.alignment.unchanged_tokens

    def __post_init__(self) -> None:
        check_choice("insertions", self.insertions, INSERTIONS)

    def compare(
        self,
        problem: Any,
        response: Candidate,
        references: Sequence[Candidate],
        corrected: Sequence[Candidate | None],
    ) -> Comparison:
        found = [None if candidate is None else candidate.ids for candidate in corrected]
        unchanged, distance = align_batch([response.ids], [found], self.insertions)
        nearest = reference_distances([found], [[reference.ids for reference in references]])
        return Comparison(unchanged[0], distance[0], nearest[0])


@dataclass(frozen=True)
class ProgramOperator(CompareAndCorrect):
    """Distances of programs; the tokens that were kept stay those of the alignment [choice].

    Where a correction, its response or one of its references has nothing to compare (no program, no syntax
    tree, no test in common), the distances of that correction are those of the tokens, both of them, so that
    the rewrite test never compares two scales [choice].
    """

    measure: ClassVar[Callable[[Candidate, Candidate], float]]

    def compare(
        self,
        problem: Any,
        response: Candidate,
        references: Sequence[Candidate],
        corrected: Sequence[Candidate | None],
    ) -> Comparison:
        tokens = super().compare(problem, response, references, corrected)
        distance, nearest = tokens.distance.clone(), tokens.reference_distance.clone()
        for c, candidate in enumerate(corrected):
            if candidate is None:
                continue
            found = [type(self).measure(candidate, other) for other in (response, *references)]
            if not any(map(math.isnan, found)):
                distance[c] = found[0]
                nearest[c] = min(found[1:], default=math.nan)
        return Comparison(tokens.unchanged, distance, nearest)


@dataclass(frozen=True)
class SyntaxTrees(ProgramOperator):
    """:func:`rlvr.counterfactual.programs.tree_distance` of the programs [text: G.3, AST distance]."""

    @staticmethod
    def measure(a: Candidate, b: Candidate) -> float:
        return programs.tree_distance(a.program, b.program)


@dataclass(frozen=True)
class ControlFlow(ProgramOperator):
    """:func:`rlvr.counterfactual.programs.control_flow_distance` [text: G.3, control-flow similarity]."""

    @staticmethod
    def measure(a: Candidate, b: Candidate) -> float:
        return programs.control_flow_distance(a.program, b.program)


@dataclass(frozen=True)
class FailingTests(ProgramOperator):
    """Share of tests with another verdict [text: G.3, failing-test localization].

    An accepted correction passes all tests, so its distance is the share that the response failed: near
    misses count as repairable, programs that failed most tests as replaced.
    """

    @staticmethod
    def measure(a: Candidate, b: Candidate) -> float:
        return programs.outcome_distance(a.tests, b.tests)


_OPERATORS: dict[str, Callable[..., Operator]] = {
    "compare_and_correct": CompareAndCorrect,
    "syntax_trees": SyntaxTrees,
    "control_flow": ControlFlow,
    "failing_tests": FailingTests,
}


def list_operators() -> list[str]:
    """Names that :func:`get_operator` knows."""
    return sorted(_OPERATORS)


def register_operator(name: str, factory: Callable[..., Operator]) -> None:
    """Make ``get_operator(name, **options)`` call ``factory(**options)``; a name can be given once.

    Recipes give it ``insertions`` if it takes that (:func:`fitting_operator`).
    """
    if not isinstance(name, str) or not name or name in _OPERATORS:
        raise refuse("name", name, f"new names, other than {', '.join(list_operators())}")
    if not callable(factory):
        raise refuse("factory", factory, "functions and classes that make an operator")
    _OPERATORS[name] = factory


def get_operator(name: str, **options: Any) -> Operator:
    """The operator of that name.

    Raises:
        ValueError: unknown name (the message lists those that are allowed) or option.
    """
    if name not in _OPERATORS:
        raise ValueError(f"operator {suggest(name, _OPERATORS)}")
    try:
        return _OPERATORS[name](**options)
    except TypeError as error:
        raise ValueError(f"options={options} of operator {name!r}: {error}") from None


def fitting_operator(name: str, **options: Any) -> Operator:
    """:func:`get_operator` with those of ``options`` that the operator takes.

    Settings of a recipe are of all operators; one that only compares need not know them.

    Raises:
        ValueError: as :func:`get_operator`; an option that the operator does not take and that says something
            else than :class:`CompareAndCorrect` does by itself.
    """
    factory = _OPERATORS.get(name)
    if factory is None:
        return get_operator(name)  # raises
    try:
        parameters = inspect.signature(factory).parameters
    except ValueError:  # a callable written in C may not say what it takes
        parameters = {}
    every = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    by_name = {n for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    taken = {n: value for n, value in options.items() if every or n in by_name}
    for option in options.keys() - taken.keys():
        if options[option] != (usual := getattr(CompareAndCorrect, option, None)):
            raise ValueError(
                f"{option}={options[option]!r}: operator {name!r} does not take it; allowed is {usual!r}"
            )
    return get_operator(name, **taken)


def compare_batch(
    operator: str | Operator,
    problems: Sequence[Any],
    responses: Sequence[Candidate],
    references: Sequence[Sequence[Candidate]],
    corrected: Sequence[Sequence[Candidate | None]],
    response_mask: Tensor | None = None,
) -> Comparison:
    """``operator`` on B responses: ``unchanged`` [B, C, T], ``distance`` and ``reference_distance`` [B, C].

    Args:
        operator: name or operator.
        problems, responses, references, corrected: one entry per response; references and corrections may
            differ in number, C is the largest number of corrections, missing ones have False and NaN.
        response_mask: [B, T], where each response's tokens stand; None: padding on the right.
    """
    operator = get_operator(operator) if isinstance(operator, str) else operator
    sizes = {
        "problems": len(problems),
        "responses": len(responses),
        "references": len(references),
        "corrected": len(corrected),
    }
    if len(set(sizes.values())) > 1:
        raise ValueError(f"{sizes}: allowed is one entry per response in each")
    if response_mask is None:
        lengths = torch.tensor([len(response.ids) for response in responses], dtype=torch.long)
        width = int(lengths.max()) if len(lengths) else 0
        places = torch.arange(width) < lengths.unsqueeze(-1)
    else:
        check_mask("response_mask", response_mask)
        places = response_mask.bool()
    count = max(map(len, corrected), default=0)
    shape, device = (len(responses), count), places.device
    out = Comparison(
        torch.zeros(*shape, places.shape[1], dtype=torch.bool, device=device),
        torch.full(shape, math.nan, dtype=torch.float64, device=device),
        torch.full(shape, math.nan, dtype=torch.float64, device=device),
    )
    for row, parts in enumerate(zip(problems, responses, references, corrected, strict=True)):
        found = operator.compare(*parts)
        number = len(parts[3])
        if found.unchanged.shape != (number, int(places[row].sum())):
            raise ValueError(
                f"unchanged={describe(found.unchanged)} of response {row}: allowed is bool "
                f"[{number}, {int(places[row].sum())}], its corrections and tokens"
            )
        out.unchanged[row, :number, places[row]] = found.unchanged.to(device)
        out.distance[row, :number] = found.distance.to(device)
        out.reference_distance[row, :number] = found.reference_distance.to(device)
    return out
