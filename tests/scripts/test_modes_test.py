# SPDX-License-Identifier: Apache-2.0
"""./test and ./test --all: what they build and which tests they choose, with stand-ins for the tools."""

import pathlib
import shutil
import subprocess
import unittest

from fakes import TREE, FakeToolsTest


class TestModesTest(FakeToolsTest):
    def setUp(self):
        super().setUp()
        self.tree = self.folder / "tree"
        (self.tree / "scripts").mkdir(parents=True)
        shutil.copy(TREE / "test", self.tree / "test")
        shutil.copy(TREE / "scripts/setup.sh", self.tree / "scripts/setup.sh")
        script = self.tree / "scripts/dependencies.sh"
        script.write_text(f'#!/bin/sh\necho "{self.folder}/deps${{KVSPAN_SANITIZE}}"\n')
        script.chmod(0o755)
        self.fake("cmake", f'''while [ "$1" != --preset ]; do shift; done
            echo "one two" >"{self.tree}/build/$2/short_targets"; touch "{self.tree}/build/$2/build.ninja"''')
        self.fake("ninja", "echo something to do")
        self.fake("ctest", 'echo "all cases: ${KVSPAN_TEST_ALL:-no}"; cat CTestTestfile.cmake')

    def run_script(self, *arguments):
        result = subprocess.run([self.tree / "test", *arguments], env=self.env, capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def built(self):
        """The targets of each build; the last call is the one that is no dry run."""
        return {pathlib.Path(call.split(" -C ")[1].split("/build/")[1].split()[0]).name: call.split("/build/")[1].split()[1:]
                for call in self.calls_of("ninja")}

    def test_a_plain_run_leaves_out_long_tests_and_most_sanitized_modules(self):
        output = self.run_script("-R", "codec")
        self.assertEqual(output, "all cases: no\nsubdirs(release asan)\n")
        self.assertEqual(self.built(), {"release": ["one", "two"], "asan": ["one", "two"]})
        self.assertIn("--label-exclude ^long$ -R codec", self.calls_of("ctest")[0])

    def test_all_builds_and_runs_everything(self):
        self.assertEqual(self.run_script("--all", "-L", "tsan"), "all cases: 1\nsubdirs(release asan tsan)\n")
        self.assertEqual(self.built(), {"release": ["all", "bench/all"], "asan": ["all"], "tsan": ["all"]})
        self.assertTrue(self.calls_of("ctest")[0].endswith("-L tsan"))
        self.assertNotIn("label-exclude", self.calls_of("ctest")[0])
        self.assertIn(f"{self.folder}/depsthread/prefix", self.calls_of("cmake")[-1])

    def test_help_builds_nothing(self):
        self.assertIn("./test --all", self.run_script("--help"))
        self.assertFalse(self.calls.exists())


if __name__ == "__main__":
    unittest.main()
