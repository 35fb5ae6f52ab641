"""What runs in the child interpreters: standard library only, imported there as the package ``sandbox``.

``zygote`` forks a ``judge`` per program; the judge forks the ``box`` that runs the program, then reads the
tests. Expected values exist in the judge alone: box and judge exchange plain data (``codec``).
"""
