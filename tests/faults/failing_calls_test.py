# SPDX-License-Identifier: Apache-2.0
"""Every write, fsync, rename, creation of a file and mmap fails once, in turn, and all starts of threads fail, while kvspan saves, loads, calibrates, pulls,
imports and saves a chat. Each run ends with an error of one kind or another or gets along without; afterwards the old or the new file is
there, and nothing else.

KVSPAN_PROGRAM, KVSPAN_FAIL_LIBRARY (fail_calls.c) in the environment; KVSPAN_TEST_ALL=1: all calls, not a few of each kind."""

import os
import pathlib
import re
import struct
import tempfile
import unittest

from operations import OPERATIONS, Wrong, operation

KINDS = ("write", "fsync", "rename", "create", "mmap", "thread")
FEW = 4  # calls of a kind that fail in the short test: the first, some between and the last


def numbers(kind, count):
    if kind == "thread":  # ggml ends the program if it finds fewer than there were when it was asked for
        return range(1, min(count, 1) + 1)
    if os.environ.get("KVSPAN_TEST_ALL") or count <= FEW:
        return range(1, count + 1)
    return sorted({1, count // 3, 2 * count // 3, count})


class Orders:
    """The file that fail_calls.c reads: kind, the call that fails, calls so far."""

    def __init__(self, path):
        self.path = path

    def give(self, kind, at):
        self.path.write_bytes(struct.pack("<16sqq", kind.encode(), at, 0))

    def calls(self):
        return struct.unpack("<16sqq", self.path.read_bytes())[2]

    def environment(self):
        return {"LD_PRELOAD": os.environ["KVSPAN_FAIL_LIBRARY"], "KVSPAN_FAIL_CALLS": str(self.path)}


class FailingCalls(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="kvspan-faults-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.orders = Orders(self.folder / "orders")

    def disturbed(self, made, kind, at):
        self.orders.give(kind, at)
        made.reset()
        done = made.run(**self.orders.environment())
        return done, self.orders.calls()

    def check(self, made, kind, at, done):
        errors = done.stderr
        if done.returncode < 0:
            raise Wrong(f"it is ended by signal {-done.returncode}: {errors[-500:]}")
        if "Traceback" in errors:
            raise Wrong(f"it ends with a traceback: {errors[-700:]}")
        if done.returncode != 0 and not re.search(r"(?m)^(kvspan|error): \S", errors):
            raise Wrong(f"it ends with {done.returncode} and says only {errors!r}")
        made.check(done)

    def each_call_fails(self, name):
        with operation(name, os.environ["KVSPAN_PROGRAM"], self.folder) as made:
            for kind in KINDS:
                if kind == "mmap" and not made.maps_files:
                    continue
                _, count = self.disturbed(made, kind, 0)
                for at in numbers(kind, count):
                    with self.subTest(operation=name, kind=kind, call=f"{at} of {count}"):
                        done, _ = self.disturbed(made, kind, at)
                        try:
                            self.check(made, kind, at, done)
                        except Wrong as wrong:
                            self.fail(f"{wrong} (exit code {done.returncode}: {done.stderr[-300:]!r})")


for each in OPERATIONS:
    setattr(FailingCalls, f"test_{each}", lambda self, name=each: self.each_call_fails(name))

if __name__ == "__main__":
    unittest.main()
