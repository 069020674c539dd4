# SPDX-License-Identifier: Apache-2.0
"""Every test of a build has its module and its build as labels: labels_test.py BUILD_FOLDER NAME_OF_BUILD

A test that has none would be run by `./test` where its program has not been built.
"""
import json
import pathlib
import subprocess
import sys
import unittest

TREE = pathlib.Path(__file__).resolve().parents[2]
FOLDER = BUILD = None


class LabelsTest(unittest.TestCase):
    def test_all_have_them(self):
        shown = subprocess.run(["ctest", "--test-dir", FOLDER, "--show-only=json-v1"], check=True, text=True, capture_output=True)
        tests = json.loads(shown.stdout)["tests"]
        modules = {path.name for path in (TREE / "tests").iterdir() if path.is_dir()}
        self.assertGreater(len(tests), 10)
        for test in tests:
            labels = {label for one in test["properties"] if one["name"] == "LABELS" for label in one["value"]}
            self.assertIn(BUILD, labels, test["name"])
            self.assertTrue(labels & modules, test["name"])
            self.assertLessEqual(labels, modules | {BUILD, "long"}, test["name"])


if __name__ == "__main__":
    FOLDER, BUILD = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main()
