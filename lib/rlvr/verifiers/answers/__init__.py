"""Answers as objects: ``notation`` cuts a text into tokens, ``reader`` makes a ``tree`` of them, and
``scalars``, ``ranges`` and ``labels`` compare parts of trees; ``numeric`` knows the values. Nothing here
imports sympy."""
