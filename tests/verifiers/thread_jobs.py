"""What worker processes are given in the tests of callers from several threads."""

import os
import time


def run(job):
    """(seconds asleep, seconds of processor time): the worker's process id."""
    asleep, work = job
    time.sleep(asleep)
    end = time.process_time() + work
    while time.process_time() < end:
        pass
    return os.getpid()
