"""How a stage runs: one notebook in, one complete output folder out, or an error that says why.

`stage` is the command line, `execute` the order of events; `parameters` reads and checks what a notebook
declares, `processes` keeps one runner per output and no orphans, `normalise` makes the executed notebook the
same bytes every time, `progress` tells how far it is, `lint` holds the rules for notebooks.
"""
