# SPDX-License-Identifier: Apache-2.0
"""A folder for one test with programs that stand in for real ones, found first on PATH."""

import os
import pathlib
import shutil
import tempfile
import unittest

TREE = pathlib.Path(__file__).resolve().parents[2]


class FakeToolsTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvspan test "))  # with a space in it
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.bin = self.folder / "bin"
        self.bin.mkdir()
        self.calls = self.folder / "calls"
        self.env = {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}", "CALLS": str(self.calls)}

    def fake(self, name, body):
        """A shell script called `name`; every call appends a line to the file of calls."""
        path = self.bin / name
        path.write_text(f'#!/bin/sh\nprintf "%s\\n" "{name} $*" >>"$CALLS"\n{body}\n')
        path.chmod(0o755)

    def calls_of(self, name):
        if not self.calls.exists():
            return []
        return [line for line in self.calls.read_text().splitlines() if line.split()[0] == name]
