"""IBPO's counterfactual comparison: from the responses of a group to what a correction says about each.

Read it in the order in which a group walks through it:

1. :mod:`~rlvr.counterfactual.references` chooses, for every wrong response, what it is compared with.
2. The policy is shown both and writes corrections; engines do that, and a verifier grades them.
3. :mod:`~rlvr.counterfactual.alignment` says which tokens of the response a correction kept, and how far
   apart the two are.
4. :mod:`~rlvr.counterfactual.rewrite` finds corrections that are a new solution instead of a repair.
5. :mod:`rlvr.rewards` turns this into shaped rewards and token masks, :mod:`rlvr.objectives` into a loss.
6. :mod:`~rlvr.counterfactual.operators` has the comparison as an interface, with other operators for
   programs, whose distances are in :mod:`~rlvr.counterfactual.programs`.

Nothing here runs a model, a tokenizer or a program. docs/counterfactual.md tells the same story with the
sources and our choices.
"""
