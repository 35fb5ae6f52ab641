"""Check the recipes of a scale before anything runs."""

from __future__ import annotations

import torch

from rlvr import objectives
from rlvr.config import Scale


def check_recipes(scale: Scale) -> None:
    """Every recipe names an objective and parameters that it takes, with values that it allows.

    Raises:
        ValueError: names the recipe, and what its objective says.
    """
    one = torch.ones(1, 1)
    for arm, recipe in scale.recipes.items():
        try:
            objective = objectives.get(recipe.objective)
            if objective.needs:
                raise ValueError(
                    f"objective={objective.name!r} needs {', '.join(objective.needs)}, which the local "
                    "engine does not make; without them it would be another objective"
                )
            objective(-one, -one, one[0], one, loss_agg_mode=scale.train.loss_agg_mode, **recipe.parameters)
        except (ValueError, TypeError) as error:
            raise ValueError(f"recipes.{arm}: {error}") from None
