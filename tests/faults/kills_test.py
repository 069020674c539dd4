# SPDX-License-Identifier: Apache-2.0
"""kvspan is killed (SIGKILL) at random moments while it saves, loads, calibrates, pulls, imports and saves a chat: afterwards the old or
the new file is there. A few moments of each; scripts/kill_test.py tries as many as it is told.

KVSPAN_PROGRAM in the environment; KVSPAN_TEST_ALL=1: 20 moments of each operation, not 3."""

import os
import pathlib
import random
import signal
import subprocess
import tempfile
import time
import unittest

from operations import OPERATIONS, Wrong, operation


def kill_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:  # it has ended
        pass


def killed_at(made, seconds):
    """Starts the operation and kills it, and all that it started, after so long. Returns whether it was still at work."""
    made.reset()
    process = made.start()
    try:
        process.communicate(made.stdin, timeout=seconds)
        return False
    except subprocess.TimeoutExpired:
        return True
    finally:
        kill_group(process)
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            stream.close()


def kills(made, count, chance):
    """`count` kills at moments spread evenly over the operation; how many came before its end."""
    started = time.monotonic()
    made.reset()
    made.run()
    whole, at_work = time.monotonic() - started, 0
    for number in range(count):
        moment = whole * (number + chance.random()) / count
        if killed_at(made, moment):
            at_work += 1
        else:  # the machine is less busy than it was
            whole = max(0.8 * whole, 0.01)
        try:
            made.check()
        except Wrong as wrong:
            raise Wrong(f"killed after {moment:.4f} s, kill {number + 1} of {count}: {wrong}") from None
    return at_work


class Kills(unittest.TestCase):
    pass


def test_of(name):
    def test(self):
        count = 20 if os.environ.get("KVSPAN_TEST_ALL") else 3
        with tempfile.TemporaryDirectory(prefix="kvspan-kills-") as folder:
            with operation(name, os.environ["KVSPAN_PROGRAM"], pathlib.Path(folder)) as made:
                kills(made, count, random.Random(name))
    return test


for each in OPERATIONS:
    setattr(Kills, f"test_{each}", test_of(each))

if __name__ == "__main__":
    unittest.main()
