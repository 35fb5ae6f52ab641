"""The commands of ``rlvr``, one module each; :mod:`rlvr.cli` joins them.

Importing one costs little: what a command needs is imported when it runs.
"""
