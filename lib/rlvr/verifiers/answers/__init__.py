"""Answers as objects: ``notation`` cuts a text into tokens (``signs``), ``reader`` makes a ``tree`` of them
(``expressions``, ``marks``, ``quantities``), ``scalars``, ``ranges`` and ``labels`` compare parts of trees;
``numeric`` knows the values, ``words`` and ``units`` what stands behind a number. Nothing here imports sympy.
"""
