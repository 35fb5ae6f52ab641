"""Check the recipes of a scale before anything runs."""

from __future__ import annotations

import torch

from rlvr import objectives
from rlvr.checks import check_choice
from rlvr.config import Scale
from rlvr.counterfactual.operators import fitting_operator
from rlvr.counterfactual.prompts import TOKEN_TEMPLATES
from rlvr.engines.local.methods import resolve
from rlvr.problems import get_task


def check_recipes(scale: Scale) -> None:
    """Every recipe names an objective that the engines can train, with parameters that it takes; and where
    verl trains, the arms have an equal as a verl job.

    Raises:
        ValueError: names the recipe, and what its objective says.
    """
    one = torch.ones(1, 1)
    for arm, recipe in scale.recipes.items():
        try:
            train, parameters = resolve(scale.train, recipe)
            objective = objectives.get(recipe.objective)
            objective(-one, -one, one[0], one, loss_agg_mode=train.loss_agg_mode, **parameters)
            if given := recipe.counterfactual or recipe.self_correction:
                check_choice("template", given.template, tuple(TOKEN_TEMPLATES))
            if recipe.counterfactual:
                if (
                    recipe.counterfactual.operator == "failing_tests"
                    and not get_task(scale.problems.task).outcomes
                ):
                    raise ValueError(
                        f"operator='failing_tests': task {scale.problems.task!r} has no tests; allowed are "
                        "tasks whose responses are run"
                    )
                own = recipe.counterfactual
                fitting_operator(own.operator, insertions=own.insertions)
        except (ValueError, TypeError) as error:
            raise ValueError(f"recipes.{arm}: {error}") from None
    if scale.engine == "verl":
        from rlvr.engines.jobs.embedded import experiment_of

        for arm in scale.arms:
            experiment_of(scale, arm, scale.seeds[0])
