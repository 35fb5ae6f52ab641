"""What titles and notes say of the runs: embedded policies on generated problems, or language models.

Texts with braces are templates: whoever writes the note fills in the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Wording:
    """One text per place.

    Attributes:
        rollouts: what a training is made of; ``{train}`` is the section.
        settings: under the table of shared settings.
        sets_title, sets: of the paper's Table 1; ``{sizes}``.
        accuracy: what one accuracy is over.
        over_problems, over_seeds: how an interval over problems, or over training seeds, is made.
        classes, categories: of the tables of token classes and of token categories.
        trained: what the ablations were trained on; ``{lag}``, ``{problems}``.
    """

    rollouts: str
    settings: str
    sets_title: str
    sets: str
    accuracy: str
    over_problems: str
    over_seeds: str
    classes: str
    categories: str
    trained: str


_ROLLOUTS = (
    "{train.steps} steps of {train.prompts_per_step} prompts x {train.group_size} responses, "
    "{train.minibatches} updates each. "
)
_GAIN = " The gain is that of the averages, in percent of the other arm's."

EMBEDDED = Wording(
    rollouts=_ROLLOUTS
    + "The reward is on fresh problems, so it is an unbiased pass@1 of the policy that sampled.",
    settings="Settings, not measurements. The paper trains Qwen3-1.7B-Base and Qwen3-8B-Base; a laptop "
    "trains a model of some eighty thousand parameters.",
    sets_title="Pass@1 on held-out problems of six kinds",
    sets="Kinds and difficulties of the embedded problems instead of the paper's seven benchmarks: {sizes}."
    + _GAIN,
    accuracy="All held-out problems together; the sets are in the table that stands for the paper's Table 1.",
    over_problems="Student t over problems",
    over_seeds="over training seeds",
    classes="Token classes of the embedded vocabulary instead of the paper's eight.",
    categories="The paper's categories; those without a number do not occur in responses of the embedded "
    "task.",
    trained="Trained on rollouts {lag} steps old; {problems} held-out problems.",
)

LANGUAGE_MODELS = Wording(
    rollouts=_ROLLOUTS
    + "The reward is on problems of the training set, each of which comes again in every pass over it.",
    settings="Settings, not measurements.",
    sets_title="Pass@1 on the benchmarks, a mean over samples",
    sets="Mean over the samples of a problem, then over problems; every benchmark counts once in the "
    "average: {sizes}." + _GAIN,
    accuracy="Every benchmark counts once; each by itself is in the paper's Table 1.",
    over_problems="bootstrap over problems within benchmarks",
    over_seeds="Student t over training seeds",
    classes="Reasoning tokens are connectives and actions among the eight categories.",
    categories="The paper's categories, by rules on the token's string; those without a number do not occur.",
    trained="Trained on rollouts of the same step, as in the paper; {problems} problems, of which every "
    "benchmark counts once.",
)
