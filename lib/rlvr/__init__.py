"""Objectives, engines and analyses for reinforcement learning with verifiable rewards.

Read the package in the order the data walks: ``problems`` are answered by a policy
(``engines``), graded (``verifiers``), turned into ``advantages``, folded by an objective
(``ratios``, ``trust_regions``, ``losses``, ``objectives``) into a loss, and what that leaves
behind is evaluated (``evaluation``), analysed (``analysis``) and reported (``reporting``).
"""

__version__ = "0.1.0"
