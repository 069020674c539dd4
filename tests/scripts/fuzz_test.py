# SPDX-License-Identifier: Apache-2.0
"""scripts/fuzz.sh up to where it would build: its list, and what it refuses."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

TREE = pathlib.Path(__file__).resolve().parents[2]
TOOLS = ("bash", "dirname", "readlink", "sed", "cut", "paste", "grep", "awk", "uname", "tail", "cat", "env", "tr")


class Fuzz(unittest.TestCase):
    def fuzz(self, *arguments, **env):
        return subprocess.run([TREE / "scripts/fuzz.sh", *arguments], capture_output=True, text=True, timeout=60, env={**os.environ, **env})

    def test_every_target_is_listed(self):
        listed = [line.split()[0] for line in self.fuzz("--list").stdout.splitlines()]
        self.assertEqual(listed, sorted(path.stem for path in (TREE / "tests/fuzz/targets").glob("*.cc")))
        for line in self.fuzz("--list").stdout.splitlines():
            self.assertGreater(len(line.split()), 2, line)

    def test_every_target_has_a_corpus(self):
        for path in (TREE / "tests/fuzz/targets").glob("*.cc"):
            self.assertTrue(any((TREE / "tests/fuzz/corpus" / path.stem).iterdir()), path.stem)

    def test_wrong_arguments(self):
        for arguments, says in (((), "scripts/fuzz.sh TARGET SECONDS"), (("--nonsense",), "scripts/fuzz.sh --list"),
                                (("nothing", "5"), "target=nothing: there is no such target; supported: calibration, "),
                                (("recipe", "0"), "seconds=0: it is no number of seconds"), (("recipe",), "scripts/fuzz.sh --list")):
            done = self.fuzz(*arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""), arguments)
            self.assertIn(says, done.stderr)

    def test_without_clang_it_says_what_to_install(self):
        with tempfile.TemporaryDirectory() as folder:
            for tool in TOOLS:
                os.symlink(shutil.which(tool), pathlib.Path(folder) / tool)
            done = self.fuzz("recipe", "5", PATH=folder)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("clang-19 is missing; please install what Debian calls: clang-19 libclang-rt-19-dev", done.stderr)
            fake = pathlib.Path(folder) / "clang++-19"
            fake.write_text(f"#!/bin/sh\necho {folder}\n")
            fake.chmod(0o755)
            self.assertIn("please install what Debian calls: libclang-rt-19-dev", self.fuzz("recipe", "5", PATH=folder).stderr)


if __name__ == "__main__":
    unittest.main()
