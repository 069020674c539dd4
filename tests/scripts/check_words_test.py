# SPDX-License-Identifier: Apache-2.0
"""scripts/check_words.py on a small tree."""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/check_words.py"


class CheckWordsTest(unittest.TestCase):
    def setUp(self):
        self.tree = pathlib.Path(tempfile.mkdtemp(prefix="kvspan words "))
        self.addCleanup(shutil.rmtree, self.tree, ignore_errors=True)

    def write(self, name, text):
        path = self.tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def check(self, *flags):
        done = subprocess.run([sys.executable, str(SCRIPT), *flags, str(self.tree)], capture_output=True, text=True)
        return done.returncode, done.stdout.splitlines()

    def test_pages_and_comments_are_searched_but_no_code(self):
        self.write("README.md", "Rows are coded.\n\n    rows are coded\n\n```\ncoded\n```\nThe flag `coded` and [a](coded.md).\n")
        self.write("src/a.cc", 'int coded = 0;  // a waiting row\nconst char* s = "nobody";\n// the key is turned back\n')
        self.write("data/text.md", "nobody\n")
        self.assertEqual(self.check(), (1, ["README.md:1: 'coded'; use: encoded, encode", "1 files, 1 findings"]))
        code, lines = self.check("--all")
        self.assertEqual((code, lines[-1]), (1, "2 files, 2 findings"))
        self.assertIn("src/a.cc:3: 'is turned'; use: rotated", lines)

    def test_plain_english_passes(self):
        self.write("README.md", "The first run holds; a turn of a conversation; positions are entropy-coded. It runs where it is.\n")
        self.assertEqual(self.check(), (0, ["1 files, 0 findings"]))

    def test_reviewed_uses_pass_and_stale_ones_are_found(self):
        self.write("README.md", "Nobody expects it. (nobody)\n")
        self.write("scripts/check_words_exceptions.txt", "# reviewed\nREADME.md: (nobody)\n")
        self.assertEqual(self.check()[0], 0)
        self.write("README.md", "Plain.\n")
        self.assertEqual(self.check(), (1, ["check_words_exceptions.txt: 'README.md: (nobody)' matches nothing",
                                            "1 files, 1 findings"]))

    def test_an_unknown_flag_prints_the_help(self):
        code, _ = self.check("--every")
        self.assertEqual(code, 1)


if __name__ == "__main__":
    unittest.main()
