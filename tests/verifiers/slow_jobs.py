"""What worker processes are given in the tests of the pool."""

import os
import signal
import time


def run(job):
    """(what, value): ``value`` back, or a way of not coming back."""
    what, value = job
    if what == "sleep":
        time.sleep(value)
    elif what == "spin":
        while True:
            pass
    elif what == "one_operation":  # one call into C that holds the interpreter
        return 9**value % 10
    elif what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "raise":
        raise KeyError(value)
    elif what == "memory":
        return len(bytearray(value))
    elif what == "pid":
        return os.getpid()
    elif what == "no_kill":  # ignores the polite signals
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(value)
    return value
