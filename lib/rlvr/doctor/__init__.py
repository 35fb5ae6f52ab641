"""Whether this environment can do its work: ``rlvr doctor``.

Each check is a function of facts, without a look at the machine: ``packages`` and ``machine`` and
``services`` hold them, ``look`` gathers the facts and calls them all.
"""
